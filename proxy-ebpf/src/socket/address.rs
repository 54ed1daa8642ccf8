//! The address fields of a sock_addr context, for both families.
//!
//! The kernel takes only whole 4-byte stores to them, hence the volatile words
//! (net/core/filter.c, `sock_addr_is_valid_access`).

use aya_ebpf::programs::SockAddrContext;
use proxy_common::Address;

/// Which address field a program reads and writes.
pub trait Family {
    /// The context's address.
    fn address(ctx: &SockAddrContext) -> Address;
    /// Replaces it. An address of the other family cannot be stored; tables
    /// never mix families (rule 6).
    fn set_address(ctx: &SockAddrContext, address: Address);
}

/// Programs for AF_INET: `user_ip4`.
pub struct V4;
/// Programs for AF_INET6: `user_ip6`, also with IPv4-mapped addresses.
pub struct V6;

impl Family for V4 {
    #[inline(always)]
    fn address(ctx: &SockAddrContext) -> Address {
        // SAFETY: the kernel hands a valid context.
        Address::from_v4_word(unsafe { (&raw const (*ctx.sock_addr).user_ip4).read_volatile() })
    }

    #[inline(always)]
    fn set_address(ctx: &SockAddrContext, address: Address) {
        // SAFETY: as above.
        unsafe { (&raw mut (*ctx.sock_addr).user_ip4).write_volatile(address.v4_word()) };
    }
}

impl Family for V6 {
    #[inline(always)]
    fn address(ctx: &SockAddrContext) -> Address {
        let field = unsafe { (&raw const (*ctx.sock_addr).user_ip6).cast::<u32>() };
        // SAFETY: the field has four words.
        Address::from_words(unsafe {
            [
                field.read_volatile(),
                field.add(1).read_volatile(),
                field.add(2).read_volatile(),
                field.add(3).read_volatile(),
            ]
        })
    }

    #[inline(always)]
    fn set_address(ctx: &SockAddrContext, address: Address) {
        let words = address.words();
        let field = unsafe { (&raw mut (*ctx.sock_addr).user_ip6).cast::<u32>() };
        // SAFETY: the field has four words.
        unsafe {
            field.write_volatile(words[0]);
            field.add(1).write_volatile(words[1]);
            field.add(2).write_volatile(words[2]);
            field.add(3).write_volatile(words[3]);
        }
    }
}

/// The context's port, host byte order.
#[inline(always)]
pub fn port(ctx: &SockAddrContext) -> u16 {
    // SAFETY: the kernel hands a valid context. Network order in the low half.
    u16::from_be(unsafe { (&raw const (*ctx.sock_addr).user_port).read_volatile() } as u16)
}

/// Replaces the context's port, given in host byte order.
#[inline(always)]
pub fn set_port(ctx: &SockAddrContext, port: u16) {
    // SAFETY: as above.
    unsafe { (&raw mut (*ctx.sock_addr).user_port).write_volatile(u32::from(port.to_be())) };
}

/// Replaces address and port.
#[inline(always)]
pub fn set<F: Family>(ctx: &SockAddrContext, address: Address, port: u16) {
    F::set_address(ctx, address);
    set_port(ctx, port);
}
