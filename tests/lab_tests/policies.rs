//! semantics.md, "Which endpoints": policies, conditions, hints.

use anyhow::Result;
use lab::{Cast, Dial, SharedLab, Transport, manifests};
use serde_json::json;
use std::time::Duration;

static CAST: SharedLab<Cast> = SharedLab::new(Cast::new);

#[test]
fn internal_traffic_policy_local_never_leaves_the_node() {
    CAST.story(|cast| {
        cast.apply(
            &cast
                .service("itp", "10.96.2.1")
                .lb_ip("198.51.100.31")
                .node_port(30201)
                .internal_local(),
        )?;
        cast.apply(&cast.ready("itp", &[&cast.b1, &cast.b2, &cast.b3]))?;
        cast.settle()?;
        for client in cast.insiders() {
            client.many_tcp("10.96.2.1:80", 30)?.only_by(&["b1"])?;
            client.many_udp("10.96.2.1:53", 30)?.only_by(&["b1"])?;
            // It concerns the ClusterIP only.
            client
                .many_tcp("198.51.100.31:80", 60)?
                .only_by(&["b1", "b2", "b3"])?;
            client
                .many_udp("192.0.2.11:30201", 60)?
                .only_by(&["b1", "b2", "b3"])?;
        }
        let other = cast.node("n2").pod("itp-other")?;
        other.many_tcp("10.96.2.1:80", 30)?.only_by(&["b2"])?;

        cast.apply(&cast.ready("itp", &[&cast.b2, &cast.b3]))?;
        cast.settle()?;
        for client in cast.insiders() {
            for _ in 0..10 {
                cast.try_briefly(client, Transport::Tcp, "10.96.2.1:80")?
                    .unanswered()?;
                cast.try_briefly(client, Transport::Udp, "10.96.2.1:53")?
                    .unanswered()?;
            }
            client
                .tcp("198.51.100.31:80")?
                .answered_by_one_of(&["b2", "b3"])?;
        }
        Ok(())
    });
}

#[test]
fn external_traffic_policy_local_binds_node_ports_but_not_load_balancer_ips_of_insiders() {
    // K06
    CAST.story(|cast| {
        cast.apply(
            &cast
                .service("ext", "10.96.2.2")
                .node_port(30202)
                .lb_ip("198.51.100.32")
                .external_ips(&["203.0.113.32"])
                .external_local(),
        )?;
        cast.apply(&cast.ready("ext", &[&cast.b2, &cast.b3]))?;
        cast.settle()?;
        let at_home = cast.node("n2").pod("ext-at-home")?;
        for client in [&cast.client, cast.host(), &at_home] {
            for vip in ["198.51.100.32", "203.0.113.32", "10.96.2.2"] {
                client
                    .many_tcp(&format!("{vip}:80"), 40)?
                    .only_by(&["b2", "b3"])?;
                client
                    .many_udp(&format!("{vip}:53"), 40)?
                    .only_by(&["b2", "b3"])?;
            }
        }
        let outcome = cast.client.tcp("198.51.100.32:80")?;
        anyhow::ensure!(
            outcome.seen_peer()?.ip() == cast.client.v4(),
            "{:?}",
            outcome.line()
        );
        // n1 has no endpoint: nothing remote may answer there.
        for client in cast.insiders() {
            for _ in 0..10 {
                cast.try_briefly(client, Transport::Udp, "192.0.2.11:30202")?
                    .unanswered()?;
            }
        }
        at_home.many_udp("192.0.2.12:30202", 20)?.only_by(&["b2"])
    });
}

#[test]
fn terminating_endpoints_serve_only_when_none_is_ready() {
    CAST.story(|cast| {
        cast.apply(&cast.service("term", "10.96.2.3"))?;
        let slice = || cast.slice("term", "term");
        let answers = |pods: &[&str]| {
            cast.settle()?;
            cast.client.many_tcp("10.96.2.3:80", 40)?.only_by(pods)?;
            cast.client.many_udp("10.96.2.3:53", 40)?.only_by(pods)
        };
        let refuses = || {
            cast.settle()?;
            cast.client.tcp("10.96.2.3:80")?.refused()?;
            cast.client.udp("10.96.2.3:53")?.refused()
        };
        cast.apply(
            &slice()
                .endpoint(&cast.b1)
                .ready()
                .endpoint(&cast.b2)
                .terminating(),
        )?;
        answers(&["b1"])?;
        cast.apply(
            &slice()
                .endpoint(&cast.b1)
                .terminating()
                .endpoint(&cast.b2)
                .terminating(),
        )?;
        answers(&["b1", "b2"])?;
        cast.apply(
            &slice()
                .endpoint(&cast.b1)
                .not_ready()
                .endpoint(&cast.b2)
                .terminating(),
        )?;
        answers(&["b2"])?;
        cast.apply(
            &slice()
                .endpoint(&cast.b1)
                .dead()
                .endpoint(&cast.b2)
                .terminating(),
        )?;
        answers(&["b2"])?;
        cast.apply(
            &slice()
                .endpoint(&cast.b1)
                .dead()
                .endpoint(&cast.b2)
                .not_ready(),
        )?;
        refuses()?;
        // It serves, but does not terminate: neither ready nor a fallback.
        let serving = json!({ "ready": false, "serving": true, "terminating": false });
        cast.apply(&slice().endpoint(&cast.b1).set("conditions", serving))?;
        refuses()?;
        cast.apply(
            &slice()
                .endpoint(&cast.b3)
                .ready()
                .endpoint(&cast.b2)
                .terminating(),
        )?;
        answers(&["b3"])
    });
}

#[test]
fn the_local_set_falls_back_to_terminating_endpoints_on_its_own() {
    CAST.story(|cast| {
        cast.apply(
            &cast
                .service("own", "10.96.2.4")
                .node_port(30204)
                .external_local(),
        )?;
        cast.apply(
            &cast
                .slice("own", "own")
                .endpoint(&cast.b1)
                .terminating()
                .endpoint(&cast.b2)
                .ready(),
        )?;
        cast.settle()?;
        for client in cast.insiders() {
            client.many_udp("192.0.2.11:30204", 20)?.only_by(&["b1"])?;
            client.many_tcp("10.96.2.4:80", 20)?.only_by(&["b2"])?;
        }
        Ok(())
    });
}

#[test]
fn zone_and_node_hints_narrow_the_cluster_set() {
    // K26; one story, since it changes the zone of n1.
    CAST.story(|cast| {
        cast.apply(&cast.node_manifest("n1").zone("za"))?;
        cast.apply(
            &cast
                .service("zones", "10.96.2.5")
                .node_port(30205)
                .external_local(),
        )?;
        let slice = || cast.slice("zones", "zones");
        let answers = |pods: &[&str]| {
            cast.settle()?;
            cast.client.many_tcp("10.96.2.5:80", 60)?.only_by(pods)
        };
        let (b1, b2, b3) = (&cast.b1, &cast.b2, &cast.b3);
        let spread = || {
            slice()
                .endpoint(b1)
                .ready()
                .for_zones(&["za"])
                .endpoint(b2)
                .ready()
                .for_zones(&["zb"])
                .endpoint(b3)
                .ready()
        };
        let a = || spread().for_zones(&["za"]);

        cast.apply(&a())?;
        answers(&["b1", "b3"])?;
        // b: one ready endpoint without a hint.
        cast.apply(&spread())?;
        answers(&["b1", "b2", "b3"])?;
        // c: no hint names our zone.
        cast.apply(
            &slice()
                .endpoint(b2)
                .ready()
                .for_zones(&["zb"])
                .endpoint(b3)
                .ready()
                .for_zones(&["zc"]),
        )?;
        answers(&["b2", "b3"])?;
        // d: the unready one does not count.
        cast.apply(
            &slice()
                .endpoint(b1)
                .not_ready()
                .for_zones(&["za"])
                .endpoint(b2)
                .ready()
                .for_zones(&["zb"]),
        )?;
        answers(&["b2"])?;
        // e: an unready endpoint without hint disables nothing.
        cast.apply(
            &slice()
                .endpoint(b1)
                .ready()
                .for_zones(&["za"])
                .endpoint(b2)
                .not_ready(),
        )?;
        answers(&["b1"])?;
        // f: several zones in one hint.
        cast.apply(
            &slice()
                .endpoint(b1)
                .ready()
                .for_zones(&["za", "zb"])
                .endpoint(b2)
                .ready()
                .for_zones(&["zb"]),
        )?;
        answers(&["b1"])?;
        // h: the local set knows no hints.
        cast.apply(
            &slice()
                .endpoint(b1)
                .ready()
                .for_zones(&["zb"])
                .endpoint(b3)
                .ready()
                .for_zones(&["za"]),
        )?;
        answers(&["b3"])?;
        cast.client
            .many_udp("192.0.2.11:30205", 20)?
            .only_by(&["b1"])?;
        // The fallback knows none either.
        cast.apply(
            &slice()
                .endpoint(b1)
                .terminating()
                .for_zones(&["za"])
                .endpoint(b2)
                .terminating()
                .for_zones(&["zb"]),
        )?;
        answers(&["b1", "b2"])?;
        // Node hints come first.
        cast.apply(
            &slice()
                .endpoint(b1)
                .ready()
                .for_zones_and_nodes(&["za"], &["n2"])
                .endpoint(b2)
                .ready()
                .for_zones_and_nodes(&["zb"], &["n1"]),
        )?;
        answers(&["b2"])?;

        // g: the label goes, comes back empty, changes.
        cast.apply(&a())?;
        answers(&["b1", "b3"])?;
        cast.apply(&cast.node_manifest("n1"))?;
        answers(&["b1", "b2", "b3"])?;
        cast.apply(&cast.node_manifest("n1").zone(""))?;
        answers(&["b1", "b2", "b3"])?;
        cast.apply(&cast.node_manifest("n1").zone("zb"))?;
        cast.within(Duration::from_secs(2), || {
            cast.client.many_tcp("10.96.2.5:80", 30)?.only_by(&["b2"])
        })
    });
}

#[test]
fn a_service_without_usable_endpoints_refuses_at_once() {
    // K04
    CAST.story(|cast| {
        cast.apply(
            &manifests::service("empty")
                .cluster_ip("10.96.2.6")
                .cluster_ip("fd00:96::2006")
                .port("http", 80, 8080)
                .node_port(30206)
                .udp_port("dns", 53, 8080)
                .node_port(30207)
                .lb_ip("198.51.100.36"),
        )?;
        let refuses = || -> Result<()> {
            cast.settle()?;
            for client in cast.insiders() {
                for to in [
                    "10.96.2.6:80",
                    "[fd00:96::2006]:80",
                    "192.0.2.11:30206",
                    "198.51.100.36:80",
                ] {
                    client.tcp(to)?.refused()?;
                }
                for to in [
                    "10.96.2.6:53",
                    "[fd00:96::2006]:53",
                    "192.0.2.11:30207",
                    "198.51.100.36:53",
                ] {
                    client.udp(to)?.refused()?;
                }
                // bpf_set_retval is older than any kernel that these tests run on as a whole.
                let socket = client.udp_socket("0.0.0.0:0")?;
                socket.send_to("10.96.2.6:53", "hello")?.refused()?;
                let socket = client.udp_socket("[::]:0")?;
                socket.send_to("[fd00:96::2006]:53", "hello")?.refused()?;
            }
            cast.host().tcp("127.0.0.1:30206")?.refused()
        };
        refuses()?;
        cast.apply(
            &cast
                .slice("empty", "empty")
                .endpoint(&cast.b1)
                .not_ready()
                .endpoint(&cast.b2)
                .not_ready(),
        )?;
        refuses()
    });
}

#[test]
fn a_refused_connect_leaves_nothing_that_hinders_the_next() {
    // K64, socket form: the same source port, once an endpoint is there.
    CAST.story(|cast| {
        cast.apply(&cast.service("late", "10.96.2.8"))?;
        cast.settle()?;
        let mut dial = Dial::new(Transport::Tcp, "10.96.2.8:80".parse()?);
        dial.from = Some(format!("{}:45028", cast.client.v4()).parse()?);
        cast.client.dial(dial.clone())?.refused()?;
        let held = cast
            .client
            .hold(Dial::new(Transport::Tcp, "10.96.2.8:80".parse()?))?;
        held.outcome.refused()?;
        let socket = cast.client.udp_socket("0.0.0.0:0")?;
        socket.send_to("10.96.2.8:53", "early")?.refused()?;

        cast.apply(&cast.ready("late", &[&cast.b2]))?;
        cast.settle()?;
        cast.client.dial(dial)?.answered_by("b2")?;
        held.redial("10.96.2.8:80")?.answered_by("b2")?;
        socket.ask("10.96.2.8:53", "late")?.answered_by("b2")
    });
}

#[test]
fn a_change_of_policy_is_in_force_for_new_connections() {
    CAST.story(|cast| {
        let service = cast.service("turn", "10.96.2.9");
        cast.apply(&service)?;
        cast.apply(&cast.ready("turn", &[&cast.b1, &cast.b2]))?;
        cast.settle()?;
        cast.client
            .many_tcp("10.96.2.9:80", 40)?
            .only_by(&["b1", "b2"])?;
        cast.apply(&service.clone().internal_local())?;
        cast.settle()?;
        cast.client.many_tcp("10.96.2.9:80", 40)?.only_by(&["b1"])?;
        cast.apply(&service)?;
        cast.settle()?;
        cast.client
            .many_tcp("10.96.2.9:80", 40)?
            .only_by(&["b1", "b2"])
    });
}

#[test]
fn an_endpoint_that_is_on_no_node_is_never_local() {
    CAST.story(|cast| {
        cast.apply(&cast.service("homeless", "10.96.2.10").internal_local())?;
        cast.apply(
            &cast
                .slice("homeless", "homeless")
                .endpoint(&cast.b1)
                .ready()
                .without_node(),
        )?;
        cast.settle()?;
        for _ in 0..5 {
            cast.try_briefly(&cast.client, Transport::Tcp, "10.96.2.10:80")?
                .unanswered()?;
        }
        cast.apply(&cast.service("homeless", "10.96.2.10"))?;
        cast.settle()?;
        cast.client.tcp("10.96.2.10:80")?.answered_by("b1")
    });
}
