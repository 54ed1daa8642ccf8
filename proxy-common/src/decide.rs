//! The decision: frontend → policy → set → table → backend.
//!
//! One function over a small trait of look-ups, run by the socket programs in
//! the kernel and by tests on the host (sock_addr programs cannot be test-run,
//! so this is where their logic is tested).

use crate::{
    Address, Affinity, AffinityKey, Algorithm, Backend, BackendId, DropReason, EndpointSet,
    Frontend, FrontendKey, Protocol, Scope, ServiceId, SourceFilter, TableRef,
};

/// What a look-up in `frontends` found. The element is no part of it: where there is
/// none, its place would be uninitialised stack, as in [`BackendRef::NONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontendLookup {
    /// The element, of which there is a consistent copy.
    Found,
    /// No such frontend.
    Missing,
    /// The element changed while it was read, twice.
    Unstable,
}

/// The look-ups that a decision needs.
pub trait Maps {
    /// Map `frontends`; copies the element that is found.
    fn frontend(&self, key: &FrontendKey, copy: &mut Frontend) -> FrontendLookup;
    /// Map `node_addresses`: whether NodePorts are served on this address.
    fn is_node_address(&self, address: &Address) -> bool;
    /// Map `vips`: whether a Service has this ClusterIP.
    fn is_cluster_ip(&self, address: &Address) -> bool;
    /// Map `service_cidrs`: whether the address is set aside for Services.
    fn in_service_cidr(&self, address: &Address) -> bool;
    /// Map `tables`: the backend id at `index`; `None` if there is no such line.
    fn table_entry(&self, table: TableRef, index: u32) -> Option<BackendId>;
    /// Map `backends`.
    fn backend(&self, id: BackendId) -> Option<Backend>;
    /// Map `affinity`.
    fn affinity(&self, key: &AffinityKey) -> Option<Affinity>;
    /// Stores into map `affinity`; a full map evicts the record used longest ago.
    fn remember_affinity(&self, key: &AffinityKey, value: &Affinity);
    /// Map `source_ranges`: whether one of the service port's ranges has the address.
    fn source_allowed(&self, service: ServiceId, address: &Address) -> bool;
    /// Map `netns_addresses`: the client's address in a family, if it is known.
    fn client_address(&self, v4: bool) -> Option<Address>;
    /// Who the client is to session affinity, never 0: the cookie of its network
    /// namespace, or its address.
    fn client(&self) -> u64;
    /// Whether the client is in the host's network namespace.
    fn client_is_host(&self) -> bool;
    /// A number to pick by: random for sockets, of the packet's tuple for packets.
    /// With `of_client`, source ports do not enter it.
    fn number(&self, of_client: bool) -> u32;
    /// A random number.
    fn random(&self) -> u32;
    /// Map `backend_stats`: connections of this node that a backend has now.
    fn open_connections(&self, id: BackendId) -> u32;
    /// Seconds since boot.
    fn now_s(&self) -> u32;
}

/// One connection or datagram that asks where to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Destination as the client gave it.
    pub destination: Address,
    /// Host byte order.
    pub port: u16,
    /// Protocol of the socket or packet.
    pub protocol: Protocol,
    /// Where the client stands.
    pub scope: Scope,
}

impl Request {
    /// The key under which a frontend for exactly this destination stands.
    #[inline(always)]
    pub fn key(&self) -> FrontendKey {
        self.key_at(self.destination)
    }

    #[inline(always)]
    fn key_at(&self, address: Address) -> FrontendKey {
        FrontendKey {
            address,
            port: self.port,
            protocol: self.protocol,
            scope: self.scope,
        }
    }
}

/// A backend as something remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendRef {
    /// Index into `backends`.
    pub id: BackendId,
    /// Generation at that time.
    pub generation: u32,
}

impl BackendRef {
    /// No backend. Not an `Option`: its empty payload would be uninitialised
    /// stack, which verifiers before Linux 6.3 refuse to see copied.
    pub const NONE: Self = Self {
        id: 0,
        generation: 0,
    };
}

/// Where traffic goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The backend.
    pub backend: BackendRef,
    /// The backend's address.
    pub address: Address,
    /// Host byte order.
    pub port: u16,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No service owns the destination: leave it alone.
    NotOurs,
    /// Translate.
    Forward(Target),
    /// Refuse, and count why.
    Refuse(Refusal),
}

/// Why something is refused, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: DropReason,
    /// The service port that owns the frontend; 0 if no single one does.
    pub service: ServiceId,
}

/// Decides about one request.
///
/// `kept` is the backend that the same socket already has for this
/// destination, or [`BackendRef::NONE`]: an unconnected UDP socket stays with
/// it while it serves.
#[inline(always)]
pub fn decide(maps: &impl Maps, request: &Request, kept: BackendRef) -> Decision {
    let mut frontend = Frontend::NONE;
    match find_frontend(maps, request, &mut frontend) {
        Ok(true) => {}
        Ok(false) => return Decision::NotOurs,
        Err(reason) => return Decision::Refuse(Refusal { reason, service: 0 }),
    }
    match decide_at(maps, &frontend, kept) {
        Ok(target) => Decision::Forward(target),
        Err(refusal) => Decision::Refuse(refusal),
    }
}

/// The same for a request whose frontend is known.
#[inline(always)]
pub fn decide_at(
    maps: &impl Maps,
    frontend: &Frontend,
    kept: BackendRef,
) -> Result<Target, Refusal> {
    check_source(maps, frontend)
        .and_then(|()| choose(maps, frontend, kept))
        .map_err(|reason| Refusal {
            reason,
            service: frontend.service,
        })
}

/// Finds the frontend of a request; `false` if no service owns the destination.
///
/// An exact entry goes first: a Service may claim a node's address as an
/// externalIP. What is left of a ClusterIP is refused. Then NodePorts, on
/// addresses of this node and, for processes of the host, on loopback. An
/// unassigned address of the service CIDRs is refused, as kube-proxy's nftables mode does
/// (pkg/proxy/nftables/proxier.go, chain `cluster-ips-check`).
#[inline(always)]
pub fn find_frontend(
    maps: &impl Maps,
    request: &Request,
    frontend: &mut Frontend,
) -> Result<bool, DropReason> {
    let address = &request.destination;
    // To the kernel, the unspecified address is this host's loopback; in the map
    // it is the NodePorts' key, which nobody may ask for by itself.
    let is_own = address.is_loopback() || address.same(address.wildcard());
    if !is_own {
        if is_found(maps.frontend(&request.key(), frontend))? {
            return Ok(true);
        }
        // Also where something has put the address on an interface.
        if maps.is_cluster_ip(address) {
            return Err(DropReason::PortNotInService);
        }
    }
    let has_node_ports = if is_own {
        maps.client_is_host()
    } else {
        maps.is_node_address(address)
    };
    if has_node_ports {
        let key = request.key_at(address.wildcard());
        return is_found(maps.frontend(&key, frontend));
    }
    if maps.in_service_cidr(address) {
        return Err(DropReason::UnassignedAddress);
    }
    Ok(false)
}

#[inline(always)]
fn is_found(lookup: FrontendLookup) -> Result<bool, DropReason> {
    match lookup {
        FrontendLookup::Found => Ok(true),
        FrontendLookup::Missing => Ok(false),
        FrontendLookup::Unstable => Err(DropReason::FrontendUnstable),
    }
}

/// Whether the frontend takes the client (semantics 22).
#[inline(always)]
fn check_source(maps: &impl Maps, frontend: &Frontend) -> Result<(), DropReason> {
    match frontend.source_filter {
        SourceFilter::Anyone => return Ok(()),
        SourceFilter::RangesAndHost if maps.client_is_host() => return Ok(()),
        SourceFilter::Ranges | SourceFilter::RangesAndHost => {}
    }
    let client = maps
        .client_address(frontend.key.address.is_v4())
        .ok_or(DropReason::SourceUnknown)?;
    if maps.source_allowed(frontend.service, &client) {
        Ok(())
    } else {
        Err(DropReason::SourceNotAllowed)
    }
}

/// Picks a backend of a frontend: the kept one, then affinity, then the algorithm.
#[inline(always)]
fn choose(maps: &impl Maps, frontend: &Frontend, kept: BackendRef) -> Result<Target, DropReason> {
    if kept.id != 0
        && let Some(backend) = current(maps, frontend, kept)
        && backend.is_serving()
    {
        return Ok(target(kept, &backend));
    }
    if frontend.affinity_timeout_s == 0 {
        return pick(maps, frontend);
    }
    let key = AffinityKey {
        client: maps.client(),
        service: frontend.service,
        family: if frontend.key.address.is_v4() { 4 } else { 6 },
    };
    let now_s = maps.now_s();
    let target = match remembered(maps, frontend, &key, now_s) {
        Some(target) => target,
        None => pick(maps, frontend)?,
    };
    maps.remember_affinity(
        &key,
        &Affinity {
            backend: target.backend.id,
            generation: target.backend.generation,
            last_used_s: now_s,
        },
    );
    Ok(target)
}

/// The backend of an affinity record that is fresh and in the set in force.
#[inline(always)]
fn remembered(
    maps: &impl Maps,
    frontend: &Frontend,
    key: &AffinityKey,
    now_s: u32,
) -> Option<Target> {
    let record = maps.affinity(key)?;
    if now_s.wrapping_sub(record.last_used_s) >= frontend.affinity_timeout_s {
        return None;
    }
    let reference = BackendRef {
        id: record.backend,
        generation: record.generation,
    };
    let backend = current(maps, frontend, reference)?;
    backend
        .in_set(frontend.set)
        .then(|| target(reference, &backend))
}

/// A remembered backend, if its element still belongs to the same endpoint.
#[inline(always)]
fn current(maps: &impl Maps, frontend: &Frontend, reference: BackendRef) -> Option<Backend> {
    let backend = maps.backend(reference.id)?;
    (backend.generation == reference.generation && backend.service == frontend.service)
        .then_some(backend)
}

#[inline(always)]
fn pick(maps: &impl Maps, frontend: &Frontend) -> Result<Target, DropReason> {
    let number = match frontend.algorithm {
        Algorithm::Maglev => maps.number(frontend.affinity_timeout_s != 0),
        Algorithm::Random | Algorithm::LeastConnections => maps.random(),
    };
    let Some(mut index) = number.checked_rem(frontend.table.length) else {
        return Err(empty(frontend));
    };
    if frontend.algorithm as u8 == Algorithm::LeastConnections as u8 {
        index = less_loaded(maps, frontend.table, index);
    }
    let id = maps
        .table_entry(frontend.table, index)
        .ok_or(DropReason::BackendMissing)?;
    let backend = maps.backend(id).ok_or(DropReason::BackendMissing)?;
    if backend.service != frontend.service {
        return Err(DropReason::BackendMissing);
    }
    Ok(target(
        BackendRef {
            id,
            generation: backend.generation,
        },
        &backend,
    ))
}

/// The entry at `index` or another one by chance, whichever has fewer connections
/// for its weight. Two choices are nearly as good as a look at all of them
/// (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing").
#[inline(always)]
fn less_loaded(maps: &impl Maps, table: TableRef, index: u32) -> u32 {
    let Some(step) = maps.random().checked_rem(table.length - 1) else {
        return index;
    };
    let past = index + 1 + step;
    let other = if past < table.length {
        past
    } else {
        past - table.length
    };
    let (Some(one), Some(two)) = (load(maps, table, index), load(maps, table, other)) else {
        return index;
    };
    if two.open * one.weight < one.open * two.weight {
        other
    } else {
        index
    }
}

struct Load {
    open: u64,
    weight: u64,
}

#[inline(always)]
fn load(maps: &impl Maps, table: TableRef, index: u32) -> Option<Load> {
    let id = maps.table_entry(table, index)?;
    Some(Load {
        open: maps.open_connections(id).into(),
        weight: maps.backend(id)?.weight.max(1).into(),
    })
}

#[inline(always)]
fn empty(frontend: &Frontend) -> DropReason {
    match frontend.set {
        EndpointSet::Local if frontend.elsewhere != 0 => DropReason::NoLocalEndpoint,
        EndpointSet::Local | EndpointSet::Cluster => DropReason::NoEndpoint,
    }
}

#[inline(always)]
fn target(backend: BackendRef, record: &Backend) -> Target {
    Target {
        backend,
        address: record.address,
        port: record.port,
    }
}
