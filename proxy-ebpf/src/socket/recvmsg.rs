//! recvmsg(): the source address that a UDP application sees.

use super::{
    ALLOW,
    address::{self, Family},
    udp_flows,
};
use crate::maps::SOCKET_FLOWS;
use aya_ebpf::programs::SockAddrContext;
use proxy_common::{Address, FrontendKey};

/// `sk->state` of a connected socket, UDP ones included (include/net/tcp_states.h).
const TCP_ESTABLISHED: u32 = 1;

/// Shows answers of a backend as answers of the frontend.
#[inline(always)]
pub fn recvmsg<F: Family>(ctx: &SockAddrContext) -> i32 {
    let (source, port) = (F::address(ctx), address::port(ctx));
    let frontend =
        udp_flows::frontend_of(ctx, source, port).or_else(|| connected_frontend(ctx, source, port));
    if let Some(frontend) = frontend {
        address::set::<F>(ctx, frontend.address, frontend.port);
    }
    ALLOW
}

/// The frontend of a connected socket. A socket that was dissolved with
/// AF_UNSPEC still has its record but is no longer connected.
#[inline(always)]
fn connected_frontend(ctx: &SockAddrContext, source: Address, port: u16) -> Option<FrontendKey> {
    // SAFETY: the context's socket is valid while the program runs.
    let flow = unsafe { SOCKET_FLOWS.get_ptr_mut(ctx).as_ref() }?;
    if flow.used == 0 || flow.backend_port != port || !flow.backend_address.same(source) {
        return None;
    }
    // SAFETY: as above; the verifier knows the type of `sk`.
    let state = unsafe { (*(*ctx.sock_addr).__bindgen_anon_1.sk).state };
    (state == TCP_ESTABLISHED).then_some(flow.frontend)
}
