//! Connections by service port and endpoint, read from the maps at each scrape.
//!
//! Series follow the maps: an endpoint that is gone has none, and the ids of its
//! counters start anew with their next owner, so nothing is inherited.

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
        let gauge = ConstGauge::new(without_series as i64);
        let help = "Endpoints beyond those that get series of their own";
        let metric = encoder.encode_descriptor(
            "fairlead_endpoints_without_series",
            help,
            None,
            gauge.metric_type(),
        )?;
        gauge.encode(metric)
    }
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
