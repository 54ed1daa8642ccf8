//! What this node shall serve, by the objects alone.

use crate::compile::{self, BackendEntry, PortKey};
use crate::model::ObjectName;
use crate::resolve::{self, ResolveOptions, ResolvedPort};
use crate::store::Store;
use proxy_common::{Address, FrontendKey};
use std::collections::{BTreeSet, HashMap};

/// Every service port, and whose each frontend is.
#[derive(Debug, Default)]
pub struct Wanted {
    /// In order of the Services' names.
    pub(super) ports: Vec<WantedPort>,
    /// Index in `ports` of whom each frontend belongs to.
    pub(super) owners: HashMap<FrontendKey, usize>,
    /// ClusterIPs that are served.
    pub(super) cluster_ips: BTreeSet<Address>,
}

/// A service port.
#[derive(Debug)]
pub(super) struct WantedPort {
    service: ObjectName,
    created_s: i64,
    pub(super) key: PortKey,
    pub(super) resolved: ResolvedPort,
}

impl WantedPort {
    /// As map `services` has it.
    pub(super) fn name(&self) -> String {
        format!("{}:{}", self.service, self.key.name)
    }

    pub(super) fn service(&self) -> &ObjectName {
        &self.service
    }

    /// The oldest Service has a frontend that several ask for.
    fn rank(&self) -> (i64, &ObjectName, &PortKey) {
        (self.created_s, &self.service, &self.key)
    }

    /// Its backends in the order of their addresses; the ids are their numbers
    /// among them, from 1.
    pub(super) fn backends(&self) -> Vec<BackendEntry> {
        let mut entries: Vec<BackendEntry> = self
            .resolved
            .endpoints
            .iter()
            .map(|endpoint| BackendEntry {
                key: (endpoint.address.into(), endpoint.port),
                state: compile::state(endpoint),
                local: endpoint.local.into(),
                // A number of this node's own, as the id.
                node: 0,
                weight: endpoint.weight,
                id: 0,
            })
            .collect();
        entries.sort_unstable_by_key(|it| it.key);
        for (entry, id) in entries.iter_mut().zip(1..) {
            entry.id = id;
        }
        entries
    }
}

impl Wanted {
    /// Resolves all Services of the store.
    pub fn of(store: &Store, options: &ResolveOptions) -> Self {
        let mut wanted = Self::default();
        let mut names: Vec<&ObjectName> = store.service_names().collect();
        names.sort_unstable();
        let is_cluster_ip = |ip| store.is_cluster_ip(ip);
        for (service, slices) in names.into_iter().filter_map(|name| store.view(name)) {
            let (resolved, _) =
                resolve::resolve(service, slices, store.node(), is_cluster_ip, options);
            let cluster_ips = resolved.cluster_ips.into_iter().map(Address::from);
            wanted.cluster_ips.extend(cluster_ips);
            for port in resolved.ports {
                wanted.add(WantedPort {
                    service: resolved.name.clone(),
                    created_s: resolved.created_s,
                    key: PortKey::of(&port),
                    resolved: port,
                });
            }
        }
        wanted
    }

    fn add(&mut self, port: WantedPort) {
        let index = self.ports.len();
        for frontend in &port.resolved.frontends {
            let owner = self
                .owners
                .entry(compile::frontend_key(frontend, &port.key))
                .or_insert(index);
            if *owner != index && port.rank() < self.ports[*owner].rank() {
                *owner = index;
            }
        }
        self.ports.push(port);
    }
}
