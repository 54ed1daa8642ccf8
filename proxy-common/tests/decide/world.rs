//! What the world looks like, and the maps that encode it.

use proxy_common::decide::{FrontendLookup, Maps};
use proxy_common::{
    Address, Affinity, AffinityKey, Algorithm, Backend, BackendId, EndpointSet, Forwarding,
    Frontend, FrontendKey, FrontendKind, Protocol, Scope, ServiceId, SourceFilter, TableRef,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// What the world looks like, as a person would write it down.
#[derive(Clone, Debug, Default)]
pub(super) struct World {
    pub(super) services: Vec<Service>,
    pub(super) node_addresses: BTreeSet<IpAddr>,
    pub(super) cluster_ips: BTreeSet<IpAddr>,
    pub(super) service_cidr: Option<IpAddr>,
}

#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) affinity_timeout_s: u32,
    /// (address or None for a NodePort, port, protocol, set)
    pub(super) frontends: Vec<(Option<IpAddr>, u16, Protocol, EndpointSet)>,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) source_filter: SourceFilter,
    pub(super) algorithm: Algorithm,
    /// Clients in the source ranges.
    pub(super) allowed: BTreeSet<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Endpoint {
    pub(super) address: IpAddr,
    pub(super) cluster: bool,
    pub(super) local: bool,
    pub(super) serving: bool,
}

/// A client: its namespace, and its clock.
pub(super) struct Client {
    pub(super) cookie: u64,
    pub(super) is_host: bool,
    /// The addresses of its namespace that are known.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) now_s: Cell<u32>,
}

/// The maps that encode a world.
pub(super) struct Encoded<'a> {
    pub(super) frontends: BTreeMap<FrontendKey, Frontend>,
    pub(super) backends: Vec<Backend>,
    pub(super) lines: Vec<BackendId>,
    pub(super) affinity: RefCell<BTreeMap<(u64, ServiceId, u32), Affinity>>,
    pub(super) world: &'a World,
    pub(super) client: &'a Client,
    pub(super) random: Cell<u32>,
    /// The number of a packet's tuple; a socket has none.
    pub(super) tuple: Option<u32>,
    /// Open connections, by backend id.
    pub(super) open: RefCell<BTreeMap<BackendId, u32>>,
}

pub(super) const GENERATION: u32 = 7;

impl<'a> Encoded<'a> {
    pub(super) fn new(world: &'a World, client: &'a Client) -> Self {
        let unused = Backend {
            address: Address::ANY_V6,
            port: 0,
            local: 0,
            state: 0,
            service: 0,
            generation: 0,
            weight: 1,
            node: 0,
        };
        let mut maps = Self {
            frontends: BTreeMap::new(),
            backends: vec![unused],
            lines: Vec::new(),
            affinity: RefCell::default(),
            world,
            client,
            random: Cell::new(12345),
            tuple: None,
            open: RefCell::default(),
        };
        for (service, id) in world.services.iter().zip(1..) {
            maps.encode(service, id);
        }
        maps
    }

    fn encode(&mut self, service: &Service, id: ServiceId) {
        let first = self.backends.len() as u32;
        for endpoint in &service.endpoints {
            let bit = |holds, bit| if holds { bit } else { 0 };
            let state = bit(endpoint.cluster, Backend::IN_CLUSTER_SET)
                | bit(endpoint.local, Backend::IN_LOCAL_SET)
                | bit(endpoint.serving, Backend::SERVING);
            let address = endpoint.address.into();
            self.backends.push(Backend {
                address,
                port: 8080,
                local: 0,
                state,
                service: id,
                generation: GENERATION,
                weight: 1,
                node: 0,
            });
        }
        for (address, port, protocol, set) in &service.frontends {
            for wildcard in [Address::ANY_V4, Address::ANY_V6] {
                let address = address.map_or(wildcard, Address::from);
                let members = (first..)
                    .zip(&service.endpoints)
                    .filter(|(_, it)| it.address.is_ipv4() == address.is_v4());
                let ids: Vec<u32> = members
                    .clone()
                    .filter(|(_, it)| {
                        if *set == EndpointSet::Cluster {
                            it.cluster
                        } else {
                            it.local
                        }
                    })
                    .map(|(id, _)| id)
                    .collect();
                let table = TableRef {
                    chunk: 0,
                    first_line: self.lines.len() as u32,
                    length: ids.len() as u32,
                };
                let elsewhere = ids.is_empty()
                    && *set == EndpointSet::Local
                    && members.clone().any(|(_, it)| it.cluster);
                self.lines.extend(ids);
                let key = FrontendKey {
                    address,
                    port: *port,
                    protocol: *protocol,
                    scope: Scope::Internal,
                };
                let frontend = Frontend {
                    key,
                    generation: 1,
                    service: id,
                    table,
                    affinity_timeout_s: service.affinity_timeout_s,
                    kind: FrontendKind::ClusterIp,
                    set: *set,
                    elsewhere: elsewhere.into(),
                    source_filter: service.source_filter,
                    algorithm: service.algorithm,
                    forwarding: Forwarding::Snat,
                    _reserved: [0; 2],
                };
                self.frontends.entry(key).or_insert(frontend);
            }
        }
    }
}

impl Maps for Encoded<'_> {
    fn frontend(&self, key: &FrontendKey, copy: &mut Frontend) -> FrontendLookup {
        let Some(frontend) = self.frontends.get(key) else {
            return FrontendLookup::Missing;
        };
        *copy = *frontend;
        FrontendLookup::Found
    }
    fn is_node_address(&self, address: &Address) -> bool {
        self.world.node_addresses.contains(&address.to_ip())
    }
    fn is_cluster_ip(&self, address: &Address) -> bool {
        self.world.cluster_ips.contains(&address.to_ip())
    }
    fn in_service_cidr(&self, address: &Address) -> bool {
        self.world.service_cidr == Some(address.to_ip())
    }
    fn table_entry(&self, table: TableRef, index: u32) -> Option<BackendId> {
        self.lines.get((table.first_line + index) as usize).copied()
    }
    fn backend(&self, id: BackendId) -> Option<Backend> {
        self.backends.get(id as usize).copied()
    }
    fn affinity(&self, key: &AffinityKey) -> Option<Affinity> {
        self.affinity
            .borrow()
            .get(&(key.client, key.service, key.family))
            .copied()
    }
    fn remember_affinity(&self, key: &AffinityKey, value: &Affinity) {
        self.affinity
            .borrow_mut()
            .insert((key.client, key.service, key.family), *value);
    }
    fn source_allowed(&self, service: ServiceId, address: &Address) -> bool {
        self.world.services[service as usize - 1]
            .allowed
            .contains(&address.to_ip())
    }
    fn client_address(&self, v4: bool) -> Option<Address> {
        let address = self.client.addresses.iter().find(|it| it.is_ipv4() == v4)?;
        Some((*address).into())
    }
    fn client(&self) -> u64 {
        self.client.cookie
    }
    fn client_is_host(&self) -> bool {
        self.client.is_host
    }
    fn number(&self, _of_client: bool) -> u32 {
        self.tuple.unwrap_or_else(|| self.random())
    }
    fn random(&self) -> u32 {
        // Any spread will do; a fixed one makes failures repeat.
        self.random.set(
            self.random
                .get()
                .wrapping_mul(1_664_525)
                .wrapping_add(1_013_904_223),
        );
        self.random.get() >> 8
    }
    fn open_connections(&self, id: BackendId) -> u32 {
        self.open.borrow().get(&id).copied().unwrap_or_default()
    }
    fn now_s(&self) -> u32 {
        self.client.now_s.get()
    }
}
