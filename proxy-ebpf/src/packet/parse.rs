//! From bytes to a [`Packet`].

use super::part::Part;
use aya_ebpf::programs::TcContext;
use proxy_common::{Address, FlowKey};

/// IANA protocol numbers.
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMP: u8 = 1;
pub const ICMP_V6: u8 = 58;

/// Where transport headers have their checksum.
pub const TCP_CHECKSUM: usize = 16;
pub const UDP_CHECKSUM: usize = 6;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

/// IPv6 extension headers that are followed; a packet with more is not ours.
const EXTENSION_HEADERS: usize = 4;

/// ETH_P_IP and ETH_P_IPV6 as `__sk_buff.protocol` has them.
const ETH_P_IP: u32 = 0x0800_u16.to_be() as u32;
const ETH_P_IPV6: u32 = 0x86dd_u16.to_be() as u32;

/// IP version.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// What the headers of a packet say.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Packet {
    pub family: Family,
    /// IANA number of the transport protocol.
    pub protocol: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Flags of TCP's header, else 0.
    pub tcp_flags: u8,
    /// Where the IP header begins.
    pub ip: u32,
    /// Where the transport header begins.
    pub transport: u32,
    /// Bytes from the IP header on, without padding.
    pub length: u32,
    /// The word of the IP header with TTL or hop limit, as it stands: the third one
    /// of IPv4, the second one of IPv6.
    pub hops: u32,
    pub source: Address,
    pub destination: Address,
    /// Host byte order; for ICMP type and code.
    pub source_port: u16,
    /// Host byte order.
    pub destination_port: u16,
    /// That of the transport header, as it stands.
    pub checksum: u16,
    /// Identification of the datagram if this is a fragment of one.
    pub fragment_id: u32,
    pub fragment: Fragment,
    /// IPv4: whether it may be fragmented. IPv6: never.
    pub dont_fragment: bool,
}

/// Which part of a datagram a packet is.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fragment {
    /// The whole of it.
    Whole,
    /// The first fragment, which has the ports.
    First,
    /// A later one, which has none.
    Later,
}

impl Packet {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const ACK: u8 = 16;

    /// The tuple.
    #[inline(always)]
    pub fn key(&self) -> FlowKey {
        FlowKey {
            source: self.source,
            destination: self.destination,
            source_port: self.source_port,
            destination_port: self.destination_port,
            protocol: self.protocol as u32,
        }
    }

    /// Whether it opens a TCP connection.
    #[inline(always)]
    pub fn is_first_syn(&self) -> bool {
        self.tcp_flags & (Self::SYN | Self::ACK | Self::RST) == Self::SYN
    }

    /// Whether it acknowledges, and neither opens nor resets a TCP connection.
    #[inline(always)]
    pub fn only_acknowledges(&self) -> bool {
        self.tcp_flags & (Self::SYN | Self::ACK | Self::RST) == Self::ACK
    }

    #[inline(always)]
    pub fn is_v4(&self) -> bool {
        matches!(self.family, Family::V4)
    }

    /// Whether what has come is as long as the IP header says, or padded behind
    /// that, and has all headers within. If not, the stack drops it.
    #[inline(always)]
    pub fn is_all_there(&mut self, ctx: &TcContext) -> bool {
        let come = ctx.len().saturating_sub(self.ip);
        // SAFETY: the kernel hands a valid context.
        let segment = unsafe { (*ctx.skb.skb).gso_size };
        if segment != 0 {
            // One that the kernel will cut may be longer than a header can say.
            self.length = come;
        }
        let headers = self.transport - self.ip + self.least_transport_header();
        headers <= self.length && self.length <= come
    }

    /// Bytes that its transport header has at least.
    #[inline(always)]
    fn least_transport_header(&self) -> u32 {
        match (self.fragment, self.protocol) {
            (Fragment::Later, _) => 0,
            (_, TCP) => 20,
            _ => 8,
        }
    }

    /// Bytes of its transport header, with TCP's options.
    #[inline(always)]
    pub fn transport_header(&self, ctx: &TcContext) -> u32 {
        if self.protocol != TCP {
            return 8;
        }
        let offset = ctx.load::<u8>(self.transport as usize + 12);
        offset.map_or(20, |offset| (offset >> 4) as u32 * 4)
    }

    #[inline(always)]
    pub fn is_icmp(&self) -> bool {
        self.protocol == if self.is_v4() { ICMP } else { ICMP_V6 }
    }
}

/// Reads the headers of the packet of `ctx`, whose IP header begins at `ip`.
/// `false` if it is no IP, or nothing that services know.
#[inline(always)]
pub fn parse(ctx: &TcContext, ip: u32, packet: &mut Packet) -> bool {
    let headers = match ctx.skb.protocol() {
        ETH_P_IP => parse_v4(ctx, ip),
        ETH_P_IPV6 => parse_v6(ctx, ip),
        _ => None,
    };
    let Some(headers) = headers else {
        return false;
    };
    *packet = headers;
    packet.fragment == Fragment::Later || parse_transport(ctx, packet).is_some()
}

/// Reads an IPv4 header.
#[inline(always)]
pub fn parse_v4(ctx: &TcContext, ip: u32) -> Option<Packet> {
    let part = Part::<20>::of(ctx, ip)?;
    let first = u32::from_be(part.word::<0>());
    if first >> 28 != 4 {
        return None;
    }
    let header = (first >> 24 & 0xf) * 4;
    if header < 20 {
        return None;
    }
    let second = u32::from_be(part.word::<4>());
    let hops = part.word::<8>();
    let third = u32::from_be(hops);
    let more = second & 0x2000 != 0;
    let offset = second & 0x1fff;
    Some(Packet {
        family: Family::V4,
        protocol: (third >> 16) as u8,
        ttl: (third >> 24) as u8,
        tcp_flags: 0,
        ip,
        transport: ip + header,
        length: first & 0xffff,
        hops,
        source: Address::from_v4_word(part.word::<12>()),
        destination: Address::from_v4_word(part.word::<16>()),
        source_port: 0,
        destination_port: 0,
        checksum: 0,
        fragment_id: second >> 16,
        fragment: fragment(more, offset),
        dont_fragment: second & 0x4000 != 0,
    })
}

/// Reads an IPv6 header and its extensions.
#[inline(always)]
pub fn parse_v6(ctx: &TcContext, ip: u32) -> Option<Packet> {
    let part = Part::<40>::of(ctx, ip)?;
    if u32::from_be(part.word::<0>()) >> 28 != 6 {
        return None;
    }
    let hops = part.word::<4>();
    let second = u32::from_be(hops);
    let mut packet = Packet {
        family: Family::V6,
        protocol: (second >> 8) as u8,
        ttl: second as u8,
        tcp_flags: 0,
        ip,
        transport: ip + 40,
        length: (second >> 16) + 40,
        hops,
        source: Address::from_words([
            part.word::<8>(),
            part.word::<12>(),
            part.word::<16>(),
            part.word::<20>(),
        ]),
        destination: Address::from_words([
            part.word::<24>(),
            part.word::<28>(),
            part.word::<32>(),
            part.word::<36>(),
        ]),
        source_port: 0,
        destination_port: 0,
        checksum: 0,
        fragment_id: 0,
        fragment: Fragment::Whole,
        dont_fragment: true,
    };
    // Such addresses stand for those of IPv4, and are no packet's (RFC 4291, 2.5.5.2):
    // maps would take them for those.
    if packet.source.is_v4() || packet.destination.is_v4() {
        return None;
    }
    for _ in 0..EXTENSION_HEADERS {
        match packet.protocol {
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => {
                let header = ctx.load::<[u8; 2]>(packet.transport as usize).ok()?;
                packet.protocol = header[0];
                packet.transport += (header[1] as u32 + 1) * 8;
            }
            FRAGMENT => {
                let header = ctx.load::<[u32; 2]>(packet.transport as usize).ok()?;
                let first = u32::from_be(header[0]);
                packet.protocol = (first >> 24) as u8;
                packet.fragment = fragment(first & 1 != 0, first & 0xfff8);
                packet.fragment_id = u32::from_be(header[1]);
                packet.transport += 8;
                if packet.fragment == Fragment::Later {
                    return Some(packet);
                }
            }
            _ => return Some(packet),
        }
    }
    None
}

#[inline(always)]
fn fragment(more: bool, offset: u32) -> Fragment {
    if offset != 0 {
        Fragment::Later
    } else if more {
        Fragment::First
    } else {
        Fragment::Whole
    }
}

/// The ports, and TCP's flags.
#[inline(always)]
fn parse_transport(ctx: &TcContext, packet: &mut Packet) -> Option<()> {
    match packet.protocol {
        TCP => {
            let part = Part::<20>::of(ctx, packet.transport)?;
            set_ports(packet, part.word::<0>());
            packet.tcp_flags = (u32::from_be(part.word::<12>()) >> 16) as u8;
            packet.checksum = part.half::<TCP_CHECKSUM>();
        }
        UDP => {
            let part = Part::<8>::of(ctx, packet.transport)?;
            set_ports(packet, part.word::<0>());
            packet.checksum = part.half::<UDP_CHECKSUM>();
        }
        _ if packet.is_icmp() => {
            // Type and code, the checksum.
            let part = Part::<8>::of(ctx, packet.transport)?;
            set_ports(packet, part.word::<0>());
        }
        _ => return None,
    }
    Some(())
}

#[inline(always)]
fn set_ports(packet: &mut Packet, word: u32) {
    let word = u32::from_be(word);
    packet.source_port = (word >> 16) as u16;
    packet.destination_port = word as u16;
}
