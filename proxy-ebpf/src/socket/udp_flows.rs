//! The translations that one unconnected UDP socket remembers.
//!
//! Two threads that send on one socket at once may write a record at the same
//! time. A torn record pairs a frontend with another's backend for answers
//! only: where the next datagram goes is decided by the backend's generation.

use crate::maps::UDP_FLOWS;
use aya_ebpf::programs::SockAddrContext;
use proxy_common::{
    Address, FrontendKey, SocketFlow, UDP_FLOWS_PER_SOCKET, UdpFlows, decide::BackendRef,
};

#[inline(always)]
fn flows(ctx: &SockAddrContext) -> Option<&mut UdpFlows> {
    // SAFETY: the context's socket is valid while the program runs, and storage
    // lives as long as the socket.
    unsafe { UDP_FLOWS.get_ptr_mut(ctx).as_mut() }
}

/// The backend that the socket has for a frontend.
#[inline(always)]
pub fn kept(ctx: &SockAddrContext, frontend: &FrontendKey) -> BackendRef {
    let Some(flows) = flows(ctx) else {
        return BackendRef::NONE;
    };
    for flow in &flows.flows {
        if flow.used != 0 && flow.frontend.same(frontend) {
            return BackendRef {
                id: flow.backend,
                generation: flow.generation,
            };
        }
    }
    BackendRef::NONE
}

/// The frontend that an answer from `address` and `port` belongs to.
#[inline(always)]
pub fn frontend_of(ctx: &SockAddrContext, address: Address, port: u16) -> Option<FrontendKey> {
    flows(ctx)?
        .flows
        .iter()
        .find(|flow| is_from(flow, address, port))
        .map(|flow| flow.frontend)
}

/// Remembers a translation in place of the frontend's earlier one, or of the oldest.
#[inline(always)]
pub fn remember(ctx: &SockAddrContext, flow: &SocketFlow) {
    // SAFETY: as in `flows`. A new record is all zero, which is "not used".
    let Some(flows) = (unsafe { UDP_FLOWS.get_or_insert_ptr_mut(ctx, None).as_mut() }) else {
        return;
    };
    for slot in &mut flows.flows {
        if slot.used != 0 && slot.frontend.same(&flow.frontend) {
            *slot = *flow;
            return;
        }
    }
    let next = flows.next as usize % UDP_FLOWS_PER_SOCKET;
    flows.next = (next + 1) as u32;
    if let Some(slot) = flows.flows.get_mut(next) {
        *slot = *flow;
    }
}

/// Forgets translations to a backend that the application now talks to by its
/// own address: answers from there are no longer the frontend's.
#[inline(always)]
pub fn forget_backend(ctx: &SockAddrContext, address: Address, port: u16) {
    let Some(flows) = flows(ctx) else {
        return;
    };
    for slot in &mut flows.flows {
        if is_from(slot, address, port) {
            slot.used = 0;
        }
    }
}

#[inline(always)]
fn is_from(flow: &SocketFlow, address: Address, port: u16) -> bool {
    flow.used != 0 && flow.backend_port == port && flow.backend_address.same(address)
}
