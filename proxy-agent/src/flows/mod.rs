//! Flows of the packet path: their age, and what they carried.
//!
//! Programs write maps `flows` and `flows_new`; nothing there ends by itself but
//! what `flows_new` evicts. A thread of the agent walks through both, a bounded
//! number of elements a second, and removes what has been silent for longer than
//! its state allows ([`age`]).
//!
//! **Order of a removal.** The request's half goes first: from then on a packet
//! of the client belongs to no flow, and is dropped or begins anew, while a reply
//! is still translated. The other way round a request would still reach the
//! backend, and the reply leave with an address that the client does not know.

pub mod age;
mod collect;
mod maps;
mod open;

pub use age::State;
pub use collect::{Collector, Removed, Summary};
pub use maps::{Counts, FlowMaps, Pair};

/// Seconds since boot, by the clock of the programs (`bpf_ktime_get_ns`).
pub fn now_s() -> std::io::Result<u32> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?;
    u32::try_from(now.tv_sec()).map_err(std::io::Error::other)
}
