//! Changing addresses and ports, with every checksum over them.

use super::{
    checksum,
    parse::{Family, Fragment, Packet, TCP, TCP_CHECKSUM, UDP, UDP_CHECKSUM},
    part::Part,
};
use aya_ebpf::{
    bindings::{BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM},
    helpers::generated::bpf_csum_update,
    programs::TcContext,
};
use proxy_common::{Address, DropReason, Flow};

/// Where an IPv4 header has its checksum and its addresses.
const V4_TTL: usize = 8;
pub const V4_CHECKSUM: usize = 10;
pub const V4_ADDRESSES: usize = 12;
/// The same for IPv6, which has no checksum.
const V6_HOP_LIMIT: usize = 7;
pub const V6_ADDRESSES: usize = 8;

/// The kernel may have the packet's sum from the network card (CHECKSUM_COMPLETE).
/// A change of an IPv4 header and of its checksum cancel out in it; IPv6 has no
/// such checksum, so there each change is accounted for.
pub const ACCOUNTED: u64 = BPF_F_RECOMPUTE_CSUM as u64;

/// Gives the packet the addresses and ports of `flow`, and `ttl` as TTL or hop limit.
///
/// The kernel's helpers know how far a checksum is computed, programs do not. One
/// call for the addresses, which are in every transport checksum, shows it; all else
/// is written directly, since every call costs.
#[inline(always)]
pub fn rewrite(ctx: &TcContext, packet: &Packet, flow: &Flow, ttl: u8) -> Result<(), DropReason> {
    change(ctx, packet, flow, ttl).map_err(|_| DropReason::RewriteFailed)
}

#[inline(always)]
fn change(ctx: &TcContext, packet: &Packet, flow: &Flow, ttl: u8) -> Result<(), i64> {
    let v4 = packet.is_v4();
    let difference = if v4 {
        checksum::difference(
            &[packet.source.v4_word(), packet.destination.v4_word()],
            &[flow.source.v4_word(), flow.destination.v4_word()],
        )
    } else {
        checksum::difference(
            &pair(packet.source, packet.destination),
            &pair(flow.source, flow.destination),
        )
    };
    // The transport header, and its checksum, came with the first fragment.
    if packet.fragment != Fragment::Later {
        transport(ctx, packet, flow, difference)?;
    }
    if v4 {
        let mut header = Part::<20>::of(ctx, packet.ip).ok_or(-1)?;
        let [hops, checksum] = halves(packet.hops);
        let [new_hops, _] = halves(set_byte::<0>(packet.hops, ttl));
        let change = checksum::add(difference, checksum::difference_of_halves(hops, new_hops));
        header.set_half::<V4_TTL>(new_hops);
        header.set_half::<V4_CHECKSUM>(checksum::replace(checksum, change));
        header.set_word::<12>(flow.source.v4_word());
        header.set_word::<16>(flow.destination.v4_word());
        return Ok(());
    }
    let mut header = Part::<40>::of(ctx, packet.ip).ok_or(-1)?;
    let hops = set_byte::<3>(packet.hops, ttl);
    let (source, destination) = (flow.source.words(), flow.destination.words());
    header.set_word::<4>(hops);
    header.set_word::<8>(source[0]);
    header.set_word::<12>(source[1]);
    header.set_word::<16>(source[2]);
    header.set_word::<20>(source[3]);
    header.set_word::<24>(destination[0]);
    header.set_word::<28>(destination[1]);
    header.set_word::<32>(destination[2]);
    header.set_word::<36>(destination[3]);
    let change = checksum::add(difference, checksum::difference(&[packet.hops], &[hops]));
    // SAFETY: the context is this program's. It fails where there is no such sum.
    unsafe { bpf_csum_update(ctx.skb.skb, change) };
    Ok(())
}

/// Ports, and the checksum. What is written without a helper cancels out in the sum
/// that the kernel may have of the packet.
#[inline(always)]
fn transport(ctx: &TcContext, packet: &Packet, flow: &Flow, addresses: u32) -> Result<(), i64> {
    let old = ports(packet.source_port, packet.destination_port);
    let new = ports(flow.source_port, flow.destination_port);
    let (at, flags) = match packet.protocol {
        TCP => (TCP_CHECKSUM, 0),
        // A checksum of zero means none, and stays zero.
        UDP => (UDP_CHECKSUM, BPF_F_MARK_MANGLED_0 as u64),
        _ => return Err(-1),
    };
    let checksum_at = packet.transport as usize + at;
    ctx.l4_csum_replace(
        checksum_at,
        0,
        addresses as u64,
        BPF_F_PSEUDO_HDR as u64 | flags,
    )?;
    let is_udp = packet.protocol == UDP;
    let mangled = |sum: u16| if is_udp && sum == 0 { u16::MAX } else { sum };
    let whole = mangled(checksum::replace(packet.checksum, addresses));
    // Where the kernel has summed up the pseudo header only.
    let partial = mangled(!checksum::replace(!packet.checksum, addresses));
    let ports = checksum::difference(&[old], &[new]);
    let with_ports = mangled(checksum::replace(whole, ports));
    if is_udp {
        let mut header = Part::<8>::of(ctx, packet.transport).ok_or(-1)?;
        header.set_word::<0>(new);
        if packet.checksum == 0 {
            return Ok(());
        }
        let now = header.half::<UDP_CHECKSUM>();
        if now != partial {
            header.set_half::<UDP_CHECKSUM>(with_ports);
            return Ok(());
        }
    } else {
        let mut header = Part::<20>::of(ctx, packet.transport).ok_or(-1)?;
        header.set_word::<0>(new);
        let now = header.half::<TCP_CHECKSUM>();
        if now != partial {
            header.set_half::<TCP_CHECKSUM>(with_ports);
            return Ok(());
        }
    }
    if whole == partial {
        // Nothing to tell it by; the helper knows.
        ctx.l4_csum_replace(checksum_at, old as u64, new as u64, 4 | flags)?;
    }
    Ok(())
}

/// Both ports as they stand in the packet.
#[inline(always)]
fn ports(source: u16, destination: u16) -> u32 {
    ((source as u32) << 16 | destination as u32).to_be()
}

/// A word's halves in the order of the packet.
#[inline(always)]
fn halves(word: u32) -> [u16; 2] {
    let word = u32::from_be(word);
    [((word >> 16) as u16).to_be(), (word as u16).to_be()]
}

/// A word of the packet with another byte at `AT`.
#[inline(always)]
fn set_byte<const AT: u32>(word: u32, byte: u8) -> u32 {
    let shift = 24 - AT * 8;
    let word = u32::from_be(word) & !(0xff << shift);
    (word | (byte as u32) << shift).to_be()
}

/// Both addresses, as IPv6 headers have them.
#[inline(always)]
pub fn pair(source: Address, destination: Address) -> [u32; 8] {
    let (s, d) = (source.words(), destination.words());
    [s[0], s[1], s[2], s[3], d[0], d[1], d[2], d[3]]
}

/// One hop less, as everybody who forwards does (RFC 1812, 5.3.1; RFC 8200, 3).
#[inline(always)]
pub fn next_ttl(packet: &Packet) -> Result<u8, DropReason> {
    if packet.ttl <= 1 {
        return Err(DropReason::TtlExceeded);
    }
    Ok(packet.ttl - 1)
}

/// Gives the packet one hop less.
#[inline(always)]
pub fn decrement_ttl(ctx: &TcContext, packet: &Packet) -> Result<(), DropReason> {
    set_ttl(ctx, packet, next_ttl(packet)?).map_err(|_| DropReason::RewriteFailed)
}

/// Sets TTL or hop limit.
#[inline(always)]
pub fn set_ttl(ctx: &TcContext, packet: &Packet, ttl: u8) -> Result<(), i64> {
    let ip = packet.ip as usize;
    match packet.family {
        Family::V4 => {
            let word = |ttl: u8| u16::from_be_bytes([ttl, packet.protocol]).to_be() as u64;
            ctx.l3_csum_replace(ip + V4_CHECKSUM, word(packet.ttl), word(ttl), 2)?;
            ctx.store(ip + V4_TTL, &ttl, 0)
        }
        Family::V6 => ctx.store(ip + V6_HOP_LIMIT, &ttl, ACCOUNTED),
    }
}

/// Source becomes destination; no checksum changes by that.
#[inline(always)]
pub fn swap_addresses(ctx: &TcContext, packet: &Packet) -> Result<(), i64> {
    let ip = packet.ip as usize;
    match packet.family {
        Family::V4 => {
            let swapped = [packet.destination.v4_word(), packet.source.v4_word()];
            ctx.store(ip + V4_ADDRESSES, &swapped, 0)
        }
        Family::V6 => {
            let swapped = pair(packet.destination, packet.source);
            ctx.store(ip + V6_ADDRESSES, &swapped, 0)
        }
    }
}

/// Sets the destination of the Ethernet header.
#[inline(always)]
pub fn set_receiver(ctx: &TcContext, mac: [u8; 6]) -> Result<(), i64> {
    ctx.store(0, &mac, 0)
}

/// Source becomes destination in the Ethernet header.
#[inline(always)]
pub fn swap_macs(ctx: &TcContext) -> Result<(), i64> {
    let macs = ctx.load::<[u16; 6]>(0)?;
    let swapped = [macs[3], macs[4], macs[5], macs[0], macs[1], macs[2]];
    ctx.store(0, &swapped, 0)
}
