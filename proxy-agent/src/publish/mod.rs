//! Desired service ports → the kernel's maps, in an order that never breaks traffic.
//!
//! The publisher keeps a mirror of the maps, loaded from the kernel at start
//! ([`restore`]), and writes only differences. One [`Publisher::publish`] takes
//! a batch of changed Services through five phases, each for the whole batch:
//!
//! 1. **claim**: ids for service ports; who owns which frontend;
//! 2. **prepare**: new backends, then new tables; nothing points at them yet;
//! 3. **swing**: each frontend in one write to its new table;
//! 4. **withdraw**: frontends that nobody asks for any more;
//! 5. **retire**: what the old frontends pointed at is marked unusable, and
//!    freed only after every reader of that moment is gone ([`Grace`]).
//!
//! A crash between any two writes leaves every service working: what is not yet
//! swung is unreferenced, what is not yet freed is found again at the next start.

mod arena;
pub mod bpf;
mod claims;
mod counters;
mod error;
mod external;
mod ids;
mod kernel;
mod local;
pub mod migrate;
mod node;
mod node_maps;
mod nodes;
mod pinned;
mod port;
mod restore;
mod shared;
#[cfg(test)]
pub(crate) mod tests;

pub use error::PublishError;
pub use kernel::{AddressSet, Grace, Kernel, KernelError, NodeMaps};
pub use nodes::{Nodes, NodesOutcome};

use crate::compile::{self, PortKey};
use crate::model::ObjectName;
use crate::resolve::{ResolvedPort, ResolvedService};
use arena::Arena;
use claims::{Claims, Rank};
use external::External;
use ids::Ids;
use nodes::NodeMirror;
use port::Port;
use proxy_common::{
    Address, BackendId, Frontend, FrontendKey, LocalBackendKey, NodeAddresses, NodeId, ServiceId,
    SourceRange, TableRef,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A Service that is asked for, or `None` if it is gone.
pub type Change = (ObjectName, Option<ResolvedService>);

/// A frontend that a Service asks for and another one has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Contest {
    /// The Service that does not have it.
    pub service: ObjectName,
    /// The one that has it, since it is older.
    pub owner: ObjectName,
    /// The frontend.
    pub frontend: FrontendKey,
}

/// What one publish left undone: retry these Services later.
pub type Failures = Vec<(ObjectName, PublishError)>;

/// What may be freed once its readers are gone.
#[derive(Debug, Default)]
pub struct Retired {
    tables: Vec<TableRef>,
    backends: Vec<BackendId>,
    services: Vec<ServiceId>,
    source_ranges: Vec<(u32, SourceRange)>,
    nodes: Vec<NodeId>,
    /// Whether a UDP backend is among them: sockets may be connected to it.
    udp: bool,
}

impl Retired {
    /// Whether connected UDP sockets may have lost their backend by this.
    pub fn concerns_udp_sockets(&self) -> bool {
        self.udp
    }

    fn is_empty(&self) -> bool {
        self.tables.is_empty()
            && self.backends.is_empty()
            && self.services.is_empty()
            && self.source_ranges.is_empty()
            && self.nodes.is_empty()
    }
}

#[derive(Debug, Default)]
struct ServiceState {
    ports: BTreeMap<PortKey, ServiceId>,
    cluster_ips: Vec<Address>,
}

/// The mirror of the maps and the only writer to them.
pub struct Publisher<K> {
    kernel: K,
    arena: Arena,
    backend_ids: Ids,
    service_ids: Ids,
    services: HashMap<ObjectName, ServiceState>,
    ports: HashMap<ServiceId, Port>,
    claims: Claims,
    /// Map `frontends`.
    frontends: HashMap<FrontendKey, Frontend>,
    next_generation: u32,
    /// Map `vips`, and how many Services have each.
    vips: HashMap<Address, u32>,
    /// Those that the kernel did not take yet.
    vips_missing: BTreeSet<Address>,
    /// Map `external_addresses`.
    external: External,
    /// Elements of `backends` that are not free.
    backends_in_use: usize,
    /// Map `node_addresses`.
    node_addresses: BTreeSet<Address>,
    nodes: NodeMirror,
    /// Map `local_backends`.
    local_backends: HashMap<LocalBackendKey, BackendId>,
    /// This node's own addresses in map `device_settings`.
    own_node: NodeAddresses,
    /// Seed in map `device_settings`.
    seed: u32,
    retired: Retired,
}

impl<K: Kernel> Publisher<K> {
    /// Publishes a batch of changes; what it cannot do it returns.
    pub fn publish(&mut self, changes: Vec<Change>) -> Failures {
        let mut batch = Batch::default();
        for (name, desired) in changes {
            if let Err(error) = self.claim(&name, desired, &mut batch) {
                batch.failures.push((name, error));
            }
        }
        let touched: Vec<ServiceId> = batch.touched.iter().copied().collect();
        let mut prepared = Vec::with_capacity(touched.len());
        for id in touched {
            match self.prepare(id, batch.desired.remove(&id)) {
                Ok(shortage) => {
                    prepared.push(id);
                    if let Some(error) = shortage {
                        batch.fail(self.service_of(id), error);
                    }
                }
                Err(error) => batch.fail(self.service_of(id), error),
            }
        }
        prepared.retain(|&id| match self.swing(id) {
            Ok(()) => true,
            Err(error) => {
                batch.fail(self.service_of(id), error);
                false
            }
        });
        self.add_vips(&mut batch);
        let kept = self.withdraw(&mut batch);
        for id in prepared.into_iter().filter(|id| !kept.contains(id)) {
            self.retire(id);
        }
        let gone = std::mem::take(&mut batch.gone).into_iter();
        for id in gone.filter(|id| !kept.contains(id)) {
            self.retire_port(id);
        }
        self.retire_nodes();
        batch.failures
    }

    /// Removes what no Service asks for: once, after the first complete lists.
    pub fn prune(&mut self) -> Result<(), KernelError> {
        let foreign: Vec<FrontendKey> = self
            .frontends
            .keys()
            .filter(|key| self.claims.owner(key).is_none())
            .copied()
            .collect();
        for key in foreign {
            self.delete_frontend(&key)?;
        }
        let unused: Vec<Address> = self
            .vips
            .iter()
            .filter(|(_, count)| **count == 0)
            .map(|(vip, _)| *vip)
            .collect();
        for vip in unused {
            self.kernel.remove_address(AddressSet::Vips, &vip)?;
            self.vips.remove(&vip);
        }
        self.prune_local();
        self.external.prune(&mut self.kernel)
    }

    /// Services that the kernel knew at start and that are not yet published.
    pub fn known_services(&self) -> impl Iterator<Item = &ObjectName> {
        self.services.keys()
    }

    /// What waits to be freed, and the wait that it needs; run the wait off the
    /// event path, then call [`Publisher::free`].
    pub fn take_retired(&mut self) -> Option<(Retired, Grace)> {
        (!self.retired.is_empty()).then(|| (std::mem::take(&mut self.retired), self.kernel.grace()))
    }

    /// Frees what no program reads any more.
    pub fn free(&mut self, retired: Retired) -> Result<(), KernelError> {
        let Retired {
            tables,
            backends,
            services,
            source_ranges,
            nodes,
            udp: _,
        } = retired;
        for table in tables {
            self.arena.release(table);
        }
        for id in backends {
            let old = self.kernel.backend(id);
            self.kernel.set_backend(id, &port::unused(&old));
            self.backend_ids.release(id);
            self.backends_in_use = self.backends_in_use.saturating_sub(1);
        }
        for id in nodes {
            self.free_node(id)?;
        }
        for (prefix_length, range) in source_ranges {
            self.kernel.remove_source_range(prefix_length, &range)?;
        }
        for id in services {
            self.kernel.delete_service(id)?;
            self.service_ids.release(id);
        }
        Ok(())
    }

    /// Numbers for metrics: service ports, frontends, backends in use.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            service_ports: self.ports.len(),
            frontends: self.frontends.len(),
            backends: self.backends_in_use,
            contested_frontends: self.claims.contested(),
        }
    }

    /// The frontends that Services ask for and others have.
    pub fn contests(&self) -> BTreeSet<Contest> {
        let contests = self.claims.contests();
        let contests = contests.map(|(frontend, owner, other)| Contest {
            service: other.service.clone(),
            owner: owner.service.clone(),
            frontend: *frontend,
        });
        contests.collect()
    }

    // ---- phase 1: claim ----

    fn claim(
        &mut self,
        name: &ObjectName,
        desired: Option<ResolvedService>,
        batch: &mut Batch,
    ) -> Result<(), PublishError> {
        let mut state = self.services.remove(name).unwrap_or_default();
        let wanted: HashSet<PortKey> = desired
            .iter()
            .flat_map(|service| &service.ports)
            .map(PortKey::of)
            .collect();
        let gone: Vec<PortKey> = state
            .ports
            .keys()
            .filter(|key| !wanted.contains(key))
            .cloned()
            .collect();
        for id in gone.iter().filter_map(|key| state.ports.remove(key)) {
            self.release_claims(id, &[], batch);
            batch.gone.push(id);
        }
        let cluster_ips: Vec<Address> = desired
            .iter()
            .flat_map(|service| &service.cluster_ips)
            .map(|&ip| ip.into())
            .collect();
        batch.vips_added.extend(
            cluster_ips
                .iter()
                .filter(|vip| !state.cluster_ips.contains(vip)),
        );
        batch.vips_removed.extend(
            state
                .cluster_ips
                .iter()
                .filter(|vip| !cluster_ips.contains(vip)),
        );
        state.cluster_ips = cluster_ips;
        let mut result = Ok(());
        if let Some(service) = desired {
            for port in service.ports {
                let claimed = self.claim_port(name, service.created_s, port, &mut state, batch);
                result = result.and(claimed);
            }
        }
        if !state.ports.is_empty() || !state.cluster_ips.is_empty() {
            self.services.insert(name.clone(), state);
        }
        result
    }

    fn claim_port(
        &mut self,
        name: &ObjectName,
        created_s: i64,
        desired: ResolvedPort,
        state: &mut ServiceState,
        batch: &mut Batch,
    ) -> Result<(), PublishError> {
        let key = PortKey::of(&desired);
        let id = match state.ports.get(&key) {
            Some(&id) => id,
            None => {
                let capacity = self.service_ids.capacity();
                let id = self
                    .service_ids
                    .allocate()
                    .ok_or(PublishError::ServicesFull { capacity })?;
                state.ports.insert(key.clone(), id);
                self.kernel.reset_service_stats(id);
                self.ports.insert(id, Port::new(name.clone(), key.clone()));
                id
            }
        };
        let keys: Vec<FrontendKey> = desired
            .frontends
            .iter()
            .map(|it| compile::frontend_key(it, &key))
            .collect();
        self.release_claims(id, &keys, batch);
        for &frontend in &keys {
            let rank = Rank {
                created_s,
                service: name.clone(),
                port: key.clone(),
            };
            let ports = &self.ports;
            let heir = self.claims.add(frontend, id, rank, |owner| {
                ports.get(&owner).map(Port::rank)
            });
            batch.touched.extend(heir);
        }
        if let Some(port) = self.ports.get_mut(&id) {
            port.created_s = created_s;
            port.claimed = keys;
        }
        batch.touched.insert(id);
        batch.desired.insert(id, desired);
        Ok(())
    }

    /// Gives up the frontends of a service port that are not in `keep`.
    fn release_claims(&mut self, id: ServiceId, keep: &[FrontendKey], batch: &mut Batch) {
        let Some(port) = self.ports.get(&id) else {
            return;
        };
        for key in port.claimed.iter().filter(|key| !keep.contains(key)) {
            batch.touched.extend(self.claims.remove(key, id));
            batch.released.push((*key, id));
        }
    }

    // ---- phase 4: withdraw ----

    /// Counts new ClusterIPs in, after their frontends: before that, a
    /// connection to one would be refused for its port.
    fn add_vips(&mut self, batch: &mut Batch) {
        for vip in std::mem::take(&mut batch.vips_added) {
            let count = self.vips.entry(vip).or_insert(0);
            *count += 1;
            if *count == 1 {
                self.vips_missing.insert(vip);
            }
        }
        for vip in std::mem::take(&mut self.vips_missing) {
            if let Err(error) = self.kernel.add_address(AddressSet::Vips, &vip) {
                self.vips_missing.insert(vip);
                // Only the refusal of unknown ports depends on it.
                tracing::error!(vip = %vip.to_ip(), %error, "ports of a ClusterIP that its Service lacks are not refused");
            }
        }
    }

    /// An element that still leads to whoever gave the frontend up goes, also if
    /// somebody else owns it by now and could not be prepared. Returns the service
    /// ports that something still leads to: the kernel would not delete it.
    fn withdraw(&mut self, batch: &mut Batch) -> BTreeSet<ServiceId> {
        let mut kept = BTreeSet::new();
        for (key, id) in std::mem::take(&mut batch.released) {
            if self.frontends.get(&key).is_none_or(|it| it.service != id) {
                continue;
            }
            if let Err(error) = self.delete_frontend(&key) {
                tracing::error!(address = %key.address.to_ip(), port = key.port, %error, "a withdrawn frontend stays");
                kept.insert(id);
            }
        }
        for vip in std::mem::take(&mut batch.vips_removed) {
            let Some(count) = self.vips.get_mut(&vip) else {
                continue;
            };
            *count = count.saturating_sub(1);
            if *count > 0 {
                continue;
            }
            self.vips.remove(&vip);
            self.vips_missing.remove(&vip);
            if let Err(error) = self.kernel.remove_address(AddressSet::Vips, &vip) {
                tracing::error!(vip = %vip.to_ip(), %error, "a withdrawn ClusterIP is still refused");
            }
        }
        kept
    }

    fn delete_frontend(&mut self, key: &FrontendKey) -> Result<(), KernelError> {
        if self.frontends.contains_key(key) {
            self.kernel.delete_frontend(key)?;
            let before = self.frontends.remove(key);
            self.external.change(&mut self.kernel, before, None);
        }
        Ok(())
    }

    fn service_of(&self, id: ServiceId) -> Option<ObjectName> {
        self.ports.get(&id).map(|port| port.service.clone())
    }
}

/// Numbers of what is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Elements of `services`.
    pub service_ports: usize,
    /// Elements of `frontends`.
    pub frontends: usize,
    /// Elements of `backends` in use.
    pub backends: usize,
    /// Frontends that more than one service port asks for.
    pub contested_frontends: usize,
}

/// What the phases of one publish hand to each other.
#[derive(Default)]
struct Batch {
    /// Service ports whose frontends must be looked at.
    touched: BTreeSet<ServiceId>,
    desired: HashMap<ServiceId, ResolvedPort>,
    gone: Vec<ServiceId>,
    /// Frontends, and the service ports that gave them up.
    released: Vec<(FrontendKey, ServiceId)>,
    vips_added: Vec<Address>,
    vips_removed: Vec<Address>,
    failures: Failures,
}

impl Batch {
    fn fail(&mut self, service: Option<ObjectName>, error: PublishError) {
        self.failures.extend(service.map(|name| (name, error)));
    }
}
