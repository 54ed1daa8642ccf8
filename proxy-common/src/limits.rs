//! Sizes that both sides must agree on.

/// Lines of one chunk of `tables`: 65,536 lines of 16 ids, 4 MiB. Also the
/// largest table: 1,048,576 backends.
pub const LINES_PER_CHUNK: u32 = 65_536;

/// Chunks that `tables` can hold: 64 of 4 MiB.
pub const CHUNKS_MAX: u32 = 64;

/// Default number of `frontends` (about 36 MiB of kernel memory). Each address and
/// port has two: for clients on this node and for those outside. So 50,000 Services
/// of both families with a port each take 200,000.
pub const FRONTENDS_MAX: u32 = 262_144;

/// Default number of `backends` (32 bytes each: 8 MiB).
pub const BACKENDS_MAX: u32 = 262_144;

/// Default number of `services` (about 16 MiB).
pub const SERVICES_MAX: u32 = 65_536;

/// Default number of `affinity` records (about 6 MiB).
pub const AFFINITY_MAX: u32 = 65_536;

/// Default number of `vips` (about 11 MiB): 50,000 Services have 100,000 in two families.
/// Also that of `external_addresses` (allocated as needed).
pub const ADDRESSES_MAX: u32 = 131_072;

/// Connected UDP sockets that are watched (about 6 MiB). One more is translated
/// too, but does not notice when its backend goes.
pub const UDP_SOCKETS_MAX: u32 = 65_536;

/// Source ranges of all services together (allocated as needed).
pub const SOURCE_RANGES_MAX: u32 = 65_536;

/// Network namespaces whose address is known (about 1 MiB).
pub const NETNS_MAX: u32 = 8_192;

/// Network namespaces of Pods that opt out of socket translation (about 0.1 MiB);
/// a node runs far fewer Pods.
pub const OPT_OUTS_MAX: u32 = 1_024;

/// Addresses of this node that serve NodePorts.
pub const NODE_ADDRESSES_MAX: u32 = 65_536;

/// Service CIDRs: two families, and a few more while a cluster moves.
pub const SERVICE_CIDRS_MAX: u32 = 64;

/// Default number of `flows`: two for each translated connection that has been
/// answered (about 170 bytes each, allocated as needed).
pub const FLOWS_MAX: u32 = 1_048_576;

/// `flows_new`: half-open and one-way connections, two elements each (about 11 MiB).
pub const FLOWS_NEW_MAX: u32 = 65_536;

/// Nodes of the cluster (Kubernetes supports 5,000), and their addresses.
pub const NODES_MAX: u32 = 16_384;

/// Backends on this node, of all its service ports.
pub const LOCAL_BACKENDS_MAX: u32 = 16_384;

/// Ways to other Nodes that take less than their first device.
pub const PATH_MTUS_MAX: u32 = 16_384;

/// Devices of this node in the packet path.
pub const DEVICES_MAX: u32 = 1_024;

/// Datagrams in fragments whose ports are known (about 1 MiB).
pub const FRAGMENTS_MAX: u32 = 8_192;
