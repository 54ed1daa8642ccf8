//! IP addresses as objects spell them.

use std::net::{IpAddr, Ipv4Addr};

/// IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The family as `ipFamilies` and `addressType` spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// The family as `ipFamilies` and `addressType` spell it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "IPv4" => Some(Self::V4),
            "IPv6" => Some(Self::V6),
            _ => None,
        }
    }
}

/// An IP address, or why the text is none that can be used.
///
/// Octets with leading zeros are decimal, since objects from old clusters still
/// have them (k8s.io/utils/net, `ParseIPSloppy`). IPv4-mapped IPv6 addresses are
/// refused: our maps and the kernel's sockets take them for IPv4, so the
/// object's family and the traffic's would differ.
pub(super) fn parse_ip(text: &str) -> Result<IpAddr, &'static str> {
    let parsed = text
        .parse()
        .ok()
        .or_else(|| parse_padded_v4(text).map(IpAddr::V4));
    match parsed {
        None => Err("is no IP address"),
        Some(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => {
            Err("is an IPv4-mapped IPv6 address")
        }
        Some(address) => Ok(address),
    }
}

fn parse_padded_v4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0_u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| octets.into())
}
