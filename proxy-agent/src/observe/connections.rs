//! Connections by service port and endpoint, read from the maps at each scrape.
//!
//! Series follow the maps: an endpoint that is gone has none, and the ids of its
//! counters start anew with their next owner, so nothing is inherited.

use super::drops;
use super::snapshot::{self, ServicePort};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use proxy_common::DropReason;
use std::path::PathBuf;

/// Endpoints that get series of their own, in the order of their service ports'
/// names; the rest is counted by `fairlead_endpoints_without_series`. Two series
/// each, of about 200 bytes in a scrape.
const ENDPOINTS_MAX: usize = 20_000;

/// The collector over the maps that are pinned in a directory.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) pin_dir: PathBuf,
}

impl Collector for Connections {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let ports = match snapshot::read(&self.pin_dir) {
            Ok(ports) => ports,
            Err(error) => {
                tracing::error!("metrics without connections: {error}");
                return Ok(());
            }
        };
        let mut endpoints: Vec<_> = ports
            .iter()
            .flat_map(|port| port.backends.iter().map(move |backend| (port, backend)))
            .collect();
        let without_series = endpoints.len().saturating_sub(ENDPOINTS_MAX);
        endpoints.truncate(ENDPOINTS_MAX);
        let opened = endpoints
            .iter()
            .map(|(port, it)| (labels(port, "endpoint", &it.address), it.opened));
        counters(
            &mut encoder,
            "fairlead_connections_opened",
            "Connections that were sent to an endpoint",
            opened,
        )?;
        let failed = endpoints
            .iter()
            .map(|(port, it)| (labels(port, "endpoint", &it.address), it.failed));
        counters(
            &mut encoder,
            "fairlead_connections_failed",
            "TCP connections to an endpoint that never came to be",
            failed,
        )?;
        let refused = ports.iter().flat_map(|port| {
            let reason =
                |reason: DropReason, count| (labels(port, "reason", reason.as_str()), count);
            [
                reason(DropReason::NoEndpoint, port.refused_no_endpoint),
                reason(DropReason::NoLocalEndpoint, port.refused_no_local_endpoint),
            ]
        });
        counters(
            &mut encoder,
            "fairlead_connections_refused",
            "Connections and datagrams that a service port had no endpoint for",
            refused,
        )?;
        let help = "Endpoints beyond those that get series of their own";
        let without_series = [(NO_LABELS, without_series as i64)];
        gauges(
            &mut encoder,
            "fairlead_endpoints_without_series",
            help,
            without_series,
        )?;
        gauges(
            &mut encoder,
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "Service ports with a policy Local and endpoints, none of them on this node",
            no_local_endpoints(&ports),
        )?;
        let drops = drops(&self.pin_dir).unwrap_or_else(|error| {
            tracing::error!("metrics without drops: {error:#}");
            Vec::new()
        });
        let drops = drops
            .into_iter()
            .map(|(reason, count)| ([("reason", reason.as_str())], count));
        counters(
            &mut encoder,
            "fairlead_dropped",
            "Connections and datagrams refused or dropped since the maps were made, by reason",
            drops,
        )
    }
}

const NO_LABELS: [(&str, &str); 0] = [];

fn gauges<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = (L, i64)>,
) -> Result<(), std::fmt::Error> {
    let gauge_type = ConstGauge::new(0_i64).metric_type();
    let mut family = encoder.encode_descriptor(name, help, None, gauge_type)?;
    for (labels, value) in series {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// By family and policy, as kube-proxy counts them.
fn no_local_endpoints(ports: &[ServicePort]) -> Vec<([(&'static str, &'static str); 2], i64)> {
    let mut counts = Vec::new();
    for (family, is_v6) in [("IPv4", false), ("IPv6", true)] {
        let lacks = |port: &&ServicePort| {
            let mut endpoints = port
                .backends
                .iter()
                .filter(|it| it.address.starts_with('[') == is_v6)
                .peekable();
            endpoints.peek().is_some() && !endpoints.any(|it| it.in_local_set)
        };
        let internal = ports
            .iter()
            .filter(|port| port.internal_traffic_policy == "Local");
        let external = ports.iter().filter(|port| {
            let is_external = port.frontends.iter().any(|it| it.kind != "ClusterIP");
            port.external_traffic_policy == "Local" && is_external
        });
        let labels = |policy| [("ip_family", family), ("traffic_policy", policy)];
        counts.push((labels("internal"), internal.filter(lacks).count() as i64));
        counts.push((labels("external"), external.filter(lacks).count() as i64));
    }
    counts
}

fn counters<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    series: impl Iterator<Item = (L, u64)>,
) -> Result<(), std::fmt::Error> {
    let counter_type = ConstCounter::new(0_u64).metric_type();
    let mut family = encoder.encode_descriptor(name, help, None, counter_type)?;
    for (labels, value) in series {
        ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// The labels of a service port, and one more.
fn labels<'a>(
    port: &'a ServicePort,
    name: &'static str,
    value: &'a str,
) -> [(&'static str, &'a str); 5] {
    let (service, port_name) = port.name.split_once(':').unwrap_or((&port.name, ""));
    let (namespace, service) = service.split_once('/').unwrap_or(("", service));
    [
        ("namespace", namespace),
        ("service", service),
        ("port", port_name),
        ("protocol", &port.protocol),
        (name, value),
    ]
}
