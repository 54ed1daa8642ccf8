//! Metrics that dashboards and alerts know from kube-proxy: rule 33.

use super::health::{SOON, own_health, tainted};
use crate::check::{holds, judged};
use crate::fault::Fault;
use crate::row::Row;
use crate::stage::Stage;
use anyhow::{Context, Result};
use lab::{METRICS, Transport};
use serde_json::json;

pub(super) fn rows() -> Vec<Row> {
    vec![
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
             endpoints.kubernetes.io/last-change-trigger-time, if that is later than the \
             proxy's start",
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
        Row::new(
            33,
            "metrics-count-changes",
            "changes of Services and slices count in …_service_changes_total and \
             …_endpoint_changes_total, and soon none is pending",
            "kubernetes pkg/proxy/metrics",
            Fault::ChangesLost,
            metrics_count_changes,
        )
        .once()
        .alone(),
    ]
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
    let triggered = |pod, time: &str| {
        let trigger = json!({ "endpoints.kubernetes.io/last-change-trigger-time": time });
        s.apply_with(&s.ready("web", &[pod]), |slice| {
            slice["metadata"]["annotations"] = trigger;
        })
    };
    triggered(&s.world.b2, "2026-01-01T00:00:00Z")?;
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b2"])?;
    let now_counted = metric(s, name, &[]).unwrap_or_default();
    holds(now_counted == before, || {
        format!("{name} is {now_counted} after a change from before the proxy's start")
    })?;
    triggered(&s.world.b1, &now()?)?;
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

fn metrics_count_changes(s: &Stage<'_>) -> Result<()> {
    let name = |kind: &str, what: &str| format!("kubeproxy_sync_proxy_rules_{kind}_changes_{what}");
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    s.settle()?;
    let total = |kind: &str| metric(s, &name(kind, "total"), &[]);
    let (services, endpoints) = (total("service")?, total("endpoint")?);
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    s.within(SOON, "a slice is counted", || {
        grown(s, &name("endpoint", "total"), &[], endpoints)
    })?;
    s.apply(&s.load_balancer("web"))?;
    s.within(SOON, "a Service is counted", || {
        grown(s, &name("service", "total"), &[], services)
    })?;
    s.within(SOON, "nothing is pending", || {
        for kind in ["service", "endpoint"] {
            let pending = metric(s, &name(kind, "pending"), &[])?;
            holds(pending == 0.0, || format!("{pending} of {kind} pending"))?;
        }
        Ok(())
    })
}
