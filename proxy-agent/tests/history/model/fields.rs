//! Fields of objects, as the API defines them.

use proxy_common::Protocol;
use serde_json::Value;
use std::net::{IpAddr, Ipv6Addr};

pub(super) fn text(value: &Value) -> Option<&str> {
    value.as_str()
}

pub(super) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(super) fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    text(&object["metadata"]["labels"][key])
}

pub(super) fn is_v4(address: IpAddr) -> bool {
    address.is_ipv4()
}

/// An address; octets with leading zeros are decimal, IPv4-mapped ones are none.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    let octets: Vec<&str> = text.split('.').collect();
    if octets.len() == 4
        && octets
            .iter()
            .all(|it| it.chars().all(|c| c.is_ascii_digit()))
    {
        let mut bytes = [0_u8; 4];
        for (byte, octet) in bytes.iter_mut().zip(octets) {
            *byte = octet.parse().ok()?;
        }
        return Some(bytes.into());
    }
    let v6: Ipv6Addr = text.parse().ok()?;
    (v6.segments()[..6] != [0, 0, 0, 0, 0, 0xffff]).then_some(v6.into())
}

/// The addresses of a list.
pub(super) fn addresses(value: &Value) -> Vec<IpAddr> {
    list(value).filter_map(text).filter_map(address).collect()
}

/// [5], and the same for frontends.
pub(super) fn usable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            !(v4.octets() == [0; 4] || a == 127 || (a, b) == (169, 254) || (224..240).contains(&a))
        }
        IpAddr::V6(v6) => {
            let first = v6.segments()[0];
            let special = v6 == Ipv6Addr::UNSPECIFIED || v6 == Ipv6Addr::LOCALHOST;
            !(special || first & 0xffc0 == 0xfe80 || first & 0xff00 == 0xff00)
        }
    }
}

/// A range of addresses: the first one, and the bits that all share.
#[derive(Clone, Debug)]
pub(super) struct Range(IpAddr, u32);

impl Range {
    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        let bits = |ip| match ip {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 4),
            IpAddr::V6(v6) => (v6.to_bits(), 6),
        };
        let ((a, family), (b, other)) = (bits(self.0), bits(ip));
        let differs = (a ^ b).leading_zeros();
        family == other && (differs >= self.1)
    }
}

/// [22]: the source ranges of a family; `None` if they are no filter. One that
/// cannot be read lets nobody in, and still is one.
pub(super) fn ranges(service: &Value, v4: bool) -> Option<Vec<Range>> {
    let mut ranges = Vec::new();
    let mut some = false;
    for text in list(&service["spec"]["loadBalancerSourceRanges"]).filter_map(text) {
        let range = text.trim().split_once('/').and_then(|(ip, length)| {
            let ip: IpAddr = ip.parse().ok()?;
            let length: u32 = length.parse().ok()?;
            let most = if ip.is_ipv4() { 32 } else { 128 };
            (length <= most).then_some(Range(ip, length))
        });
        match range {
            None => some = true,
            Some(range) if is_v4(range.0) != v4 => {}
            Some(Range(_, 0)) => return None,
            Some(range) => {
                some = true;
                ranges.push(range);
            }
        }
    }
    some.then_some(ranges)
}

/// A port that can be on the wire.
pub(super) fn port_number(value: &Value) -> Option<u16> {
    let number = value.as_i64()?;
    (1..=65_535).contains(&number).then_some(number as u16)
}

/// The protocol of a port; TCP if it does not say.
pub(super) fn protocol(port: &Value) -> Option<Protocol> {
    match text(&port["protocol"]) {
        None | Some("" | "TCP") => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some("SCTP") => Some(Protocol::Sctp),
        Some(_) => None,
    }
}
