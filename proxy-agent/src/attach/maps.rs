//! The maps by name: kinds, sizes, and what becomes of them at an upgrade.

use crate::sys::MapShape;
use aya::maps::MapType;
use proxy_common::{
    Address, Affinity, AffinityKey, Backend, BackendStats, Device, DeviceSettings, DropReason,
    Flow, FlowKey, FragmentKey, FragmentPorts, Frontend, FrontendKey, Layout, LocalBackendKey,
    NetnsAddresses, NodeAddresses, PathMtu, ServiceRecord, ServiceStats, Settings, SocketFlow,
    SourceRange, TableLine, UdpFlows, UdpSocket, limits,
};

/// Sizes that an operator can choose.
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

/// Whose a map's content is, and so what becomes of it when maps are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The agent's: written anew, or copied.
    Published,
    /// Of what was seen since, in terms of the published maps: kept if it fits and
    /// those mean the same.
    Referring,
    /// The sockets' own: kept as long as their layout is the same.
    Sockets,
    /// Of this node's namespaces, in terms that every build shares: kept if it fits.
    Namespaces,
}

/// One map of the object.
#[derive(Clone, Copy, Debug)]
pub struct MapSpec {
    /// Name in the object, in `bpftool map` and of the pin.
    pub name: &'static str,
    /// Kind of map.
    pub map_type: MapType,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// Elements; 0 for socket storage, which has no limit.
    pub max_entries: u32,
    /// Whose its content is.
    pub content: Content,
}

impl MapSpec {
    /// Every map, in the order of a look-up.
    pub fn all(sizes: &MapSizes) -> Vec<Self> {
        let mut specs = published(sizes);
        specs.extend(remembered(sizes));
        specs
    }

    /// Type and sizes.
    pub fn shape(&self) -> MapShape {
        MapShape {
            map_type: self.map_type as u32,
            key_size: self.key_size as u32,
            value_size: self.value_size as u32,
            max_entries: self.max_entries,
        }
    }
}

/// Maps that the agent writes, and counters by ids in them.
fn published(sizes: &MapSizes) -> Vec<MapSpec> {
    use MapType::{Array, ArrayOfMaps, Hash, LpmTrie, ProgramArray};
    let address = size_of::<Address>();
    [
        (
            "frontends",
            Hash,
            size_of::<FrontendKey>(),
            size_of::<Frontend>(),
            sizes.frontends,
        ),
        ("vips", Hash, address, 4, limits::ADDRESSES_MAX),
        (
            "external_addresses",
            Hash,
            address,
            4,
            limits::ADDRESSES_MAX,
        ),
        (
            "node_addresses",
            Hash,
            address,
            4,
            limits::NODE_ADDRESSES_MAX,
        ),
        (
            "service_cidrs",
            LpmTrie,
            4 + address,
            4,
            limits::SERVICE_CIDRS_MAX,
        ),
        ("tables", ArrayOfMaps, 4, 4, limits::CHUNKS_MAX),
        (
            "tables_0",
            Array,
            4,
            size_of::<TableLine>(),
            limits::LINES_PER_CHUNK,
        ),
        ("backends", Array, 4, size_of::<Backend>(), sizes.backends),
        (
            "services",
            Hash,
            4,
            size_of::<ServiceRecord>(),
            sizes.services,
        ),
        (
            "source_ranges",
            LpmTrie,
            4 + size_of::<SourceRange>(),
            4,
            limits::SOURCE_RANGES_MAX,
        ),
        (
            "nodes",
            Array,
            4,
            size_of::<NodeAddresses>(),
            limits::NODES_MAX,
        ),
        ("node_ids", Hash, address, 4, 2 * limits::NODES_MAX),
        (
            "local_backends",
            Hash,
            size_of::<LocalBackendKey>(),
            4,
            limits::LOCAL_BACKENDS_MAX,
        ),
        ("programs", ProgramArray, 4, 4, 1),
        ("devices", Hash, 4, size_of::<Device>(), limits::DEVICES_MAX),
        ("device_settings", Array, 4, size_of::<DeviceSettings>(), 1),
        ("settings", Array, 4, size_of::<Settings>(), 1),
        ("layout", Array, 4, size_of::<Layout>(), 1),
        (
            "backend_stats",
            Array,
            4,
            size_of::<BackendStats>(),
            sizes.backends,
        ),
        (
            "service_stats",
            Array,
            4,
            size_of::<ServiceStats>(),
            sizes.services,
        ),
    ]
    .map(|columns| spec(Content::Published, columns))
    .into()
}

/// Maps of what the programs, or the node, have seen.
fn remembered(sizes: &MapSizes) -> Vec<MapSpec> {
    use MapType::{Hash, LruHash, PerCpuArray, SkStorage};
    let affinity = (
        "affinity",
        LruHash,
        size_of::<AffinityKey>(),
        size_of::<Affinity>(),
        sizes.affinity,
    );
    let udp_sockets = (
        "udp_sockets",
        Hash,
        8,
        size_of::<UdpSocket>(),
        limits::UDP_SOCKETS_MAX,
    );
    let drop_stats = (
        "drop_stats",
        PerCpuArray,
        4,
        size_of::<u64>(),
        DropReason::COUNT,
    );
    let netns_addresses = (
        "netns_addresses",
        Hash,
        8,
        size_of::<NetnsAddresses>(),
        limits::NETNS_MAX,
    );
    let socket_flows = ("socket_flows", SkStorage, 4, size_of::<SocketFlow>(), 0);
    let udp_flows = ("udp_flows", SkStorage, 4, size_of::<UdpFlows>(), 0);
    let flow = (size_of::<FlowKey>(), size_of::<Flow>());
    let flows = ("flows", Hash, flow.0, flow.1, limits::FLOWS_MAX);
    let flows_new = ("flows_new", LruHash, flow.0, flow.1, limits::FLOWS_NEW_MAX);
    let fragments = (
        "fragments",
        LruHash,
        size_of::<FragmentKey>(),
        size_of::<FragmentPorts>(),
        limits::FRAGMENTS_MAX,
    );
    let path_mtus = (
        "path_mtus",
        LruHash,
        size_of::<Address>(),
        size_of::<PathMtu>(),
        limits::PATH_MTUS_MAX,
    );
    let referring = [
        fragments,
        path_mtus,
        affinity,
        udp_sockets,
        drop_stats,
        netns_addresses,
        flows,
        flows_new,
    ];
    let opt_outs = ("opt_outs", Hash, 8, 4, limits::OPT_OUTS_MAX);
    let sockets = [socket_flows, udp_flows];
    let referring = referring.map(|columns| spec(Content::Referring, columns));
    let sockets = sockets.map(|columns| spec(Content::Sockets, columns));
    let opt_outs = spec(Content::Namespaces, opt_outs);
    let all = referring.into_iter().chain(sockets);
    all.chain([opt_outs]).collect()
}

fn spec(
    content: Content,
    (name, map_type, key_size, value_size, max_entries): (&'static str, MapType, usize, usize, u32),
) -> MapSpec {
    MapSpec {
        name,
        map_type,
        key_size,
        value_size,
        max_entries,
        content,
    }
}
