//! Prometheus metrics: kube-proxy's names where they fit, `fairlead_*` for ours.

use super::connections::Connections;
use super::events::EventOutcome;
use crate::attach::{MapSizes, MapSpec, layout};
use crate::flows::{Removed, State, Summary};
use crate::model::{self, Warning};
use crate::publish::Sizes;
use crate::sockets;
use crate::store::{Changes, Trigger};
use anyhow::{Context, Result, bail};
use aya::maps::{MapData, PerCpuArray};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use proxy_common::{DropReason, Protocol};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Code {
    code: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Outcome {
    outcome: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Map {
    map: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct IpFamily {
    ip_family: &'static str,
}

impl IpFamily {
    fn of(family: model::Family) -> Self {
        Self {
            ip_family: family.as_str(),
        }
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SocketState {
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FlowLabels {
    protocol: &'static str,
    state: &'static str,
}

type Seconds = Gauge<f64, AtomicU64>;

/// All metrics of one agent.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pin_dir: PathBuf,
    healthz: Family<Code, Counter>,
    livez: Family<Code, Counter>,
    sync_duration: Histogram,
    last_sync: Seconds,
    last_queued: Seconds,
    event_to_kernel: Histogram,
    first_publish: Seconds,
    network_programming: Family<IpFamily, Histogram>,
    service_changes: Counter,
    service_changes_pending: Gauge,
    endpoint_changes: Counter,
    endpoint_changes_pending: Gauge,
    health_checks: Family<SocketState, Gauge>,
    failures: Counter,
    warnings: Family<Reason, Counter>,
    events: Family<Outcome, Counter>,
    map_entries: Family<Map, Gauge>,
    contested: Gauge,
    restored: Counter,
    sockets_destroyed: Counter,
    sockets_left: Counter,
    flows: Family<FlowLabels, Gauge>,
    flows_removed: Family<Reason, Counter>,
    sockets_guarded: Gauge,
}

impl Metrics {
    /// The metrics of the agent whose maps are pinned in `pin_dir`.
    pub fn new(pin_dir: &Path, sizes: &MapSizes) -> Self {
        let mut registry = Registry::default();
        let mut metrics = Self {
            pin_dir: pin_dir.to_owned(),
            healthz: Family::default(),
            livez: Family::default(),
            sync_duration: Histogram::new(exponential_buckets(0.000_05, 2.0, 20)),
            last_sync: Gauge::default(),
            last_queued: Gauge::default(),
            network_programming: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.001, 2.0, 20))
            }),
            service_changes: Counter::default(),
            service_changes_pending: Gauge::default(),
            endpoint_changes: Counter::default(),
            endpoint_changes_pending: Gauge::default(),
            health_checks: Family::default(),
            event_to_kernel: Histogram::new(exponential_buckets(0.000_05, 2.0, 20)),
            first_publish: Gauge::default(),
            failures: Counter::default(),
            warnings: Family::default(),
            events: Family::default(),
            map_entries: Family::default(),
            contested: Gauge::default(),
            restored: Counter::default(),
            sockets_destroyed: Counter::default(),
            sockets_left: Counter::default(),
            flows: Family::default(),
            flows_removed: Family::default(),
            sockets_guarded: Gauge::default(),
            registry: Registry::default(),
        };
        metrics.register_kube_proxy_names(&mut registry);
        metrics.register_own(&mut registry, sizes);
        metrics.registry = registry;
        // A series that starts from 0 can be told from one that is missing.
        for family in model::Family::ALL.map(IpFamily::of) {
            drop(metrics.network_programming.get_or_create(&family));
        }
        metrics
    }

    /// Semantics 33: dashboards for kube-proxy go on working.
    fn register_kube_proxy_names(&self, registry: &mut Registry) {
        registry.register(
            "kubeproxy_proxy_healthz",
            "Answers of /healthz by status code",
            self.healthz.clone(),
        );
        registry.register(
            "kubeproxy_proxy_livez",
            "Answers of /livez by status code",
            self.livez.clone(),
        );
        registry.register(
            "kubeproxy_sync_proxy_rules_duration_seconds",
            "Time of one publish to the kernel",
            self.sync_duration.clone(),
        );
        registry.register(
            "kubeproxy_network_programming_duration_seconds",
            "From the change of a Pod or Service to the kernel's use of its EndpointSlice",
            self.network_programming.clone(),
        );
        registry.register(
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
            "When the kernel last had everything that was known, seconds since the epoch",
            self.last_sync.clone(),
        );
        registry.register(
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
            "When a change was last queued, seconds since the epoch",
            self.last_queued.clone(),
        );
        registry.register(
            "kubeproxy_sync_proxy_rules_service_changes",
            "Changes of Services",
            self.service_changes.clone(),
        );
        registry.register(
            "kubeproxy_sync_proxy_rules_service_changes_pending",
            "Changes of Services that the kernel does not have yet",
            self.service_changes_pending.clone(),
        );
        registry.register(
            "kubeproxy_sync_proxy_rules_endpoint_changes",
            "Changes of EndpointSlices",
            self.endpoint_changes.clone(),
        );
        registry.register(
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
            "Changes of EndpointSlices that the kernel does not have yet",
            self.endpoint_changes_pending.clone(),
        );
    }

    fn register_own(&self, registry: &mut Registry, sizes: &MapSizes) {
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("fairlead_build", "The agent's build", build);
        registry.register(
            "fairlead_event_to_kernel_seconds",
            "From the arrival of a change to the kernel's use of it",
            self.event_to_kernel.clone(),
        );
        registry.register(
            "fairlead_first_publish_seconds",
            "From the first complete lists to all of them in the kernel; 0 before that",
            self.first_publish.clone(),
        );
        registry.register(
            "fairlead_publish_failures",
            "Services that could not be published as asked; each is retried",
            self.failures.clone(),
        );
        registry.register(
            "fairlead_rejected_objects",
            "Objects, or parts of them, that are not used, by reason",
            self.warnings.clone(),
        );
        registry.register(
            "fairlead_events",
            "Events on objects, by what became of them",
            self.events.clone(),
        );
        registry.register(
            "fairlead_map_entries",
            "Elements in use",
            self.map_entries.clone(),
        );
        registry.register(
            "fairlead_restored",
            "Programs on hooks, and elements of map devices, that somebody took away or changed and the agent put back",
            self.restored.clone(),
        );
        registry.register(
            "fairlead_udp_sockets_destroyed",
            "Connected UDP sockets that were ended since their backend was gone",
            self.sockets_destroyed.clone(),
        );
        registry.register(
            "fairlead_udp_sockets_left",
            "Connected UDP sockets of gone backends that could not be ended",
            self.sockets_left.clone(),
        );
        registry.register(
            "fairlead_flows",
            "Flows of the packet path at the last walk through them",
            self.flows.clone(),
        );
        registry.register(
            "fairlead_flows_removed",
            "Flows that the agent removed: silent for too long, of a UDP backend that is gone, or left by half",
            self.flows_removed.clone(),
        );
        registry.register(
            "fairlead_udp_sockets_guarded",
            "Connected UDP sockets of gone backends whose datagrams are refused, since the kernel cannot end them",
            self.sockets_guarded.clone(),
        );
        registry.register(
            "fairlead_health_check_sockets",
            "Sockets of health check node ports: open, or failed for now",
            self.health_checks.clone(),
        );
        registry.register(
            "fairlead_contested_frontends",
            "Frontends that more than one Service asks for",
            self.contested.clone(),
        );
        registry.register_collector(Box::new(Connections {
            pin_dir: self.pin_dir.clone(),
        }));
        let capacity = Family::<Map, Gauge>::default();
        for spec in MapSpec::all(sizes)
            .iter()
            .filter(|spec| spec.max_entries > 1)
        {
            capacity
                .get_or_create(&Map {
                    map: spec.name.to_owned(),
                })
                .set(spec.max_entries.into());
        }
        registry.register("fairlead_map_capacity", "Elements that fit", capacity);
    }

    pub(super) fn proxy_healthz(&self, code: u16) {
        self.healthz
            .get_or_create(&Code {
                code: code.to_string(),
            })
            .inc();
    }

    pub(super) fn proxy_livez(&self, code: u16) {
        self.livez
            .get_or_create(&Code {
                code: code.to_string(),
            })
            .inc();
    }

    /// Changes have come in.
    pub fn changed(&self, changes: Changes) {
        if changes.to_publish {
            self.last_queued.set(now_s());
        }
        self.service_changes.inc_by(changes.services);
        self.service_changes_pending.inc_by(changes.services as i64);
        self.endpoint_changes.inc_by(changes.slices);
        self.endpoint_changes_pending.inc_by(changes.slices as i64);
    }

    /// No change waits for the kernel; `complete` if none has failed either.
    pub fn up_to_date(&self, complete: bool) {
        self.service_changes_pending.set(0);
        self.endpoint_changes_pending.set(0);
        if complete {
            self.last_sync.set(now_s());
        }
    }

    /// So many programs or elements were put back.
    pub fn restored(&self, count: usize) {
        self.restored.inc_by(count as u64);
    }

    /// Sockets of health check node ports.
    pub fn health_checks(&self, (open, failed): (usize, usize)) {
        for (state, count) in [("open", open), ("failed", failed)] {
            let labels = SocketState { state };
            self.health_checks.get_or_create(&labels).set(count as i64);
        }
    }

    /// One publish ended: how long it took, and how long its first change waited in all.
    pub fn published(&self, took: Duration, waited: Duration, failures: usize, sizes: Sizes) {
        self.sync_duration.observe(took.as_secs_f64());
        self.event_to_kernel.observe(waited.as_secs_f64());
        self.failures.inc_by(failures as u64);
        for (map, entries) in [
            ("frontends", sizes.frontends),
            ("backends", sizes.backends),
            ("services", sizes.service_ports),
        ] {
            self.map_entries
                .get_or_create(&Map {
                    map: map.to_owned(),
                })
                .set(entries as i64);
        }
        self.contested.set(sizes.contested_frontends as i64);
    }

    /// All of the first complete lists is in the kernel.
    pub fn first_published(&self, took: Duration) {
        self.first_publish.set(took.as_secs_f64());
    }

    /// A slice is in the kernel whose change began at this time, by the clock of
    /// the controller that wrote it.
    pub fn programmed(&self, trigger: Trigger) {
        let triggered_s = trigger.triggered_ms as f64 / 1000.0;
        self.network_programming
            .get_or_create(&IpFamily::of(trigger.family))
            .observe((now_s() - triggered_s).max(0.0));
    }

    /// Connected UDP sockets whose backend was gone.
    pub fn swept(&self, outcome: sockets::Outcome) {
        self.sockets_destroyed.inc_by(outcome.destroyed as u64);
        self.sockets_left.inc_by(outcome.left as u64);
        self.sockets_guarded.set(outcome.guarded as i64);
    }

    /// What a walk through the flows has found.
    pub fn flows(&self, summary: &Summary) {
        for state in State::ALL {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let found = summary.flows.get(&(protocol as u32, state));
                let labels = FlowLabels {
                    protocol: protocol.as_str(),
                    state: state.as_str(),
                };
                // States belong to one protocol: the others' series stay away.
                if found.is_some() || self.flows.get(&labels).is_some() {
                    self.flows
                        .get_or_create(&labels)
                        .set(found.map_or(0, |&count| count as i64));
                }
            }
        }
        for (map, entries) in [
            ("flows", summary.elements),
            ("flows_new", summary.elements_new),
        ] {
            self.map_entries
                .get_or_create(&Map {
                    map: map.to_owned(),
                })
                .set(entries as i64);
        }
    }

    /// Flows that were removed since the last call.
    pub fn flows_removed(&self, removed: Removed) {
        let Removed {
            silent,
            backend_gone,
            half,
        } = removed;
        for (reason, count) in [
            ("silent", silent),
            ("backend_gone", backend_gone),
            ("half", half),
        ] {
            self.flows_removed
                .get_or_create(&Reason {
                    reason: reason.to_owned(),
                })
                .inc_by(count);
        }
    }

    /// Something in an object is not used.
    pub fn warned(&self, warning: &Warning) {
        self.warnings
            .get_or_create(&Reason {
                reason: warning.reason.as_str().to_owned(),
            })
            .inc();
    }

    /// An Event was written, or not.
    pub fn event(&self, outcome: EventOutcome) {
        self.events
            .get_or_create(&Outcome {
                outcome: outcome.as_str().to_owned(),
            })
            .inc();
    }

    /// The text format 0.0.4.
    pub(super) fn encode(&self) -> Result<String> {
        let mut text = String::new();
        encode(&mut text, &self.registry).context("encoding metrics")?;
        Ok(text)
    }
}

/// Map `drop_stats`, summed over CPUs.
pub fn drops(pin_dir: &Path) -> Result<Vec<(DropReason, u64)>> {
    if let Some(foreign) = layout::unreadable(pin_dir) {
        bail!(foreign.reason);
    }
    let map = MapData::from_pin(pin_dir.join("drop_stats")).context("opening map drop_stats")?;
    let map: PerCpuArray<_, u64> = aya::maps::Map::PerCpuArray(map).try_into()?;
    DropReason::ALL
        .into_iter()
        .map(|reason| {
            let counts = map
                .get(&(reason as u32), 0)
                .context("reading map drop_stats")?;
            Ok((reason, counts.iter().sum()))
        })
        .collect()
}

fn now_s() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}
