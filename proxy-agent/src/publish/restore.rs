//! The mirror as the kernel's maps have it: ids and generations survive restarts.

use super::{
    AddressSet, Arena, Claims, External, Ids, Kernel, KernelError, NodeMirror, Port, Publisher,
    Retired, ServiceState,
};
use crate::compile::{self, BackendEntry, PortKey, TableKind};
use crate::model::ObjectName;
use proxy_common::{Frontend, FrontendKey, Protocol, ServiceId, ServiceRecord};
use std::collections::{BTreeSet, HashMap, HashSet};

impl<K: Kernel> Publisher<K> {
    /// Reads the maps. Nothing is written; what no Service turns out to ask for
    /// goes when the first complete lists are published.
    pub fn restore(kernel: K) -> Result<Self, KernelError> {
        let mut arena = Arena::default();
        for _ in 0..kernel.chunks() {
            arena.add_chunk();
        }
        let frontends: HashMap<FrontendKey, Frontend> = kernel
            .frontends()?
            .into_iter()
            .map(|it| (it.key, it))
            .collect();
        let mut retired = Retired::default();
        let (services, mut ports, used) = restore_services(&kernel, &frontends, &mut retired)?;
        restore_backends(&kernel, &mut ports, &mut retired);
        for (prefix_length, range) in kernel.source_ranges()? {
            match ports.get_mut(&range.service) {
                Some(port) => {
                    port.source_ranges.insert((prefix_length, range));
                    port.next_source_ranges.insert((prefix_length, range));
                }
                None => retired.source_ranges.push((prefix_length, range)),
            }
        }
        let mut claims = Claims::default();
        for frontend in frontends.values() {
            if let Some(port) = ports.get_mut(&frontend.service) {
                restore_frontend(frontend, port, &mut arena);
                claims.add(frontend.key, frontend.service, port.rank(), |_| None);
            }
        }
        let in_ports: usize = ports.values().map(|port: &Port| port.backends.len()).sum();
        let backends_in_use = in_ports + retired.backends.len();
        let last_generation = frontends.values().map(|it| it.generation).max();
        let vips = kernel.addresses(AddressSet::Vips)?;
        let external = External::restore(&kernel, frontends.values())?;
        let node_addresses = kernel.addresses(AddressSet::NodeAddresses)?;
        Ok(Self {
            backend_ids: Ids::new(kernel.backends_max(), |id| kernel.backend(id).service != 0),
            service_ids: Ids::new(kernel.services_max(), |id| used.contains(&id)),
            vips_missing: BTreeSet::new(),
            external,
            backends_in_use,
            nodes: NodeMirror::restore(&kernel)?,
            local_backends: kernel.local_backends()?.into_iter().collect(),
            own_node: kernel.device_settings()?.node,
            seed: kernel.device_settings()?.seed,
            next_generation: last_generation.unwrap_or(0).wrapping_add(1),
            node_addresses: node_addresses.into_iter().collect(),
            vips: vips.into_iter().map(|vip| (vip, 0)).collect(),
            kernel,
            arena,
            services,
            ports,
            claims,
            frontends,
            retired,
        })
    }
}

type Services = HashMap<ObjectName, ServiceState>;
type Ports = HashMap<ServiceId, Port>;

/// The service ports, and every id that is taken.
///
/// After a crash one name may stand twice: the older id was withdrawn and not
/// yet freed when the Service came back. Only the newer one has frontends.
fn restore_services(
    kernel: &impl Kernel,
    frontends: &HashMap<FrontendKey, Frontend>,
    retired: &mut Retired,
) -> Result<(Services, Ports, HashSet<ServiceId>), KernelError> {
    let in_force: HashSet<ServiceId> = frontends.values().map(|it| it.service).collect();
    let (mut services, mut ports) = (Services::new(), Ports::new());
    let mut records = kernel.services()?;
    records.sort_unstable_by_key(|(id, _)| (in_force.contains(id), *id));
    for (id, record) in &records {
        let (service, key) = parse(record).unwrap_or_else(|| {
            let name = record.name();
            tracing::warn!(id, name, "map services has a name that cannot be read");
            nobody(*id)
        });
        let state = services.entry(service.clone()).or_default();
        if let Some(earlier) = state.ports.insert(key.clone(), *id) {
            ports.remove(&earlier);
            retired.services.push(earlier);
        }
        ports.insert(*id, Port::new(service, key));
    }
    Ok((
        services,
        ports,
        records.into_iter().map(|(id, _)| id).collect(),
    ))
}

/// The backends of each service port; those of none, and all but one of those
/// with one address, were about to be freed.
fn restore_backends(kernel: &impl Kernel, ports: &mut Ports, retired: &mut Retired) {
    for id in 1..kernel.backends_max() {
        let backend = kernel.backend(id);
        if backend.service == 0 {
            continue;
        }
        let key = (backend.address, backend.port);
        let entry = BackendEntry {
            key,
            state: backend.state,
            local: backend.local,
            node: backend.node,
            weight: backend.weight.try_into().unwrap_or(u16::MAX),
            id,
        };
        match ports.get_mut(&backend.service) {
            Some(port) => port.backends.push(entry),
            None => retired.backends.push(id),
        }
    }
    for port in ports.values_mut() {
        // What was about to be freed has no state left and sorts last.
        port.backends
            .sort_unstable_by_key(|entry| (entry.key, u8::MAX - entry.state));
        port.backends.dedup_by(|later, kept| {
            let same = later.key == kept.key;
            if same {
                retired.backends.push(later.id);
            }
            same
        });
    }
}

/// Gives the service port its frontend and table back. After a crash between
/// two swings its frontends may name different tables for one set: all are kept
/// until the next publish.
fn restore_frontend(frontend: &Frontend, port: &mut Port, arena: &mut Arena) {
    let resolved = compile::resolved(frontend);
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
    port.tables[TableKind::of(&resolved).index()] = table;
}

/// A name that no Service has: what stands under it goes with the first publish.
fn nobody(id: ServiceId) -> (ObjectName, PortKey) {
    let key = PortKey {
        name: "".into(),
        protocol: Protocol::Tcp,
    };
    (ObjectName::new("", format!("unreadable {id}")), key)
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
