//! Internet checksums (RFC 1071) and their differences (RFC 1624).

use super::parse::Packet;

/// The difference that makes of a sum over `from` one over `to`, both as they stand
/// in a packet: ones' complement sums do not mind the byte order (RFC 1071, 2).
#[inline(always)]
pub fn difference<const N: usize>(from: &[u32; N], to: &[u32; N]) -> u32 {
    let mut sum = 0_u64;
    for index in 0..N {
        sum += (!from[index]) as u64 + to[index] as u64;
    }
    fold_to_word(sum)
}

/// The same for two half words.
#[inline(always)]
pub fn difference_of_halves(from: u16, to: u16) -> u32 {
    (!from) as u32 + to as u32
}

/// Both of two differences.
#[inline(always)]
pub fn add(one: u32, other: u32) -> u32 {
    fold_to_word(one as u64 + other as u64)
}

/// The checksum after a difference of what it is over.
#[inline(always)]
pub fn replace(checksum: u16, difference: u32) -> u16 {
    let sum = (!checksum) as u64 + difference as u64;
    !(fold(fold_to_word(sum)) as u16)
}

#[inline(always)]
fn fold_to_word(sum: u64) -> u32 {
    // Twice, since the first one may carry again.
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    ((sum >> 32) + (sum & 0xffff_ffff)) as u32
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
    fold(fold_to_word(sum))
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
