//! Maps `socket_flows` and `udp_flows`: what a socket was translated from and to.

use crate::{Address, BackendId, FrontendKey, Protocol, Scope};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Frontends that one unconnected UDP socket remembers at a time. Past that the
/// oldest is forgotten: its late answers show the backend's address.
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
    /// Always 0.
    pub _reserved: u8,
    /// The backend.
    pub backend: BackendId,
    /// Its generation when it was picked.
    pub generation: u32,
}

impl SocketFlow {
    /// A record that is not in use.
    pub const EMPTY: Self = Self {
        frontend: FrontendKey {
            address: Address::ANY_V6,
            port: 0,
            protocol: Protocol::Udp,
            scope: Scope::Internal,
        },
        backend_address: Address::ANY_V6,
        backend_port: 0,
        used: 0,
        _reserved: 0,
        backend: 0,
        generation: 0,
    };
}

/// Value of `udp_flows`: the last translations of an unconnected UDP socket.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct UdpFlows {
    /// Records; an unused one has `used` 0.
    pub flows: [SocketFlow; UDP_FLOWS_PER_SOCKET],
    /// Record that is overwritten next.
    pub next: u32,
}

const _: () = assert!(size_of::<SocketFlow>() == 48);
const _: () = assert!(size_of::<UdpFlows>() == 48 * UDP_FLOWS_PER_SOCKET + 4);
