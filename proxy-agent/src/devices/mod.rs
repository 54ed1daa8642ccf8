//! The network devices of this node: which of them the packet path uses.
//!
//! [`follow`] tells what the kernel has ([`Network`]), anew at each change;
//! [`select`] decides, without I/O, which devices get programs and in which role;
//! [`attach`](crate::attach) puts them there. [`obstacles`] names settings of the
//! host that are in the packets' way. A pair of devices is our own: `slow_path`.

mod follow;
mod network;
mod pattern;
mod select;
pub(crate) mod slow_path;
mod sysctl;
#[cfg(test)]
mod tests;

pub use follow::follow;
pub use network::{Link, LinkKind, LocalAddress, Network, Reach, Route};
pub use pattern::{DeviceNames, UplinkNames};
pub use select::{Chosen, Selection, select};
pub use sysctl::obstacles;
