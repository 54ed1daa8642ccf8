//! sendmsg() with a destination: unconnected UDP.

use super::{
    ALLOW,
    address::{self, Family},
    connected, decide, flow, refuse, request, udp_flows,
};
use crate::maps;
use aya_ebpf::programs::SockAddrContext;
use proxy_common::decide::{BackendRef, Decision};

/// Translates the destination of one datagram.
///
/// The socket keeps its backend for a frontend while that backend serves, so a
/// conversation stays with one server and moves at once when it is gone (rule 26).
#[inline(always)]
pub fn sendmsg<F: Family>(ctx: &SockAddrContext) -> i32 {
    let Some(request) = request::<F>(ctx) else {
        udp_flows::forget_backend(ctx, F::address(ctx), address::port(ctx));
        return ALLOW;
    };
    let mut kept = udp_flows::kept(ctx, &request.key());
    if kept == BackendRef::NONE {
        kept = connected::kept(ctx, &request.key());
    }
    match decide(ctx, &request, kept) {
        Decision::NotOurs => {
            udp_flows::forget_backend(ctx, request.destination, request.port);
            ALLOW
        }
        Decision::Forward(target) => {
            if kept != target.backend {
                maps::count_opened(target.backend);
                udp_flows::remember(ctx, &flow(&request, &target));
            }
            address::set::<F>(ctx, target.address, target.port);
            ALLOW
        }
        Decision::Refuse(refusal) => {
            maps::count_refused(refusal);
            refuse::sendmsg::<F>(ctx, &request)
        }
    }
}
