//! The pinned maps, decoded: what `fairlead services` and its siblings print.
//!
//! Works without the agent and changes nothing.

use crate::publish::bpf::BpfKernel;
use crate::publish::{Kernel, KernelError, NodeMaps};
use proxy_common::{
    Backend, BackendId, BackendStats, Frontend, NodeAddresses, NodeId, Protocol, Scope, ServiceId,
    ServiceRecord, ServiceStats,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

/// A service port with all that the kernel knows of it.
#[derive(Debug, Serialize)]
pub struct ServicePort {
    /// Id in the maps.
    pub id: ServiceId,
    /// `namespace/name:port`.
    pub name: String,
    /// TCP, UDP or SCTP.
    pub protocol: String,
    /// Cluster or Local.
    pub internal_traffic_policy: &'static str,
    /// Cluster or Local.
    pub external_traffic_policy: &'static str,
    /// Seconds, 0 without affinity.
    pub affinity_timeout_s: u32,
    /// Where it is reachable, for clients on this node and for those outside.
    pub frontends: Vec<FrontendView>,
    /// Its endpoints.
    pub backends: Vec<BackendView>,
    /// Connections and datagrams refused for want of any usable endpoint.
    pub refused_no_endpoint: u64,
    /// The same since policy Local left none.
    pub refused_no_local_endpoint: u64,
}

/// A frontend.
#[derive(Debug, Serialize)]
pub struct FrontendView {
    /// ClusterIP, NodePort, LoadBalancer or ExternalIP.
    pub kind: &'static str,
    /// `address:port`; a NodePort stands on every NodePort address of its family.
    pub address: String,
    /// `internal`: for clients on this node. `external`: for those whose packets
    /// come in by an uplink.
    pub scope: &'static str,
    /// maglev, random or least-connections.
    pub algorithm: &'static str,
    /// snat or dsr: how packets of clients outside get to backends on other nodes.
    pub forwarding: &'static str,
    /// Ids of the backends that new connections get, in their order.
    pub backends: Vec<BackendId>,
}

/// A backend.
#[derive(Debug, Serialize)]
pub struct BackendView {
    /// Id in the maps.
    pub id: BackendId,
    /// `address:port`.
    pub address: String,
    /// On this node.
    pub local: bool,
    /// Addresses by which its node takes packets for it, if that is known.
    pub node: Vec<IpAddr>,
    /// Its share of new connections beside the others' weights.
    pub weight: u32,
    /// Whether policy `Local` may use it.
    pub in_local_set: bool,
    /// `ready`: in the cluster set in force. `local-only`: in the local set only.
    /// `draining`: keeps UDP flows, gets nothing new. `gone`: about to be freed.
    pub state: &'static str,
    /// Connections that were sent here.
    pub opened: u64,
    /// TCP connections among them that never came to be.
    pub failed: u64,
    /// Connections that are open: TCP connections of this node's sockets, and flows
    /// of clients outside.
    pub open: u32,
}

/// Reads everything.
pub fn read(pin_dir: &Path) -> Result<Vec<ServicePort>, KernelError> {
    let kernel = BpfKernel::open(pin_dir)?;
    let mut ports: BTreeMap<ServiceId, ServicePort> = kernel
        .services()?
        .into_iter()
        .map(|(id, record)| (id, empty(id, &record, kernel.service_stats(id))))
        .collect();
    let mut frontends = kernel.frontends()?;
    frontends.sort_unstable_by_key(|it| (it.kind, it.key));
    for frontend in frontends {
        if let Some(port) = ports.get_mut(&frontend.service) {
            port.affinity_timeout_s = frontend.affinity_timeout_s;
            port.frontends
                .push(frontend_view(&frontend, kernel.table(frontend.table)));
        }
    }
    let nodes: BTreeMap<NodeId, NodeAddresses> = kernel.nodes()?.into_iter().collect();
    for id in 1..kernel.backends_max() {
        let backend = kernel.backend(id);
        if let Some(port) = ports.get_mut(&backend.service) {
            port.backends
                .push(backend_view(id, &backend, kernel.backend_stats(id), &nodes));
        }
    }
    let mut ports: Vec<ServicePort> = ports.into_values().collect();
    ports.sort_by(|a, b| (&a.name, &a.protocol).cmp(&(&b.name, &b.protocol)));
    for port in &mut ports {
        port.backends.sort_by(|a, b| a.address.cmp(&b.address));
    }
    Ok(ports)
}

impl ServicePort {
    /// Ids of the backends that any frontend gives new connections to.
    pub fn in_use(&self) -> BTreeSet<BackendId> {
        self.frontends
            .iter()
            .flat_map(|it| &it.backends)
            .copied()
            .collect()
    }
}

fn empty(id: ServiceId, record: &ServiceRecord, stats: ServiceStats) -> ServicePort {
    let policy = |local: u8| if local == 0 { "Cluster" } else { "Local" };
    ServicePort {
        id,
        name: record.name().to_owned(),
        protocol: Protocol::from_number(record.protocol)
            .map_or_else(|| record.protocol.to_string(), |it| it.as_str().to_owned()),
        internal_traffic_policy: policy(record.internal_local),
        external_traffic_policy: policy(record.external_local),
        affinity_timeout_s: 0,
        frontends: Vec::new(),
        backends: Vec::new(),
        refused_no_endpoint: stats.no_endpoint,
        refused_no_local_endpoint: stats.no_local_endpoint,
    }
}

fn frontend_view(frontend: &Frontend, mut backends: Vec<BackendId>) -> FrontendView {
    backends.sort_unstable();
    backends.dedup();
    FrontendView {
        kind: frontend.kind.as_str(),
        address: socket_address(frontend.key.address, frontend.key.port),
        scope: match frontend.key.scope {
            Scope::Internal => "internal",
            Scope::External => "external",
        },
        algorithm: frontend.algorithm.as_str(),
        forwarding: frontend.forwarding.as_str(),
        backends,
    }
}

/// The addresses that a Node has.
pub(crate) fn addresses(node: &NodeAddresses) -> Vec<IpAddr> {
    let both = [node.v4, node.v6].into_iter();
    let known = both.filter(|it| !it.same(it.wildcard()));
    known.map(|it| it.to_ip()).collect()
}

fn backend_view(
    id: BackendId,
    backend: &Backend,
    stats: BackendStats,
    nodes: &BTreeMap<NodeId, NodeAddresses>,
) -> BackendView {
    let state = if backend.state & Backend::IN_CLUSTER_SET != 0 {
        "ready"
    } else if backend.state & Backend::IN_LOCAL_SET != 0 {
        "local-only"
    } else if backend.is_serving() {
        "draining"
    } else {
        "gone"
    };
    BackendView {
        id,
        address: socket_address(backend.address, backend.port),
        local: backend.local != 0,
        node: nodes.get(&backend.node).map(addresses).unwrap_or_default(),
        weight: backend.weight,
        in_local_set: backend.state & Backend::IN_LOCAL_SET != 0,
        state,
        opened: stats.opened,
        failed: stats.failed,
        open: stats.open(),
    }
}

/// `address:port`, IPv6 in brackets.
pub fn socket_address(address: proxy_common::Address, port: u16) -> String {
    std::net::SocketAddr::new(address.to_ip(), port).to_string()
}
