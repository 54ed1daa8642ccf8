//! Map `fragments`: the ports of datagrams that come in fragments.

use crate::Address;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Key of `fragments`: what all fragments of one datagram have (RFC 791, RFC 8200).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct FragmentKey {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Identification.
    pub id: u32,
    /// IANA protocol number.
    pub protocol: u32,
}

/// Value of `fragments`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct FragmentPorts {
    /// Host byte order.
    pub source: u16,
    /// Host byte order.
    pub destination: u16,
    /// Seconds since boot of the first fragment.
    pub seen_s: u32,
}

const _: () = assert!(size_of::<FragmentKey>() == 40);
const _: () = assert!(size_of::<FragmentPorts>() == 8);
