//! Changing addresses and ports, with every checksum over them.

use super::{
    checksum,
    parse::{Family, Fragment, Packet, TCP, UDP},
};
use aya_ebpf::{
    bindings::{BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM},
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

/// Gives the packet the addresses and ports of `flow`.
#[inline(always)]
pub fn rewrite(ctx: &TcContext, packet: &Packet, flow: &Flow) -> Result<(), DropReason> {
    change(ctx, packet, flow).map_err(|_| DropReason::RewriteFailed)
}

#[inline(always)]
fn change(ctx: &TcContext, packet: &Packet, flow: &Flow) -> Result<(), i64> {
    let difference = match packet.family {
        Family::V4 => addresses_v4(ctx, packet, flow)?,
        Family::V6 => addresses_v6(ctx, packet, flow)?,
    };
    if packet.fragment == Fragment::Later {
        // The transport header, and its checksum, came with the first one.
        return Ok(());
    }
    let old = ports(packet.source_port, packet.destination_port);
    let new = ports(flow.source_port, flow.destination_port);
    let transport = packet.transport as usize;
    let (checksum, flags) = match packet.protocol {
        TCP => (transport + 16, 0),
        // A checksum of zero means none, and stays zero.
        UDP => (transport + 6, BPF_F_MARK_MANGLED_0 as u64),
        _ => return Err(-1),
    };
    ctx.l4_csum_replace(checksum, 0, difference, BPF_F_PSEUDO_HDR as u64 | flags)?;
    if old != new {
        ctx.l4_csum_replace(checksum, old as u64, new as u64, 4 | flags)?;
        ctx.store(transport, &new, 0)?;
    }
    Ok(())
}

/// Both ports as they stand in the packet.
#[inline(always)]
fn ports(source: u16, destination: u16) -> u32 {
    ((source as u32) << 16 | destination as u32).to_be()
}

#[inline(always)]
fn addresses_v4(ctx: &TcContext, packet: &Packet, flow: &Flow) -> Result<u64, i64> {
    let old = [packet.source.v4_word(), packet.destination.v4_word()];
    let new = [flow.source.v4_word(), flow.destination.v4_word()];
    let difference = checksum::difference(old, new);
    let ip = packet.ip as usize;
    ctx.store(ip + V4_ADDRESSES, &new, 0)?;
    ctx.l3_csum_replace(ip + V4_CHECKSUM, 0, difference, 0)?;
    Ok(difference)
}

#[inline(always)]
fn addresses_v6(ctx: &TcContext, packet: &Packet, flow: &Flow) -> Result<u64, i64> {
    let old = pair(packet.source, packet.destination);
    let new = pair(flow.source, flow.destination);
    ctx.store(packet.ip as usize + V6_ADDRESSES, &new, ACCOUNTED)?;
    Ok(checksum::difference(old, new))
}

/// Both addresses, as IPv6 headers have them.
#[inline(always)]
pub fn pair(source: Address, destination: Address) -> [u32; 8] {
    let (s, d) = (source.words(), destination.words());
    [s[0], s[1], s[2], s[3], d[0], d[1], d[2], d[3]]
}

/// One hop less, as everybody who forwards does (RFC 1812, 5.3.1; RFC 8200, 3).
#[inline(always)]
pub fn decrement_ttl(ctx: &TcContext, packet: &Packet) -> Result<(), DropReason> {
    if packet.ttl <= 1 {
        return Err(DropReason::TtlExceeded);
    }
    set_ttl(ctx, packet, packet.ttl - 1).map_err(|_| DropReason::RewriteFailed)
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
