//! What the proxy says to load balancers, of Services and of itself: rules 31 and 32.

use crate::check::{holds, judged, mismatch};
use crate::fault::Fault;
use crate::row::Row;
use crate::stage::{Stage, join, then_restore};
use anyhow::Result;
use lab::manifests::{Service, Slice};
use lab::wire::HttpAnswer;
use lab::{HEALTHZ, Peer, Transport};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a proxy may take to tell of a change.
pub(super) const SOON: Duration = Duration::from_secs(3);

pub(super) fn rows() -> Vec<Row> {
    let mut rows = health_check_node_ports();
    rows.extend(of_the_proxy());
    rows
}

fn health_check_node_ports() -> Vec<Row> {
    vec![
        Row::new(
            31,
            "health-port-counts-local-ready-endpoints",
            "the health check port answers 200 with the number of ready endpoints on this node \
             in body and X-Load-Balancing-Endpoint-Weight, each node for itself",
            "API ServiceSpec.healthCheckNodePort; kubernetes pkg/proxy/healthcheck",
            Fault::StrangerOn("n1"),
            health_port_counts,
        )
        .cases(&["K20"]),
        Row::new(
            31,
            "health-port-fails-without-local-endpoint",
            "the health check port answers 503 and 0 endpoints on a node without one, and \
             follows as they come and go",
            "API ServiceSpec.healthCheckNodePort; kubernetes e2e \"should only target nodes with endpoints\"",
            Fault::ChangesLost,
            health_port_fails,
        )
        .cases(&["K20"]),
        Row::new(
            31,
            "health-port-fails-while-only-terminating",
            "with terminating endpoints alone the health check port answers 503 while traffic \
             still flows to them",
            "KEP-1669; kubernetes e2e \"should fail health check node port if there are only terminating endpoints\"",
            Fault::ConditionsIgnored,
            health_port_terminating,
        )
        .cases(&["K20"]),
        Row::new(
            31,
            "health-port-works-without-node-ports",
            "the health check port is there with allocateLoadBalancerNodePorts false",
            "API ServiceSpec.allocateLoadBalancerNodePorts and .healthCheckNodePort",
            Fault::PoliciesIgnored,
            health_port_alone,
        )
        .cases(&["K20"]),
        Row::new(
            31,
            "health-port-closes-with-the-policy",
            "the health check port closes when externalTrafficPolicy becomes Cluster",
            "API ServiceSpec.healthCheckNodePort: used with externalTrafficPolicy Local only",
            Fault::ChangesLost,
            health_port_closes_with_policy,
        )
        .cases(&["K20"]),
        Row::new(
            31,
            "health-port-returns-with-the-policy",
            "the health check port is there again when externalTrafficPolicy becomes Local again",
            "API ServiceSpec.healthCheckNodePort: used with externalTrafficPolicy Local only",
            Fault::ChangesLost,
            health_port_returns,
        )
        .cases(&["K20"]),
        Row::new(
            31,
            "health-port-closes-with-the-type",
            "the health check port closes when a LoadBalancer Service becomes a NodePort one, \
             whose policy is Local still",
            "API ServiceSpec.healthCheckNodePort: used with type LoadBalancer only",
            Fault::ChangesLost,
            health_port_closes_with_type,
        )
        .cases(&["K20", "K34"]),
        Row::new(
            31,
            "health-port-closes-with-the-service",
            "the health check port closes when the Service is deleted",
            "API ServiceSpec.healthCheckNodePort",
            Fault::DeletionsLost,
            health_port_closes_with_service,
        )
        .cases(&["K20"]),
    ]
}

fn of_the_proxy() -> Vec<Row> {
    vec![
        Row::new(
            32,
            "healthz-tells-a-tainted-node",
            "/healthz is 200 with nodeEligible true; with the autoscaler's taint it is 503 and \
             false, while /livez stays 200, and without the taint it is 200 again",
            "KEP-3836",
            Fault::ChangesLost,
            healthz_taint,
        )
        .once()
        .alone(),
        Row::new(
            32,
            "healthz-tells-a-deleted-node",
            "/healthz is 503 from the moment at which the Node is being deleted, while /livez \
             stays 200",
            "KEP-3836",
            Fault::ChangesLost,
            healthz_deletion,
        )
        .once()
        .alone(),
    ]
}

/// A LoadBalancer Service of policy Local with the row's health check port.
fn service(s: &Stage<'_>) -> Service {
    let port = s.own.health_port();
    s.load_balancer("web")
        .external_local()
        .field("healthCheckNodePort", port.into())
}

/// The row's health check port on a node.
fn port(s: &Stage<'_>, node: &str) -> String {
    join(&s.node_address(node), s.own.health_port())
}

/// What a health check port answers.
fn ask(s: &Stage<'_>, from: &Peer, node: &str) -> Result<HttpAnswer> {
    s.settle()?;
    // That nobody answers is an outcome as well.
    judged(from.http_get(&format!("http://{}/", port(s, node))))
}

/// The exact answer of a healthy proxy with so many endpoints.
fn tells(s: &Stage<'_>, from: &Peer, node: &str, endpoints: u32) -> Result<()> {
    let answer = ask(s, from, node)?;
    let status = if endpoints > 0 { 200 } else { 503 };
    let what = || format!("{} asks {node}: {answer:?}", from.name());
    holds(answer.status == status, || {
        format!("not {status}: {}", what())
    })?;
    let body: Value = serde_json::from_str(&answer.body)
        .map_err(|error| mismatch(format!("{error}: {}", what())))?;
    let expected = json!({
        "service": { "namespace": s.space, "name": "web" },
        "localEndpoints": endpoints,
        "serviceProxyHealthy": true,
    });
    holds(body == expected, || format!("not {expected}: {}", what()))?;
    for (header, value) in [
        ("content-type", "application/json".to_owned()),
        ("x-content-type-options", "nosniff".to_owned()),
        ("x-load-balancing-endpoint-weight", endpoints.to_string()),
    ] {
        holds(answer.headers.get(header) == Some(&value), || {
            format!("{header} is not {value}: {}", what())
        })?;
    }
    Ok(())
}

/// A slice with this many endpoints on n1 that nobody needs to reach.
fn nameless(s: &Stage<'_>, count: u8) -> Slice {
    let base = s.address_of(&s.world.b1);
    let subnet = base
        .rsplit_once(['.', ':'])
        .map_or("", |(subnet, _)| subnet);
    let separator = if base.contains(':') { ':' } else { '.' };
    (0..count).fold(s.slice("web"), |slice, number| {
        slice
            .address(&format!("{subnet}{separator}{}", 201 + number))
            .on("n1")
            .ready()
    })
}

fn health_port_counts(s: &Stage<'_>) -> Result<()> {
    s.apply(&service(s))?;
    s.apply(&nameless(s, 3).endpoint(&s.world.b2).ready())?;
    for client in [&s.c1, &s.host1, &s.pod1] {
        tells(s, client, "n1", 3)?;
    }
    tells(s, &s.c1, "n2", 1)?;
    tells(s, &s.c1, "n3", 0)
}

fn health_port_fails(s: &Stage<'_>) -> Result<()> {
    s.apply(&service(s))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    tells(s, &s.c1, "n1", 1)?;
    tells(s, &s.c1, "n2", 0)?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    tells(s, &s.c1, "n1", 0)?;
    tells(s, &s.c1, "n2", 1)?;
    s.apply(&s.slice("web").endpoint(&s.world.b1).not_ready())?;
    tells(s, &s.c1, "n1", 0)?;
    tells(s, &s.c1, "n2", 0)
}

fn health_port_terminating(s: &Stage<'_>) -> Result<()> {
    s.apply(&service(s))?;
    s.apply(&s.slice("web").endpoint(&s.world.b1).terminating())?;
    tells(s, &s.c1, "n1", 0)?;
    for transport in Transport::BOTH {
        s.only(&s.host1, transport, &s.node_port("n1"), &["b1"])?;
        s.only(&s.pod1, transport, &s.lb_ip(), &["b1"])?;
    }
    Ok(())
}

fn health_port_alone(s: &Stage<'_>) -> Result<()> {
    let at = &s.own;
    let service = s
        .service("web")
        .lb_ip(&at.lb_ip(s.family))
        .external_local()
        .field("allocateLoadBalancerNodePorts", false.into())
        .field("healthCheckNodePort", at.health_port().into());
    s.apply(&service)?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    tells(s, &s.c1, "n1", 1)?;
    tells(s, &s.c1, "n2", 0)
}

fn health_port_closes_with_policy(s: &Stage<'_>) -> Result<()> {
    s.apply(&service(s))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    tells(s, &s.c1, "n1", 1)?;
    s.apply(&s.load_balancer("web"))?;
    s.refused(&s.c1, Transport::Tcp, &port(s, "n1"))
}

fn health_port_returns(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.load_balancer("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.refused(&s.c1, Transport::Tcp, &port(s, "n1"))?;
    for _ in 0..2 {
        s.apply(&service(s))?;
        tells(s, &s.c1, "n1", 1)?;
        s.apply(&s.load_balancer("web"))?;
        s.refused(&s.c1, Transport::Tcp, &port(s, "n1"))?;
    }
    Ok(())
}

fn health_port_closes_with_type(s: &Stage<'_>) -> Result<()> {
    s.apply(&service(s))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    tells(s, &s.c1, "n1", 1)?;
    s.apply(&s.node_port_service("web").external_local())?;
    s.refused(&s.c1, Transport::Tcp, &port(s, "n1"))?;
    s.only(&s.host1, Transport::Tcp, &s.node_port("n1"), &["b1"])
}

fn health_port_closes_with_service(s: &Stage<'_>) -> Result<()> {
    let service = service(s);
    s.apply(&service)?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    tells(s, &s.c1, "n1", 1)?;
    s.delete(&service)?;
    s.refused(&s.c1, Transport::Tcp, &port(s, "n1"))
}

/// A path of the proxy's own health server.
pub(super) fn own_health(s: &Stage<'_>, path: &str) -> Result<HttpAnswer> {
    judged(s.host1.http_get(&format!("http://{HEALTHZ}{path}")))
}

/// /healthz and /livez answer so.
fn healthz_says(s: &Stage<'_>, eligible: bool) -> Result<()> {
    let (healthz, livez) = (own_health(s, "/healthz")?, own_health(s, "/livez")?);
    let status = if eligible { 200 } else { 503 };
    let what = || format!("/healthz {healthz:?}, /livez {livez:?}");
    holds(healthz.status == status, || {
        format!("not {status}: {}", what())
    })?;
    holds(livez.status == 200, what)?;
    holds(!livez.body.contains("nodeEligible"), what)?;
    let body: Value = serde_json::from_str(&healthz.body)
        .map_err(|error| mismatch(format!("{error}: {}", what())))?;
    holds(body["nodeEligible"] == eligible, what)?;
    for time in ["lastUpdated", "currentTime"] {
        holds(body[time].is_string(), what)?;
    }
    Ok(())
}

/// With the autoscaler's taint on n1.
pub(super) fn tainted(s: &Stage<'_>, story: impl FnOnce() -> Result<()>) -> Result<()> {
    let taints = |taints: Value| json!({ "spec": { "taints": taints } });
    then_restore(
        || {
            let taint =
                json!([{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }]);
            s.patch_node("n1", &taints(taint))?;
            story()
        },
        || s.patch_node("n1", &taints(Value::Null)),
    )
}

fn healthz_taint(s: &Stage<'_>) -> Result<()> {
    healthz_says(s, true)?;
    tainted(s, || {
        s.within(SOON, "with the taint", || healthz_says(s, false))
    })?;
    s.within(SOON, "without the taint", || healthz_says(s, true))
}

fn healthz_deletion(s: &Stage<'_>) -> Result<()> {
    let finalizers = |list: Value| json!({ "metadata": { "finalizers": list } });
    let world = s.world;
    then_restore(
        || {
            healthz_says(s, true)?;
            s.patch_node("n1", &finalizers(json!(["lab.example/stays"])))?;
            s.delete_node("n1")?;
            s.within(SOON, "being deleted", || healthz_says(s, false))
        },
        || {
            // What kube-proxy does without its Node is another question.
            world.kill_proxy("n1")?;
            world.delete_node("n1")?;
            world.create_node("n1")?;
            world.start_proxy("n1")?;
            world.wait_healthy("n1")
        },
    )
}
