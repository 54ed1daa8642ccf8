//! The real kernel: pinned maps through aya, arrays through shared memory.
//!
//! `backends` and the chunks of `tables` are mmapable arrays, so that filling a
//! table is a few stores and not a system call per element.

use super::node_maps::PinnedNodes;
use super::pinned::{absent_is_fine, duplicate, max_entries, open, refused, typed};
use super::shared::Shared;
use super::{AddressSet, Grace, Kernel, KernelError};
use crate::attach::layout;
use crate::{crash, sys};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, ArrayOfMaps, HashMap, MapData, MapError};
use proxy_common::{
    Address, Backend, BackendId, BackendStats, DeviceSettings, Frontend, FrontendKey, IDS_PER_LINE,
    ServiceId, ServiceRecord, ServiceStats, SourceRange, TableLine, TableRef,
    limits::{CHUNKS_MAX, LINES_PER_CHUNK},
};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use zerocopy::{FromZeros, IntoBytes, TryFromBytes};

/// Pin of the chunk that the object brings, with type information for `bpftool`.
const FIRST_CHUNK: &str = "tables_0";

type Bytes<T> = HashMap<MapData, T, u32>;
type Raw<const K: usize, const V: usize> = HashMap<MapData, [u8; K], [u8; V]>;

const KEY: usize = size_of::<FrontendKey>();
const FRONTEND: usize = size_of::<Frontend>();
const RECORD: usize = size_of::<ServiceRecord>();
const ADDRESS: usize = size_of::<Address>();
const DEVICE_SETTINGS: usize = size_of::<DeviceSettings>();
const RANGE: usize = size_of::<SourceRange>();
const BACKEND_WORDS: usize = size_of::<Backend>() / 4;
/// The word of a backend that holds its port and its state.
const STATE_WORD: usize = offset_of!(Backend, port) / 4;

/// The pinned maps of one agent.
pub struct BpfKernel {
    directory: PathBuf,
    frontends: Raw<KEY, FRONTEND>,
    services: HashMap<MapData, u32, [u8; RECORD]>,
    vips: Bytes<[u8; ADDRESS]>,
    external_addresses: Bytes<[u8; ADDRESS]>,
    node_addresses: Bytes<[u8; ADDRESS]>,
    source_ranges: LpmTrie<MapData, [u8; RANGE], u32>,
    pub(super) nodes: PinnedNodes,
    device_settings: Array<MapData, [u8; DEVICE_SETTINGS]>,
    tables: ArrayOfMaps<MapData, MapData>,
    tables_fd: OwnedFd,
    chunks: Vec<Chunk>,
    backends: Shared,
    pub(super) backend_stats: Shared,
    pub(super) service_stats: Shared,
    pub(super) backends_max: u32,
    services_max: u32,
}

struct Chunk {
    fd: OwnedFd,
    lines: Shared,
}

impl BpfKernel {
    /// Opens the maps that are pinned in `directory`, if this build can read them.
    pub fn open(directory: &Path) -> Result<Self, KernelError> {
        if let Some(foreign) = layout::unreadable(directory) {
            return Err(KernelError {
                call: "open",
                map: foreign.map,
                error: io::Error::other(foreign.reason),
            });
        }
        let (backends, backends_max) = Shared::open::<Backend>(directory, "backends")?;
        let (backend_stats, _) = Shared::open::<BackendStats>(directory, "backend_stats")?;
        let (service_stats, _) = Shared::open::<ServiceStats>(directory, "service_stats")?;
        let services = open(directory, "services")?;
        let services_max = max_entries(&services, "services")?;
        let tables = open(directory, "tables")?;
        let tables_fd = duplicate(&tables, "tables")?;
        let mut kernel = Self {
            directory: directory.to_owned(),
            frontends: typed(open(directory, "frontends")?, "frontends")?,
            services: typed(services, "services")?,
            vips: typed(open(directory, "vips")?, "vips")?,
            external_addresses: typed(
                open(directory, "external_addresses")?,
                "external_addresses",
            )?,
            node_addresses: typed(open(directory, "node_addresses")?, "node_addresses")?,
            source_ranges: LpmTrie::try_from(aya::maps::Map::LpmTrie(open(
                directory,
                "source_ranges",
            )?))
            .map_err(refused("open", "source_ranges"))?,
            nodes: PinnedNodes::open(directory)?,
            device_settings: Array::try_from(aya::maps::Map::Array(open(
                directory,
                "device_settings",
            )?))
            .map_err(refused("open", "device_settings"))?,
            tables: ArrayOfMaps::try_from(aya::maps::Map::ArrayOfMaps(tables))
                .map_err(refused("open", "tables"))?,
            tables_fd,
            chunks: Vec::new(),
            backends,
            backend_stats,
            service_stats,
            backends_max,
            services_max,
        };
        kernel.open_chunks()?;
        Ok(kernel)
    }

    fn open_chunks(&mut self) -> Result<(), KernelError> {
        for index in 0..CHUNKS_MAX {
            match self.tables.get(&index, 0) {
                Ok(chunk) => self.chunks.push(Chunk::new(&chunk)?),
                Err(MapError::KeyNotFound) => break,
                Err(error) => return Err(refused("look-up", "tables")(error)),
            }
        }
        Ok(())
    }

    /// The pins lie elsewhere now.
    pub fn moved_to(&mut self, directory: &Path) {
        self.directory = directory.to_owned();
    }

    fn line(&self, table: TableRef, line: u32) -> Option<*mut TableLine> {
        self.chunks
            .get(table.chunk as usize)?
            .lines
            .at((table.first_line + line) as usize)
    }

    fn address_set(&mut self, set: AddressSet) -> &mut Bytes<[u8; ADDRESS]> {
        match set {
            AddressSet::Vips => &mut self.vips,
            AddressSet::External => &mut self.external_addresses,
            AddressSet::NodeAddresses => &mut self.node_addresses,
        }
    }
}

impl Chunk {
    fn new(map: &MapData) -> Result<Self, KernelError> {
        let bytes = LINES_PER_CHUNK as usize * size_of::<TableLine>();
        Ok(Self {
            fd: duplicate(map, "tables")?,
            lines: Shared::new(&map.fd().as_fd(), bytes, "tables")?,
        })
    }
}

impl Kernel for BpfKernel {
    fn backends_max(&self) -> u32 {
        self.backends_max
    }

    fn services_max(&self) -> u32 {
        self.services_max
    }

    fn backend(&self, id: BackendId) -> Backend {
        match self.backends.at::<Backend>(id as usize) {
            // SAFETY: inside the mapping, aligned; only this thread writes it.
            Some(element) => unsafe { element.read_volatile() },
            None => Backend::new_zeroed(),
        }
    }

    fn set_backend(&mut self, id: BackendId, backend: &Backend) {
        crash::point();
        let words: [u32; BACKEND_WORDS] = zerocopy::transmute!(*backend);
        let Some(element) = self.backends.at::<[u32; BACKEND_WORDS]>(id as usize) else {
            return;
        };
        // The word with the state last: a reader that sees it sees the rest
        // (the frontends' write that follows is a barrier on every machine).
        let others = (0..BACKEND_WORDS).filter(|&index| index != STATE_WORD);
        for index in others.chain([STATE_WORD]) {
            // SAFETY: inside the mapping and aligned.
            unsafe {
                element
                    .cast::<u32>()
                    .add(index)
                    .write_volatile(words[index])
            };
        }
    }

    fn reset_backend_stats(&mut self, id: BackendId) {
        if let Some(stats) = self.backend_stats.at::<BackendStats>(id as usize) {
            // SAFETY: inside the mapping and aligned; no socket has this backend yet.
            unsafe { stats.write_volatile(BackendStats::default()) };
        }
    }

    fn reset_service_stats(&mut self, id: ServiceId) {
        if let Some(stats) = self.service_stats.at::<ServiceStats>(id as usize) {
            // SAFETY: inside the mapping and aligned; no frontend has this owner yet.
            unsafe { stats.write_volatile(ServiceStats::default()) };
        }
    }

    fn chunks(&self) -> u32 {
        u32::try_from(self.chunks.len()).unwrap_or(u32::MAX)
    }

    fn add_chunk(&mut self) -> Result<(), KernelError> {
        crash::point();
        let index = self.chunks();
        let io = |call| {
            move |error| KernelError {
                call,
                map: "tables",
                error,
            }
        };
        let pin = self.directory.join(format!("tables_{index}"));
        // A crash between pin and use leaves a pin behind; its map is as good.
        let fd = match sys::open_pinned(&pin) {
            Ok(fd) => fd,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let template = sys::open_pinned(&self.directory.join(FIRST_CHUNK))
                    .map_err(io("open chunk"))?;
                let fd = sys::create_like(template.as_fd()).map_err(io("create chunk"))?;
                sys::pin(fd.as_fd(), &pin).map_err(io("pin chunk"))?;
                fd
            }
            Err(error) => return Err(io("open chunk")(error)),
        };
        let map = MapData::from_fd(fd).map_err(refused("open chunk", "tables"))?;
        self.tables
            .set(index, &map, 0)
            .map_err(refused("add chunk", "tables"))?;
        self.chunks.push(Chunk::new(&map)?);
        Ok(())
    }

    fn table(&self, table: TableRef) -> Vec<BackendId> {
        let lines = (0..table.lines()).filter_map(|line| self.line(table, line));
        // SAFETY: inside the mapping and aligned.
        let ids = lines.flat_map(|element| unsafe { element.read_volatile() }.backends);
        ids.take(table.length as usize).collect()
    }

    fn table_is(&self, table: TableRef, ids: &[BackendId]) -> bool {
        table.length as usize == ids.len()
            && ids
                .chunks(IDS_PER_LINE as usize)
                .zip(0..)
                .all(|(expected, line)| {
                    self.line(table, line).is_some_and(|element| {
                        // SAFETY: inside the mapping, aligned; only this thread writes it.
                        let line = unsafe { element.read_volatile() };
                        line.backends.starts_with(expected)
                    })
                })
    }

    fn write_table(&mut self, table: TableRef, ids: &[BackendId]) {
        for (ids, line) in ids.chunks(IDS_PER_LINE as usize).zip(0..) {
            let mut element = TableLine::new_zeroed();
            element.backends[..ids.len()].copy_from_slice(ids);
            if let Some(target) = self.line(table, line) {
                crash::point();
                // SAFETY: inside the mapping and aligned; no frontend names this room yet.
                unsafe { target.write_volatile(element) };
            }
        }
    }

    fn frontends(&self) -> Result<Vec<Frontend>, KernelError> {
        let mut frontends = Vec::new();
        for element in self.frontends.iter() {
            let (key, value) = element.map_err(refused("iterate", "frontends"))?;
            match Frontend::try_read_from_bytes(&value) {
                Ok(frontend) if frontend.key.as_bytes() == key => frontends.push(frontend),
                _ => tracing::warn!(
                    ?key,
                    ?value,
                    "map frontends has an element that is not ours; left alone"
                ),
            }
        }
        Ok(frontends)
    }

    fn set_frontend(&mut self, frontend: &Frontend) -> Result<(), KernelError> {
        crash::point();
        let (key, value): ([u8; KEY], [u8; FRONTEND]) = (
            zerocopy::transmute!(frontend.key),
            zerocopy::transmute!(*frontend),
        );
        self.frontends
            .insert(key, value, 0)
            .map_err(refused("update", "frontends"))
    }

    fn delete_frontend(&mut self, key: &FrontendKey) -> Result<(), KernelError> {
        crash::point();
        let key: [u8; KEY] = zerocopy::transmute!(*key);
        absent_is_fine(self.frontends.remove(&key), "frontends")
    }

    fn services(&self) -> Result<Vec<(ServiceId, ServiceRecord)>, KernelError> {
        self.services
            .iter()
            .map(|element| {
                let (id, bytes) = element.map_err(refused("iterate", "services"))?;
                Ok((id, zerocopy::transmute!(bytes)))
            })
            .collect()
    }

    fn set_service(&mut self, id: ServiceId, record: &ServiceRecord) -> Result<(), KernelError> {
        crash::point();
        let bytes: [u8; RECORD] = zerocopy::transmute!(*record);
        self.services
            .insert(id, bytes, 0)
            .map_err(refused("update", "services"))
    }

    fn delete_service(&mut self, id: ServiceId) -> Result<(), KernelError> {
        crash::point();
        absent_is_fine(self.services.remove(&id), "services")
    }

    fn source_ranges(&self) -> Result<Vec<(u32, SourceRange)>, KernelError> {
        self.source_ranges
            .keys()
            .map(|key| {
                let key = key.map_err(refused("iterate", "source_ranges"))?;
                Ok((key.prefix_len(), zerocopy::transmute!(key.data())))
            })
            .collect()
    }

    fn add_source_range(
        &mut self,
        prefix_length: u32,
        range: &SourceRange,
    ) -> Result<(), KernelError> {
        crash::point();
        let key = Key::new(prefix_length, zerocopy::transmute!(*range));
        self.source_ranges
            .insert(&key, 1, 0)
            .map_err(refused("update", "source_ranges"))
    }

    fn remove_source_range(
        &mut self,
        prefix_length: u32,
        range: &SourceRange,
    ) -> Result<(), KernelError> {
        crash::point();
        let key = Key::new(prefix_length, zerocopy::transmute!(*range));
        absent_is_fine(self.source_ranges.remove(&key), "source_ranges")
    }

    fn addresses(&self, set: AddressSet) -> Result<Vec<Address>, KernelError> {
        let map = match set {
            AddressSet::Vips => &self.vips,
            AddressSet::External => &self.external_addresses,
            AddressSet::NodeAddresses => &self.node_addresses,
        };
        map.keys()
            .map(|key| {
                Ok(Address {
                    bytes: key.map_err(refused("iterate", set.map()))?,
                })
            })
            .collect()
    }

    fn add_address(&mut self, set: AddressSet, address: &Address) -> Result<(), KernelError> {
        crash::point();
        self.address_set(set)
            .insert(address.bytes, 1, 0)
            .map_err(refused("update", set.map()))
    }

    fn remove_address(&mut self, set: AddressSet, address: &Address) -> Result<(), KernelError> {
        crash::point();
        absent_is_fine(self.address_set(set).remove(&address.bytes), set.map())
    }

    fn device_settings(&self) -> Result<DeviceSettings, KernelError> {
        let bytes = self.device_settings.get(&0, 0);
        let bytes = bytes.map_err(refused("look-up", "device_settings"))?;
        Ok(zerocopy::transmute!(bytes))
    }

    fn set_device_settings(&mut self, settings: &DeviceSettings) -> Result<(), KernelError> {
        crash::point();
        let bytes: [u8; DEVICE_SETTINGS] = zerocopy::transmute!(*settings);
        self.device_settings
            .set(0, bytes, 0)
            .map_err(refused("update", "device_settings"))
    }

    /// One write to an outer map: the kernel returns from it only when every
    /// program that ran before has ended (kernel/bpf/syscall.c,
    /// `maybe_wait_bpf_programs`). It takes about 8 ms.
    fn grace(&self) -> Grace {
        let duplicates = self
            .chunks
            .first()
            .map(|chunk| (self.tables_fd.try_clone(), chunk.fd.try_clone()));
        Box::new(move || {
            let Some((tables, chunk)) = duplicates else {
                return Ok(());
            };
            let io = |error| KernelError {
                call: "duplicate",
                map: "tables",
                error,
            };
            let tables =
                MapData::from_fd(tables.map_err(io)?).map_err(refused("open", "tables"))?;
            let chunk = MapData::from_fd(chunk.map_err(io)?).map_err(refused("open", "tables"))?;
            let mut tables: ArrayOfMaps<MapData, MapData> =
                ArrayOfMaps::try_from(aya::maps::Map::ArrayOfMaps(tables))
                    .map_err(refused("open", "tables"))?;
            tables
                .set(0, &chunk, 0)
                .map_err(refused("update", "tables"))
        })
    }
}
