//! Fairlead's BPF programs. This file holds entry points only.
//!
//! Each one reads the context, lets [`socket`] decide and act, and returns the
//! verdict of its hook. `recvmsg` and `getpeername` may only return 1.
//!
//! No program has calls within it: the verifier of kernels before 6.2 would keep
//! every number apart from every other then, and try far more states.
#![no_std]
#![no_main]
#![feature(core_intrinsics, asm_experimental_arch)]
#![expect(
    internal_features,
    reason = "atomics without a fetched value have no stable name here"
)]

mod device;
mod maps;
mod packet;
mod socket;

use aya_ebpf::{
    macros::{cgroup_skb, cgroup_sock, cgroup_sock_addr, classifier, sock_ops},
    programs::{SkBuffContext, SockAddrContext, SockContext, SockOpsContext, TcContext},
};
use socket::{V4, V6};

#[cgroup_sock_addr(connect4)]
pub fn connect4(ctx: SockAddrContext) -> i32 {
    socket::connect::<V4>(&ctx)
}

#[cgroup_sock_addr(connect6)]
pub fn connect6(ctx: SockAddrContext) -> i32 {
    socket::connect::<V6>(&ctx)
}

#[cgroup_sock_addr(sendmsg4)]
pub fn sendmsg4(ctx: SockAddrContext) -> i32 {
    socket::sendmsg::<V4>(&ctx)
}

#[cgroup_sock_addr(sendmsg6)]
pub fn sendmsg6(ctx: SockAddrContext) -> i32 {
    socket::sendmsg::<V6>(&ctx)
}

#[cgroup_sock_addr(recvmsg4)]
pub fn recvmsg4(ctx: SockAddrContext) -> i32 {
    socket::recvmsg::<V4>(&ctx)
}

#[cgroup_sock_addr(recvmsg6)]
pub fn recvmsg6(ctx: SockAddrContext) -> i32 {
    socket::recvmsg::<V6>(&ctx)
}

#[cgroup_sock_addr(getpeername4)]
pub fn getpeername4(ctx: SockAddrContext) -> i32 {
    socket::getpeername::<V4>(&ctx)
}

#[cgroup_sock_addr(getpeername6)]
pub fn getpeername6(ctx: SockAddrContext) -> i32 {
    socket::getpeername::<V6>(&ctx)
}

#[cgroup_sock(sock_release)]
pub fn sock_release(ctx: SockContext) -> i32 {
    socket::release(&ctx)
}

#[sock_ops]
pub fn sock_ops(ctx: SockOpsContext) -> u32 {
    socket::watch_connections(&ctx)
}

#[classifier]
#[inline(always)]
pub fn ingress(ctx: TcContext) -> i32 {
    device::run::<device::Ingress>(&ctx)
}

#[classifier]
#[inline(always)]
pub fn egress(ctx: TcContext) -> i32 {
    device::run::<device::Egress>(&ctx)
}

#[cgroup_skb(egress)]
pub fn udp_egress(ctx: SkBuffContext) -> i32 {
    socket::guard(&ctx)
}

/// Every panic path must be proven away: the verifier refuses a program that
/// could reach this.
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// The kernel gives GPL helpers only to programs under a compatible licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
