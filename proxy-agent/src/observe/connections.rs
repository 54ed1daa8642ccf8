//! Connections by service port and endpoint, read from the maps at each scrape.
//!
//! Series follow the maps: an endpoint that is gone has none, and the ids of its
//! counters start anew with their next owner, so nothing is inherited.

use super::drops;
use super::snapshot::socket_address;
use crate::publish::bpf::BpfKernel;
use crate::publish::{Kernel, KernelError};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use proxy_common::{
    Backend, BackendId, BackendStats, DropReason, FrontendKind, Protocol, ServiceId, ServiceRecord,
    ServiceStats,
};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// Endpoints that get series of their own, in the order of their service ports'
/// names; the rest is counted by `fairlead_endpoints_without_series`. Seven series
/// each, of about 200 bytes in a scrape.
const ENDPOINTS_MAX: usize = 20_000;

/// The collector over the maps that are pinned in a directory.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) pin_dir: PathBuf,
}

/// A service port and its counters.
struct Port {
    id: ServiceId,
    record: ServiceRecord,
    stats: ServiceStats,
}

impl Port {
    fn protocol(&self) -> &'static str {
        Protocol::from_number(self.record.protocol).map_or("", Protocol::as_str)
    }
}

/// What a scrape shows. Only ids of endpoints: the rest is read from shared
/// memory when it is written out, since a cluster has very many.
struct Counted {
    kernel: BpfKernel,
    /// Sorted by name and protocol.
    ports: Vec<Port>,
    /// Indexes into `ports`, and endpoints, sorted.
    endpoints: Vec<(u32, BackendId)>,
}

impl Counted {
    fn read(pin_dir: &Path) -> Result<Self, KernelError> {
        let kernel = BpfKernel::open(pin_dir)?;
        let stats = |id| kernel.service_stats(id);
        let records = kernel.services()?.into_iter();
        let port = |(id, record)| Port {
            id,
            record,
            stats: stats(id),
        };
        let mut ports: Vec<Port> = records.map(port).collect();
        ports.sort_unstable_by(|a, b| {
            (a.record.name(), a.protocol()).cmp(&(b.record.name(), b.protocol()))
        });
        let index_of: HashMap<ServiceId, u32> = ports.iter().map(|it| it.id).zip(0..).collect();
        let mut endpoints: Vec<(u32, BackendId)> = (1..kernel.backends_max())
            .filter_map(|id| Some((*index_of.get(&kernel.backend(id).service)?, id)))
            .collect();
        endpoints.sort_unstable();
        Ok(Self {
            kernel,
            ports,
            endpoints,
        })
    }

    /// One counter of each endpoint that gets series.
    fn encode_endpoints(
        &self,
        encoder: &mut DescriptorEncoder,
        (name, help): (&str, &str),
        counter: impl Fn(&BackendStats) -> u64,
    ) -> fmt::Result {
        let mut family = counter_family(encoder, name, help)?;
        for &(port, id) in self.endpoints.iter().take(ENDPOINTS_MAX) {
            let Some(port) = self.ports.get(port as usize) else {
                continue;
            };
            let backend = self.kernel.backend(id);
            let address = socket_address(backend.address, backend.port);
            let value = counter(&self.kernel.backend_stats(id));
            encode_counter(&mut family, port, ("endpoint", &address), value)?;
        }
        Ok(())
    }

    /// Of the packet path's flows that are over.
    fn encode_traffic(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let closed = (
            "fairlead_flows_closed",
            "Flows to an endpoint that are over",
        );
        self.encode_endpoints(encoder, closed, |stats| stats.closed)?;
        type Counter = fn(&BackendStats) -> u64;
        let counters: [(&str, &str, Counter); 4] = [
            ("sent_packets", "Packets to an endpoint", |it| it.packets_to),
            ("sent_bytes", "Bytes to an endpoint", |it| it.bytes_to),
            ("received_packets", "Packets from an endpoint", |it| {
                it.packets_from
            }),
            ("received_bytes", "Bytes from an endpoint", |it| {
                it.bytes_from
            }),
        ];
        for (name, help, counter) in counters {
            let name = format!("fairlead_endpoint_{name}");
            let help = format!("{help} in flows that are over");
            self.encode_endpoints(encoder, (&name, &help), counter)?;
        }
        Ok(())
    }

    fn encode_refused(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "Connections and datagrams that a service port had no endpoint for";
        let mut family = counter_family(encoder, "fairlead_connections_refused", help)?;
        for port in &self.ports {
            for (reason, count) in [
                (DropReason::NoEndpoint, port.stats.no_endpoint),
                (DropReason::NoLocalEndpoint, port.stats.no_local_endpoint),
            ] {
                encode_counter(&mut family, port, ("reason", reason.as_str()), count)?;
            }
        }
        Ok(())
    }

    /// By family and policy, as kube-proxy counts them: service ports with a
    /// policy `Local` and endpoints, none of them on this node.
    fn encode_no_local_endpoints(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let frontends = self.kernel.frontends().unwrap_or_default();
        let is_external = |kind| kind != FrontendKind::ClusterIp;
        let external: HashSet<ServiceId> = frontends
            .iter()
            .filter(|it| is_external(it.kind))
            .map(|it| it.service)
            .collect();
        // Per port and family: endpoints, and those that policy Local may use.
        let mut counts = vec![[(0_u32, 0_u32); 2]; self.ports.len()];
        for &(port, id) in &self.endpoints {
            let backend = self.kernel.backend(id);
            if let Some(families) = counts.get_mut(port as usize) {
                let (all, local) = &mut families[usize::from(!backend.address.is_v4())];
                *all += 1;
                *local += u32::from(backend.state & Backend::IN_LOCAL_SET != 0);
            }
        }
        let help = "Service ports with a policy Local and endpoints, none of them on this node";
        let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
        let mut family = gauge_family(encoder, name, help)?;
        for (ip_family, index) in [("IPv4", 0), ("IPv6", 1)] {
            let lacking = self.ports.iter().zip(&counts).filter(|(_, families)| {
                let (all, local) = families[index];
                all > 0 && local == 0
            });
            let lacking: Vec<&Port> = lacking.map(|(port, _)| port).collect();
            let internal = lacking
                .iter()
                .filter(|port| port.record.internal_local != 0);
            let outer = lacking
                .iter()
                .filter(|port| port.record.external_local != 0 && external.contains(&port.id));
            for (policy, count) in [("internal", internal.count()), ("external", outer.count())] {
                let labels = [("ip_family", ip_family), ("traffic_policy", policy)];
                ConstGauge::new(count as i64).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn encode(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let opened = (
            "fairlead_connections_opened",
            "Connections that were sent to an endpoint",
        );
        self.encode_endpoints(encoder, opened, |stats| stats.opened)?;
        let help = "TCP connections to an endpoint that never came to be";
        self.encode_endpoints(encoder, ("fairlead_connections_failed", help), |stats| {
            stats.failed
        })?;
        self.encode_traffic(encoder)?;
        self.encode_refused(encoder)?;
        self.encode_no_local_endpoints(encoder)?;
        let without_series = self.endpoints.len().saturating_sub(ENDPOINTS_MAX);
        let help = "Endpoints beyond those that get series of their own";
        let metric = gauge_family(encoder, "fairlead_endpoints_without_series", help)?;
        ConstGauge::new(without_series as i64).encode(metric)
    }
}

impl Collector for Connections {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        // Maps of a foreign layout cannot be read, while new ones wait for the
        // first complete lists.
        match Counted::read(&self.pin_dir) {
            Ok(counted) => counted.encode(&mut encoder)?,
            Err(error) => tracing::warn!("metrics without connections: {error}"),
        }
        match drops(&self.pin_dir) {
            Ok(drops) => encode_drops(&mut encoder, &drops),
            Err(error) => {
                tracing::warn!("metrics without drops: {error:#}");
                Ok(())
            }
        }
    }
}

fn encode_drops(encoder: &mut DescriptorEncoder, drops: &[(DropReason, u64)]) -> fmt::Result {
    let help = "Connections and datagrams refused or dropped since the maps were made, by reason";
    let mut family = counter_family(encoder, "fairlead_dropped", help)?;
    for (reason, count) in drops {
        let labels = [("reason", reason.as_str())];
        ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn counter_family<'a>(
    encoder: &'a mut DescriptorEncoder,
    name: &'a str,
    help: &str,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, ConstCounter::new(0_u64).metric_type())
}

fn gauge_family<'a>(
    encoder: &'a mut DescriptorEncoder,
    name: &'a str,
    help: &str,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, ConstGauge::new(0_i64).metric_type())
}

/// One series of a service port, with one more label.
fn encode_counter(
    family: &mut MetricEncoder<'_>,
    port: &Port,
    label: (&str, &str),
    value: u64,
) -> fmt::Result {
    let name = port.record.name();
    let (service, port_name) = name.split_once(':').unwrap_or((name, ""));
    let (namespace, service) = service.split_once('/').unwrap_or(("", service));
    let labels = [
        ("namespace", namespace),
        ("service", service),
        ("port", port_name),
        ("protocol", port.protocol()),
        label,
    ];
    ConstCounter::new(value).encode(family.encode_family(&labels)?)
}
