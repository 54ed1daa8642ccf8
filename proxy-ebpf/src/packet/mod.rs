//! Packets: reading their headers and changing them. The one place that touches
//! packet bytes, always by helpers that check bounds.

mod checksum;
pub mod geneve;
pub mod icmp;
pub mod mss;
mod parse;
mod part;
mod quoted;
mod reset;
mod rewrite;

pub use parse::{Fragment, Packet, TCP, UDP, parse};
pub use quoted::{Quoted, Translation, quoted, rewrite_error, told_mtu};
pub use reset::turn_into_reset;
pub use rewrite::{decrement_ttl, next_ttl, rewrite, set_receiver, swap_macs};

/// 0, which the compiler does not know: it makes a call of `memset` of many known
/// ones, and programs are to have no calls.
#[inline(always)]
pub fn zero() -> u64 {
    core::hint::black_box(0)
}
