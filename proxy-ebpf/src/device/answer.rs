//! Answers that the program itself gives, out of the packet that it got.

use super::Arrival;
use crate::packet::{self, Packet, icmp};
use aya_ebpf::helpers::generated::bpf_redirect;

/// A RST that answers a TCP packet (RFC 9293, 3.10.7.1); `None` if nothing
/// answers it.
#[inline(always)]
pub fn reset(arrival: &Arrival<'_>) -> Option<i32> {
    if arrival.packet.tcp_flags & Packet::RST != 0 {
        return None;
    }
    packet::turn_into_reset(arrival.ctx, arrival.packet).ok()?;
    send_back(arrival)
}

/// The ICMP error that answers a packet.
#[inline(always)]
pub fn error(arrival: &mut Arrival<'_>, error: icmp::Error) -> Option<i32> {
    let quote = &mut arrival.scratch.bytes;
    icmp::turn_into_error(arrival.ctx, arrival.packet, quote, error).ok()?;
    send_back(arrival)
}

/// Sends the packet back where it came from.
#[inline(always)]
fn send_back(arrival: &Arrival<'_>) -> Option<i32> {
    if arrival.device.header_bytes != 0 {
        packet::swap_macs(arrival.ctx).ok()?;
    }
    // SAFETY: takes numbers.
    Some(unsafe { bpf_redirect(arrival.index, 0) } as i32)
}
