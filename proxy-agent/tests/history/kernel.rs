//! A kernel in memory: the publisher writes to it, the decision reads it.
//!
//! After each single write it looks whether a program that runs now, or has run
//! since the last wait for readers, could find something broken (invariants 1,
//! 2 and 7 of ARCHITECTURE.md).

use crate::model::{Client, Endpoint, LEFT_ALONE, client_address};
use crate::node_maps::NodeElements;
use crate::steps::Room;
use proxy_agent::publish::{AddressSet, Grace, Kernel, KernelError};
use proxy_common::decide::{FrontendLookup, Maps};
use proxy_common::{
    Address, Affinity, AffinityKey, Backend, BackendId, DeviceSettings, Forwarding, Frontend,
    FrontendKey, IDS_PER_LINE, Protocol, ServiceId, ServiceRecord, SourceRange, TableLine,
    TableRef,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use zerocopy::FromZeros;

/// What the agent's process dies with.
pub(crate) struct Died;

/// What the kernel holds; it outlives the agent, as pinned maps do.
pub(crate) struct Pinned {
    backends: Vec<Backend>,
    chunks: Vec<Vec<TableLine>>,
    frontends: HashMap<FrontendKey, Frontend>,
    services: BTreeMap<ServiceId, ServiceRecord>,
    source_ranges: BTreeSet<(u32, SourceRange)>,
    vips: BTreeSet<Address>,
    external_addresses: BTreeSet<Address>,
    node_addresses: BTreeSet<Address>,
    device_settings: DeviceSettings,
    pub(crate) nodes: NodeElements,
    affinity: RefCell<HashMap<AffinityKey, Affinity>>,
    /// Every value of a frontend that a program may still work with.
    readable: Vec<Readable>,
    room: Room,
    writes_left: Option<usize>,
    writes: usize,
    /// The first thing that was found broken.
    broken: Option<String>,
}

/// A value of a frontend, and the ids in its table: those must stay as they are.
struct Readable {
    frontend: Frontend,
    ids: BTreeSet<BackendId>,
}

/// The publisher's handle.
#[derive(Clone)]
pub(crate) struct FakeKernel(pub(crate) Rc<RefCell<Pinned>>);

/// What a write can break.
pub(crate) enum Touches {
    Nothing,
    /// The value that was written last.
    LastFrontend,
    AllFrontends,
    /// A line of a chunk.
    Line(u32, usize),
}

impl FakeKernel {
    pub(crate) fn new(room: Room) -> Self {
        Self(Rc::new(RefCell::new(Pinned {
            backends: vec![Backend::new_zeroed(); room.backends],
            chunks: Vec::new(),
            frontends: HashMap::new(),
            services: BTreeMap::new(),
            source_ranges: BTreeSet::new(),
            vips: BTreeSet::new(),
            external_addresses: BTreeSet::new(),
            node_addresses: BTreeSet::new(),
            device_settings: DeviceSettings::default(),
            nodes: NodeElements::default(),
            affinity: RefCell::default(),
            readable: Vec::new(),
            room,
            writes_left: None,
            writes: 0,
            broken: None,
        })))
    }

    /// All readers of earlier values are gone.
    pub(crate) fn wait_for_readers(&self) {
        let mut pinned = self.0.borrow_mut();
        let Pinned {
            readable,
            frontends,
            ..
        } = &mut *pinned;
        readable.retain(|it| frontends.get(&it.frontend.key) == Some(&it.frontend));
    }

    /// Lets the agent's process die at its nth write from now.
    pub(crate) fn crash_in(&self, writes: Option<usize>) {
        self.0.borrow_mut().writes_left = writes;
    }

    pub(crate) fn broken(&self) -> Option<String> {
        self.0.borrow().broken.clone()
    }

    pub(crate) fn write<T>(&self, touches: Touches, change: impl FnOnce(&mut Pinned) -> T) -> T {
        let mut pinned = self.0.borrow_mut();
        if let Some(left) = pinned.writes_left.as_mut() {
            if *left == 0 {
                drop(pinned);
                std::panic::resume_unwind(Box::new(Died));
            }
            *left -= 1;
        }
        let result = change(&mut pinned);
        pinned.writes += 1;
        // With thousands of backends each look takes long.
        let looks =
            pinned.room.backends <= Room::PLENTY.backends || pinned.writes.is_multiple_of(101);
        if looks && pinned.broken.is_none() {
            pinned.broken = pinned.check(touches).err();
        }
        result
    }
}

impl Pinned {
    fn backend(&self, id: BackendId) -> Backend {
        self.backends[id as usize]
    }

    /// Every element of `backends`.
    pub(crate) fn backends(&self) -> impl Iterator<Item = &Backend> {
        self.backends.iter()
    }

    /// Something was found broken.
    pub(crate) fn break_with(&mut self, what: Option<String>) {
        if self.broken.is_none() {
            self.broken = what;
        }
    }

    pub(crate) fn id_at(&self, table: TableRef, index: u32) -> BackendId {
        let line = (table.first_line + index / IDS_PER_LINE) as usize;
        let lines = &self.chunks[table.chunk as usize];
        lines
            .get(line)
            .map_or(0, |line| line.backends[(index % IDS_PER_LINE) as usize])
    }

    /// Every id of a table.
    pub(crate) fn ids(&self, table: TableRef) -> impl Iterator<Item = BackendId> + '_ {
        (0..table.length).map(move |index| self.id_at(table, index))
    }

    fn check(&self, touches: Touches) -> Result<(), String> {
        match touches {
            Touches::Nothing => Ok(()),
            Touches::LastFrontend => self.readable.last().map_or(Ok(()), |it| self.check_one(it)),
            Touches::AllFrontends => self.readable.iter().try_for_each(|it| self.check_one(it)),
            Touches::Line(chunk, line) => self.check_line(chunk, line),
        }
    }

    /// A table that anybody may read is never written to.
    fn check_line(&self, chunk: u32, line: usize) -> Result<(), String> {
        let has = |table: TableRef| {
            let first = table.first_line as usize;
            table.chunk == chunk && (first..first + table.lines() as usize).contains(&line)
        };
        match self.readable.iter().find(|it| has(it.frontend.table)) {
            Some(reader) => Err(format!(
                "a table in use is written to: {:?}",
                reader.frontend
            )),
            None => Ok(()),
        }
    }

    /// Whoever has read this value finds a complete table of backends of the
    /// same service port, in force if the value is.
    fn check_one(&self, Readable { frontend, ids }: &Readable) -> Result<(), String> {
        let in_force = self.frontends.get(&frontend.key) == Some(frontend);
        for &id in ids {
            let backend = self.backend(id);
            if id == 0 || backend.service != frontend.service {
                return Err(format!(
                    "backend {id} of another owner in the table: {frontend:?} {backend:?}"
                ));
            }
            if backend.address.is_v4() != frontend.key.address.is_v4() {
                return Err(format!("families mix: {frontend:?} {backend:?}"));
            }
            if in_force && !backend.in_set(frontend.set) {
                return Err(format!(
                    "in the table, not in the set: {frontend:?} {backend:?}"
                ));
            }
        }
        if in_force && !self.services.contains_key(&frontend.service) {
            return Err(format!("a frontend of an unnamed service: {frontend:?}"));
        }
        Ok(())
    }

    /// `namespace/name:port` of a service port.
    pub(crate) fn owner(&self, id: ServiceId) -> String {
        self.services
            .get(&id)
            .map_or_else(|| format!("unnamed {id}"), |it| it.name().to_owned())
    }

    pub(crate) fn service_of(&self, id: BackendId) -> ServiceId {
        self.backend(id).service
    }

    /// The addresses of a backend's Node.
    pub(crate) fn node_of(&self, id: BackendId) -> Vec<IpAddr> {
        self.nodes.addresses_of(self.backend(id).node)
    }

    /// Service port and endpoint of each backend that is listed as on this node.
    pub(crate) fn here(&self) -> BTreeSet<(String, Protocol, Endpoint)> {
        let listed = self.nodes.local().map(|(key, id)| {
            let protocol = self.services.get(&key.service).map_or(0, |it| it.protocol);
            let protocol = Protocol::from_number(protocol).unwrap_or(Protocol::Sctp);
            let backend = self.backend(id);
            let is_right = backend.service == key.service && backend.local == 1;
            let owner = if is_right {
                self.owner(key.service)
            } else {
                format!("{backend:?}")
            };
            (owner, protocol, (key.address.to_ip(), key.port as u16))
        });
        listed.collect()
    }

    /// Address and port of a backend.
    pub(crate) fn endpoint(&self, id: BackendId) -> Endpoint {
        let backend = self.backend(id);
        (backend.address.to_ip(), backend.port)
    }

    /// Elements in use of frontends, services, backends, vips, external addresses and
    /// source ranges.
    pub(crate) fn in_use(&self) -> [usize; 6] {
        let backends = self.backends.iter().filter(|it| it.service != 0).count();
        [
            self.frontends.len(),
            self.services.len(),
            backends,
            self.vips.len(),
            self.external_addresses.len(),
            self.source_ranges.len(),
        ]
    }
}

fn full(map: &'static str) -> KernelError {
    KernelError {
        call: "update",
        map,
        error: io::Error::from_raw_os_error(libc::E2BIG),
    }
}

impl Kernel for FakeKernel {
    fn backends_max(&self) -> u32 {
        self.0.borrow().room.backends as u32
    }
    fn services_max(&self) -> u32 {
        self.0.borrow().room.services as u32
    }
    fn backend(&self, id: BackendId) -> Backend {
        self.0.borrow().backend(id)
    }
    fn set_backend(&mut self, id: BackendId, backend: &Backend) {
        self.write(Touches::AllFrontends, |it| {
            let old = std::mem::replace(&mut it.backends[id as usize], *backend);
            let is_new = old.service == 0 && backend.service != 0;
            if is_new && old.generation == backend.generation {
                let what = format!("who remembers {old:?} takes it for {backend:?}");
                it.broken.get_or_insert(what);
            }
        });
    }
    fn reset_backend_stats(&mut self, _: BackendId) {}
    fn reset_service_stats(&mut self, _: ServiceId) {}
    fn chunks(&self) -> u32 {
        self.0.borrow().chunks.len() as u32
    }
    fn add_chunk(&mut self) -> Result<(), KernelError> {
        self.write(Touches::Nothing, |it| it.chunks.push(Vec::new()));
        Ok(())
    }
    fn table(&self, table: TableRef) -> Vec<BackendId> {
        self.0.borrow().ids(table).collect()
    }
    fn table_is(&self, table: TableRef, ids: &[BackendId]) -> bool {
        let pinned = self.0.borrow();
        pinned.ids(table).eq(ids.iter().copied())
    }
    fn write_table(&mut self, table: TableRef, ids: &[BackendId]) {
        // Each line is a write of its own, and a crash may come between.
        for (chunk, line) in ids
            .chunks(IDS_PER_LINE as usize)
            .zip(table.first_line as usize..)
        {
            let mut element = TableLine::new_zeroed();
            element.backends[..chunk.len()].copy_from_slice(chunk);
            self.write(Touches::Line(table.chunk, line), |it| {
                let lines = &mut it.chunks[table.chunk as usize];
                if lines.len() <= line {
                    lines.resize(line + 1, TableLine::new_zeroed());
                }
                lines[line] = element;
            });
        }
    }
    fn frontends(&self) -> Result<Vec<Frontend>, KernelError> {
        Ok(self.0.borrow().frontends.values().copied().collect())
    }
    fn set_frontend(&mut self, frontend: &Frontend) -> Result<(), KernelError> {
        self.write(Touches::LastFrontend, |it| {
            let known = it.frontends.contains_key(&frontend.key);
            if !known && it.frontends.len() >= it.room.frontends {
                return Err(full("frontends"));
            }
            it.frontends.insert(frontend.key, *frontend);
            let ids = it.ids(frontend.table).collect();
            it.readable.push(Readable {
                frontend: *frontend,
                ids,
            });
            Ok(())
        })
    }
    fn delete_frontend(&mut self, key: &FrontendKey) -> Result<(), KernelError> {
        self.write(Touches::Nothing, |it| it.frontends.remove(key));
        Ok(())
    }
    fn services(&self) -> Result<Vec<(ServiceId, ServiceRecord)>, KernelError> {
        let pinned = self.0.borrow();
        Ok(pinned.services.iter().map(|(id, it)| (*id, *it)).collect())
    }
    fn set_service(&mut self, id: ServiceId, record: &ServiceRecord) -> Result<(), KernelError> {
        self.write(Touches::Nothing, |it| it.services.insert(id, *record));
        Ok(())
    }
    fn delete_service(&mut self, id: ServiceId) -> Result<(), KernelError> {
        self.write(Touches::AllFrontends, |it| it.services.remove(&id));
        Ok(())
    }
    fn source_ranges(&self) -> Result<Vec<(u32, SourceRange)>, KernelError> {
        Ok(self.0.borrow().source_ranges.iter().copied().collect())
    }
    fn add_source_range(&mut self, length: u32, range: &SourceRange) -> Result<(), KernelError> {
        self.write(Touches::Nothing, |it| {
            it.source_ranges.insert((length, *range))
        });
        Ok(())
    }
    fn remove_source_range(&mut self, length: u32, range: &SourceRange) -> Result<(), KernelError> {
        self.write(Touches::Nothing, |it| {
            it.source_ranges.remove(&(length, *range))
        });
        Ok(())
    }
    fn addresses(&self, set: AddressSet) -> Result<Vec<Address>, KernelError> {
        let pinned = self.0.borrow();
        Ok(match set {
            AddressSet::Vips => pinned.vips.iter().copied().collect(),
            AddressSet::External => pinned.external_addresses.iter().copied().collect(),
            AddressSet::NodeAddresses => pinned.node_addresses.iter().copied().collect(),
        })
    }
    fn add_address(&mut self, set: AddressSet, address: &Address) -> Result<(), KernelError> {
        self.write(Touches::Nothing, |it| match set {
            AddressSet::Vips => it.vips.insert(*address),
            AddressSet::External => it.external_addresses.insert(*address),
            AddressSet::NodeAddresses => it.node_addresses.insert(*address),
        });
        Ok(())
    }
    fn remove_address(&mut self, set: AddressSet, address: &Address) -> Result<(), KernelError> {
        self.write(Touches::Nothing, |it| match set {
            AddressSet::Vips => it.vips.remove(address),
            AddressSet::External => it.external_addresses.remove(address),
            AddressSet::NodeAddresses => it.node_addresses.remove(address),
        });
        Ok(())
    }
    fn device_settings(&self) -> Result<DeviceSettings, KernelError> {
        Ok(self.0.borrow().device_settings)
    }
    fn set_device_settings(&mut self, settings: &DeviceSettings) -> Result<(), KernelError> {
        self.write(Touches::Nothing, |it| it.device_settings = *settings);
        Ok(())
    }
    fn grace(&self) -> Grace {
        Box::new(|| Ok(()))
    }
}

/// The maps as one client's program sees them.
pub(crate) struct View<'a> {
    pub(crate) pinned: &'a Pinned,
    pub(crate) from: Client,
    /// Number of the client; 0 is one that never came before and is forgotten.
    pub(crate) client: u64,
    pub(crate) random: u32,
    /// The table that was looked into.
    pub(crate) table: Cell<TableRef>,
    /// How its frontend forwards.
    pub(crate) forwarding: Cell<Forwarding>,
}

impl Maps for View<'_> {
    fn frontend(&self, key: &FrontendKey, copy: &mut Frontend) -> FrontendLookup {
        match self.pinned.frontends.get(key) {
            Some(frontend) => {
                self.forwarding.set(frontend.forwarding);
                *copy = *frontend;
                FrontendLookup::Found
            }
            None => FrontendLookup::Missing,
        }
    }
    fn is_node_address(&self, address: &Address) -> bool {
        self.pinned.node_addresses.contains(address)
    }
    fn is_cluster_ip(&self, address: &Address) -> bool {
        self.pinned.vips.contains(address)
    }
    fn in_service_cidr(&self, address: &Address) -> bool {
        in_service_cidr(address)
    }
    fn table_entry(&self, table: TableRef, index: u32) -> Option<BackendId> {
        self.table.set(table);
        Some(self.pinned.id_at(table, index))
    }
    fn backend(&self, id: BackendId) -> Option<Backend> {
        self.pinned.backends.get(id as usize).copied()
    }
    fn affinity(&self, key: &AffinityKey) -> Option<Affinity> {
        if self.client == 0 {
            return None;
        }
        self.pinned.affinity.borrow().get(key).copied()
    }
    fn remember_affinity(&self, key: &AffinityKey, value: &Affinity) {
        if self.client != 0 {
            self.pinned.affinity.borrow_mut().insert(*key, *value);
        }
    }
    fn source_allowed(&self, service: ServiceId, address: &Address) -> bool {
        let client = u128::from_be_bytes(address.bytes);
        let mut ranges = self.pinned.source_ranges.iter();
        ranges.any(|(length, range)| {
            let first = u128::from_be_bytes(range.address.bytes);
            let shift = SourceRange::BITS - length;
            let same = |shift| client.checked_shr(shift) == first.checked_shr(shift);
            range.service == service && same(shift)
        })
    }
    fn client_address(&self, v4: bool) -> Option<Address> {
        client_address(self.from, v4).map(Address::from)
    }
    fn client(&self) -> u64 {
        self.client
    }
    fn client_is_host(&self) -> bool {
        self.from == Client::Host
    }
    fn number(&self, _of_client: bool) -> u32 {
        self.random
    }
    fn open_connections(&self, _id: BackendId) -> u32 {
        0
    }
    fn random(&self) -> u32 {
        self.random
    }
    fn now_s(&self) -> u32 {
        1000
    }
}

/// 10.96.0.0/24 without what is left alone, and fd00:96::/112.
fn in_service_cidr(address: &Address) -> bool {
    const V4: [u8; 15] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 96, 0];
    const V6: [u8; 14] = [0xfd, 0, 0, 0x96, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    if address.to_ip() == LEFT_ALONE {
        return false;
    }
    address.bytes.starts_with(&V4) || address.bytes.starts_with(&V6)
}
