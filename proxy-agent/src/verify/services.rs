//! Services against the maps: by names and addresses, since ids are the kernel's own.

use super::wanted::WantedPort;
use super::{Difference, NOTHING, Part, Wanted, node};
use crate::compile::{self, BackendEntry, TABLES_PER_PORT, TableKind};
use crate::observe::snapshot::socket_address;
use crate::publish::{AddressSet, Kernel, KernelError};
use proxy_common::{
    Address, Algorithm, Backend, BackendId, EndpointSet, Forwarding, Frontend, FrontendKey,
    Protocol, Scope, ServiceId, ServiceRecord, SourceFilter, SourceRange, TableRef,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What differs between the objects and the maps that are about Services.
pub fn compare(wanted: &Wanted, kernel: &impl Kernel) -> Result<Vec<Difference>, KernelError> {
    let found = Found::read(kernel)?;
    let mut differences = Vec::new();
    let mut known = BTreeSet::new();
    for (index, port) in wanted.ports.iter().enumerate() {
        let id = found.id_of(port);
        known.extend(id);
        let mut comparison = Comparison {
            kernel,
            found: &found,
            port,
            id,
            differences: &mut differences,
        };
        comparison.service();
        let backends = port.backends();
        comparison.backends(&backends);
        comparison.source_ranges();
        comparison.frontends(&backends, |key| wanted.owners.get(key) == Some(&index));
    }
    differences.extend(found.foreign(&known, wanted));
    let vips: BTreeSet<Address> = kernel.addresses(AddressSet::Vips)?.into_iter().collect();
    differences.extend(node::addresses(Part::Vips, &wanted.cluster_ips, &vips));
    differences.sort_unstable();
    Ok(differences)
}

/// The maps, by what they say of whom.
struct Found {
    seed: u32,
    frontends: HashMap<FrontendKey, Frontend>,
    services: BTreeMap<ServiceId, ServiceRecord>,
    /// The newest id of each name and protocol that has frontends, else the newest.
    ids: HashMap<(String, u32), ServiceId>,
    backends: BTreeMap<ServiceId, Vec<(BackendId, Backend)>>,
    source_ranges: BTreeMap<ServiceId, BTreeSet<(u32, SourceRange)>>,
}

impl Found {
    fn read(kernel: &impl Kernel) -> Result<Self, KernelError> {
        let frontends: HashMap<FrontendKey, Frontend> = kernel
            .frontends()?
            .into_iter()
            .map(|it| (it.key, it))
            .collect();
        let in_force: BTreeSet<ServiceId> = frontends.values().map(|it| it.service).collect();
        let mut records = kernel.services()?;
        records.sort_unstable_by_key(|(id, _)| (in_force.contains(id), *id));
        let ids = records
            .iter()
            .map(|(id, record)| ((record.name().to_owned(), record.protocol), *id))
            .collect();
        let mut backends = BTreeMap::<_, Vec<_>>::new();
        for id in 1..kernel.backends_max() {
            let backend = kernel.backend(id);
            if backend.service != 0 {
                backends
                    .entry(backend.service)
                    .or_default()
                    .push((id, backend));
            }
        }
        let mut source_ranges = BTreeMap::<_, BTreeSet<_>>::new();
        for range in kernel.source_ranges()? {
            let of = source_ranges.entry(range.1.service).or_default();
            of.insert(range);
        }
        Ok(Self {
            seed: kernel.device_settings()?.seed,
            frontends,
            services: records.into_iter().collect(),
            ids,
            backends,
            source_ranges,
        })
    }

    fn id_of(&self, port: &WantedPort) -> Option<ServiceId> {
        let protocol = port.key.protocol as u32;
        self.ids.get(&(port.name(), protocol)).copied()
    }

    /// The service port's name, for people.
    fn name(&self, id: ServiceId) -> String {
        match self.services.get(&id) {
            Some(record) => record.name().to_owned(),
            None => format!("service port {id}, which has no name"),
        }
    }

    /// What no Service asks for; `known` are the ids of those that do.
    fn foreign(&self, known: &BTreeSet<ServiceId>, wanted: &Wanted) -> Vec<Difference> {
        let mut foreign = Vec::new();
        let mut add = |part, object: String, found: String| {
            foreign.push(Difference::new(part, object, NOTHING, found));
        };
        for (id, record) in self.services.iter().filter(|(id, _)| !known.contains(id)) {
            add(Part::Services, service_name(record), format!("id {id}"));
        }
        for (key, frontend) in &self.frontends {
            if !wanted.owners.contains_key(key) {
                let owner = self.name(frontend.service);
                add(
                    Part::Frontends,
                    frontend_name(key),
                    describe(frontend, &owner),
                );
            }
        }
        for (id, backends) in self.backends.iter().filter(|(id, _)| !known.contains(id)) {
            for (_, backend) in backends {
                let object = format!("{} of {}", endpoint(backend), self.name(*id));
                add(
                    Part::Backends,
                    object,
                    state(backend.state, backend.local, backend.weight),
                );
            }
        }
        for (id, ranges) in &self.source_ranges {
            if !known.contains(id) {
                add(Part::SourceRanges, self.name(*id), list(ranges));
            }
        }
        foreign
    }
}

/// One service port.
struct Comparison<'a, K> {
    kernel: &'a K,
    found: &'a Found,
    port: &'a WantedPort,
    /// Under which the kernel has it.
    id: Option<ServiceId>,
    differences: &'a mut Vec<Difference>,
}

impl<K: Kernel> Comparison<'_, K> {
    fn add(&mut self, part: Part, object: String, wanted: String, found: String) {
        if wanted != found {
            let difference = Difference::new(part, object, wanted, found);
            self.differences.push(difference);
        }
    }

    fn service(&mut self) {
        let policies = |record: &ServiceRecord| {
            let policy = |local| if local == 0 { "Cluster" } else { "Local" };
            let (internal, external) = (record.internal_local, record.external_local);
            let (internal, external) = (policy(internal), policy(external));
            format!("internal policy {internal}, external policy {external}")
        };
        let wanted = compile::service_record(self.port.service(), &self.port.resolved);
        let wanted = wanted.map_or("a shorter name".to_owned(), |it| policies(&it));
        let record = self.id.and_then(|id| self.found.services.get(&id));
        let found = record.map_or(NOTHING.to_owned(), policies);
        let protocol = self.port.key.protocol.as_str();
        let object = format!("{}/{protocol}", self.port.name());
        self.add(Part::Services, object, wanted, found);
    }

    fn backends(&mut self, wanted: &[BackendEntry]) {
        let Some(id) = self.id else {
            return;
        };
        let name = self.port.name();
        let mut found: Vec<Backend> = self.found.backends.get(&id).map_or_else(Vec::new, |it| {
            it.iter().map(|(_, backend)| *backend).collect()
        });
        // Of several with one address the others are about to be freed.
        found.sort_unstable_by_key(|it| (it.address, it.port, u8::MAX - it.state));
        for entry in wanted {
            let is_it = |it: &Backend| (it.address, it.port) == entry.key;
            let there = found.iter().position(is_it).map(|at| found.remove(at));
            let there = there.map(|it| state(it.state, it.local, it.weight));
            let object = format!("{} of {name}", socket_address(entry.key.0, entry.key.1));
            let wanted = state(entry.state, entry.local, entry.weight.into());
            let there = there.unwrap_or(NOTHING.to_owned());
            self.add(Part::Backends, object, wanted, there);
        }
        for backend in found {
            let object = format!("{} of {name}", endpoint(&backend));
            let there = state(backend.state, backend.local, backend.weight);
            self.add(Part::Backends, object, NOTHING.to_owned(), there);
        }
    }

    fn source_ranges(&mut self) {
        let Some(id) = self.id else {
            return;
        };
        let wanted = compile::source_ranges(id, &self.port.resolved);
        let found = self.found.source_ranges.get(&id).map(list);
        let found = found.unwrap_or_else(|| list(&BTreeSet::new()));
        self.add(Part::SourceRanges, self.port.name(), list(&wanted), found);
    }

    /// Those frontends that the service port has, and no older Service.
    fn frontends(&mut self, backends: &[BackendEntry], is_owner: impl Fn(&FrontendKey) -> bool) {
        let port = self.port;
        let mut slots = BTreeMap::<TableKind, Vec<BackendId>>::new();
        let mut tables = [TableRef::default(); TABLES_PER_PORT];
        for kind in port.resolved.frontends.iter().map(TableKind::of) {
            let ids = slots
                .entry(kind)
                .or_insert_with(|| kind.ids(backends, self.found.seed));
            tables[kind.index()].length = ids.len() as u32;
        }
        let name = port.name();
        // Frontends share tables: each is looked at once.
        let mut looked_at = BTreeSet::new();
        for resolved in &port.resolved.frontends {
            let key = compile::frontend_key(resolved, &port.key);
            if !is_owner(&key) {
                continue;
            }
            let affinity_s = port.resolved.affinity_timeout_s;
            let id = self.id.unwrap_or_default();
            let wanted = compile::frontend(resolved, &port.key, id, &tables, backends, affinity_s);
            let object = frontend_name(&key);
            let Some(found) = self.found.frontends.get(&key) else {
                let wanted = describe(&wanted, &name);
                self.add(Part::Frontends, object, wanted, NOTHING.to_owned());
                continue;
            };
            let owner = self.found.name(found.service);
            let (is, should) = (describe(found, &owner), describe(&wanted, &name));
            let differs = is != should;
            self.add(Part::Frontends, object.clone(), should, is);
            let kind = TableKind::of(resolved);
            if !differs && looked_at.insert((kind, found.table)) {
                self.table(object, found, backends, &slots[&kind]);
            }
        }
    }

    /// Slot by slot; the first that differs stands for all.
    fn table(
        &mut self,
        object: String,
        frontend: &Frontend,
        backends: &[BackendEntry],
        wanted: &[BackendId],
    ) {
        let ids = self.kernel.table(frontend.table);
        let wanted_at = |slot: usize| {
            let entry = wanted.get(slot).map(|&id| backends[id as usize - 1].key);
            entry.map(|(address, port)| socket_address(address, port))
        };
        let found_at = |slot: usize| {
            let id = *ids.get(slot)?;
            let backend = self.kernel.backend(id);
            Some(if id != 0 && backend.service == frontend.service {
                endpoint(&backend)
            } else {
                format!("backend {id} of nobody or another service port")
            })
        };
        let differing = (0..wanted.len().max(ids.len())).find(|&it| wanted_at(it) != found_at(it));
        let Some(slot) = differing else {
            return;
        };
        let text = |size: usize, at: Option<String>| match at {
            Some(at) => format!("{size} slots, slot {slot} {at}"),
            None => format!("{size} slots"),
        };
        let wanted = text(wanted.len(), wanted_at(slot));
        let found = text(ids.len(), found_at(slot));
        self.add(Part::Tables, object, wanted, found);
    }
}

fn service_name(record: &ServiceRecord) -> String {
    let protocol = Protocol::from_number(record.protocol).map_or("?", Protocol::as_str);
    format!("{}/{protocol}", record.name())
}

/// The frontend as people write it, and for whom it is.
fn frontend_name(key: &FrontendKey) -> String {
    let clients = match key.scope {
        Scope::Internal => "clients on this node",
        Scope::External => "clients outside",
    };
    let (port, protocol) = (key.port, key.protocol.as_str());
    if key.address.same(key.address.wildcard()) {
        let family = if key.address.is_v4() { "IPv4" } else { "IPv6" };
        return format!("NodePort {port}/{protocol} of {family} for {clients}");
    }
    let address = socket_address(key.address, port);
    format!("{address}/{protocol} for {clients}")
}

/// All that a frontend says but its table.
fn describe(frontend: &Frontend, owner: &str) -> String {
    let set = match frontend.set {
        EndpointSet::Cluster => "cluster set",
        EndpointSet::Local => "local set",
    };
    let who = match frontend.source_filter {
        SourceFilter::Anyone => "",
        SourceFilter::Ranges => ", source ranges",
        SourceFilter::RangesAndHost => ", source ranges and this node",
    };
    let elsewhere = match frontend.elsewhere {
        0 => "",
        _ => ", endpoints elsewhere",
    };
    let affinity = match frontend.affinity_timeout_s {
        0 => String::new(),
        seconds => format!(", affinity {seconds} s"),
    };
    let algorithm = match frontend.algorithm {
        Algorithm::Maglev => String::new(),
        other => format!(", {}", other.as_str()),
    };
    let forwarding = match frontend.forwarding {
        Forwarding::Snat => "",
        Forwarding::Dsr => ", DSR",
    };
    let kind = frontend.kind.as_str();
    format!("{kind} of {owner} with {set}{algorithm}{forwarding}{who}{elsewhere}{affinity}")
}

fn endpoint(backend: &Backend) -> String {
    socket_address(backend.address, backend.port)
}

/// State bits, place and weight of a backend.
fn state(bits: u8, local: u8, weight: u32) -> String {
    let names = [
        (Backend::IN_CLUSTER_SET, "cluster set"),
        (Backend::IN_LOCAL_SET, "local set"),
        (Backend::SERVING, "serving"),
    ];
    let mut words: Vec<&str> = names
        .into_iter()
        .filter_map(|(bit, name)| (bits & bit != 0).then_some(name))
        .collect();
    if words.is_empty() {
        words.push("about to be freed");
    }
    if local != 0 {
        words.push("on this node");
    }
    match weight {
        1 => words.join(", "),
        weight => format!("{}, weight {weight}", words.join(", ")),
    }
}

fn list(ranges: &BTreeSet<(u32, SourceRange)>) -> String {
    if ranges.is_empty() {
        return NOTHING.to_owned();
    }
    let text = |(bits, range): &(u32, SourceRange)| {
        node::range_name(
            bits.saturating_sub(SourceRange::SERVICE_BITS),
            range.address,
        )
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(" ")
}
