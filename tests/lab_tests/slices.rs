//! semantics.md, "Objects we take": EndpointSlices and their endpoints.

use lab::manifests::{service, slice};
use lab::{Cast, SharedLab, Transport};
use serde_json::{Value, json};

static CAST: SharedLab<Cast> = SharedLab::new(Cast::new);

#[test]
fn absent_fields_have_the_meaning_that_the_api_gives_them() {
    // K28
    CAST.story(|cast| {
        let (a, b, c) = (&cast.b1, &cast.b2, &cast.b3);
        // All conditions nil: ready and serving.
        cast.apply(&cast.service("nil-conditions", "10.96.3.10"))?;
        cast.apply(&cast.slice("nil-conditions", "nil-conditions").endpoint(a))?;
        // Ready nil is true, even beside terminating.
        cast.apply(&cast.service("nil-ready", "10.96.3.11"))?;
        cast.apply(
            &cast
                .slice("nil-ready", "nil-ready")
                .endpoint(a)
                .set("conditions", json!({ "terminating": true }))
                .endpoint(b)
                .ready(),
        )?;
        // No `conditions` at all, and serving nil beside ready false: serving,
        // but only a fallback if it terminates.
        cast.apply(&cast.service("no-conditions", "10.96.3.12"))?;
        cast.apply(
            &cast
                .slice("no-conditions", "no-conditions")
                .endpoint(a)
                .set("conditions", Value::Null)
                .endpoint(b)
                .set("conditions", json!({ "ready": false, "terminating": true })),
        )?;
        // Port without name and protocol; a port without number and with number 0.
        cast.apply(
            &service("nil-port")
                .cluster_ip("10.96.3.13")
                .port("", 80, 8080),
        )?;
        cast.apply(
            &slice("nil-port", "nil-port")
                .raw_port(json!({ "port": 8080 }))
                .raw_port(json!({ "name": "numberless" }))
                .raw_port(json!({ "name": "zero", "port": 0 }))
                .ready_endpoints([a]),
        )?;
        cast.apply(
            &service("no-number")
                .cluster_ip("10.96.3.14")
                .port("numberless", 80, 8080)
                .port("zero", 81, 8080),
        )?;
        cast.apply(
            &slice("no-number", "no-number")
                .raw_port(json!({ "name": "numberless", "protocol": "TCP" }))
                .raw_port(json!({ "name": "zero", "port": 0 }))
                .ready_endpoints([a]),
        )?;
        // Only the first address counts.
        cast.apply(&cast.service("two-addresses", "10.96.3.15"))?;
        cast.apply(
            &cast
                .slice("two-addresses", "two-addresses")
                .raw_endpoint(json!({ "addresses": [a.v4().to_string(), b.v4().to_string()] })),
        )?;
        // Lists that are null, next to a slice that is not.
        cast.apply(&cast.service("null-lists", "10.96.3.16"))?;
        cast.apply(
            &cast
                .slice("null-endpoints", "null-lists")
                .field("endpoints", Value::Null),
        )?;
        cast.apply(
            &cast
                .slice("null-ports", "null-lists")
                .endpoint(a)
                .field("ports", Value::Null),
        )?;
        cast.apply(&cast.slice("whole", "null-lists").endpoint(c).ready())?;
        cast.settle()?;

        let client = &cast.client;
        client.many_tcp("10.96.3.10:80", 20)?.only_by(&["b1"])?;
        client.many_udp("10.96.3.10:53", 20)?.only_by(&["b1"])?;
        client
            .many_tcp("10.96.3.11:80", 40)?
            .only_by(&["b1", "b2"])?;
        client.many_tcp("10.96.3.12:80", 40)?.only_by(&["b1"])?;
        client.many_tcp("10.96.3.13:80", 20)?.only_by(&["b1"])?;
        client.tcp("10.96.3.14:80")?.refused()?;
        client.tcp("10.96.3.14:81")?.refused()?;
        client.many_tcp("10.96.3.15:80", 40)?.only_by(&["b1"])?;
        client.many_tcp("10.96.3.16:80", 40)?.only_by(&["b3"])
    });
}

#[test]
fn ports_join_by_name_and_not_by_number() {
    CAST.story(|cast| {
        cast.apply(
            &service("names")
                .cluster_ip("10.96.3.20")
                .port("a", 80, 8080)
                .port("b", 81, 8080),
        )?;
        cast.apply(
            &slice("names-1", "names")
                .port("a", 8080)
                .ready_endpoints([&cast.b1]),
        )?;
        cast.apply(
            &slice("names-2", "names")
                .port("b", 8080)
                .ready_endpoints([&cast.b2]),
        )?;
        cast.settle()?;
        cast.client
            .many_tcp("10.96.3.20:80", 30)?
            .only_by(&["b1"])?;
        cast.client.many_tcp("10.96.3.20:81", 30)?.only_by(&["b2"])
    });
}

#[test]
fn unusable_addresses_are_rejected_one_by_one() {
    CAST.story(|cast| {
        cast.apply(&cast.service("victim", "10.96.3.25"))?;
        cast.apply(&cast.ready("victim", &[&cast.b1]))?;
        cast.apply(&cast.service("bad", "10.96.3.26"))?;
        let bad = [
            "127.0.0.1",
            "0.0.0.0",
            "169.254.1.1",
            "224.0.0.1",
            "10.96.3.25",
        ];
        let slice = bad.iter().fold(cast.slice("bad", "bad"), |slice, ip| {
            slice.address(ip).ready()
        });
        cast.apply(&slice.endpoint(&cast.b2).ready())?;
        // A node's address is fine: that is a pod of the host's network.
        let host_pod = cast.node("n2").process("host-pod")?.serve(8090)?;
        cast.apply(
            &service("host-net")
                .cluster_ip("10.96.3.27")
                .port("http", 80, 8090),
        )?;
        cast.apply(
            &lab::manifests::slice("host-net", "host-net")
                .port("http", 8090)
                .ready_endpoints([&host_pod]),
        )?;
        // Slices of names are no backends.
        cast.apply(
            &cast
                .slice("fqdn", "bad")
                .field("addressType", json!("FQDN"))
                .address("example.test")
                .ready(),
        )?;
        cast.settle()?;
        cast.client
            .many_tcp("10.96.3.26:80", 60)?
            .only_by(&["b2"])?;
        cast.client
            .many_tcp("10.96.3.27:80", 20)?
            .only_by(&["host-pod"])
    });
}

#[test]
fn an_endpoint_that_moves_between_slices_is_never_missing() {
    // K30
    CAST.story(|cast| {
        cast.apply(&cast.service("mover", "10.96.3.30"))?;
        let (s1, s2, s3) = ("mover-1", "mover-2", "mover-3");
        let full = |name: &str| cast.slice(name, "mover").endpoint(&cast.b1).ready();
        let empty = |name: &str| cast.slice(name, "mover");
        cast.apply(&full(s1))?;
        cast.settle()?;
        let held = cast.client.hold_tcp("10.96.3.30:80")?;
        let load = cast.host().load(Transport::Tcp, "10.96.3.30:80", 200)?;
        // Added to the second before the first drops it.
        cast.apply(&full(s2))?;
        cast.settle()?;
        cast.apply(&empty(s1))?;
        cast.settle()?;
        // The first slice goes away as an object after the second has it.
        cast.apply(&full(s1))?;
        cast.settle()?;
        cast.delete(&full(s2))?;
        cast.settle()?;
        // In three slices, then in one less at a time.
        cast.apply(&full(s2))?;
        cast.apply(&full(s3))?;
        cast.settle()?;
        cast.apply(&empty(s1))?;
        cast.settle()?;
        cast.apply(&empty(s3))?;
        cast.settle()?;
        load.stop()?.only_by(&["b1"])?;
        held.talk("still")?.answered_by("b1")?;
        cast.apply(&empty(s2))?;
        cast.settle()?;
        cast.client.tcp("10.96.3.30:80")?.refused()?;
        held.talk("and still")?.answered_by("b1")
    });
}

#[test]
fn an_endpoint_in_two_slices_counts_once() {
    // K30, shares
    CAST.story(|cast| {
        cast.apply(&cast.service("twice", "10.96.3.31").internal_local())?;
        cast.apply(&cast.service("thrice", "10.96.3.32"))?;
        cast.apply(
            &cast
                .slice("thrice-1", "thrice")
                .ready_endpoints([&cast.b1, &cast.b2, &cast.b3]),
        )?;
        cast.apply(&cast.slice("thrice-2", "thrice").ready_endpoints([&cast.b1]))?;
        cast.apply(&cast.slice("thrice-3", "thrice").ready_endpoints([&cast.b1]))?;
        // The usable copy wins, and the local one makes it local.
        cast.apply(
            &cast
                .slice("twice-1", "twice")
                .endpoint(&cast.b1)
                .not_ready(),
        )?;
        cast.apply(
            &cast
                .slice("twice-2", "twice")
                .endpoint(&cast.b1)
                .ready()
                .without_node(),
        )?;
        cast.settle()?;
        let counts = cast.client.many_tcp("10.96.3.32:80", 3000)?;
        counts.only_by(&["b1", "b2", "b3"])?;
        counts.even_within(0.2)?;
        cast.client.many_tcp("10.96.3.31:80", 20)?.only_by(&["b1"])
    });
}

#[test]
fn slices_join_by_label_and_namespace_only() {
    // K38
    CAST.story(|cast| {
        cast.apply(&cast.service("web", "10.96.3.38"))?;
        cast.apply(&cast.service("api", "10.96.3.39"))?;
        let label = "kubernetes.io/service-name";
        cast.apply(
            &cast
                .slice("web-anonymous", "web")
                .label(label, Value::Null)
                .ready_endpoints([&cast.b1]),
        )?;
        cast.apply(&cast.slice("web", "").ready_endpoints([&cast.b1]))?;
        cast.apply(
            &cast
                .slice("web-elsewhere", "web")
                .in_namespace("other")
                .ready_endpoints([&cast.b1]),
        )?;
        cast.settle()?;
        cast.client.tcp("10.96.3.38:80")?.refused()?;

        let moving = |service: &str| cast.slice("moving", service).ready_endpoints([&cast.b2]);
        cast.apply(&moving("web"))?;
        cast.apply(&cast.slice("web-owner", "api").ready_endpoints([&cast.b3]))?;
        cast.settle()?;
        cast.client
            .many_tcp("10.96.3.38:80", 20)?
            .only_by(&["b2"])?;
        cast.client
            .many_tcp("10.96.3.39:80", 20)?
            .only_by(&["b3"])?;

        cast.apply(&moving("api"))?;
        cast.settle()?;
        cast.client.tcp("10.96.3.38:80")?.refused()?;
        cast.client
            .many_tcp("10.96.3.39:80", 40)?
            .only_by(&["b2", "b3"])?;

        // A slice that comes before its Service.
        cast.apply(&cast.slice("early", "early").ready_endpoints([&cast.b1]))?;
        cast.settle()?;
        cast.apply(&cast.service("early", "10.96.3.40"))?;
        cast.settle()?;
        cast.client.tcp("10.96.3.40:80")?.answered_by("b1")
    });
}
