//! What the proxy says of itself: rules 31 to 33.

use crate::check::{holds, judged, mismatch};
use crate::fault::Fault;
use crate::row::Row;
use crate::stage::{Stage, join, then_restore};
use anyhow::{Context, Result};
use lab::manifests::{Service, Slice};
use lab::wire::HttpAnswer;
use lab::{HEALTHZ, METRICS, Peer, Transport};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a proxy may take to tell of a change.
const SOON: Duration = Duration::from_secs(3);

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
        Row::new(
            33,
            "metrics-count-healthz",
            "kubeproxy_proxy_healthz_total and …_livez_total count answers by status code",
            "KEP-3836; kubernetes pkg/proxy/metrics",
            Fault::ChangesLost,
            metrics_count_healthz,
        )
        .once()
        .alone(),
        Row::new(
            33,
            "metrics-time-network-programming",
            "kubeproxy_network_programming_duration_seconds counts a slice with the annotation \
             endpoints.kubernetes.io/last-change-trigger-time",
            "kubernetes pkg/proxy/metrics; SIG Scalability SLI network programming latency",
            Fault::AnnotationsIgnored,
            metrics_time_programming,
        )
        .once()
        .alone(),
        Row::new(
            33,
            "metrics-time-syncs",
            "a change counts in kubeproxy_sync_proxy_rules_duration_seconds and moves the \
             timestamps of the last sync and the last change",
            "kubernetes pkg/proxy/metrics",
            Fault::ChangesLost,
            metrics_time_syncs,
        )
        .once()
        .alone(),
        Row::new(
            33,
            "metrics-count-services-without-local-endpoints",
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total counts, by policy, the Services \
             of policy Local whose endpoints are all elsewhere",
            "kubernetes pkg/proxy/metrics",
            Fault::PoliciesIgnored,
            metrics_no_local_endpoints,
        )
        .cases(&["K76"])
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

fn health_port_closes_with_service(s: &Stage<'_>) -> Result<()> {
    let service = service(s);
    s.apply(&service)?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    tells(s, &s.c1, "n1", 1)?;
    s.delete(&service)?;
    s.refused(&s.c1, Transport::Tcp, &port(s, "n1"))
}

/// A path of the proxy's own health server.
fn own_health(s: &Stage<'_>, path: &str) -> Result<HttpAnswer> {
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
    let body: Value = serde_json::from_str(&healthz.body)
        .map_err(|error| mismatch(format!("{error}: {}", what())))?;
    holds(body["nodeEligible"] == eligible, what)?;
    for time in ["lastUpdated", "currentTime"] {
        holds(body[time].is_string(), what)?;
    }
    Ok(())
}

/// With the autoscaler's taint on n1.
fn tainted(s: &Stage<'_>, story: impl FnOnce() -> Result<()>) -> Result<()> {
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

/// A metric of n1's proxy, summed over all series whose text has these parts.
fn metric(s: &Stage<'_>, name: &str, parts: &[&str]) -> Result<f64> {
    let answer = judged(s.host1.http_get(&format!("http://{METRICS}/metrics")))?;
    let of_name = |line: &&str| {
        let rest = line.strip_prefix(name).unwrap_or_default();
        rest.starts_with(['{', ' ']) && parts.iter().all(|part| line.contains(part))
    };
    let values = answer.body.lines().filter(of_name).map(|line| {
        let value = line.rsplit(' ').next().unwrap_or_default();
        value.parse::<f64>().with_context(|| format!("{line:?}"))
    });
    let values = values.collect::<Result<Vec<f64>>>()?;
    holds(!values.is_empty(), || {
        format!("no series {name} with {parts:?}")
    })?;
    Ok(values.iter().sum())
}

/// A counter has grown.
fn grown(s: &Stage<'_>, name: &str, parts: &[&str], before: f64) -> Result<()> {
    let now = metric(s, name, parts)?;
    holds(now > before, || format!("{name} stays at {now}"))
}

fn metrics_count_healthz(s: &Stage<'_>) -> Result<()> {
    let (healthz, livez) = (
        "kubeproxy_proxy_healthz_total",
        "kubeproxy_proxy_livez_total",
    );
    own_health(s, "/healthz")?;
    own_health(s, "/livez")?;
    let good = metric(s, healthz, &[r#"code="200""#])?;
    let alive = metric(s, livez, &[r#"code="200""#])?;
    own_health(s, "/healthz")?;
    own_health(s, "/livez")?;
    grown(s, healthz, &[r#"code="200""#], good)?;
    grown(s, livez, &[r#"code="200""#], alive)?;
    tainted(s, || {
        s.within(SOON, "an answer 503 is counted", || {
            own_health(s, "/healthz")?;
            grown(s, healthz, &[r#"code="503""#], 0.0)
        })
    })
}

fn metrics_time_programming(s: &Stage<'_>) -> Result<()> {
    let name = "kubeproxy_network_programming_duration_seconds_count";
    s.apply(&s.service("web"))?;
    s.settle()?;
    // There may be no series before the first.
    let before = metric(s, name, &[]).unwrap_or_default();
    let trigger = json!({ "endpoints.kubernetes.io/last-change-trigger-time": now()? });
    s.apply_with(&s.ready("web", &[&s.world.b1]), |slice| {
        slice["metadata"]["annotations"] = trigger;
    })?;
    s.within(SOON, "the slice is counted", || grown(s, name, &[], before))
}

/// The time as the endpoints controller writes it.
fn now() -> Result<String> {
    let output = std::process::Command::new("date")
        .args(["-u", "+%Y-%m-%dT%H:%M:%S.%NZ"])
        .output()
        .context("run date")?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn metrics_time_syncs(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.settle()?;
    let names = [
        "kubeproxy_sync_proxy_rules_duration_seconds_count",
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
    ];
    let before = names.map(|name| metric(s, name, &[]));
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    for (name, before) in names.into_iter().zip(before) {
        let before = before?;
        s.within(SOON, "a sync is counted", || grown(s, name, &[], before))?;
    }
    Ok(())
}

fn metrics_no_local_endpoints(s: &Stage<'_>) -> Result<()> {
    let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    let of = |policy: &str| metric(s, name, &[&format!(r#"traffic_policy="{policy}""#)]);
    let are = |internal: f64, external: f64| {
        let now = (of("internal")?, of("external")?);
        holds(now == (internal, external), || {
            format!("{now:?}, not {internal} internal and {external} external")
        })
    };
    let service = s.load_balancer("web").external_local().internal_local();
    s.apply(&service)?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.within(SOON, "all have local endpoints", || are(0.0, 0.0))?;
    // A Service port counts, and there are two.
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    s.within(SOON, "no local endpoint", || are(2.0, 2.0))?;
    s.apply(&s.load_balancer("web"))?;
    s.within(SOON, "the policies are Cluster", || are(0.0, 0.0))
}
