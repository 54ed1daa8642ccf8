//! IP addresses as the maps hold them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An IP address of either family: 16 bytes in network byte order, IPv4 as
/// `::ffff:a.b.c.d` (RFC 4291, 2.5.5.2).
///
/// A byte array and not four words, so that `bpftool map dump` prints
/// `[0,0,0,0,0,0,0,0,0,0,255,255,10,96,0,20]`; aligned like a word, so that
/// BPF copies and compares it by words.
#[repr(C, align(4))]
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
pub struct Address {
    /// Network byte order.
    pub bytes: [u8; 16],
}

impl Address {
    /// `::`, in [`crate::FrontendKey`] "any NodePort address of this node" for IPv6.
    pub const ANY_V6: Self = Self { bytes: [0; 16] };
    /// `::ffff:0.0.0.0`, the same for IPv4.
    pub const ANY_V4: Self = Self::from_v4(Ipv4Addr::UNSPECIFIED);

    /// An IPv4 address in its mapped form.
    pub const fn from_v4(v4: Ipv4Addr) -> Self {
        Self {
            bytes: v4.to_ipv6_mapped().octets(),
        }
    }

    /// The address whose four words in memory are `words` (as BPF contexts give IPv6).
    #[inline(always)]
    pub fn from_words(words: [u32; 4]) -> Self {
        zerocopy::transmute!(words)
    }

    /// An IPv4 address from the word that BPF contexts give (network byte order in memory).
    #[inline(always)]
    pub fn from_v4_word(word: u32) -> Self {
        Self::from_words([0, 0, 0xffff_u32.to_be(), word])
    }

    /// The address as four words in memory order.
    #[inline(always)]
    pub fn words(self) -> [u32; 4] {
        zerocopy::transmute!(self)
    }

    /// The word of an IPv4 address, as BPF contexts take it.
    #[inline(always)]
    pub fn v4_word(self) -> u32 {
        self.words()[3]
    }

    /// Whether this is an IPv4 address.
    #[inline(always)]
    pub fn is_v4(self) -> bool {
        let words = self.words();
        words[0] == 0 && words[1] == 0 && words[2] == 0xffff_u32.to_be()
    }

    /// Whether this is a loopback address: 127.0.0.0/8 or `::1`.
    #[inline(always)]
    pub fn is_loopback(self) -> bool {
        let words = self.words();
        if self.is_v4() {
            return words[3] & 0xff00_0000_u32.to_be() == 0x7f00_0000_u32.to_be();
        }
        words[0] == 0 && words[1] == 0 && words[2] == 0 && words[3] == 1_u32.to_be()
    }

    /// Whether a packet from this address could be answered. Unspecified, loopback,
    /// multicast and broadcast addresses are no packet's source (RFC 1122, 3.2.1.3;
    /// RFC 4291, 2.5 and 2.7): the stack drops those.
    #[inline(always)]
    pub fn is_answerable(self) -> bool {
        let words = self.words();
        if self.is_v4() {
            let first = u32::from_be(words[3]) >> 24;
            return first != 0 && first != 127 && first < 224;
        }
        let is_any = words[0] == 0 && words[1] == 0 && words[2] == 0 && words[3] == 0;
        !is_any && !self.is_loopback() && u32::from_be(words[0]) >> 24 != 0xff
    }

    /// The wildcard of this address's family.
    #[inline(always)]
    pub fn wildcard(self) -> Self {
        if self.is_v4() {
            Self::from_v4_word(0)
        } else {
            Self::from_words([0; 4])
        }
    }

    /// Equality by words; BPF has no `memcmp` worth its instructions.
    #[inline(always)]
    pub fn same(self, other: Self) -> bool {
        let (a, b) = (self.words(), other.words());
        a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3]
    }

    /// The address for people.
    pub fn to_ip(self) -> IpAddr {
        Ipv6Addr::from(self.bytes).to_canonical()
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self::from_v4(v4),
            IpAddr::V6(v6) => Self { bytes: v6.octets() },
        }
    }
}

/// Length of a CIDR's prefix in bits of the 128 that a map holds: an IPv4 /16 is 112.
pub fn mapped_prefix_length(ip: IpAddr, prefix_length: u8) -> u32 {
    let offset = if ip.is_ipv4() { 96 } else { 0 };
    u32::from(prefix_length) + offset
}

const _: () = assert!(size_of::<Address>() == 16);
