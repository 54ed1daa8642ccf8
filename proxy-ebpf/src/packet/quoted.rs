//! ICMP errors about translated packets: header and quoted packet are
//! translated together (semantics 30), so that path MTU discovery works.

use super::{
    checksum,
    parse::{Family, Fragment, Packet, TCP, UDP, parse_v4, parse_v6},
    rewrite::{ACCOUNTED, V4_ADDRESSES, V4_CHECKSUM, V6_ADDRESSES, pair},
};
use aya_ebpf::{bindings::BPF_F_PSEUDO_HDR, programs::TcContext};
use proxy_common::{Address, FlowKey};

const ICMP_HEADER: u32 = 8;

/// The packet that an ICMP error quotes.
pub struct Quoted {
    family: Family,
    ip: u32,
    transport: u32,
    source: Address,
    destination: Address,
    /// Both ports as they stand in the packet.
    ports: u32,
    protocol: u8,
}

/// What an ICMP error gets.
pub struct Translation {
    /// The error's own addresses.
    pub source: Address,
    pub destination: Address,
    /// Those of the quoted packet; ports in host byte order.
    pub quoted_source: Address,
    pub quoted_destination: Address,
    pub quoted_source_port: u16,
    pub quoted_destination_port: u16,
}

impl Quoted {
    /// The tuple of packets in the other direction than the quoted one: whoever
    /// sent that is told of the error as by such a packet.
    #[inline(always)]
    pub fn reversed(&self) -> FlowKey {
        let ports = u32::from_be(self.ports);
        FlowKey {
            source: self.destination,
            destination: self.source,
            source_port: ports as u16,
            destination_port: (ports >> 16) as u16,
            protocol: self.protocol as u32,
        }
    }
}

/// Reads what an ICMP error quotes; `None` if the packet is no error, or not
/// about a packet that services know.
#[inline(always)]
pub fn quoted(ctx: &TcContext, packet: &Packet) -> Option<Quoted> {
    // The first 16 bits: type and code.
    let kind = packet.source_port >> 8;
    let is_error = match packet.family {
        // Unreachable, time exceeded, parameter problem (RFC 792).
        Family::V4 => kind == 3 || kind == 11 || kind == 12,
        // Unreachable, too big, time exceeded, parameter problem (RFC 4443).
        Family::V6 => kind >= 1 && kind <= 4,
    };
    if !is_error || packet.fragment == Fragment::Later {
        return None;
    }
    let at = packet.transport + ICMP_HEADER;
    let inner = match packet.family {
        Family::V4 => parse_v4(ctx, at),
        Family::V6 => parse_v6(ctx, at),
    }?;
    if inner.fragment == Fragment::Later || (inner.protocol != TCP && inner.protocol != UDP) {
        return None;
    }
    // The error must go to who sent the packet, and quote its ports.
    if !inner.source.same(packet.destination) || inner.transport + 4 > packet.ip + packet.length {
        return None;
    }
    Some(Quoted {
        family: inner.family,
        ip: inner.ip,
        transport: inner.transport,
        source: inner.source,
        destination: inner.destination,
        ports: ctx.load::<u32>(inner.transport as usize).ok()?,
        protocol: inner.protocol,
    })
}

/// What an ICMP error tells that its sender takes; `None` if it is of another kind.
#[inline(always)]
pub fn told_mtu(ctx: &TcContext, packet: &Packet) -> Option<u32> {
    // Type and code (RFC 1191, RFC 4443).
    let wanted = match packet.family {
        Family::V4 => 3 << 8 | 4,
        Family::V6 => 2 << 8,
    };
    if packet.source_port != wanted {
        return None;
    }
    let rest = u32::from_be(ctx.load::<u32>(packet.transport as usize + 4).ok()?);
    Some(match packet.family {
        Family::V4 => rest & 0xffff,
        Family::V6 => rest,
    })
}

/// Translates an ICMP error. The quoted transport checksum stays: nobody
/// verifies it, since a quote may be cut off anywhere.
#[inline(always)]
pub fn rewrite_error(
    ctx: &TcContext,
    packet: &Packet,
    quoted: &Quoted,
    to: &Translation,
) -> Result<(), i64> {
    let checksum = packet.transport as usize + 2;
    let ports = ((to.quoted_source_port as u32) << 16 | to.quoted_destination_port as u32).to_be();
    if ports != quoted.ports {
        ctx.l4_csum_replace(checksum, quoted.ports as u64, ports as u64, 4)?;
        ctx.store(quoted.transport as usize, &ports, 0)?;
    }
    match quoted.family {
        Family::V4 => addresses_v4(ctx, packet, quoted, to),
        Family::V6 => addresses_v6(ctx, packet, quoted, to, checksum),
    }
}

/// The quoted header's checksum makes up for its addresses, so that the sum over
/// the whole message stays.
#[inline(always)]
fn addresses_v4(
    ctx: &TcContext,
    packet: &Packet,
    quoted: &Quoted,
    to: &Translation,
) -> Result<(), i64> {
    let inner = [to.quoted_source.v4_word(), to.quoted_destination.v4_word()];
    let difference = checksum::difference(
        &[quoted.source.v4_word(), quoted.destination.v4_word()],
        &inner,
    ) as u64;
    let ip = quoted.ip as usize;
    ctx.store(ip + V4_ADDRESSES, &inner, 0)?;
    ctx.l3_csum_replace(ip + V4_CHECKSUM, 0, difference, 0)?;
    let outer = [to.source.v4_word(), to.destination.v4_word()];
    let difference = checksum::difference(
        &[packet.source.v4_word(), packet.destination.v4_word()],
        &outer,
    ) as u64;
    let ip = packet.ip as usize;
    ctx.store(ip + V4_ADDRESSES, &outer, 0)?;
    ctx.l3_csum_replace(ip + V4_CHECKSUM, 0, difference, 0)
}

#[inline(always)]
fn addresses_v6(
    ctx: &TcContext,
    packet: &Packet,
    quoted: &Quoted,
    to: &Translation,
    checksum: usize,
) -> Result<(), i64> {
    let inner = pair(to.quoted_source, to.quoted_destination);
    let difference = checksum::difference(&pair(quoted.source, quoted.destination), &inner) as u64;
    ctx.store(quoted.ip as usize + V6_ADDRESSES, &inner, 0)?;
    ctx.l4_csum_replace(checksum, 0, difference, 0)?;
    let outer = pair(to.source, to.destination);
    let difference = checksum::difference(&pair(packet.source, packet.destination), &outer) as u64;
    ctx.store(packet.ip as usize + V6_ADDRESSES, &outer, ACCOUNTED)?;
    ctx.l4_csum_replace(checksum, 0, difference, BPF_F_PSEUDO_HDR as u64)
}
