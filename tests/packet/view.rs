//! A second look at bytes, for packets that no story has built: what they are,
//! and by how much their checksums are off.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proxy_common::FlowKey;

use crate::packet::Frame;

/// A packet as its headers tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: u8,
    /// Where the IP header begins, and the transport's.
    ip: usize,
    transport: usize,
    /// Where the packet ends.
    end: usize,
    /// A fragment that is not the first one.
    later: bool,
}

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

impl View {
    /// Reads an Ethernet frame; `None` if it is no whole IP packet.
    pub(crate) fn of(frame: &Frame) -> Option<Self> {
        match frame.0.get(12..14)? {
            [0x08, 0x00] => Self::v4(&frame.0, 14),
            [0x86, 0xdd] => Self::v6(&frame.0, 14),
            _ => None,
        }
    }

    fn v4(bytes: &[u8], ip: usize) -> Option<Self> {
        let header: [u8; 20] = bytes.get(ip..ip + 20)?.try_into().ok()?;
        let length = usize::from(header[0] & 15) * 4;
        let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let fragment = u16::from_be_bytes([header[6], header[7]]);
        let address = |at: usize| Ipv4Addr::from([0, 1, 2, 3].map(|byte| header[at + byte])).into();
        (header[0] >> 4 == 4 && length >= 20 && length <= total && ip + total <= bytes.len()).then(
            || Self {
                source: address(12),
                destination: address(16),
                protocol: header[9],
                ip,
                transport: ip + length,
                end: ip + total,
                later: fragment & 0x1fff != 0,
            },
        )
    }

    fn v6(bytes: &[u8], ip: usize) -> Option<Self> {
        let header: [u8; 40] = bytes.get(ip..ip + 40)?.try_into().ok()?;
        let end = ip + 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
        let address = |at: usize| {
            let octets: [u8; 16] = header[at..at + 16].try_into().expect("16 bytes");
            IpAddr::from(Ipv6Addr::from(octets))
        };
        let mut view = Self {
            source: address(8),
            destination: address(24),
            protocol: header[6],
            ip,
            transport: ip + 40,
            end,
            later: false,
        };
        while [0, 43, 44, 60].contains(&view.protocol) && !view.later {
            let at = bytes.get(view.transport..view.transport + 8)?;
            let length = if view.protocol == 44 {
                view.later = u16::from_be_bytes([at[2], at[3]]) & 0xfff8 != 0;
                8
            } else {
                (usize::from(at[1]) + 1) * 8
            };
            view.protocol = at[0];
            view.transport += length;
        }
        (header[0] >> 4 == 6 && view.transport <= end && end <= bytes.len()).then_some(view)
    }

    /// Its tuple, if it has ports.
    pub(crate) fn key(&self, frame: &Frame) -> Option<FlowKey> {
        let ports = frame.0.get(self.transport..self.transport + 4)?;
        let has_ports = [TCP, UDP].contains(&self.protocol) && !self.later;
        has_ports.then(|| FlowKey {
            source: self.source.into(),
            destination: self.destination.into(),
            source_port: u16::from_be_bytes([ports[0], ports[1]]),
            destination_port: u16::from_be_bytes([ports[2], ports[3]]),
            protocol: self.protocol.into(),
        })
    }

    /// By how much the checksums are off: of the IP header, and of the transport.
    /// Whoever only translates leaves that as it is.
    pub(crate) fn errors(&self, frame: &Frame) -> (u16, u16) {
        let bytes = &frame.0[..self.end];
        let header = if self.source.is_ipv4() {
            sum(&bytes[self.ip..self.transport], 0)
        } else {
            0
        };
        // Zero means none; over IPv6 that is for tunnels only (RFC 6935).
        let at = self.transport + 6;
        let unsummed = self.protocol == UDP && bytes.get(at..at + 2) == Some(&[0, 0]);
        if self.later || unsummed {
            return (header, 0);
        }
        // ICMP has no pseudo header.
        let pseudo = if self.protocol == 1 {
            0
        } else {
            let (from, to) = if self.source.is_ipv4() {
                (12, 20)
            } else {
                (8, 40)
            };
            let addresses = sum(&bytes[self.ip + from..self.ip + to], 0);
            u64::from(addresses) + u64::from(self.protocol) + (self.end - self.transport) as u64
        };
        (header, sum(&bytes[self.transport..], pseudo))
    }

    /// The tuple of the packet that an ICMP error quotes, turned around.
    pub(crate) fn quoted(&self, frame: &Frame) -> Option<FlowKey> {
        let at = self.transport + 8;
        // A quote may be cut anywhere behind the ports: what its length says does
        // not count, so the copy gets all the bytes that it could speak of.
        let mut whole = frame.0[..self.end].to_vec();
        let version = whole.get(at)? >> 4;
        let length = if version == 4 { at + 2 } else { at + 4 };
        whole.get_mut(length..length + 2)?.fill(0xff);
        whole.resize(at + 40 + usize::from(u16::MAX), 0);
        let inner = match version {
            4 => Self::v4(&whole, at)?,
            _ => Self::v6(&whole, at)?,
        };
        let key = inner.key(frame)?;
        Some(FlowKey {
            source: key.destination,
            destination: key.source,
            source_port: key.destination_port,
            destination_port: key.source_port,
            protocol: key.protocol,
        })
    }
}

/// The Internet checksum's sum (RFC 1071), 0xffff if all is right; zero, which is
/// the same number, as 0xffff.
fn sum(bytes: &[u8], more: u64) -> u16 {
    let words = bytes.chunks(2).map(|word| {
        u64::from(u16::from_be_bytes([
            word[0],
            word.get(1).copied().unwrap_or(0),
        ]))
    });
    let mut sum = more + words.sum::<u64>();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    if sum == 0 { 0xffff } else { sum as u16 }
}
