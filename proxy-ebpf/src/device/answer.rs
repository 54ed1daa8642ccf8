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

/// ICMP port unreachable (RFC 792, RFC 4443) that answers a datagram.
#[inline(always)]
pub fn port_unreachable(arrival: &mut Arrival<'_>) -> Option<i32> {
    let error = if arrival.packet.is_v4() {
        icmp::Error {
            kind: 3,
            code: 3,
            rest: 0,
        }
    } else {
        icmp::Error {
            kind: 1,
            code: 4,
            rest: 0,
        }
    };
    icmp::turn_into_error(
        arrival.ctx,
        arrival.packet,
        &mut arrival.scratch.bytes,
        error,
    )
    .ok()?;
    send_back(arrival)
}

/// ICMP too big (RFC 1191, RFC 8201): the way takes packets of `mtu` bytes.
#[inline(always)]
pub fn too_big(arrival: &mut Arrival<'_>, mtu: u32) -> Option<i32> {
    let (kind, code) = if arrival.packet.is_v4() {
        (3, 4)
    } else {
        (2, 0)
    };
    let error = icmp::Error {
        kind,
        code,
        rest: mtu,
    };
    icmp::turn_into_error(
        arrival.ctx,
        arrival.packet,
        &mut arrival.scratch.bytes,
        error,
    )
    .ok()?;
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
