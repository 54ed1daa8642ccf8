//! The translation of a connected UDP socket.

use crate::maps::SOCKET_FLOWS;
use aya_ebpf::programs::SockAddrContext;
use proxy_common::{Address, FrontendKey, Protocol, SocketFlow, decide::BackendRef};

/// `sk->state` of a connected socket, UDP ones included (include/net/tcp_states.h).
const TCP_ESTABLISHED: u32 = 1;

/// The record of a UDP socket that is connected through a frontend. One that was
/// dissolved with AF_UNSPEC still has its record but is no longer connected.
#[inline(always)]
fn flow(ctx: &SockAddrContext) -> Option<&SocketFlow> {
    // SAFETY: the context's socket is valid while the program runs, and storage
    // lives as long as the socket.
    let flow = unsafe { SOCKET_FLOWS.get_ptr_mut(ctx).as_ref() }?;
    if flow.used == 0 || flow.frontend.protocol as u8 != Protocol::Udp as u8 {
        return None;
    }
    // SAFETY: as above; the verifier knows the type of `sk`.
    let state = unsafe { (*(*ctx.sock_addr).__bindgen_anon_1.sk).state };
    (state == TCP_ESTABLISHED).then_some(flow)
}

/// The backend that the socket is connected to, if it is by this frontend: the
/// kernel would drop answers of any other.
#[inline(always)]
pub fn kept(ctx: &SockAddrContext, frontend: &FrontendKey) -> BackendRef {
    match flow(ctx) {
        Some(flow) if flow.frontend.same(frontend) => BackendRef {
            id: flow.backend,
            generation: flow.generation,
        },
        _ => BackendRef::NONE,
    }
}

/// The frontend that an answer from `address` and `port` belongs to.
#[inline(always)]
pub fn frontend_of(ctx: &SockAddrContext, address: Address, port: u16) -> Option<FrontendKey> {
    let flow = flow(ctx)?;
    let is_peer = flow.backend_port == port && flow.backend_address.same(address);
    is_peer.then_some(flow.frontend)
}
