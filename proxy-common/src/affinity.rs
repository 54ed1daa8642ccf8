//! Map `affinity`: which backend a client had last (`sessionAffinity: ClientIP`).

use crate::{BackendId, ServiceId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Key of `affinity`: one record per client, service port and family, shared by
/// all frontends of that half of the service port (the halves of a dual-stack
/// Service are independent, semantics 6).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct AffinityKey {
    /// Cookie of the client's network namespace: on the socket path a pod is
    /// its namespace. For packets, the client's address: IPv4 under a first half
    /// of ones, IPv6 as a hash with the first bit set, which no cookie has. Never 0.
    pub client: u64,
    /// The service port.
    pub service: ServiceId,
    /// 4 or 6.
    pub family: u32,
}

/// Value of `affinity`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Affinity {
    /// The client's backend.
    pub backend: BackendId,
    /// Its generation when it was picked.
    pub generation: u32,
    /// Seconds since boot of the client's last new connection.
    pub last_used_s: u32,
}

const _: () = assert!(size_of::<AffinityKey>() == 16);
const _: () = assert!(size_of::<Affinity>() == 12);
