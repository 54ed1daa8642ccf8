//! The largest segment that a TCP end wants to get (RFC 9293, 3.7.1).

use super::parse::{Packet, TCP_CHECKSUM};
use aya_ebpf::programs::TcContext;

/// Kinds of options.
const END: u8 = 0;
const NOTHING: u8 = 1;
const MSS: u8 = 2;

/// Options that are looked at: everybody has this one among the first.
const OPTIONS: usize = 4;

const HEADER: u32 = 20;

/// Lowers what a SYN asks for, if it asks for more.
#[inline(always)]
pub fn clamp(ctx: &TcContext, packet: &Packet, most: u16) -> Result<(), i64> {
    let end = packet.transport + packet.transport_header(ctx);
    let mut at = packet.transport + HEADER;
    for _ in 0..OPTIONS {
        if at + 4 > end {
            return Ok(());
        }
        let option = ctx.load::<[u8; 4]>(at as usize)?;
        match option[0] {
            END => return Ok(()),
            NOTHING => at += 1,
            MSS => {
                let wanted = u16::from_be_bytes([option[2], option[3]]);
                return if wanted > most {
                    set(ctx, packet, at + 2, wanted, most)
                } else {
                    Ok(())
                };
            }
            // Less is no option.
            _ => at += option[1].max(2) as u32,
        }
    }
    Ok(())
}

#[inline(always)]
fn set(ctx: &TcContext, packet: &Packet, at: u32, from: u16, to: u16) -> Result<(), i64> {
    let to = to.to_be();
    // In the checksum bytes at odd places change roles (RFC 1071, 2).
    let is_odd = (at - packet.transport) & 1 != 0;
    let word = |value: u16| (if is_odd { value.swap_bytes() } else { value }) as u64;
    let checksum = packet.transport as usize + TCP_CHECKSUM;
    ctx.l4_csum_replace(checksum, word(from.to_be()), word(to), 2)?;
    ctx.store(at as usize, &to, 0)
}
