//! Phases 2, 3 and 5 of a publish: the backends, tables and frontends of one service port.

use super::{Kernel, KernelError, PublishError, Publisher, Rank};
use crate::compile::{self, BackendEntry, PortKey, TABLES_PER_PORT, TableKind};
use crate::model::ObjectName;
use crate::resolve::{ResolvedEndpoint, ResolvedFrontend, ResolvedPort};
use proxy_common::{
    Address, Backend, BackendId, Frontend, FrontendKey, IDS_PER_LINE, Protocol, ServiceId,
    SourceRange, TableRef,
    limits::{CHUNKS_MAX, LINES_PER_CHUNK},
};
use std::collections::BTreeSet;

/// The mirror of one service port.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) service: ObjectName,
    pub(super) key: PortKey,
    pub(super) created_s: i64,
    /// Frontends that swing publishes.
    pub(super) frontends: Box<[ResolvedFrontend]>,
    /// Frontends that the service port asks for; differs from `frontends` while
    /// a prepare fails.
    pub(super) claimed: Vec<FrontendKey>,
    pub(super) affinity_timeout_s: u32,
    /// Sorted by key. Between prepare and retire also holds what is leaving.
    pub(super) backends: Vec<BackendEntry>,
    /// Tables that the frontends shall use.
    pub(super) tables: [TableRef; TABLES_PER_PORT],
    /// Every table whose room this service port holds.
    pub(super) owned_tables: Vec<TableRef>,
    /// Elements of `source_ranges`; between prepare and retire also what is leaving.
    pub(super) source_ranges: BTreeSet<(u32, SourceRange)>,
    /// What `source_ranges` becomes in retire.
    pub(super) next_source_ranges: BTreeSet<(u32, SourceRange)>,
    /// What `backends` becomes in retire.
    pub(super) next_backends: Option<Vec<BackendEntry>>,
}

impl Port {
    pub(super) fn new(service: ObjectName, key: PortKey) -> Self {
        Self {
            service,
            key,
            created_s: i64::MAX,
            frontends: Box::default(),
            claimed: Vec::new(),
            affinity_timeout_s: 0,
            backends: Vec::new(),
            tables: Default::default(),
            owned_tables: Vec::new(),
            source_ranges: BTreeSet::new(),
            next_source_ranges: BTreeSet::new(),
            next_backends: None,
        }
    }

    pub(super) fn rank(&self) -> Rank {
        Rank {
            created_s: self.created_s,
            service: self.service.clone(),
            port: self.key.clone(),
        }
    }

    /// The elements of `frontends` that the service port asks for.
    fn wanted(&self, id: ServiceId) -> Vec<Frontend> {
        // Until it is retired, `backends` also has what is leaving.
        let staying = self.next_backends.as_ref().unwrap_or(&self.backends);
        let timeout_s = self.affinity_timeout_s;
        self.frontends
            .iter()
            .map(|it| compile::frontend(it, &self.key, id, &self.tables, staying, timeout_s))
            .collect()
    }

    /// Those of `endpoints` that it has.
    fn known(&self, endpoints: &[ResolvedEndpoint]) -> Vec<ResolvedEndpoint> {
        let is_known = |endpoint: &&ResolvedEndpoint| {
            let key = (Address::from(endpoint.address), endpoint.port);
            self.backends
                .binary_search_by_key(&key, |entry| entry.key)
                .is_ok()
        };
        endpoints.iter().filter(is_known).cloned().collect()
    }

    pub(super) fn frontend_keys(&self) -> impl Iterator<Item = FrontendKey> + '_ {
        self.frontends
            .iter()
            .map(|it| compile::frontend_key(it, &self.key))
    }
}

/// The element that stays when a backend is freed: only its generation, which
/// the next owner of the id raises.
pub(super) fn unused(old: &Backend) -> Backend {
    Backend {
        #[cfg(feature = "other-layout")]
        other: 0,
        address: Address::ANY_V6,
        port: 0,
        local: 0,
        state: 0,
        service: 0,
        generation: old.generation,
        weight: 0,
        node: 0,
    }
}

impl<K: Kernel> Publisher<K> {
    /// Phase 2: everything that the new frontends will point at.
    ///
    /// `desired` is `None` for a service port that only won a frontend. Where new
    /// endpoints find no room, those that it has and shall keep are prepared, and
    /// the error comes back as a value: what is gone must not be held on to.
    pub(super) fn prepare(
        &mut self,
        id: ServiceId,
        desired: Option<ResolvedPort>,
    ) -> Result<Option<PublishError>, PublishError> {
        let Some(desired) = desired else {
            return Ok(None);
        };
        let Some(mut port) = self.ports.remove(&id) else {
            return Ok(None);
        };
        let prepared = self.prepare_port(id, &mut port, desired);
        self.ports.insert(id, port);
        prepared
    }

    fn prepare_port(
        &mut self,
        id: ServiceId,
        port: &mut Port,
        desired: ResolvedPort,
    ) -> Result<Option<PublishError>, PublishError> {
        let record = compile::service_record(&port.service, &desired).ok_or_else(|| {
            PublishError::NameTooLong {
                port: port.key.name.clone(),
            }
        })?;
        self.kernel.set_service(id, &record)?;
        let ranges = compile::source_ranges(id, &desired);
        for (prefix_length, range) in ranges.difference(&port.source_ranges) {
            self.kernel.add_source_range(*prefix_length, range)?;
        }
        port.source_ranges.extend(ranges.iter().copied());
        let (next, shortage) = match self.prepare_backends(id, port, &desired.endpoints) {
            Ok(next) => (next, None),
            Err(error) if port.frontends.is_empty() => return Err(error),
            Err(error) => {
                let kept = port.known(&desired.endpoints);
                (self.prepare_backends(id, port, &kept)?, Some(error))
            }
        };
        // Without it a backend still serves, but for what other nodes hand over.
        let listed = next.iter().try_for_each(|it| self.list_local(id, it));
        let shortage = shortage.or(listed.err().map(PublishError::from));
        let tables = self.prepare_tables(port, &next, &desired.frontends)?;
        // From here on nothing fails before the frontends swing.
        port.next_backends = Some(next);
        port.next_source_ranges = ranges;
        port.tables = tables;
        port.frontends = desired.frontends.into();
        port.affinity_timeout_s = desired.affinity_timeout_s;
        Ok(shortage)
    }

    /// Gives every wanted endpoint a backend, or none a new one.
    fn prepare_backends(
        &mut self,
        id: ServiceId,
        port: &mut Port,
        endpoints: &[ResolvedEndpoint],
    ) -> Result<Vec<BackendEntry>, PublishError> {
        let mut next = Vec::with_capacity(endpoints.len());
        let mut added = Vec::new();
        let mut outcome = Ok(());
        for endpoint in endpoints {
            let key = (Address::from(endpoint.address), endpoint.port);
            let state = compile::state(endpoint);
            let local = u8::from(endpoint.local);
            let entry = match port.backends.binary_search_by_key(&key, |entry| entry.key) {
                Ok(index) => {
                    let entry = &mut port.backends[index];
                    // Gain bits now and lose them in retire: until the frontends
                    // swing, the old sets are in force too.
                    entry.state |= state;
                    entry.local = local;
                    entry.node = self.nodes.id_of(endpoint.node.as_ref(), entry.node);
                    entry.weight = endpoint.weight;
                    let current = *entry;
                    self.write_backend(id, &current);
                    BackendEntry { state, ..current }
                }
                Err(_) => {
                    let capacity = self.backend_ids.capacity();
                    let Some(backend) = self.backend_ids.allocate() else {
                        outcome = Err(PublishError::BackendsFull { capacity });
                        break;
                    };
                    let entry = BackendEntry {
                        key,
                        state,
                        local,
                        node: self.nodes.id_of(endpoint.node.as_ref(), 0),
                        weight: endpoint.weight,
                        id: backend,
                    };
                    self.create_backend(id, &entry);
                    added.push(entry);
                    entry
                }
            };
            next.push(entry);
        }
        if outcome.is_err() {
            // Nothing leads to them: they go to whoever fits.
            for entry in added.drain(..) {
                let old = self.kernel.backend(entry.id);
                self.kernel.set_backend(entry.id, &unused(&old));
                self.backend_ids.release(entry.id);
                self.backends_in_use -= 1;
            }
        }
        port.backends.extend(added);
        port.backends.sort_unstable_by_key(|entry| entry.key);
        next.sort_unstable_by_key(|entry: &BackendEntry| entry.key);
        outcome.map(|()| next)
    }

    fn create_backend(&mut self, service: ServiceId, entry: &BackendEntry) {
        let generation = self.kernel.backend(entry.id).generation.wrapping_add(1);
        self.kernel.reset_backend_stats(entry.id);
        self.backends_in_use += 1;
        self.kernel
            .set_backend(entry.id, &record(service, entry, generation));
    }

    fn write_backend(&mut self, service: ServiceId, entry: &BackendEntry) {
        let old = self.kernel.backend(entry.id);
        let new = record(service, entry, old.generation);
        if old != new {
            self.kernel.set_backend(entry.id, &new);
        }
    }

    /// Fills a table for each set that has changed.
    fn prepare_tables(
        &mut self,
        port: &mut Port,
        next: &[BackendEntry],
        frontends: &[ResolvedFrontend],
    ) -> Result<[TableRef; TABLES_PER_PORT], PublishError> {
        let mut tables = [TableRef::default(); TABLES_PER_PORT];
        let used: BTreeSet<TableKind> = frontends.iter().map(TableKind::of).collect();
        for kind in used {
            let ids = kind.ids(next, self.seed);
            let current = port.tables[kind.index()];
            tables[kind.index()] =
                if current.length as usize == ids.len() && self.kernel.table_is(current, &ids) {
                    current
                } else {
                    let table = self.allocate_table(&ids)?;
                    self.kernel.write_table(table, &ids);
                    if table.length > 0 {
                        port.owned_tables.push(table);
                    }
                    table
                };
        }
        Ok(tables)
    }

    fn allocate_table(&mut self, ids: &[BackendId]) -> Result<TableRef, PublishError> {
        const IDS_MAX: u32 = LINES_PER_CHUNK * IDS_PER_LINE;
        let length = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        let too_large = PublishError::TableTooLarge {
            length,
            max: IDS_MAX,
        };
        if length > IDS_MAX {
            return Err(too_large);
        }
        if let Some(table) = self.arena.allocate(length) {
            return Ok(table);
        }
        if self.arena.chunks() >= CHUNKS_MAX {
            return Err(PublishError::TablesFull);
        }
        self.kernel.add_chunk()?;
        self.arena.add_chunk();
        self.arena.allocate(length).ok_or(too_large)
    }

    /// Phase 3: points the frontends that the service port owns at its tables.
    pub(super) fn swing(&mut self, id: ServiceId) -> Result<(), PublishError> {
        let owner = |this: &Self, key: &FrontendKey| this.claims.owner(key);
        Ok(self.put_frontends(id, owner)?)
    }

    /// The same for those that still lead to it since their owner found no room:
    /// what they point at must not go.
    fn follow(&mut self, id: ServiceId) -> Result<(), KernelError> {
        self.put_frontends(id, |this, key| Some(this.frontends.get(key)?.service))
    }

    /// Writes the frontends of a service port of which `whose` says so.
    fn put_frontends(
        &mut self,
        id: ServiceId,
        whose: impl Fn(&Self, &FrontendKey) -> Option<ServiceId>,
    ) -> Result<(), KernelError> {
        let wanted = self.ports.get(&id).map(|port| port.wanted(id));
        for mut frontend in wanted.unwrap_or_default() {
            if whose(self, &frontend.key) != Some(id) {
                continue;
            }
            if let Some(published) = self.frontends.get(&frontend.key) {
                frontend.generation = published.generation;
                if *published == frontend {
                    continue;
                }
            }
            frontend.generation = self.next_generation;
            self.next_generation = self.next_generation.wrapping_add(1);
            self.kernel.set_frontend(&frontend)?;
            let before = self.frontends.insert(frontend.key, frontend);
            self.external
                .change(&mut self.kernel, before, Some(frontend));
        }
        Ok(())
    }

    /// Phase 5: what the frontends no longer point at.
    pub(super) fn retire(&mut self, id: ServiceId) {
        if let Err(error) = self.follow(id) {
            tracing::error!(id, %error, "a frontend stays as it was, and so does what it points at");
            return;
        }
        let Some(mut port) = self.ports.remove(&id) else {
            return;
        };
        if let Some(next) = port.next_backends.take() {
            for entry in std::mem::replace(&mut port.backends, next) {
                match port.backends.binary_search_by_key(&entry.key, |it| it.key) {
                    Ok(index) => {
                        let kept = port.backends[index];
                        self.write_backend(id, &kept);
                        self.unlist_local(id, &kept, false);
                    }
                    Err(_) => self.retire_backend(id, &entry, port.key.protocol),
                }
            }
        }
        let ranges = std::mem::take(&mut port.next_source_ranges);
        self.remove_source_ranges(port.source_ranges.difference(&ranges));
        port.source_ranges = ranges.clone();
        port.next_source_ranges = ranges;
        let in_use: Vec<TableRef> = port
            .frontend_keys()
            .filter_map(|key| self.frontends.get(&key))
            .filter(|frontend| frontend.service == id)
            .map(|frontend| frontend.table)
            .collect();
        let unused = |table: &TableRef| !port.tables.contains(table) && !in_use.contains(table);
        let (retired, owned) = port.owned_tables.iter().partition(|&table| unused(table));
        port.owned_tables = owned;
        self.retired.tables.extend::<Vec<TableRef>>(retired);
        self.ports.insert(id, port);
    }

    /// Everything of a service port that is gone; its frontends are withdrawn.
    pub(super) fn retire_port(&mut self, id: ServiceId) {
        let Some(port) = self.ports.remove(&id) else {
            return;
        };
        for entry in &port.backends {
            self.retire_backend(id, entry, port.key.protocol);
        }
        self.retired.source_ranges.extend(port.source_ranges);
        self.retired.tables.extend(port.owned_tables);
        self.retired.services.push(id);
    }

    /// No frontend asks for them any more, or they no longer let anybody in.
    fn remove_source_ranges<'a>(
        &mut self,
        ranges: impl IntoIterator<Item = &'a (u32, SourceRange)>,
    ) {
        for (prefix_length, range) in ranges {
            if let Err(error) = self.kernel.remove_source_range(*prefix_length, range) {
                tracing::error!(service = range.service, %error, "a source range stays");
            }
        }
    }

    /// The element keeps its address until its readers are gone: they may have
    /// read its id from an old table a moment ago.
    fn retire_backend(&mut self, service: ServiceId, entry: &BackendEntry, protocol: Protocol) {
        self.unlist_local(service, entry, true);
        self.write_backend(service, &BackendEntry { state: 0, ..*entry });
        self.retired.backends.push(entry.id);
        self.retired.udp |= protocol == Protocol::Udp;
    }
}

fn record(service: ServiceId, entry: &BackendEntry, generation: u32) -> Backend {
    let (address, port) = entry.key;
    Backend {
        #[cfg(feature = "other-layout")]
        other: u32::MAX,
        address,
        port,
        local: entry.local,
        state: entry.state,
        service,
        generation,
        weight: entry.weight.into(),
        node: entry.node,
    }
}
