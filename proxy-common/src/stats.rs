//! Maps `backend_stats` and `service_stats`: counters, by the ids of their owners.
//!
//! Shared arrays with atomic additions, not per-CPU ones: a count per connection
//! is nothing beside the connection, and per-CPU arrays of 262,144 backends on
//! 128 CPUs would take 2 GiB where these take 16 MiB. Packets and bytes are
//! counted in their flow, and added here by the agent when that is over.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Value of `backend_stats`; the key is the backend's id. Zeroed when the id is
/// given to another endpoint.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct BackendStats {
    /// TCP connections and connected UDP sockets that were sent here, and UDP
    /// conversations of unconnected sockets that began here.
    pub opened: u64,
    /// TCP connections that never came to be: refused, reset or timed out in
    /// the handshake, or given up by the client.
    pub failed: u64,
    /// Flows of the packet path that are over.
    pub closed: u64,
    /// Packets of these flows to the backend.
    pub packets_to: u64,
    /// Bytes of these flows to the backend, from the IP header on.
    pub bytes_to: u64,
    /// Packets of these flows from the backend.
    pub packets_from: u64,
    /// Bytes of these flows from the backend.
    pub bytes_from: u64,
    /// TCP connections of this node's sockets that are open. Less than none is
    /// none: sockets may have opened before something began to count.
    pub open_sockets: i32,
    /// Flows of the packet path that are open: programs add those that begin, the
    /// agent puts it right with each walk through the flows.
    pub open_flows: i32,
}

impl BackendStats {
    /// Connections of this node that are open, as far as it knows.
    #[inline(always)]
    pub fn open(&self) -> u32 {
        self.open_sockets.max(0) as u32 + self.open_flows.max(0) as u32
    }
}

/// Value of `service_stats`; the key is the service id. Zeroed when the id is
/// given to another service port.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct ServiceStats {
    /// Refused for want of any usable endpoint.
    pub no_endpoint: u64,
    /// Refused since policy `Local` left none.
    pub no_local_endpoint: u64,
}

const _: () = assert!(size_of::<BackendStats>() == 64);
const _: () = assert!(size_of::<ServiceStats>() == 16);
