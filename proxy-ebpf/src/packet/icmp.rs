//! A packet becomes the ICMP error that answers it.

use super::{
    checksum,
    parse::{Family, Fragment, ICMP, ICMP_V6, Packet, TCP},
    rewrite::ACCOUNTED,
    zero,
};
use aya_ebpf::{
    bindings::BPF_F_ADJ_ROOM_FIXED_GSO,
    helpers::generated::{bpf_skb_adjust_room, bpf_skb_change_tail, bpf_skb_load_bytes},
    programs::TcContext,
};

const HOPS: u32 = 64;
/// BPF_ADJ_ROOM_MAC, include/uapi/linux/bpf.h.
const AFTER_LINK_HEADER: u32 = 1;
const ICMP_HEADER: u32 = 8;
const V4_HEADER: u32 = 20;
const V6_HEADER: u32 = 40;
const FRAGMENT_HEADER: u32 = 8;
/// The headers of an IPv6 fragment, and the ports.
const QUOTED_FRAGMENT: u32 = V6_HEADER + FRAGMENT_HEADER + 8;
/// Internetwork control, as the kernel's own errors.
const TRAFFIC_CLASS: u32 = 0xc0;

/// Words of what is quoted: an IP header and a TCP header.
pub const QUOTE_WORDS: usize = 15;

/// Which error.
pub struct Error {
    pub kind: u8,
    pub code: u8,
    /// The second word: the MTU, or 0.
    pub rest: u32,
}

/// Makes room for the headers, quotes the packet's own headers behind them, and
/// turns it around. Packets with options or extension headers get no answer, but
/// for the first fragment of an IPv6 datagram: its sender must learn the size.
#[inline(always)]
pub fn turn_into_error(
    ctx: &TcContext,
    packet: &Packet,
    quote: &mut [u32; QUOTE_WORDS],
    error: Error,
) -> Result<(), i64> {
    let header = match packet.family {
        Family::V4 => V4_HEADER,
        Family::V6 => V6_HEADER,
    };
    let quoted = if packet.transport == packet.ip + header {
        header + if packet.protocol == TCP { 20 } else { 8 }
    } else if packet.transport == packet.ip + V6_HEADER + FRAGMENT_HEADER
        && matches!(packet.fragment, Fragment::First)
    {
        QUOTED_FRAGMENT
    } else {
        return Err(-1);
    };
    let sum = quote_sum(ctx, packet, quote, header, quoted)?;
    // SAFETY: the context is this program's, and no packet bytes are held.
    unsafe {
        if bpf_skb_change_tail(ctx.skb.skb, packet.ip + quoted, 0) != 0
            || bpf_skb_adjust_room(
                ctx.skb.skb,
                (header + ICMP_HEADER) as i32,
                AFTER_LINK_HEADER,
                BPF_F_ADJ_ROOM_FIXED_GSO as u64,
            ) != 0
        {
            return Err(-1);
        }
    }
    match packet.family {
        Family::V4 => write_v4(ctx, packet, quoted, sum, error),
        Family::V6 => write_v6(ctx, packet, quoted, sum, error),
    }
}

/// The sum of the quoted bytes as they will leave.
///
/// Where the transport checksum is still to be computed (CHECKSUM_PARTIAL: the
/// packet comes from this machine), its field holds the sum of the pseudo
/// header, and the kernel completes it over what then follows: the sum of that
/// part becomes the complement of what the field holds now.
#[inline(always)]
fn quote_sum(
    ctx: &TcContext,
    packet: &Packet,
    quote: &mut [u32; QUOTE_WORDS],
    header: u32,
    quoted: u32,
) -> Result<u32, i64> {
    *quote = [zero() as u32; QUOTE_WORDS];
    let at = packet.ip;
    // One call each: the verifier wants to know the length.
    match quoted {
        28 => load::<28>(ctx, at, quote),
        40 => load::<40>(ctx, at, quote),
        48 => load::<48>(ctx, at, quote),
        QUOTED_FRAGMENT => {
            load::<QUOTED_FRAGMENT>(ctx, at, quote)?;
            // Fragments leave with their checksum.
            return Ok(checksum::sum(quote, QUOTE_WORDS));
        }
        _ => load::<60>(ctx, at, quote),
    }?;
    let first = (header / 4) as usize;
    let field = if packet.protocol == TCP {
        u32::from_be(*quote.get(first + 4).ok_or(-1)?) >> 16
    } else {
        u32::from_be(*quote.get(first + 1).ok_or(-1)?) & 0xffff
    };
    let length = packet.length - header;
    let pseudo = checksum::pseudo_header(packet, packet.protocol as u32, length);
    if field == checksum::fold(pseudo) {
        let ip_header = checksum::sum(quote, first);
        return Ok(checksum::fold(ip_header) + (!field & 0xffff));
    }
    Ok(checksum::sum(quote, QUOTE_WORDS))
}

/// Loads the first `N` bytes of a quote.
#[inline(always)]
fn load<const N: u32>(ctx: &TcContext, at: u32, quote: &mut [u32; QUOTE_WORDS]) -> Result<(), i64> {
    const { assert!(N as usize <= size_of::<[u32; QUOTE_WORDS]>()) };
    // SAFETY: the quote has room for that many bytes; the helper checks the rest.
    match unsafe { bpf_skb_load_bytes(ctx.skb.skb.cast(), at, quote.as_mut_ptr().cast(), N) } {
        0 => Ok(()),
        error => Err(error),
    }
}

#[inline(always)]
fn write_v4(
    ctx: &TcContext,
    packet: &Packet,
    quoted: u32,
    sum: u32,
    error: Error,
) -> Result<(), i64> {
    let length = V4_HEADER + ICMP_HEADER + quoted;
    let mut words = [
        (0x4500_0000 | TRAFFIC_CLASS << 16 | length).to_be(),
        0,
        (HOPS << 24 | (ICMP as u32) << 16).to_be(),
        packet.destination.v4_word(),
        packet.source.v4_word(),
        (error.kind as u32) << 24 | (error.code as u32) << 16,
        error.rest.to_be(),
    ];
    words[5] = words[5].to_be();
    let header_sum = checksum::sum(&[words[0], words[1], words[2], words[3], words[4]], 5);
    words[2] |= (!checksum::fold(header_sum) & 0xffff).to_be();
    let message = checksum::sum(&[words[5], words[6]], 2);
    let total = checksum::fold(message) + checksum::fold(sum);
    words[5] |= (!checksum::fold(total) & 0xffff).to_be();
    ctx.store(packet.ip as usize, &words, ACCOUNTED)
}

#[inline(always)]
fn write_v6(
    ctx: &TcContext,
    packet: &Packet,
    quoted: u32,
    sum: u32,
    error: Error,
) -> Result<(), i64> {
    let length = ICMP_HEADER + quoted;
    let (s, d) = (packet.destination.words(), packet.source.words());
    let mut words = [
        (0x6000_0000 | TRAFFIC_CLASS << 20).to_be(),
        (length << 16 | (ICMP_V6 as u32) << 8 | HOPS).to_be(),
        s[0],
        s[1],
        s[2],
        s[3],
        d[0],
        d[1],
        d[2],
        d[3],
        ((error.kind as u32) << 24 | (error.code as u32) << 16).to_be(),
        error.rest.to_be(),
    ];
    let pseudo = checksum::pseudo_header(packet, ICMP_V6 as u32, length);
    let message = checksum::sum(&[words[10], words[11]], 2);
    let total = checksum::fold(pseudo) + checksum::fold(message) + checksum::fold(sum);
    words[10] |= (!checksum::fold(total) & 0xffff).to_be();
    ctx.store(packet.ip as usize, &words, ACCOUNTED)
}
