//! Sockets of this node that a packet may belong to.

use crate::packet::{Packet, TCP};
use aya_ebpf::{
    EbpfContext,
    bindings::{bpf_sock, bpf_sock_tuple},
    helpers::generated::{bpf_sk_fullsock, bpf_sk_lookup_udp, bpf_sk_release, bpf_skc_lookup_tcp},
    programs::TcContext,
};
use proxy_common::FlowKey;

/// BPF_F_CURRENT_NETNS.
const THIS_NETNS: u64 = u64::MAX;
/// TCP_LISTEN and TCP_CLOSE, include/net/tcp_states.h; a UDP socket that is not
/// connected is in the latter.
const LISTEN: u32 = 10;
const CLOSE: u32 = 7;

/// Whether a socket of this node is connected by the packet's tuple: then the
/// packet answers it, whatever frontend has that number.
#[inline(always)]
pub fn is_connected(ctx: &TcContext, packet: &Packet) -> bool {
    look(ctx, &packet.key(), |socket| {
        // SAFETY: the look-up holds a reference. Null for a TCP socket that is
        // being opened or closed: those are connected.
        let state = unsafe { bpf_sk_fullsock(socket).as_ref() }.map(|it| it.state);
        state.is_none_or(|state| state != LISTEN && state != CLOSE)
    })
}

/// Whether a socket of this node would get packets with this tuple.
#[inline(always)]
pub fn is_used(ctx: &TcContext, key: &FlowKey) -> bool {
    look(ctx, key, |_| true)
}

#[inline(always)]
fn look(ctx: &TcContext, key: &FlowKey, judge: impl Fn(*mut bpf_sock) -> bool) -> bool {
    let v4 = key.source.is_v4();
    let ports = ((key.source_port.to_be()) as u32) | ((key.destination_port.to_be() as u32) << 16);
    let (s, d) = (key.source.words(), key.destination.words());
    let (mut tuple, size) = if v4 {
        ([s[3], d[3], ports, s[0], s[1], s[2], d[0], d[1], d[2]], 12)
    } else {
        ([s[0], s[1], s[2], s[3], d[0], d[1], d[2], d[3], ports], 36)
    };
    let tuple: *mut bpf_sock_tuple = tuple.as_mut_ptr().cast();
    // SAFETY: the tuple has at least that many bytes; the context is this program's.
    let socket = unsafe {
        if key.protocol == TCP as u32 {
            bpf_skc_lookup_tcp(ctx.as_ptr(), tuple, size, THIS_NETNS, 0)
        } else {
            bpf_sk_lookup_udp(ctx.as_ptr(), tuple, size, THIS_NETNS, 0)
        }
    };
    if socket.is_null() {
        return false;
    }
    let verdict = judge(socket);
    // SAFETY: the look-up holds a reference.
    unsafe { bpf_sk_release(socket.cast()) };
    verdict
}
