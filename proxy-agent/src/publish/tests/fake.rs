//! A kernel in memory that checks the invariants after every single write.

mod nodes;

use crate::publish::{AddressSet, Grace, Kernel, KernelError};
use nodes::Nodes;
use proxy_common::{
    Address, Backend, BackendId, DeviceSettings, EndpointSet, Frontend, FrontendKey, IDS_PER_LINE,
    ServiceId, ServiceRecord, SourceRange, TableLine, TableRef, limits::LINES_PER_CHUNK,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use zerocopy::FromZeros;

/// What the kernel holds; it outlives the publisher, as pinned maps do.
#[derive(Default)]
pub(crate) struct Maps {
    pub(crate) backends: Vec<Backend>,
    pub(crate) chunks: Vec<Vec<TableLine>>,
    pub(crate) frontends: BTreeMap<FrontendKey, Frontend>,
    pub(crate) services: BTreeMap<ServiceId, ServiceRecord>,
    pub(crate) source_ranges: BTreeSet<(u32, SourceRange)>,
    pub(crate) vips: BTreeSet<Address>,
    pub(crate) external_addresses: BTreeSet<Address>,
    node_addresses: BTreeSet<Address>,
    pub(crate) device_settings: DeviceSettings,
    pub(super) nodes: Nodes,
    /// Every frontend value that a program may still work with: all that were
    /// in force since the last wait for readers.
    readable: Vec<Readable>,
    /// Room of `frontends`.
    pub(super) frontends_max: usize,
    /// Writes until the publisher's process dies.
    writes_left: Option<usize>,
}

/// A frontend value, and what stands in its table as long as anybody can read it.
struct Readable {
    frontend: Frontend,
    ids: BTreeSet<BackendId>,
}

/// What the publisher's process dies with.
pub(super) struct Died;

/// The publisher's handle.
#[derive(Clone)]
pub(crate) struct Fake(pub(crate) Rc<RefCell<Maps>>);

impl Fake {
    pub(crate) fn new(backends: usize, frontends_max: usize) -> Self {
        let maps = Maps {
            backends: vec![Backend::new_zeroed(); backends],
            frontends_max,
            ..Maps::default()
        };
        Self(Rc::new(RefCell::new(maps)))
    }

    /// All readers of earlier values are gone.
    pub(super) fn wait_for_readers(&self) {
        let mut maps = self.0.borrow_mut();
        let Maps {
            readable,
            frontends,
            ..
        } = &mut *maps;
        readable.retain(|it| frontends.get(&it.frontend.key) == Some(&it.frontend));
    }

    /// Who answers at a frontend: addresses and ports in the table's order.
    pub(super) fn answers(&self, key: &FrontendKey) -> Option<Vec<(Address, u16)>> {
        let maps = self.0.borrow();
        let frontend = maps.frontends.get(key)?;
        Some(
            maps.table(frontend.table)
                .map(|id| (maps.backend(id).address, maps.backend(id).port))
                .collect(),
        )
    }

    fn write<T>(&self, change: impl FnOnce(&mut Maps) -> T) -> T {
        let mut maps = self.0.borrow_mut();
        if let Some(left) = maps.writes_left.as_mut() {
            if *left == 0 {
                drop(maps);
                std::panic::resume_unwind(Box::new(Died));
            }
            *left -= 1;
        }
        let result = change(&mut maps);
        maps.check();
        result
    }
}

impl Maps {
    fn backend(&self, id: BackendId) -> Backend {
        self.backends[id as usize]
    }

    fn table(&self, table: TableRef) -> impl Iterator<Item = BackendId> + '_ {
        (0..table.length).map(move |index| {
            let line = table.first_line + index / IDS_PER_LINE;
            self.chunks[table.chunk as usize][line as usize].backends
                [(index % IDS_PER_LINE) as usize]
        })
    }

    /// Invariants 1, 2 and 7: whoever reads a frontend, now or a moment ago,
    /// finds a complete table of published backends of the same service port.
    fn check(&self) {
        self.check_nodes();
        for Readable { frontend, ids } in &self.readable {
            for &id in ids {
                let backend = self.backend(id);
                assert_ne!(id, 0, "an incomplete table is in use: {frontend:?}");
                assert_eq!(
                    backend.service, frontend.service,
                    "a backend of another service: {frontend:?} {backend:?}"
                );
                assert_eq!(
                    backend.address.is_v4(),
                    frontend.key.address.is_v4(),
                    "families mix"
                );
                if self.frontends.get(&frontend.key) == Some(frontend) {
                    assert!(
                        backend.in_set(frontend.set),
                        "in the table, but not in the set: {frontend:?}"
                    );
                }
            }
        }
        for frontend in self.frontends.values() {
            assert!(
                self.services.contains_key(&frontend.service),
                "a frontend of an unnamed service"
            );
        }
    }

    /// Writes one line, which no table that anybody reads may have.
    fn set_line(&mut self, chunk: u32, line: u32, element: TableLine) {
        let has = |table: TableRef| {
            let lines = table.first_line..table.first_line + table.lines();
            table.chunk == chunk && lines.contains(&line)
        };
        let reader = self.readable.iter().find(|it| has(it.frontend.table));
        assert!(
            reader.is_none(),
            "a table in use is written to: {:?}",
            reader.map(|it| it.frontend)
        );
        self.chunks[chunk as usize][line as usize] = element;
    }

    /// Lets the publisher's process die at its nth write from now.
    pub(super) fn crash_in(&mut self, writes: Option<usize>) {
        self.writes_left = writes;
    }

    /// The members of a service port's set, as state bits have it.
    pub(super) fn members(
        &self,
        service: ServiceId,
        set: EndpointSet,
        v4: bool,
    ) -> Vec<(Address, u16)> {
        let mine = self
            .backends
            .iter()
            .filter(|it| it.service == service && it.in_set(set) && it.address.is_v4() == v4);
        let mut members: Vec<_> = mine.map(|it| (it.address, it.port)).collect();
        members.sort_unstable();
        members
    }

    /// The backend of an endpoint, and its id.
    pub(super) fn backend_of(
        &self,
        service: ServiceId,
        endpoint: (Address, u16),
    ) -> Option<(BackendId, Backend)> {
        let all = (0..).zip(self.backends.iter().copied());
        let mut mine = all.filter(|(_, it)| it.service == service && it.state != 0);
        mine.find(|(_, it)| (it.address, it.port) == endpoint)
    }

    pub(super) fn backends_in_use(&self) -> usize {
        self.backends.iter().filter(|it| it.service != 0).count()
    }
}

impl Kernel for Fake {
    fn backends_max(&self) -> u32 {
        self.0.borrow().backends.len() as u32
    }
    fn services_max(&self) -> u32 {
        64
    }
    fn backend(&self, id: BackendId) -> Backend {
        self.0.borrow().backend(id)
    }
    fn set_backend(&mut self, id: BackendId, backend: &Backend) {
        self.write(|maps| maps.backends[id as usize] = *backend);
    }
    fn reset_backend_stats(&mut self, _: BackendId) {}
    fn reset_service_stats(&mut self, _: ServiceId) {}
    fn chunks(&self) -> u32 {
        self.0.borrow().chunks.len() as u32
    }
    fn add_chunk(&mut self) -> Result<(), KernelError> {
        self.write(|maps| {
            maps.chunks
                .push(vec![TableLine::new_zeroed(); LINES_PER_CHUNK as usize])
        });
        Ok(())
    }
    fn table(&self, table: TableRef) -> Vec<BackendId> {
        self.0.borrow().table(table).collect()
    }
    fn table_is(&self, table: TableRef, ids: &[BackendId]) -> bool {
        let maps = self.0.borrow();
        (table.length == 0 || (table.chunk as usize) < maps.chunks.len())
            && maps.table(table).eq(ids.iter().copied())
    }
    fn write_table(&mut self, table: TableRef, ids: &[BackendId]) {
        // Line by line: each is a write of its own, and a crash may come between.
        for (chunk, line) in ids.chunks(IDS_PER_LINE as usize).zip(table.first_line..) {
            let mut element = TableLine::new_zeroed();
            element.backends[..chunk.len()].copy_from_slice(chunk);
            self.write(|maps| maps.set_line(table.chunk, line, element));
        }
    }
    fn frontends(&self) -> Result<Vec<Frontend>, KernelError> {
        Ok(self.0.borrow().frontends.values().copied().collect())
    }
    fn set_frontend(&mut self, frontend: &Frontend) -> Result<(), KernelError> {
        self.write(|maps| {
            if maps.frontends.len() >= maps.frontends_max
                && !maps.frontends.contains_key(&frontend.key)
            {
                let error = io::Error::from_raw_os_error(libc::E2BIG);
                return Err(KernelError {
                    call: "update",
                    map: "frontends",
                    error,
                });
            }
            maps.frontends.insert(frontend.key, *frontend);
            let ids = maps.table(frontend.table).collect();
            maps.readable.push(Readable {
                frontend: *frontend,
                ids,
            });
            Ok(())
        })
    }
    fn delete_frontend(&mut self, key: &FrontendKey) -> Result<(), KernelError> {
        self.write(|maps| maps.frontends.remove(key));
        Ok(())
    }
    fn services(&self) -> Result<Vec<(ServiceId, ServiceRecord)>, KernelError> {
        Ok(self
            .0
            .borrow()
            .services
            .iter()
            .map(|(id, record)| (*id, *record))
            .collect())
    }
    fn set_service(&mut self, id: ServiceId, record: &ServiceRecord) -> Result<(), KernelError> {
        self.write(|maps| maps.services.insert(id, *record));
        Ok(())
    }
    fn delete_service(&mut self, id: ServiceId) -> Result<(), KernelError> {
        self.write(|maps| maps.services.remove(&id));
        Ok(())
    }
    fn source_ranges(&self) -> Result<Vec<(u32, SourceRange)>, KernelError> {
        Ok(self.0.borrow().source_ranges.iter().copied().collect())
    }
    fn add_source_range(&mut self, length: u32, range: &SourceRange) -> Result<(), KernelError> {
        self.write(|maps| maps.source_ranges.insert((length, *range)));
        Ok(())
    }
    fn remove_source_range(&mut self, length: u32, range: &SourceRange) -> Result<(), KernelError> {
        self.write(|maps| maps.source_ranges.remove(&(length, *range)));
        Ok(())
    }
    fn addresses(&self, set: AddressSet) -> Result<Vec<Address>, KernelError> {
        let maps = self.0.borrow();
        Ok(match set {
            AddressSet::Vips => maps.vips.iter().copied().collect(),
            AddressSet::External => maps.external_addresses.iter().copied().collect(),
            AddressSet::NodeAddresses => maps.node_addresses.iter().copied().collect(),
        })
    }
    fn add_address(&mut self, set: AddressSet, address: &Address) -> Result<(), KernelError> {
        self.write(|maps| match set {
            AddressSet::Vips => maps.vips.insert(*address),
            AddressSet::External => maps.external_addresses.insert(*address),
            AddressSet::NodeAddresses => maps.node_addresses.insert(*address),
        });
        Ok(())
    }
    fn remove_address(&mut self, set: AddressSet, address: &Address) -> Result<(), KernelError> {
        self.write(|maps| match set {
            AddressSet::Vips => maps.vips.remove(address),
            AddressSet::External => maps.external_addresses.remove(address),
            AddressSet::NodeAddresses => maps.node_addresses.remove(address),
        });
        Ok(())
    }
    fn device_settings(&self) -> Result<DeviceSettings, KernelError> {
        Ok(self.0.borrow().device_settings)
    }
    fn set_device_settings(&mut self, settings: &DeviceSettings) -> Result<(), KernelError> {
        self.write(|maps| maps.device_settings = *settings);
        Ok(())
    }
    fn grace(&self) -> Grace {
        Box::new(|| Ok(()))
    }
}
