//! Internet checksums (RFC 1071) and their differences (RFC 1624).

use super::parse::Packet;
use aya_ebpf::helpers::generated::bpf_csum_diff;

/// The difference that makes of a sum over `from` one over `to`.
#[inline(always)]
pub fn difference<const N: usize>(mut from: [u32; N], mut to: [u32; N]) -> u64 {
    let size = (N * 4) as u32;
    // SAFETY: both arrays have that many bytes; the helper only reads them.
    unsafe { bpf_csum_diff(from.as_mut_ptr(), size, to.as_mut_ptr(), size, 0) as u32 as u64 }
}

/// The sum over the first `count` words, which are as they stand in a packet.
#[inline(always)]
pub fn sum(words: &[u32], count: usize) -> u32 {
    let mut sum = 0_u64;
    for (index, word) in words.iter().enumerate() {
        if index < count {
            sum += u32::from_be(*word) as u64;
        }
    }
    // At most 2^37: once is enough.
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    fold(((sum >> 32) + (sum & 0xffff_ffff)) as u32)
}

/// A sum of 16 bits.
#[inline(always)]
pub fn fold(sum: u32) -> u32 {
    let sum = (sum >> 16) + (sum & 0xffff);
    (sum >> 16) + (sum & 0xffff)
}

/// The sum over a pseudo header with the packet's addresses; which of them is
/// the source does not matter.
#[inline(always)]
pub fn pseudo_header(packet: &Packet, protocol: u32, length: u32) -> u32 {
    let (s, d) = (packet.source.words(), packet.destination.words());
    let addresses = if packet.is_v4() {
        sum(&[s[3], d[3]], 2)
    } else {
        sum(&[s[0], s[1], s[2], s[3], d[0], d[1], d[2], d[3]], 8)
    };
    fold(addresses + fold(protocol + length))
}
