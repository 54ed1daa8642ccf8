//! Maps `socket_flows` and `udp_flows`: what a socket was translated from and to.

use crate::{Address, BackendId, FrontendKey, decide::BackendRef};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Frontends that one unconnected UDP socket remembers at a time. Past that the one
/// used longest ago is forgotten: its late answers show the backend's address.
pub const UDP_FLOWS_PER_SOCKET: usize = 8;

/// One translation of a socket.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct SocketFlow {
    /// The address that the application used.
    pub frontend: FrontendKey,
    /// Where the traffic goes.
    pub backend_address: Address,
    /// Host byte order.
    pub backend_port: u16,
    /// 1 when the record is in use.
    pub used: u8,
    /// 1 while the connection counts as an open one of its backend. Before there
    /// was such a count it was always 0: what is read from then is right.
    pub counted: u8,
    /// The backend.
    pub backend: BackendId,
    /// Its generation when it was picked.
    pub generation: u32,
}

impl SocketFlow {
    /// The backend that was picked.
    #[inline(always)]
    pub fn target(&self) -> BackendRef {
        BackendRef {
            id: self.backend,
            generation: self.generation,
        }
    }
}

/// Value of `udp_flows`: the last translations of an unconnected UDP socket.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct UdpFlows {
    /// Records; an unused one has `used` 0.
    pub flows: [SocketFlow; UDP_FLOWS_PER_SOCKET],
    /// When each record was last sent by, on `clock`; 0 for never.
    pub stamps: [u32; UDP_FLOWS_PER_SOCKET],
    /// Goes on with each send.
    pub clock: u32,
}

const _: () = assert!(size_of::<SocketFlow>() == 48);
const _: () = assert!(size_of::<UdpFlows>() == 52 * UDP_FLOWS_PER_SOCKET + 4);
