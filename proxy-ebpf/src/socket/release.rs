//! close(): the end of a socket.

use super::ALLOW;
use crate::maps::UDP_SOCKETS;
use aya_ebpf::{EbpfContext, helpers::generated::bpf_get_socket_cookie, programs::SockContext};
use proxy_common::Protocol;

/// Strikes a connected UDP socket off the list; socket storage ends by itself.
#[inline(always)]
pub fn release(ctx: &SockContext) -> i32 {
    // SAFETY: the kernel hands a valid context.
    if unsafe { (*ctx.sock).protocol } == Protocol::Udp as u32 {
        // SAFETY: `ctx` is this program's context.
        let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
        // Most UDP sockets are not on it.
        let _ = UDP_SOCKETS.remove(cookie);
    }
    ALLOW
}
