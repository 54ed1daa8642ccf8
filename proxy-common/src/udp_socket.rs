//! Map `udp_sockets`: connected UDP sockets, so that the agent finds those whose
//! backend is gone (semantics 27). The key is the socket's cookie.

use crate::{Address, BackendId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Value of `udp_sockets`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct UdpSocket {
    /// Cookie of the socket's network namespace.
    pub netns: u64,
    /// The backend that it is connected to.
    pub backend: BackendId,
    /// Its generation at that time.
    pub generation: u32,
    /// Its address: a connect() may still fail after the programs have run, and
    /// a socket that points elsewhere is nobody's business.
    pub address: Address,
    /// Host byte order.
    pub port: u32,
    /// Always 0.
    pub _reserved: u32,
}

const _: () = assert!(size_of::<UdpSocket>() == 40);
