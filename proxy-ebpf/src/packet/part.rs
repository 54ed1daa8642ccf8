//! Direct access to packet bytes.

use aya_ebpf::programs::TcContext;
use core::arch::asm;

/// No header begins behind this byte; the verifier wants a bound.
const BEGIN_MAX: u32 = 1023;

/// `N` bytes of a packet, which are there.
///
/// Only until the next helper call that may move the packet: the verifier sees to
/// that. Headers are not aligned, which Rust's references have to be, but the
/// kernel allows for it where the machine does: hence instructions by hand.
pub struct Part<const N: usize> {
    start: usize,
}

impl<const N: usize> Part<N> {
    /// The bytes from `at` on; `None` if the packet has fewer.
    #[inline(always)]
    pub fn of(ctx: &TcContext, at: u32) -> Option<Self> {
        if at > BEGIN_MAX {
            return None;
        }
        if let Some(part) = Self::linear(ctx, at) {
            return Some(part);
        }
        // Headers may lie in the pages behind the buffer of the packet.
        ctx.pull_data(at + N as u32).ok()?;
        Self::linear(ctx, at)
    }

    #[inline(always)]
    fn linear(ctx: &TcContext, at: u32) -> Option<Self> {
        let mut at = at as usize;
        // Changes nothing, but old verifiers forget what was compared.
        // SAFETY: touches a register only.
        unsafe {
            asm!("{0} &= {max}", inout(reg) at, max = const BEGIN_MAX,
                options(pure, nomem, nostack, preserves_flags));
        }
        let start = ctx.data() + at;
        (start + N <= ctx.data_end()).then_some(Self { start })
    }

    /// The word at an offset, as it stands.
    #[inline(always)]
    pub fn word<const AT: usize>(&self) -> u32 {
        const { assert!(AT + 4 <= N) };
        let word: u64;
        // SAFETY: the bytes are there.
        unsafe {
            asm!("{0} = *(u32 *)({1} + {at})", out(reg) word, in(reg) self.start, at = const AT,
                options(readonly, nostack, preserves_flags));
        }
        word as u32
    }

    /// Sets the word at an offset.
    #[inline(always)]
    pub fn set_word<const AT: usize>(&mut self, word: u32) {
        const { assert!(AT + 4 <= N) };
        // SAFETY: the bytes are there, and this program's.
        unsafe {
            asm!("*(u32 *)({0} + {at}) = {1}", in(reg) self.start, in(reg) word as u64, at = const AT,
                options(nostack, preserves_flags));
        }
    }

    /// The half word at an offset, as it stands.
    #[inline(always)]
    pub fn half<const AT: usize>(&self) -> u16 {
        const { assert!(AT + 2 <= N) };
        let half: u64;
        // SAFETY: the bytes are there.
        unsafe {
            asm!("{0} = *(u16 *)({1} + {at})", out(reg) half, in(reg) self.start, at = const AT,
                options(readonly, nostack, preserves_flags));
        }
        half as u16
    }

    /// Sets the half word at an offset.
    #[inline(always)]
    pub fn set_half<const AT: usize>(&mut self, half: u16) {
        const { assert!(AT + 2 <= N) };
        // SAFETY: the bytes are there, and this program's.
        unsafe {
            asm!("*(u16 *)({0} + {at}) = {1}", in(reg) self.start, in(reg) half as u64, at = const AT,
                options(nostack, preserves_flags));
        }
    }
}
