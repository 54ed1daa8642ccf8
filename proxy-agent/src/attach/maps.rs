//! The maps by name: sizes, and whether pinned ones still fit this build.

use aya::maps::MapInfo;
use proxy_common::{
    Address, Affinity, AffinityKey, Backend, BackendStats, DropReason, Frontend, FrontendKey,
    NetnsAddresses, ServiceRecord, ServiceStats, Settings, SocketFlow, SourceRange, TableLine,
    UdpFlows, UdpSocket, limits,
};
use std::path::Path;

/// Sizes that an operator can choose. A pinned map keeps the size that it was
/// made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSizes {
    /// Elements of `frontends`.
    pub frontends: u32,
    /// Elements of `backends`.
    pub backends: u32,
    /// Elements of `services`.
    pub services: u32,
    /// Elements of `affinity`.
    pub affinity: u32,
}

impl Default for MapSizes {
    fn default() -> Self {
        Self {
            frontends: limits::FRONTENDS_MAX,
            backends: limits::BACKENDS_MAX,
            services: limits::SERVICES_MAX,
            affinity: limits::AFFINITY_MAX,
        }
    }
}

/// One map of the object.
#[derive(Clone, Copy, Debug)]
pub struct MapSpec {
    /// Name in the object, in `bpftool map` and of the pin.
    pub name: &'static str,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// Elements; 0 for socket storage, which has no limit.
    pub max_entries: u32,
}

impl MapSpec {
    /// Every map, in the order of a look-up.
    pub fn all(sizes: &MapSizes) -> [Self; 18] {
        let address = size_of::<Address>();
        let spec = |name, key_size, value_size, max_entries| Self {
            name,
            key_size,
            value_size,
            max_entries,
        };
        [
            spec(
                "frontends",
                size_of::<FrontendKey>(),
                size_of::<Frontend>(),
                sizes.frontends,
            ),
            spec("vips", address, 4, limits::ADDRESSES_MAX),
            spec("node_addresses", address, 4, limits::NODE_ADDRESSES_MAX),
            spec("service_cidrs", 4 + address, 4, limits::SERVICE_CIDRS_MAX),
            spec("tables", 4, 4, limits::CHUNKS_MAX),
            spec(
                "tables_0",
                4,
                size_of::<TableLine>(),
                limits::LINES_PER_CHUNK,
            ),
            spec("backends", 4, size_of::<Backend>(), sizes.backends),
            spec("services", 4, size_of::<ServiceRecord>(), sizes.services),
            spec(
                "source_ranges",
                4 + size_of::<SourceRange>(),
                4,
                limits::SOURCE_RANGES_MAX,
            ),
            spec(
                "netns_addresses",
                8,
                size_of::<NetnsAddresses>(),
                limits::NETNS_MAX,
            ),
            spec(
                "affinity",
                size_of::<AffinityKey>(),
                size_of::<Affinity>(),
                sizes.affinity,
            ),
            spec("socket_flows", 4, size_of::<SocketFlow>(), 0),
            spec("udp_flows", 4, size_of::<UdpFlows>(), 0),
            spec(
                "udp_sockets",
                8,
                size_of::<UdpSocket>(),
                limits::UDP_SOCKETS_MAX,
            ),
            spec("settings", 4, size_of::<Settings>(), 1),
            spec(
                "backend_stats",
                4,
                size_of::<BackendStats>(),
                sizes.backends,
            ),
            spec(
                "service_stats",
                4,
                size_of::<ServiceStats>(),
                sizes.services,
            ),
            spec("drop_stats", 4, size_of::<u64>(), DropReason::COUNT),
        ]
    }

    /// What keeps the map that is pinned in `directory` from serving this build;
    /// `None` if it fits or there is none.
    pub fn misfit(&self, directory: &Path) -> Option<String> {
        let info = MapInfo::from_pin(directory.join(self.name)).ok()?;
        let found = (
            info.key_size() as usize,
            info.value_size() as usize,
            info.max_entries(),
        );
        let wanted = (self.key_size, self.value_size, self.max_entries);
        (found != wanted).then(|| {
            let (key, value, max) = found;
            format!(
                "map {} is pinned with {key}-byte keys, {value}-byte values and room for {max}; this build wants {}, {} and {}",
                self.name, self.key_size, self.value_size, self.max_entries
            )
        })
    }
}
