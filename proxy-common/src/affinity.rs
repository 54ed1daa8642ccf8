//! Map `affinity`: which backend a client had last (`sessionAffinity: ClientIP`).

use crate::{BackendId, ServiceId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Key of `affinity`: one record per client and service port, shared by all
/// frontends of the service port.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct AffinityKey {
    /// Cookie of the client's network namespace: on the socket path a pod is
    /// its namespace. Never 0.
    pub client: u64,
    /// The service port.
    pub service: ServiceId,
    /// Always 0.
    pub _reserved: u32,
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
