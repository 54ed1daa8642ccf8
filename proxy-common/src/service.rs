//! Map `services`: names of service ports, for people and tools.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Identity of a service port on this node, kept across restarts; 0 is none.
pub type ServiceId = u32;

/// Value of `services`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct ServiceRecord {
    /// `namespace/name:port`, NUL-padded: at most 63 + 1 + 63 + 1 + 63 bytes
    /// (DNS labels, RFC 1123). `i8`, since the build marks that type as text in
    /// the BTF and `bpftool` then prints a name instead of numbers.
    pub name: [i8; Self::NAME_BYTES],
    /// IANA protocol number.
    pub protocol: u32,
    /// 1 if `spec.internalTrafficPolicy` is `Local`.
    pub internal_local: u8,
    /// 1 if `spec.externalTrafficPolicy` is `Local`.
    pub external_local: u8,
    /// Always 0.
    pub _reserved: [u8; 2],
}

impl ServiceRecord {
    /// Room for a name and a closing NUL.
    pub const NAME_BYTES: usize = 192;

    /// `name` as the record holds it; `None` if it is too long.
    pub fn encode_name(name: &str) -> Option<[i8; Self::NAME_BYTES]> {
        let mut out = [0_u8; Self::NAME_BYTES];
        out[..Self::NAME_BYTES - 1]
            .get_mut(..name.len())?
            .copy_from_slice(name.as_bytes());
        Some(zerocopy::transmute!(out))
    }

    /// The name; empty if the bytes are not text.
    pub fn name(&self) -> &str {
        let bytes: &[u8] = self.name.as_bytes();
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        core::str::from_utf8(&bytes[..end]).unwrap_or_default()
    }
}

const _: () = assert!(size_of::<ServiceRecord>() == 200);
