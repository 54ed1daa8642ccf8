//! connect(): TCP, and UDP sockets that connect.

use super::{
    ALLOW,
    address::{self, Family},
    decide, flow, refuse, request, udp_flows,
};
use crate::maps::{self, SOCKET_FLOWS, UDP_SOCKETS};
use aya_ebpf::{EbpfContext, helpers::generated::bpf_get_socket_cookie, programs::SockAddrContext};
use proxy_common::{
    Protocol, SocketFlow, UdpSocket,
    decide::{BackendRef, Decision},
};

/// Translates the destination of a connect().
#[inline(always)]
pub fn connect<F: Family>(ctx: &SockAddrContext) -> i32 {
    let Some(request) = request::<F>(ctx) else {
        // Where nothing is translated the namespace must still be found out.
        answer_probe(ctx);
        forget(ctx);
        return ALLOW;
    };
    match decide(ctx, &request, BackendRef::NONE) {
        Decision::NotOurs => {
            if request.destination.is_loopback() {
                answer_probe(ctx);
            }
            forget(ctx);
            ALLOW
        }
        Decision::Forward(target) => {
            maps::count_opened(target.backend);
            remember(ctx, flow(&request, &target));
            address::set::<F>(ctx, target.address, target.port);
            ALLOW
        }
        Decision::Refuse(refusal) => {
            maps::count_refused(refusal);
            refuse::connect::<F>(ctx, &request)
        }
    }
}

/// Keeps the translation with the socket, for getpeername() and recvmsg().
/// Without memory for it the connection still works and shows its backend.
#[inline(always)]
fn remember(ctx: &SockAddrContext, mut flow: SocketFlow) {
    // SAFETY: the context's socket is valid while the program runs.
    let record = unsafe { SOCKET_FLOWS.get_or_insert_ptr_mut(ctx, Some(&mut flow)) };
    if !record.is_null() {
        // The socket may have had a record from an earlier connect().
        // SAFETY: not null, and the storage lives as long as the socket.
        unsafe { *record = flow };
    }
    if flow.frontend.protocol as u8 == Protocol::Udp as u8 {
        let socket = UdpSocket {
            netns: maps::netns_cookie(ctx),
            backend: flow.backend,
            generation: flow.generation,
            address: flow.backend_address,
            port: flow.backend_port.into(),
            _reserved: 0,
        };
        udp_flows::forget_frontend(ctx, &flow.frontend);
        // A full map leaves this socket unwatched; it works all the same.
        let _ = UDP_SOCKETS.insert(cookie(ctx), socket, 0);
    }
}

/// Forgets what an earlier connect() of the same socket was translated to.
#[inline(always)]
pub fn forget(ctx: &SockAddrContext) {
    // SAFETY: the context's socket is valid while the program runs.
    let Some(record) = (unsafe { SOCKET_FLOWS.get_ptr_mut(ctx).as_mut() }) else {
        return;
    };
    if record.used != 0 && record.frontend.protocol as u8 == Protocol::Udp as u8 {
        let _ = UDP_SOCKETS.remove(cookie(ctx));
    }
    record.used = 0;
}

#[inline(always)]
fn cookie(ctx: &SockAddrContext) -> u64 {
    // SAFETY: `ctx` is this program's context.
    unsafe { bpf_get_socket_cookie(ctx.as_ptr()) }
}

/// Tells the agent which network namespace its probe socket is in, and with it
/// that the programs run for it.
#[inline(always)]
fn answer_probe(ctx: &SockAddrContext) {
    let Some(settings) = maps::settings() else {
        return;
    };
    // SAFETY: the element of an array map is always valid.
    let probe = unsafe { (*settings).probe_socket_cookie };
    // SAFETY: as above.
    let instance = unsafe { (*settings).instance };
    if probe != 0 && probe == cookie(ctx) && instance == maps::INSTANCE.load() {
        // SAFETY: as above.
        unsafe { (*settings).probe_netns_cookie = maps::netns_cookie(ctx) };
    }
}
