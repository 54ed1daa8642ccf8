//! recvmsg(): the source address that a UDP application sees.

use super::{
    ALLOW,
    address::{self, Family},
    connected, udp_flows,
};
use aya_ebpf::programs::SockAddrContext;

/// Shows answers of a backend as answers of the frontend.
#[inline(always)]
pub fn recvmsg<F: Family>(ctx: &SockAddrContext) -> i32 {
    let (source, port) = (F::address(ctx), address::port(ctx));
    let frontend = connected::frontend_of(ctx, source, port)
        .or_else(|| udp_flows::frontend_of(ctx, source, port));
    if let Some(frontend) = frontend {
        address::set::<F>(ctx, frontend.address, frontend.port);
    }
    ALLOW
}
