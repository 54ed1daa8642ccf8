//! Map `backends`: the endpoints of service ports.

use crate::{Address, EndpointSet, NodeId, ServiceId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Index into `backends`; 0 is no backend.
pub type BackendId = u32;

/// Value of `backends`: one endpoint of one service port.
///
/// The same pod behind two service ports is two backends. An unused element
/// has `service` 0 and keeps its generation.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Backend {
    /// A word that only the tests' foreign layout has.
    #[cfg(feature = "other-layout")]
    pub other: u32,
    /// The endpoint's address.
    pub address: Address,
    /// Host byte order.
    pub port: u16,
    /// 1 if the endpoint is on this node.
    pub local: u8,
    /// Bits `IN_CLUSTER_SET`, `IN_LOCAL_SET`, `SERVING`.
    pub state: u8,
    /// Owner; 0 when the element is free.
    pub service: ServiceId,
    /// Raised each time the element is given to another endpoint, so that what
    /// remembers a backend (affinity, flows) notices.
    pub generation: u32,
    /// Its share of new connections beside the other endpoints' weights. With 0 it
    /// gets none, unless nobody in the set has more.
    pub weight: u32,
    /// The endpoint's node; 0 if it is on none of the cluster.
    pub node: NodeId,
}

impl Backend {
    /// Bit of `state`: the cluster set in force has this endpoint.
    pub const IN_CLUSTER_SET: u8 = 1;
    /// Bit of `state`: the local set in force has this endpoint.
    pub const IN_LOCAL_SET: u8 = 2;
    /// Bit of `state`: the endpoint serves (it may be terminating), so UDP
    /// flows that it has may stay.
    pub const SERVING: u8 = 4;

    /// Whether `set` has this endpoint.
    #[inline(always)]
    pub fn in_set(&self, set: EndpointSet) -> bool {
        let bit = match set {
            EndpointSet::Cluster => Self::IN_CLUSTER_SET,
            EndpointSet::Local => Self::IN_LOCAL_SET,
        };
        self.state & bit != 0
    }

    /// Whether flows that this endpoint already has may stay with it.
    #[inline(always)]
    pub fn is_serving(&self) -> bool {
        self.state & Self::SERVING != 0
    }
}

const _: () =
    assert!(size_of::<Backend>() == 36 + if cfg!(feature = "other-layout") { 4 } else { 0 });
