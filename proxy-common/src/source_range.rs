//! Maps `source_ranges` and `netns_addresses`: who may use a filtered frontend.

use crate::{Address, ServiceId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Key of `source_ranges`, an LPM trie: a service port, then a client's address.
/// The prefix covers all of `service` and the range's part of `address`.
#[repr(C)]
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
pub struct SourceRange {
    /// The service port.
    pub service: ServiceId,
    /// First address of the range.
    pub address: Address,
}

impl SourceRange {
    /// Bits of `service`, which every prefix includes.
    pub const SERVICE_BITS: u32 = 32;
    /// Bits of a whole key.
    pub const BITS: u32 = Self::SERVICE_BITS + 128;
}

/// Value of `netns_addresses`: the address that a client in a network namespace
/// has, by the namespace's cookie. A family without one has the wildcard.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct NetnsAddresses {
    /// IPv4, or [`Address::ANY_V4`].
    pub v4: Address,
    /// IPv6, or [`Address::ANY_V6`].
    pub v6: Address,
}

const _: () = assert!(size_of::<SourceRange>() == 20);
const _: () = assert!(size_of::<NetnsAddresses>() == 32);
