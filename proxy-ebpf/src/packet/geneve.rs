//! The tunnel of DSR: Geneve (RFC 8926) around the client's packet as it is, with one
//! option that names the backend. No Ethernet header in it: what comes out is routed.

use super::{
    checksum,
    parse::{Packet, UDP},
    part::Part,
};
use aya_ebpf::{
    bindings::{
        BPF_F_ADJ_ROOM_DECAP_L3_IPV4, BPF_F_ADJ_ROOM_DECAP_L3_IPV6, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4,
        BPF_F_ADJ_ROOM_ENCAP_L3_IPV6, BPF_F_ADJ_ROOM_ENCAP_L4_UDP, BPF_F_ADJ_ROOM_FIXED_GSO,
    },
    helpers::generated::{bpf_csum_update, bpf_skb_adjust_room},
    programs::TcContext,
};
use proxy_common::Address;

/// BPF_ADJ_ROOM_MAC: behind the link header.
const AFTER_LINK_HEADER: u32 = 1;
/// BPF_F_ADJ_ROOM_DECAP_L4_UDP: newer kernels forget by it that the packet was in a
/// tunnel, others refuse it.
const DECAP_L4_UDP: u64 = 1 << 9;

const V4_HEADER: u32 = 20;
const V6_HEADER: u32 = 40;
const UDP_HEADER: u32 = 8;
/// Geneve's header and the option.
const GENEVE: u32 = 8 + 4 + OPTION_DATA;
/// Address, port, and two bytes of nothing.
const OPTION_DATA: u32 = 20;

/// Version 0; six words of options; one of them is critical: who does not know it
/// must drop the packet.
const FIRST_WORD: u32 = 6 << 24 | 0x40 << 16;
/// Our option: an experimental class (RFC 8926, 7), a critical type, five words.
const OPTION: u32 = 0xff1e << 16 | 0x81 << 8 | OPTION_DATA / 4;

const ETHERTYPE_V4: u32 = 0x0800;
const ETHERTYPE_V6: u32 = 0x86dd;

/// Source ports of tunnels differ by flow, so that networks spread them (RFC 8926, 3.3).
const FIRST_SOURCE_PORT: u32 = 49_152;

/// Hops that a tunnel may take.
const TTL: u32 = 64;

/// Between which Nodes a packet goes, and to which backend.
pub struct Tunnel {
    pub source: Address,
    pub destination: Address,
    /// Of Geneve, host byte order.
    pub port: u16,
    pub backend: Address,
    /// Host byte order.
    pub backend_port: u16,
    /// The flow's hash.
    pub hash: u32,
}

/// Bytes that a tunnel adds.
#[inline(always)]
pub fn overhead(v4: bool) -> u32 {
    (if v4 { V4_HEADER } else { V6_HEADER }) + UDP_HEADER + GENEVE
}

/// Puts the packet into a tunnel. TCP segments that are still to be cut become
/// smaller by what it adds.
#[inline(always)]
pub fn wrap(ctx: &TcContext, packet: &Packet, tunnel: &Tunnel) -> Result<(), i64> {
    let v4 = packet.is_v4();
    let added = overhead(v4);
    let layer3 = if v4 {
        BPF_F_ADJ_ROOM_ENCAP_L3_IPV4
    } else {
        BPF_F_ADJ_ROOM_ENCAP_L3_IPV6
    };
    let fixed = if packet.protocol == UDP {
        BPF_F_ADJ_ROOM_FIXED_GSO
    } else {
        0
    };
    let flags = (layer3 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP | fixed) as u64;
    // SAFETY: the context is this program's, and no packet bytes are held.
    let changed =
        unsafe { bpf_skb_adjust_room(ctx.skb.skb, added as i32, AFTER_LINK_HEADER, flags) };
    if changed != 0 {
        return Err(changed);
    }
    let length = packet.length + added;
    if v4 {
        outer_v4(ctx, packet.ip, length, tunnel)?;
        inside(
            ctx,
            packet.ip + V4_HEADER,
            length - V4_HEADER,
            ETHERTYPE_V4,
            tunnel,
        )
    } else {
        outer_v6(ctx, packet.ip, length - V6_HEADER, tunnel)?;
        inside(
            ctx,
            packet.ip + V6_HEADER,
            length - V6_HEADER,
            ETHERTYPE_V6,
            tunnel,
        )
    }
}

#[inline(always)]
fn outer_v4(ctx: &TcContext, at: u32, length: u32, tunnel: &Tunnel) -> Result<(), i64> {
    let mut part = Part::<20>::of(ctx, at).ok_or(-1)?;
    // Larger ones are cut, with the header's length set then.
    let first = (0x4500_0000 | length & 0xffff).to_be();
    // It may not be fragmented: no program puts it together.
    let second = 0x4000_u32.to_be();
    let hops = (TTL << 24 | (UDP as u32) << 16).to_be();
    let (source, destination) = (tunnel.source.v4_word(), tunnel.destination.v4_word());
    let sum = checksum::sum(&[first, second, hops, source, destination], 5);
    part.set_word::<0>(first);
    part.set_word::<4>(second);
    part.set_word::<8>(hops | (!sum & 0xffff).to_be());
    part.set_word::<12>(source);
    part.set_word::<16>(destination);
    // The sum over an IPv4 header is nothing.
    Ok(())
}

#[inline(always)]
fn outer_v6(ctx: &TcContext, at: u32, length: u32, tunnel: &Tunnel) -> Result<(), i64> {
    let (s, d) = (tunnel.source.words(), tunnel.destination.words());
    let first = 0x6000_0000_u32.to_be();
    let second = (length << 16 | (UDP as u32) << 8 | TTL).to_be();
    let words = [
        first, second, s[0], s[1], s[2], s[3], d[0], d[1], d[2], d[3],
    ];
    write(ctx, at, words)
}

/// Writes ten words that were not there before.
#[inline(always)]
fn write(ctx: &TcContext, at: u32, words: [u32; 10]) -> Result<(), i64> {
    let mut part = Part::<40>::of(ctx, at).ok_or(-1)?;
    part.set_word::<0>(words[0]);
    part.set_word::<4>(words[1]);
    part.set_word::<8>(words[2]);
    part.set_word::<12>(words[3]);
    part.set_word::<16>(words[4]);
    part.set_word::<20>(words[5]);
    part.set_word::<24>(words[6]);
    part.set_word::<28>(words[7]);
    part.set_word::<32>(words[8]);
    part.set_word::<36>(words[9]);
    let sum = checksum::difference(&[0; 10], &words);
    // SAFETY: the context is this program's. It fails where the kernel has no sum.
    unsafe { bpf_csum_update(ctx.skb.skb, sum) };
    Ok(())
}

/// The headers of UDP and Geneve. No checksum: the packet inside has its own (RFC 6935
/// for IPv6).
#[inline(always)]
fn inside(
    ctx: &TcContext,
    at: u32,
    length: u32,
    ethertype: u32,
    tunnel: &Tunnel,
) -> Result<(), i64> {
    let source_port = FIRST_SOURCE_PORT | tunnel.hash >> 18;
    let backend = tunnel.backend.words();
    let words = [
        (source_port << 16 | tunnel.port as u32).to_be(),
        (length << 16).to_be(),
        (FIRST_WORD | ethertype).to_be(),
        0,
        OPTION.to_be(),
        backend[0],
        backend[1],
        backend[2],
        backend[3],
        ((tunnel.backend_port as u32) << 16).to_be(),
    ];
    write(ctx, at, words)
}

/// The backend that a packet in a tunnel of ours is for; `None` if it is none: all
/// other Geneve is somebody else's.
#[inline(always)]
pub fn backend(ctx: &TcContext, packet: &Packet) -> Option<(Address, u16)> {
    let at = packet.transport;
    let header = if packet.is_v4() { V4_HEADER } else { V6_HEADER };
    let ethertype = if packet.is_v4() {
        ETHERTYPE_V4
    } else {
        ETHERTYPE_V6
    };
    if at != packet.ip + header || packet.length < header + UDP_HEADER + GENEVE {
        return None;
    }
    let part = Part::<40>::of(ctx, at)?;
    if u32::from_be(part.word::<8>()) != FIRST_WORD | ethertype
        || u32::from_be(part.word::<16>()) != OPTION
    {
        return None;
    }
    let address = Address::from_words([
        part.word::<20>(),
        part.word::<24>(),
        part.word::<28>(),
        part.word::<32>(),
    ]);
    Some((address, (u32::from_be(part.word::<36>()) >> 16) as u16))
}

/// Takes the packet out of its tunnel.
#[inline(always)]
pub fn unwrap(ctx: &TcContext, packet: &Packet) -> Result<(), i64> {
    let v4 = packet.is_v4();
    let layer3 = if v4 {
        BPF_F_ADJ_ROOM_DECAP_L3_IPV4
    } else {
        BPF_F_ADJ_ROOM_DECAP_L3_IPV6
    };
    let less = -(overhead(v4) as i32);
    let fixed = BPF_F_ADJ_ROOM_FIXED_GSO as u64;
    // SAFETY: the context is this program's, and no packet bytes are held.
    unsafe {
        let flags = fixed | layer3 as u64 | DECAP_L4_UDP;
        if bpf_skb_adjust_room(ctx.skb.skb, less, AFTER_LINK_HEADER, flags) == 0 {
            return Ok(());
        }
        match bpf_skb_adjust_room(ctx.skb.skb, less, AFTER_LINK_HEADER, fixed) {
            0 => Ok(()),
            error => Err(error),
        }
    }
}
