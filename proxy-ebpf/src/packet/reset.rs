//! A TCP packet becomes the RST that answers it.

use super::{
    checksum,
    parse::{Packet, TCP_CHECKSUM},
    rewrite,
};
use aya_ebpf::programs::TcContext;

const HOPS: u8 = 64;

/// Turns the packet around and into a RST. Options and payload stay (RFC 9293
/// allows data in a RST), so that every checksum is a difference, which is right
/// also where the kernel has not computed it yet (CHECKSUM_PARTIAL).
#[inline(always)]
pub fn turn_into_reset(ctx: &TcContext, packet: &Packet) -> Result<(), i64> {
    let transport = packet.transport as usize;
    let old = ctx.load::<[u32; 4]>(transport)?;
    let (sequence, acknowledged) = (u32::from_be(old[1]), u32::from_be(old[2]));
    let fourth = u32::from_be(old[3]);
    let header = (fourth >> 28) * 4;
    let before = packet.transport - packet.ip + header;
    let payload = packet.length.saturating_sub(before);
    let (new_sequence, new_acknowledged, flags) = if packet.tcp_flags & Packet::ACK != 0 {
        (acknowledged, 0, Packet::RST)
    } else {
        let syn = (packet.tcp_flags & Packet::SYN != 0) as u32;
        let fin = (packet.tcp_flags & Packet::FIN != 0) as u32;
        let next = sequence
            .wrapping_add(payload)
            .wrapping_add(syn)
            .wrapping_add(fin);
        (0, next, Packet::RST | Packet::ACK)
    };
    let new = [
        old[0].rotate_left(16),
        new_sequence.to_be(),
        new_acknowledged.to_be(),
        // Data offset, flags, no window.
        (fourth & 0xf000_0000 | (flags as u32) << 16).to_be(),
    ];
    let difference = checksum::difference(&old, &new) as u64;
    ctx.l4_csum_replace(transport + TCP_CHECKSUM, 0, difference, 0)?;
    ctx.store(transport, &new, 0)?;
    rewrite::swap_addresses(ctx, packet)?;
    rewrite::set_ttl(ctx, packet, HOPS)
}
