//! Map `layout`: what the maps mean. Two builds may share pinned maps only if
//! they agree on that.
//!
//! Sizes show most differences, but not all: a field may change its meaning and
//! keep its place. So each build stores these numbers beside its maps and
//! compares them at start. `tests/layout.rs` fails when a map type changes and
//! its number does not.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the maps that the agent writes (`frontends`, `tables`, `backends`
/// and so on), and of those whose elements refer to their ids. Raise it with
/// every change of what an element means.
pub const LAYOUT_VERSION: u16 = if cfg!(feature = "other-layout") {
    u16::MAX
} else {
    3
};

/// Version of what a socket remembers (`socket_flows`, `udp_flows`). Apart from
/// the other, since sockets outlive upgrades: as long as it stays, getpeername()
/// and the source of answers stay right for old sockets, too.
pub const SOCKET_LAYOUT_VERSION: u16 = 1;

/// The one element of `layout`. This type never changes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Layout {
    /// [`LAYOUT_VERSION`] of the build that made the maps.
    pub maps: u16,
    /// Its [`SOCKET_LAYOUT_VERSION`].
    pub sockets: u16,
}

impl Layout {
    /// This build's.
    pub const OURS: Self = Self {
        maps: LAYOUT_VERSION,
        sockets: SOCKET_LAYOUT_VERSION,
    };
}

const _: () = assert!(size_of::<Layout>() == 4);
