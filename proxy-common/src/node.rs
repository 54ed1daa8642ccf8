//! Maps of Nodes and of what they may be asked for: DSR hands packets from one node
//! to another.

use crate::{Address, ServiceId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Index into `nodes`; 0 is no Node.
pub type NodeId = u32;

/// Value of `nodes`: where a Node takes packets by tunnel, its InternalIPs. Map
/// `node_ids` leads from each of them to the index.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NodeAddresses {
    /// [`Address::ANY_V4`] if it has none.
    pub v4: Address,
    /// [`Address::ANY_V6`] if it has none.
    pub v6: Address,
}

/// Value of `path_mtus`, whose key is a Node's address: what a router on the way there
/// has told that it takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct PathMtu {
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Seconds since boot when it was told.
    pub told_s: u32,
}

impl PathMtu {
    /// How long it is believed, in seconds, as the kernel does (net.ipv4.route.mtu_expires).
    pub const LIFE_S: u32 = 600;
}

/// Key of `local_backends`, which leads to the id of a backend on this node: other
/// nodes cannot know it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct LocalBackendKey {
    /// The endpoint's address.
    pub address: Address,
    /// Host byte order.
    pub port: u32,
    /// The service port.
    pub service: ServiceId,
}

impl Default for NodeAddresses {
    fn default() -> Self {
        Self::NONE
    }
}

impl NodeAddresses {
    /// No Node.
    pub const NONE: Self = Self {
        v4: Address::ANY_V4,
        v6: Address::ANY_V6,
    };

    /// The address in a family; the wildcard if there is none.
    #[inline(always)]
    pub fn in_family(&self, v4: bool) -> Address {
        if v4 { self.v4 } else { self.v6 }
    }
}

const _: () = assert!(size_of::<NodeAddresses>() == 32);
const _: () = assert!(size_of::<LocalBackendKey>() == 24);
