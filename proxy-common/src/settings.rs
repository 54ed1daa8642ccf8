//! Map `settings`: what the programs must know of their node.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The one element of `settings`.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Settings {
    /// Cookie of the host's network namespace; 0 while unknown.
    pub host_netns_cookie: u64,
    /// Cookie of the agent's probe socket; its connect makes the programs store
    /// the namespace that they see in `probe_netns_cookie`. 0 when no probe runs.
    pub probe_socket_cookie: u64,
    /// Answer to the probe.
    pub probe_netns_cookie: u64,
    /// 1 if only sockets of the host's network namespace are translated
    /// (sidecar meshes need to see ClusterIPs in pods).
    pub host_only: u32,
    /// Which load of the programs answers probes: those of an earlier one may
    /// still be on another cgroup.
    pub instance: u32,
}

const _: () = assert!(size_of::<Settings>() == 32);
