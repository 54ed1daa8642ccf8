//! getpeername(): the address that the application connected to.

use super::{
    ALLOW,
    address::{self, Family},
};
use crate::maps::SOCKET_FLOWS;
use aya_ebpf::programs::SockAddrContext;

/// Shows the frontend instead of the backend, for the life of the socket.
#[inline(always)]
pub fn getpeername<F: Family>(ctx: &SockAddrContext) -> i32 {
    // SAFETY: the context's socket is valid while the program runs.
    if let Some(flow) = unsafe { SOCKET_FLOWS.get_ptr_mut(ctx).as_ref() }
        && flow.used != 0
        && flow.backend_port == address::port(ctx)
        && flow.backend_address.same(F::address(ctx))
    {
        address::set::<F>(ctx, flow.frontend.address, flow.frontend.port);
    }
    ALLOW
}
