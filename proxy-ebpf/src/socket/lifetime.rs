//! TCP connections of translated sockets, from connect() to their end: those that
//! are open are counted, and those that fail in the handshake.

use crate::maps;
use aya_ebpf::{
    bindings::{BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_STATE_CB_FLAG, BPF_SOCK_OPS_TCP_CONNECT_CB},
    programs::SockOpsContext,
};
use proxy_common::SocketFlow;

// include/net/tcp_states.h
const TCP_SYN_SENT: u32 = 2;
const TCP_CLOSE: u32 = 7;

/// Asks for state changes of translated connections as they start. All others pay
/// for one comparison.
///
/// The kernel holds the socket's lock in both, and a socket goes to CLOSE before it
/// can connect anew: each connection that is counted is taken off the count once.
#[inline(always)]
pub fn watch_connections(ctx: &SockOpsContext) -> u32 {
    match ctx.op() {
        BPF_SOCK_OPS_TCP_CONNECT_CB => {
            if let Some(flow) = flow(ctx) {
                opens(ctx, flow);
            }
        }
        BPF_SOCK_OPS_STATE_CB if ctx.arg(1) == TCP_CLOSE => {
            if let Some(flow) = flow(ctx) {
                closes(flow, ctx.arg(0));
            }
        }
        _ => {}
    }
    1
}

#[inline(always)]
fn opens(ctx: &SockOpsContext, flow: &mut SocketFlow) {
    let flags = ctx.cb_flags() | BPF_SOCK_OPS_STATE_CB_FLAG;
    // Without it this connection is not counted, and works.
    if ctx.set_cb_flags(flags as i32).is_ok() && flow.counted == 0 {
        flow.counted = maps::count_open_socket(flow.target(), 1).into();
    }
}

#[inline(always)]
fn closes(flow: &mut SocketFlow, from: u32) {
    let backend = flow.target();
    if from == TCP_SYN_SENT {
        maps::count_failed(backend);
    }
    if flow.counted != 0 {
        flow.counted = 0;
        maps::count_open_socket(backend, -1);
    }
}

/// What the socket was translated from and to, if it was.
#[inline(always)]
fn flow<'a>(ctx: &SockOpsContext) -> Option<&'a mut SocketFlow> {
    // SAFETY: the kernel hands a valid context.
    let sk = unsafe { (*ctx.ops).__bindgen_anon_2.sk };
    if sk.is_null() {
        return None;
    }
    maps::socket_flow(sk)
}
