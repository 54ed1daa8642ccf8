//! The mirror as the kernel's maps have it: ids and generations survive restarts.

use super::{
    AddressSet, Arena, Claims, Ids, Kernel, KernelError, Port, Publisher, Retired, ServiceState,
};
use crate::compile::{self, BackendEntry, PortKey};
use crate::model::ObjectName;
use crate::resolve::ResolvedFrontend;
use proxy_common::{Frontend, Protocol, ServiceRecord};
use std::collections::{HashMap, HashSet};

impl<K: Kernel> Publisher<K> {
    /// Reads the maps. Nothing is written; what no Service turns out to ask for
    /// goes when the first complete lists are published.
    pub fn restore(kernel: K) -> Result<Self, KernelError> {
        let mut arena = Arena::default();
        for _ in 0..kernel.chunks() {
            arena.add_chunk();
        }
        let mut services: HashMap<ObjectName, ServiceState> = HashMap::new();
        let mut ports = HashMap::new();
        let mut used = HashSet::new();
        for (id, record) in kernel.services()? {
            used.insert(id);
            let Some((service, key)) = parse(&record) else {
                tracing::warn!(
                    id,
                    name = record.name(),
                    "map services has a name that cannot be read; left alone"
                );
                continue;
            };
            services
                .entry(service.clone())
                .or_default()
                .ports
                .insert(key.clone(), id);
            ports.insert(id, Port::new(service, key));
        }
        let mut retired = Retired::default();
        for id in 1..kernel.backends_max() {
            let backend = kernel.backend(id);
            if backend.service == 0 {
                continue;
            }
            let key = (backend.address, backend.port);
            match ports.get_mut(&backend.service) {
                Some(port) => {
                    port.backends.push(BackendEntry {
                        key,
                        state: backend.state,
                        local: backend.local,
                        id,
                    });
                }
                None => retired.backends.push(id),
            }
        }
        for port in ports.values_mut() {
            port.backends.sort_unstable_by_key(|entry| entry.key);
        }
        let backend_ids = Ids::new(kernel.backends_max(), |id| kernel.backend(id).service != 0);
        let service_ids = Ids::new(kernel.services_max(), |id| used.contains(&id));
        let frontends: HashMap<_, _> = kernel
            .frontends()?
            .into_iter()
            .map(|it| (it.key, it))
            .collect();
        let mut claims = Claims::default();
        for frontend in frontends.values() {
            if let Some(port) = ports.get_mut(&frontend.service) {
                restore_frontend(frontend, port, &mut arena);
                claims.add(frontend.key, port.rank(frontend.service), |_| None);
            }
        }
        let vips = kernel
            .addresses(AddressSet::Vips)?
            .into_iter()
            .map(|vip| (vip, 0))
            .collect();
        Ok(Self {
            next_generation: frontends
                .values()
                .map(|it| it.generation.wrapping_add(1))
                .max()
                .unwrap_or(1),
            node_addresses: kernel
                .addresses(AddressSet::NodeAddresses)?
                .into_iter()
                .collect(),
            kernel,
            arena,
            backend_ids,
            service_ids,
            services,
            ports,
            claims,
            frontends,
            vips,
            retired,
        })
    }
}

/// Gives the service port its frontend and table back. After a crash between
/// two swings its frontends may name different tables for one set: all are kept
/// until the next publish.
fn restore_frontend(frontend: &Frontend, port: &mut Port, arena: &mut Arena) {
    let resolved = ResolvedFrontend {
        address: frontend.key.address,
        port: frontend.key.port,
        kind: frontend.kind,
        set: frontend.set,
    };
    let mut frontends = std::mem::take(&mut port.frontends).into_vec();
    frontends.push(resolved);
    port.frontends = frontends.into();
    port.claimed.push(frontend.key);
    port.affinity_timeout_s = frontend.affinity_timeout_s;
    let table = frontend.table;
    if table.length == 0 {
        return;
    }
    if !port.owned_tables.contains(&table) {
        if !arena.reserve(table) {
            tracing::warn!(service = %port.service, ?table, "a frontend names room that is not its own; it gets a new table");
            return;
        }
        port.owned_tables.push(table);
    }
    let index = compile::table_index(frontend.key.address.is_v4(), frontend.set);
    port.tables[index] = table;
}

/// `namespace/name:port` and the protocol.
fn parse(record: &ServiceRecord) -> Option<(ObjectName, PortKey)> {
    let (service, port) = record.name().split_once(':')?;
    let (namespace, name) = service.split_once('/')?;
    let protocol = Protocol::from_number(record.protocol)?;
    Some((
        ObjectName::new(namespace, name),
        PortKey {
            name: port.into(),
            protocol,
        },
    ))
}
