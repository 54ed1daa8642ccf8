//! How slices join their Services, and what absent fields mean: rules 3, 4 and 13.

use crate::check::judged;
use crate::fault::Fault;
use crate::row::{Row, Why};
use crate::stage::Stage;
use anyhow::Result;
use lab::{BACKEND_PORT, Transport};
use serde_json::{Value, json};

pub(super) fn rows() -> Vec<Row> {
    let mut rows = membership();
    rows.extend(fields());
    rows.extend(several_slices());
    rows
}

fn membership() -> Vec<Row> {
    vec![
        Row::new(
            3,
            "slice-joins-by-its-label",
            "a slice belongs to the Service that its label names, whoever owns it",
            "API const discovery/v1 LabelServiceName",
            Fault::OwnersJoin,
            joins_by_label,
        )
        .cases(&["K38"]),
        Row::new(
            3,
            "slice-changes-its-service",
            "a slice whose label changes leaves one Service and joins the other",
            "API const discovery/v1 LabelServiceName",
            Fault::ChangesLost,
            changes_its_service,
        )
        .cases(&["K38"])
        .kube_proxy_differs(Why::Fault(
            "the old Service keeps the endpoints as well: \
             EndpointSliceCache looks for a slice under its present label only",
        )),
        Row::new(
            3,
            "slice-may-come-before-its-service",
            "endpoints that came before their Service serve as soon as it is there",
            "API const discovery/v1 LabelServiceName; objects have no order",
            Fault::EarlySlicesLost,
            comes_before_its_service,
        )
        .cases(&["K38"]),
        Row::new(
            3,
            "ports-join-by-name",
            "a port of a Service has the endpoints of the slice port of its name, whatever the numbers",
            "API EndpointPort.name; ServicePort.name",
            Fault::SlicePortsIgnored,
            ports_join_by_name,
        )
        .cases(&["K28"]),
        Row::new(
            3,
            "slice-without-the-port-adds-nothing",
            "endpoints whose slice has no port of that name, or one without a number, get nothing",
            "API EndpointPort.port: without a number it is for its consumer to tell; kube-proxy ignores it",
            Fault::SlicePortsIgnored,
            without_the_port,
        )
        .cases(&["K28"]),
    ]
}

fn fields() -> Vec<Row> {
    vec![
        Row::new(
            3,
            "unnamed-port-is-tcp",
            "a single port without name and protocol is TCP, in Service and slice alike",
            "API ServicePort.name, protocol; EndpointPort.name, protocol",
            Fault::EndpointsLost,
            unnamed_port,
        )
        .cases(&["K28"]),
        Row::new(
            3,
            "only-the-first-address-counts",
            "an endpoint with two addresses is reached at the first one",
            "API Endpoint.addresses: kube-proxy does not look beyond the first",
            Fault::MoreAddressesUsed,
            first_address,
        )
        .cases(&["K28"]),
        Row::new(
            3,
            "slice-without-endpoints-does-no-harm",
            "slices without endpoints or without ports leave the others as they are",
            "API EndpointSlice.endpoints, ports: both may be empty",
            Fault::EndpointsLost,
            empty_slices,
        )
        .cases(&["K28"]),
        Row::new(
            4,
            "absent-conditions-mean-ready",
            "an endpoint without conditions is ready, also when it says that it terminates",
            "API EndpointConditions.ready: a nil value should be interpreted as true",
            Fault::AbsentMeansFalse,
            absent_means_ready,
        )
        .cases(&["K28"]),
        Row::new(
            4,
            "absent-serving-means-serving",
            "an endpoint that terminates and says nothing of serving serves while none is ready",
            "API EndpointConditions.serving: a nil value should be interpreted as true; KEP-1669",
            Fault::AbsentMeansFalse,
            absent_means_serving,
        )
        .cases(&["K28"]),
        Row::new(
            4,
            "absent-terminating-means-not-terminating",
            "an endpoint that is serving, not ready, and says nothing of terminating gets nothing",
            "API EndpointConditions.terminating: a nil value should be interpreted as false; KEP-1669",
            Fault::ConditionsIgnored,
            absent_means_not_terminating,
        )
        .cases(&["K28"]),
        Row::new(
            13,
            "endpoint-without-node-is-never-local",
            "with internalTrafficPolicy Local an endpoint without nodeName gets nothing",
            "API Endpoint.nodeName; ServiceSpec.internalTrafficPolicy",
            Fault::PoliciesIgnored,
            without_node,
        )
        .cases(&["K28"]),
    ]
}

fn several_slices() -> Vec<Row> {
    vec![
        Row::new(
            3,
            "all-slices-of-a-service-count",
            "a Service has the endpoints of all its slices",
            "API EndpointSlice: there may be several for one Service",
            Fault::OnlyFirstSlice,
            all_slices_count,
        ),
        Row::new(
            3,
            "endpoint-in-several-slices-counts-once",
            "an endpoint that three slices list has the share of one",
            "Kubernetes docs, EndpointSlices: consumers must deduplicate",
            Fault::StrangerOn("n2"),
            counts_once,
        )
        .cases(&["K30"]),
        Row::new(
            3,
            "usable-copy-of-an-endpoint-wins",
            "an endpoint that is ready in one slice and not in another serves",
            "Kubernetes docs, EndpointSlices: duplicate endpoints",
            Fault::OnlyFirstSlice,
            usable_copy_wins,
        ),
        Row::new(
            3,
            "moving-between-slices-loses-nothing",
            "no connection fails while an endpoint moves to another slice, and the last slice takes it along",
            "Kubernetes docs, EndpointSlices: duplicate endpoints",
            Fault::OnlyFirstSlice,
            moving_loses_nothing,
        )
        .cases(&["K30"]),
        Row::new(
            3,
            "endpoint-leaves-and-joins-at-once",
            "an endpoint that one slice drops right before another one lists it is there in the end",
            "Kubernetes docs, EndpointSlices: duplicate endpoints",
            Fault::OnlyFirstSlice,
            leaves_and_joins,
        )
        .cases(&["K30"]),
    ]
}

/// A slice that a Service owns.
pub(super) fn owned_by(slice: &lab::manifests::Slice, service: &str) -> lab::manifests::Slice {
    let mut metadata = lab::manifests::Manifest::to_json(slice)["metadata"].take();
    metadata["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "Service", "name": service,
        "uid": "5e6f0a52-6d3c-4f4e-9d55-6d3c4f4e9d55",
    }]);
    slice.clone().field("metadata", metadata)
}

fn joins_by_label(s: &Stage<'_>) -> Result<()> {
    let other = s.world.numbers();
    s.apply(&s.service("web"))?;
    s.apply(&s.service_at("api", &other))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    let labelled = s.named_slice("labelled", "api");
    s.apply(&owned_by(&labelled.ready_endpoints([&s.world.b2]), "web"))?;
    for (name, label) in [("unlabelled", Value::Null), ("blank", json!(""))] {
        let slice = s
            .named_slice(name, name)
            .label("kubernetes.io/service-name", label);
        s.apply(&owned_by(&slice.ready_endpoints([&s.world.b3]), "web"))?;
    }
    for client in [&s.pod1, &s.host1] {
        s.only(client, Transport::Tcp, &s.cluster_ip(), &["b1"])?;
        s.only(client, Transport::Tcp, &s.cluster_ip_of(&other), &["b2"])?;
    }
    Ok(())
}

fn changes_its_service(s: &Stage<'_>) -> Result<()> {
    let other = s.world.numbers();
    s.apply(&s.service("web"))?;
    s.apply(&s.service_at("api", &other))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.apply(&s.ready("api", &[&s.world.b2]))?;
    let third = |service: &str| {
        s.named_slice("third", service)
            .ready_endpoints([&s.world.b3])
    };
    s.apply(&third("web"))?;
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b1", "b3"])?;
    s.apply(&third("api"))?;
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b1"])?;
    s.only(
        &s.pod1,
        Transport::Tcp,
        &s.cluster_ip_of(&other),
        &["b2", "b3"],
    )
}

fn comes_before_its_service(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.settle()?;
    s.apply(&s.service("web"))?;
    for transport in Transport::BOTH {
        s.only(&s.pod1, transport, &s.cluster_ip(), &["b1"])?;
    }
    Ok(())
}

fn ports_join_by_name(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    for (backend, name) in [(&s.world.b1, "http"), (&s.world.b2, "udp")] {
        let protocol = if name == "udp" { "UDP" } else { "TCP" };
        let slice = s.named_slice(name, "web").ready_endpoints([backend]);
        s.apply(&slice.field(
            "ports",
            json!([
                { "name": name, "port": BACKEND_PORT, "protocol": protocol },
                // Its number is the Service port's target, its name is not.
                { "name": "else", "port": BACKEND_PORT, "protocol": "TCP" },
            ]),
        ))?;
    }
    for client in [&s.pod1, &s.host1] {
        s.only(client, Transport::Tcp, &s.cluster_ip(), &["b1"])?;
        s.only(client, Transport::Udp, &s.cluster_ip(), &["b2"])?;
    }
    Ok(())
}

fn without_the_port(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    // What the controller writes for Pods that do not name the port.
    let unnamed = s
        .named_slice("unnamed", "web")
        .ready_endpoints([&s.world.b2]);
    s.apply(&unnamed.field("ports", json!([])))?;
    let unnumbered = s
        .named_slice("unnumbered", "web")
        .ready_endpoints([&s.world.b3]);
    let ports =
        json!([{ "name": "http", "protocol": "TCP" }, { "name": "udp", "protocol": "UDP" }]);
    s.apply(&unnumbered.field("ports", ports))?;
    for transport in Transport::BOTH {
        s.only(&s.pod1, transport, &s.cluster_ip(), &["b1"])?;
    }
    Ok(())
}

fn unnamed_port(s: &Stage<'_>) -> Result<()> {
    let ip = s.own.cluster_ip(s.family);
    let spec = json!({
        "clusterIP": ip,
        "ipFamilies": [s.family.as_str()],
        "ports": [{ "port": 80, "targetPort": BACKEND_PORT }],
    });
    let id = lab::manifests::Manifest::id(&s.service("web"));
    s.write(&id, json!({ "metadata": { "name": "web" }, "spec": spec }))?;
    let slice = s.ready("web", &[&s.world.b1]);
    s.apply(&slice.field("ports", json!([{ "port": BACKEND_PORT }])))?;
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b1"])
}

fn first_address(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    let both = [&s.world.b1, &s.world.b2].map(|backend| s.address_of(backend));
    let endpoint = json!({ "addresses": both, "conditions": { "ready": true } });
    s.apply(&s.slice("web").raw_endpoint(endpoint))?;
    for transport in Transport::BOTH {
        s.only(&s.pod1, transport, &s.cluster_ip(), &["b1"])?;
    }
    Ok(())
}

fn empty_slices(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.named_slice("a", "web").field("endpoints", Value::Null))?;
    s.apply(&s.named_slice("b", "web").field("ports", Value::Null))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.apply(&s.named_slice("z", "web").field("endpoints", Value::Null))?;
    for transport in Transport::BOTH {
        s.only(&s.pod1, transport, &s.cluster_ip(), &["b1"])?;
    }
    Ok(())
}

fn absent_means_ready(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(
        &s.slice("web")
            .endpoint(&s.world.b1)
            .endpoint(&s.world.b2)
            .set("conditions", json!({ "terminating": true }))
            .endpoint(&s.world.b3)
            .ready(),
    )?;
    for transport in Transport::BOTH {
        s.only(&s.pod1, transport, &s.cluster_ip(), &["b1", "b2", "b3"])?;
    }
    Ok(())
}

fn absent_means_serving(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(
        &s.slice("web")
            .endpoint(&s.world.b1)
            .set("conditions", json!({ "ready": false, "terminating": true })),
    )?;
    for transport in Transport::BOTH {
        s.only(&s.pod1, transport, &s.cluster_ip(), &["b1"])?;
    }
    Ok(())
}

fn absent_means_not_terminating(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(
        &s.slice("web")
            .endpoint(&s.world.b1)
            .set("conditions", json!({ "ready": false, "serving": true })),
    )?;
    for transport in Transport::BOTH {
        s.refused(&s.pod1, transport, &s.cluster_ip())?;
    }
    Ok(())
}

fn without_node(s: &Stage<'_>) -> Result<()> {
    let nobodys = |slice: lab::manifests::Slice| slice.endpoint(&s.world.b1).without_node();
    let other = s.world.numbers();
    s.apply(&s.service("web").internal_local())?;
    s.apply(&nobodys(s.slice("web")).ready())?;
    s.apply(&s.service_at("anywhere", &other))?;
    s.apply(&nobodys(s.slice("anywhere")).ready())?;
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip_of(&other), &["b1"])?;
    s.unanswered(&s.pod1, Transport::Tcp, &s.cluster_ip())
}

fn all_slices_count(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    for backend in [&s.world.b1, &s.world.b2, &s.world.b3] {
        let slice = s.named_slice(backend.name(), "web");
        s.apply(&slice.ready_endpoints([backend]))?;
    }
    for transport in Transport::BOTH {
        for client in [&s.pod1, &s.host1] {
            s.only(client, transport, &s.cluster_ip(), &["b1", "b2", "b3"])?;
        }
    }
    Ok(())
}

fn counts_once(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    for name in ["second", "third"] {
        let slice = s.named_slice(name, "web");
        s.apply(&slice.ready_endpoints([&s.world.b1]))?;
    }
    let counts = s.dials(&s.pod1, Transport::Tcp, &s.cluster_ip(), 600)?;
    judged(counts.only_by(&["b1", "b2"]))?;
    // Uniform: the standard deviation of a share of 300 is 12; counted three
    // times, one would have 450.
    judged(counts.even_within(0.25))
}

fn usable_copy_wins(s: &Stage<'_>) -> Result<()> {
    // In either order of time and of name: whatever a proxy goes by, if not by
    // the conditions, it errs in one of them.
    let numbers = [s.own.clone(), s.world.numbers()];
    for (at, names) in numbers.iter().zip([["a", "b"], ["y", "x"]]) {
        let service = format!("web-{}", names[0]);
        s.apply(&s.service_at(&service, at))?;
        let unready = s.named_slice(names[0], &service).endpoint(&s.world.b1);
        s.apply(&unready.terminating())?;
        let ready = s.named_slice(names[1], &service);
        let ready = ready.ready_endpoints([&s.world.b1]);
        // Beside it, so that a terminating one gets nothing.
        s.apply(&ready.endpoint(&s.world.b2).ready())?;
    }
    for at in &numbers {
        s.only(&s.pod1, Transport::Tcp, &s.cluster_ip_of(at), &["b1", "b2"])?;
    }
    Ok(())
}

fn moving_loses_nothing(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.named_slice("first", "web").ready_endpoints([&s.world.b1]))?;
    s.settle()?;
    let held = s.host1.hold_tcp(&s.cluster_ip())?;
    judged(held.outcome.answered_by("b1"))?;
    let load = s.pod1.load(Transport::Tcp, &s.cluster_ip(), 100)?;
    let second = s.named_slice("second", "web");
    s.apply(&second.ready_endpoints([&s.world.b1]))?;
    s.apply(&s.named_slice("first", "web"))?;
    s.settle()?;
    s.delete(&s.named_slice("first", "web"))?;
    s.settle()?;
    judged(load.stop()?.only_by(&["b1"]))?;
    judged(held.talk("still here")?.answered_by("b1"))?;
    s.delete(&s.named_slice("second", "web"))?;
    s.refused(&s.pod1, Transport::Tcp, &s.cluster_ip())
}

fn leaves_and_joins(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b1"])?;
    s.apply(&s.slice("web"))?;
    let second = s.named_slice("second", "web");
    s.apply(&second.ready_endpoints([&s.world.b1]))?;
    for transport in Transport::BOTH {
        s.only(&s.pod1, transport, &s.cluster_ip(), &["b1"])?;
    }
    Ok(())
}
