//! Datagrams of connected UDP sockets whose backend is gone, where the kernel
//! cannot end such sockets. The program is on its hook only while there are some,
//! since every packet of the node passes there.

use super::{ALLOW, DENY};
use crate::maps;
use aya_ebpf::{EbpfContext, helpers::generated::bpf_get_socket_cookie, programs::SkBuffContext};
use proxy_common::{Address, DropReason, Protocol, UdpSocket, decide::Refusal};

/// Refuses what a socket sends to a backend that is gone: the send ends with EPERM.
#[inline(always)]
pub fn guard(ctx: &SkBuffContext) -> i32 {
    // SAFETY: `ctx` is this program's context.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    let Some(socket) = maps::udp_socket(cookie) else {
        return ALLOW;
    };
    if !maps::is_gone(&socket) || !is_to(ctx, &socket) {
        return ALLOW;
    }
    maps::count_refused(Refusal {
        reason: DropReason::BackendGone,
        service: 0,
    });
    DENY
}

/// Whether the packet goes where the socket is connected to: a connected socket
/// may send elsewhere, too.
#[inline(always)]
fn is_to(ctx: &SkBuffContext, socket: &UdpSocket) -> bool {
    // The packet begins with its IP header (RFC 791, RFC 8200).
    let Ok(first) = ctx.load::<u8>(0) else {
        return false;
    };
    let (address, protocol, transport) = if first >> 4 == 4 {
        let header = usize::from(first & 0xf) * 4;
        let address = ctx.load::<u32>(16).map(Address::from_v4_word);
        (address, ctx.load::<u8>(9), header)
    } else {
        let address = ctx.load::<[u32; 4]>(24).map(Address::from_words);
        (address, ctx.load::<u8>(6), 40)
    };
    let (Ok(address), Ok(protocol)) = (address, protocol) else {
        return false;
    };
    if !address.same(socket.address) {
        return false;
    }
    // Behind extension headers the port is not looked for.
    if protocol != Protocol::Udp as u8 {
        return true;
    }
    match ctx.load::<u16>(transport + 2) {
        Ok(port) => u32::from(u16::from_be(port)) == socket.port,
        Err(_) => false,
    }
}
