//! From a resolved service port to map elements: pure.

pub mod list;
pub mod maglev;

use crate::resolve::{ResolvedEndpoint, ResolvedFrontend, ResolvedPort};
use ipnet::IpNet;
use proxy_common::{
    Address, Algorithm, Backend, BackendId, EndpointSet, Frontend, FrontendKey, FrontendKind,
    NodeId, Scope, ServiceId, ServiceRecord, SourceFilter, SourceRange, TableRef,
    mapped_prefix_length,
};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Address and port: what tells the backends of one service port apart.
pub type BackendKey = (Address, u16);

/// One backend of a service port, with its place in `backends`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendEntry {
    /// The endpoint.
    pub key: BackendKey,
    /// Bits of [`Backend::state`].
    pub state: u8,
    /// 1 if the endpoint is on this node.
    pub local: u8,
    /// The endpoint's Node, 0 if it is not known.
    pub node: NodeId,
    /// As [`ResolvedEndpoint::weight`].
    pub weight: u16,
    /// Index into `backends`.
    pub id: BackendId,
}

impl BackendEntry {
    /// Its share in a table that it is in: the others have 0, too, if it has.
    fn share(&self) -> u16 {
        self.weight.max(1)
    }
}

/// How a table lists the backends of its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableForm {
    /// Each as [`list::repeats`] says, for a pick by chance.
    List,
    /// As [`maglev::table`], for a pick that is the same on every node.
    Maglev,
}

/// One of the tables of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableKind {
    /// How it lists them.
    pub form: TableForm,
    /// Its family.
    pub is_v4: bool,
    /// The set that it lists.
    pub set: EndpointSet,
}

/// Number of tables that a service port can have: two forms, two families, two sets.
pub const TABLES_PER_PORT: usize = 8;

impl TableKind {
    /// Every kind, in the order of their indices.
    pub fn all() -> impl Iterator<Item = Self> {
        let sets = [EndpointSet::Cluster, EndpointSet::Local];
        [TableForm::List, TableForm::Maglev]
            .into_iter()
            .flat_map(|form| [true, false].map(|is_v4| (form, is_v4)))
            .flat_map(move |(form, is_v4)| sets.map(|set| Self { form, is_v4, set }))
    }

    /// The table that a frontend picks from. Clients on this node, and those of a
    /// ClusterIP, whose packets come by one node alone, gain nothing by Maglev.
    pub fn of(frontend: &ResolvedFrontend) -> Self {
        let by_any_node = frontend.scope == Scope::External
            && match frontend.kind {
                FrontendKind::ClusterIp => false,
                FrontendKind::NodePort | FrontendKind::LoadBalancer | FrontendKind::ExternalIp => {
                    true
                }
            };
        let form = match frontend.algorithm {
            Algorithm::Maglev if by_any_node => TableForm::Maglev,
            Algorithm::Maglev | Algorithm::Random | Algorithm::LeastConnections => TableForm::List,
        };
        Self {
            form,
            is_v4: frontend.address.is_v4(),
            set: frontend.set,
        }
    }

    /// Its index among the tables of its service port.
    pub fn index(self) -> usize {
        let form = match self.form {
            TableForm::List => 0,
            TableForm::Maglev => 4,
        };
        let set = match self.set {
            EndpointSet::Cluster => 0,
            EndpointSet::Local => 1,
        };
        form + usize::from(!self.is_v4) * 2 + set
    }

    /// The ids of the table, given the service port's backends in the order of
    /// their addresses, and [`maglev::seed`].
    pub fn ids(self, backends: &[BackendEntry], seed: u32) -> Vec<BackendId> {
        let bit = match self.set {
            EndpointSet::Cluster => Backend::IN_CLUSTER_SET,
            EndpointSet::Local => Backend::IN_LOCAL_SET,
        };
        let members = backends
            .iter()
            .filter(|it| it.key.0.is_v4() == self.is_v4 && it.state & bit != 0);
        let members: Vec<&BackendEntry> = members.collect();
        match self.form {
            TableForm::List => list_ids(&members),
            TableForm::Maglev => maglev_ids(&members, seed),
        }
    }
}

fn list_ids(backends: &[&BackendEntry]) -> Vec<BackendId> {
    let weights: Vec<u16> = backends.iter().map(|it| it.share()).collect();
    let repeats = list::repeats(&weights).into_iter().zip(backends);
    repeats
        .flat_map(|(count, entry)| std::iter::repeat_n(entry.id, count as usize))
        .collect()
}

fn maglev_ids(backends: &[&BackendEntry], seed: u32) -> Vec<BackendId> {
    let member = |entry: &&BackendEntry| maglev::Member {
        key: entry.key,
        weight: entry.share().into(),
    };
    let members: Vec<_> = backends.iter().map(member).collect();
    maglev::table(&members, seed, maglev::size(members.len()))
        .into_iter()
        .map(|index| backends[index as usize].id)
        .collect()
}

/// Bits of [`Backend::state`] for an endpoint. What resolve lists serves.
pub fn state(endpoint: &ResolvedEndpoint) -> u8 {
    let mut state = Backend::SERVING;
    for (holds, bit) in [
        (endpoint.in_cluster_set, Backend::IN_CLUSTER_SET),
        (endpoint.in_local_set, Backend::IN_LOCAL_SET),
    ] {
        if holds {
            state |= bit;
        }
    }
    state
}

/// What a published frontend was resolved to.
pub fn resolved(frontend: &Frontend) -> ResolvedFrontend {
    ResolvedFrontend {
        address: frontend.key.address,
        port: frontend.key.port,
        kind: frontend.kind,
        scope: frontend.key.scope,
        set: frontend.set,
        source_filter: frontend.source_filter,
        algorithm: frontend.algorithm,
        forwarding: frontend.forwarding,
    }
}

/// The key of `frontends` for a resolved frontend.
pub fn frontend_key(frontend: &ResolvedFrontend, port: &PortKey) -> FrontendKey {
    FrontendKey {
        address: frontend.address,
        port: frontend.port,
        protocol: port.protocol,
        scope: frontend.scope,
    }
}

/// Identity of a service port. The protocol belongs to it: a port that keeps
/// its name and changes its protocol is another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortKey {
    /// `spec.ports[].name`.
    pub name: Box<str>,
    /// `spec.ports[].protocol`.
    pub protocol: proxy_common::Protocol,
}

impl PortKey {
    /// The identity of a resolved port.
    pub fn of(port: &ResolvedPort) -> Self {
        Self {
            name: port.name.clone(),
            protocol: port.protocol,
        }
    }
}

/// The element of `frontends` for one frontend of a service port.
pub fn frontend(
    frontend: &ResolvedFrontend,
    port: &PortKey,
    service: ServiceId,
    tables: &[TableRef; TABLES_PER_PORT],
    backends: &[BackendEntry],
    affinity_timeout_s: u32,
) -> Frontend {
    let is_v4 = frontend.address.is_v4();
    let table = tables[TableKind::of(frontend).index()];
    let elsewhere = frontend.set == EndpointSet::Local
        && table.length == 0
        && backends
            .iter()
            .any(|it| it.key.0.is_v4() == is_v4 && it.state & Backend::IN_CLUSTER_SET != 0);
    Frontend {
        key: frontend_key(frontend, port),
        generation: 0,
        #[cfg(feature = "other-layout")]
        other: u32::MAX,
        service,
        table,
        affinity_timeout_s,
        kind: frontend.kind,
        set: frontend.set,
        elsewhere: elsewhere.into(),
        source_filter: frontend.source_filter,
        algorithm: frontend.algorithm,
        forwarding: frontend.forwarding,
        _reserved: [0; 2],
    }
}

/// The keys of `source_ranges` for a service port: prefix length and range; none
/// if no frontend is filtered.
pub fn source_ranges(service: ServiceId, port: &ResolvedPort) -> BTreeSet<(u32, SourceRange)> {
    let is_filtered = |it: &ResolvedFrontend| it.source_filter != SourceFilter::Anyone;
    if !port.frontends.iter().any(is_filtered) {
        return BTreeSet::new();
    }
    let key = |range: &IpNet| {
        let length = mapped_prefix_length(range.network(), range.prefix_len());
        let address = range.network().into();
        (
            SourceRange::SERVICE_BITS + length,
            SourceRange { service, address },
        )
    };
    let ranges = port.source_ranges.iter().filter(|it| it.prefix_len() != 0);
    ranges
        .flat_map(|it| without_mapped(*it))
        .map(|it| key(&it))
        .collect()
}

/// An IPv6 range without IPv4-mapped addresses: in the map those are the clients
/// of the other family, which the range does not let in.
fn without_mapped(range: IpNet) -> Vec<IpNet> {
    const MAPPED: Ipv6Addr = Ipv4Addr::UNSPECIFIED.to_ipv6_mapped();
    let IpNet::V6(mut around) = range else {
        return vec![range];
    };
    let mut parts = Vec::new();
    while around.contains(&MAPPED)
        && around.prefix_len() < 96
        && let Ok(halves) = around.subnets(around.prefix_len() + 1)
    {
        for half in halves {
            if half.contains(&MAPPED) {
                around = half;
            } else {
                parts.push(half.into());
            }
        }
    }
    if around.network().to_ipv4_mapped().is_none() {
        parts.push(around.into());
    }
    parts
}

/// The element of `services`; `None` if the name is longer than the API allows.
pub fn service_record(
    service: &crate::model::ObjectName,
    port: &ResolvedPort,
) -> Option<ServiceRecord> {
    Some(ServiceRecord {
        name: ServiceRecord::encode_name(&format!("{service}:{}", port.name))?,
        protocol: port.protocol as u32,
        internal_local: port.internal_local.into(),
        external_local: port.external_local.into(),
        _reserved: [0; 2],
    })
}
