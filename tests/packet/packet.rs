//! Packets as the stories tell them. Bytes and checksums are etherparse's work,
//! not that of the code under test.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use etherparse::{
    Icmpv4Header, Icmpv4Type, Icmpv6Header, Icmpv6Type, IpNumber, Ipv4Header, Ipv6FragmentHeader,
    Ipv6Header, TcpHeader, UdpHeader, icmpv4, icmpv6,
};
use proxy_common::{FlowKey, Protocol};

/// The MAC addresses of a packet on its way in.
const HERE: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const THERE: [u8; 6] = [2, 0, 0, 0, 0, 0x64];

/// Bytes of a packet, from the link header on if there is one.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Frame(pub(crate) Vec<u8>);

/// TCP or UDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp {
        flags: u8,
        sequence: u32,
        acknowledged: u32,
        options: Vec<u8>,
    },
    Udp {
        /// Whether it has a checksum; over IPv4 it need not.
        summed: bool,
    },
}

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) hops: u8,
    pub(crate) dont_fragment: bool,
    /// IPv4 options, a multiple of 4 bytes.
    pub(crate) options: Vec<u8>,
    /// IPv6 extension headers: number, and bytes behind its next-header field.
    pub(crate) extensions: Vec<(u8, Vec<u8>)>,
    pub(crate) transport: Transport,
    pub(crate) payload: Vec<u8>,
}

impl Packet {
    /// A TCP packet.
    pub(crate) fn tcp(source: SocketAddr, destination: SocketAddr, flags: u8) -> Self {
        let transport = Transport::Tcp {
            flags,
            sequence: 0x1020_3040,
            acknowledged: if flags & ACK != 0 { 0x5060_7080 } else { 0 },
            options: Vec::new(),
        };
        Self::new(source, destination, transport)
    }

    /// A datagram.
    pub(crate) fn udp(source: SocketAddr, destination: SocketAddr) -> Self {
        let mut packet = Self::new(source, destination, Transport::Udp { summed: true });
        packet.payload = b"a question".to_vec();
        packet
    }

    /// The first packet of a connection or conversation.
    pub(crate) fn first(protocol: Protocol, source: SocketAddr, destination: SocketAddr) -> Self {
        match protocol {
            Protocol::Tcp => Self::tcp(source, destination, SYN),
            Protocol::Udp | Protocol::Sctp => Self::udp(source, destination),
        }
    }

    /// What answers a packet as the backend got it.
    pub(crate) fn answer(&self) -> Self {
        let mut answer = match &self.transport {
            Transport::Tcp { .. } => Self::tcp(self.destination, self.source, SYN | ACK),
            Transport::Udp { .. } => Self::udp(self.destination, self.source),
        };
        answer.payload = b"an answer".to_vec();
        answer
    }

    fn new(source: SocketAddr, destination: SocketAddr, transport: Transport) -> Self {
        Self {
            source,
            destination,
            hops: 64,
            dont_fragment: false,
            options: Vec::new(),
            extensions: Vec::new(),
            transport,
            payload: Vec::new(),
        }
    }

    /// The same with another destination.
    pub(crate) fn to(mut self, destination: SocketAddr) -> Self {
        self.destination = destination;
        self
    }

    /// The same with another source.
    pub(crate) fn from(mut self, source: SocketAddr) -> Self {
        self.source = source;
        self
    }

    /// The same, a router further.
    pub(crate) fn hop(mut self) -> Self {
        self.hops -= 1;
        self
    }

    /// The same with other flags.
    pub(crate) fn flags(mut self, new: u8) -> Self {
        if let Transport::Tcp { flags, .. } = &mut self.transport {
            *flags = new;
        }
        self
    }

    /// The same with so many bytes of payload.
    pub(crate) fn sized(mut self, payload: usize) -> Self {
        self.payload = (0..payload).map(|at| at as u8).collect();
        self
    }

    pub(crate) fn protocol(&self) -> Protocol {
        match self.transport {
            Transport::Tcp { .. } => Protocol::Tcp,
            Transport::Udp { .. } => Protocol::Udp,
        }
    }

    pub(crate) fn key(&self) -> FlowKey {
        FlowKey {
            source: self.source.ip().into(),
            destination: self.destination.ip().into(),
            source_port: self.source.port(),
            destination_port: self.destination.port(),
            protocol: self.protocol() as u32,
        }
    }

    /// From the IP header on.
    pub(crate) fn ip_bytes(&self) -> Vec<u8> {
        let transport = self.transport_bytes();
        let protocol = IpNumber(self.protocol() as u8);
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ipv4(self, protocol, source, destination, &transport)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ipv6(self, protocol, source, destination, &transport)
            }
            _ => panic!("two families in {self:?}"),
        }
    }

    /// From the Ethernet header on.
    pub(crate) fn frame(&self) -> Frame {
        ethernet(self.ip_bytes())
    }

    fn transport_bytes(&self) -> Vec<u8> {
        let (from, to) = (self.source.port(), self.destination.port());
        let ips = (self.source.ip(), self.destination.ip());
        let payload = &self.payload[..];
        let mut bytes = Vec::new();
        match &self.transport {
            Transport::Tcp {
                flags,
                sequence,
                acknowledged,
                options,
            } => {
                let mut header = TcpHeader::new(from, to, *sequence, 0x2000);
                header.fin = flags & FIN != 0;
                header.syn = flags & SYN != 0;
                header.rst = flags & RST != 0;
                header.ack = flags & ACK != 0;
                header.acknowledgment_number = *acknowledged;
                header.set_options_raw(options).expect("options fit");
                header.checksum = match ips {
                    (IpAddr::V4(s), IpAddr::V4(d)) => {
                        header.calc_checksum_ipv4_raw(s.octets(), d.octets(), payload)
                    }
                    (IpAddr::V6(s), IpAddr::V6(d)) => {
                        header.calc_checksum_ipv6_raw(s.octets(), d.octets(), payload)
                    }
                    _ => panic!("two families in {self:?}"),
                }
                .expect("it fits");
                bytes.extend(header.to_bytes());
            }
            Transport::Udp { summed } => {
                let mut header = UdpHeader {
                    source_port: from,
                    destination_port: to,
                    length: 8 + payload.len() as u16,
                    checksum: 0,
                };
                if *summed {
                    header.checksum = match ips {
                        (IpAddr::V4(s), IpAddr::V4(d)) => {
                            header.calc_checksum_ipv4_raw(s.octets(), d.octets(), payload)
                        }
                        (IpAddr::V6(s), IpAddr::V6(d)) => {
                            header.calc_checksum_ipv6_raw(s.octets(), d.octets(), payload)
                        }
                        _ => panic!("two families in {self:?}"),
                    }
                    .expect("it fits");
                }
                bytes.extend(header.to_bytes());
            }
        }
        bytes.extend(payload);
        bytes
    }
}

fn ipv4(
    packet: &Packet,
    protocol: IpNumber,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    payload: &[u8],
) -> Vec<u8> {
    let mut header = Ipv4Header::new(
        payload.len() as u16,
        packet.hops,
        protocol,
        source.octets(),
        destination.octets(),
    )
    .expect("it fits");
    header.dont_fragment = packet.dont_fragment;
    header.options = packet.options[..].try_into().expect("options fit");
    header.total_len += packet.options.len() as u16;
    header.header_checksum = header.calc_header_checksum();
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend(payload);
    bytes
}

fn ipv6(
    packet: &Packet,
    protocol: IpNumber,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    payload: &[u8],
) -> Vec<u8> {
    let mut behind = Vec::new();
    let mut numbers = packet.extensions.iter().map(|it| it.0).skip(1);
    for (_, bytes) in &packet.extensions {
        behind.push(numbers.next().unwrap_or(protocol.0));
        behind.extend(bytes);
    }
    behind.extend(payload);
    let first = packet.extensions.first().map_or(protocol.0, |it| it.0);
    let header = Ipv6Header {
        payload_length: behind.len() as u16,
        next_header: IpNumber(first),
        hop_limit: packet.hops,
        source: source.octets(),
        destination: destination.octets(),
        ..Ipv6Header::default()
    };
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend(behind);
    bytes
}

/// A packet in fragments, each with so many bytes of data; a multiple of 8. Its
/// headers are plain ones.
pub(crate) fn fragments(packet: &Packet, id: u32, part: usize) -> Vec<Frame> {
    let bytes = packet.ip_bytes();
    let v4 = packet.source.is_ipv4();
    let (header, data) = bytes.split_at(if v4 { 20 } else { 40 });
    let last = data.len().div_ceil(part) - 1;
    let parts = data.chunks(part).enumerate().map(|(number, data)| {
        let (offset, more) = ((number * part) as u16, number != last);
        let ip = if v4 {
            let header = Ipv4Header::from_slice(header).expect("a header").0;
            ipv4_fragment(header, id as u16, offset, more, data)
        } else {
            let header = Ipv6Header::from_slice(header).expect("a header").0;
            ipv6_fragment(header, id, offset, more, data)
        };
        ethernet(ip)
    });
    parts.collect()
}

fn ipv4_fragment(mut header: Ipv4Header, id: u16, offset: u16, more: bool, data: &[u8]) -> Vec<u8> {
    header.identification = id;
    header.fragment_offset = (offset / 8).try_into().expect("13 bits");
    header.more_fragments = more;
    header.total_len = 20 + data.len() as u16;
    header.header_checksum = header.calc_header_checksum();
    [&header.to_bytes()[..], data].concat()
}

fn ipv6_fragment(mut header: Ipv6Header, id: u32, offset: u16, more: bool, data: &[u8]) -> Vec<u8> {
    let behind = Ipv6FragmentHeader::new(
        header.next_header,
        (offset / 8).try_into().expect("13 bits"),
        more,
        id,
    );
    header.next_header = IpNumber::IPV6_FRAGMENTATION_HEADER;
    header.payload_length = 8 + data.len() as u16;
    [&header.to_bytes()[..], &behind.to_bytes(), data].concat()
}

/// An Ethernet frame on its way in.
pub(crate) fn ethernet(ip: Vec<u8>) -> Frame {
    let kind: [u8; 2] = if ip.first().is_some_and(|byte| byte >> 4 == 6) {
        [0x86, 0xdd]
    } else {
        [0x08, 0x00]
    };
    let mut bytes = [&HERE[..], &THERE, &kind].concat();
    bytes.extend(ip);
    Frame(bytes)
}

/// Which ICMP error.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Error {
    PortUnreachable,
    TooBig(u16),
}

/// The frame that tells the packet's sender of an error: headers, and as much of
/// the packet as its own headers are.
pub(crate) fn icmp_error(about: &Packet, error: Error) -> Frame {
    turned(translated_error(about, about, 64, error))
}

/// An error on its way in, or translated, about a packet as its sender sent it.
/// The quoted transport checksum is still that of `then`, the packet as it was when
/// it met the error: nobody verifies it.
pub(crate) fn translated_error(about: &Packet, then: &Packet, hops: u8, error: Error) -> Frame {
    let transport = match about.transport {
        Transport::Tcp { .. } => 20,
        Transport::Udp { .. } => 8,
    };
    let mut bytes = about.ip_bytes();
    let ip_header = if about.source.is_ipv4() { 20 } else { 40 };
    let checksum = ip_header + if transport == 20 { 16 } else { 6 };
    bytes[checksum..checksum + 2].copy_from_slice(&then.ip_bytes()[checksum..checksum + 2]);
    let ip = match (about.destination.ip(), about.source.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let quote = &bytes[..20 + transport];
            let kind = match error {
                Error::PortUnreachable => icmpv4::DestUnreachableHeader::Port,
                Error::TooBig(mtu) => {
                    icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: mtu }
                }
            };
            let icmp = Icmpv4Header::with_checksum(Icmpv4Type::DestinationUnreachable(kind), quote);
            let message = [&icmp.to_bytes()[..], quote].concat();
            let mut header = Ipv4Header::new(
                message.len() as u16,
                hops,
                IpNumber::ICMP,
                source.octets(),
                destination.octets(),
            )
            .expect("it fits");
            header.dont_fragment = false;
            // Class 6, internetwork control.
            header.dscp = 48.try_into().expect("six bits");
            header.header_checksum = header.calc_header_checksum();
            [&header.to_bytes()[..], &message].concat()
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let quote = &bytes[..40 + transport];
            let kind = match error {
                Error::PortUnreachable => {
                    Icmpv6Type::DestinationUnreachable(icmpv6::DestUnreachableCode::Port)
                }
                Error::TooBig(mtu) => Icmpv6Type::PacketTooBig { mtu: mtu.into() },
            };
            let (s, d) = (source.octets(), destination.octets());
            let icmp = Icmpv6Header::with_checksum(kind, s, d, quote).expect("it fits");
            let message = [&icmp.to_bytes()[..], quote].concat();
            let header = Ipv6Header {
                traffic_class: 48 << 2,
                payload_length: message.len() as u16,
                next_header: IpNumber::IPV6_ICMP,
                hop_limit: hops,
                source: s,
                destination: d,
                ..Ipv6Header::default()
            };
            [&header.to_bytes()[..], &message].concat()
        }
        _ => panic!("two families in {about:?}"),
    };
    ethernet(ip)
}

/// The frame on its way out by the device that it came in by.
pub(crate) fn turned(frame: Frame) -> Frame {
    let mut bytes = frame.0;
    bytes[..12].rotate_left(6);
    Frame(bytes)
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers are in the first lines; payloads are dull.
        for (line, bytes) in self.0.chunks(16).enumerate().take(9) {
            write!(f, "\n{:4}:", line * 16)?;
            for byte in bytes {
                write!(f, " {byte:02x}")?;
            }
        }
        write!(f, " ({} bytes)", self.0.len())
    }
}
