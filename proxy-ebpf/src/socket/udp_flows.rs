//! The translations that one unconnected UDP socket remembers.
//!
//! Two threads that send on one socket at once may write a record at the same
//! time. A torn record pairs a frontend with another's backend for answers
//! only: where the next datagram goes is decided by the backend's generation.

use crate::maps::UDP_FLOWS;
use aya_ebpf::programs::SockAddrContext;
use proxy_common::{Address, FrontendKey, SocketFlow, UdpFlows, decide::BackendRef};

#[inline(always)]
fn flows(ctx: &SockAddrContext) -> Option<&mut UdpFlows> {
    // SAFETY: the context's socket is valid while the program runs, and storage
    // lives as long as the socket.
    unsafe { UDP_FLOWS.get_ptr_mut(ctx).as_mut() }
}

/// The backend that the socket has for a frontend, which it now sends to.
#[inline(always)]
pub fn kept(ctx: &SockAddrContext, frontend: &FrontendKey) -> BackendRef {
    let Some(flows) = flows(ctx) else {
        return BackendRef::NONE;
    };
    for (flow, stamp) in flows.flows.iter().zip(&mut flows.stamps) {
        if is_to(flow, frontend) {
            flows.clock = flows.clock.wrapping_add(1);
            *stamp = flows.clock;
            return BackendRef {
                id: flow.backend,
                generation: flow.generation,
            };
        }
    }
    BackendRef::NONE
}

/// The frontend that an answer from `address` and `port` belongs to: of several
/// with the same backend the one that was last sent to.
#[inline(always)]
pub fn frontend_of(ctx: &SockAddrContext, address: Address, port: u16) -> Option<FrontendKey> {
    let flows = flows(ctx)?;
    let mut latest: Option<&SocketFlow> = None;
    let mut latest_stamp = 0;
    for (flow, &stamp) in flows.flows.iter().zip(&flows.stamps) {
        if is_from(flow, address, port) && stamp >= latest_stamp {
            (latest, latest_stamp) = (Some(flow), stamp);
        }
    }
    latest.map(|flow| flow.frontend)
}

/// Remembers a translation in place of the frontend's earlier one, or of the one
/// that was used longest ago.
#[inline(always)]
pub fn remember(ctx: &SockAddrContext, flow: &SocketFlow) {
    // SAFETY: as in `flows`. A new record is all zero, which is "not used".
    let Some(flows) = (unsafe { UDP_FLOWS.get_or_insert_ptr_mut(ctx, None).as_mut() }) else {
        return;
    };
    let mut place = 0;
    let mut oldest = u32::MAX;
    for (index, (slot, &stamp)) in flows.flows.iter().zip(&flows.stamps).enumerate() {
        if is_to(slot, &flow.frontend) {
            place = index;
            break;
        }
        let stamp = if slot.used == 0 { 0 } else { stamp };
        if stamp < oldest {
            (place, oldest) = (index, stamp);
        }
    }
    flows.clock = flows.clock.wrapping_add(1);
    if let (Some(slot), Some(stamp)) = (flows.flows.get_mut(place), flows.stamps.get_mut(place)) {
        *slot = *flow;
        *stamp = flows.clock;
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

/// Forgets the translation of a frontend that the socket now connects to.
#[inline(always)]
pub fn forget_frontend(ctx: &SockAddrContext, frontend: &FrontendKey) {
    let Some(flows) = flows(ctx) else {
        return;
    };
    for slot in &mut flows.flows {
        if is_to(slot, frontend) {
            slot.used = 0;
        }
    }
}

#[inline(always)]
fn is_to(flow: &SocketFlow, frontend: &FrontendKey) -> bool {
    flow.used != 0 && flow.frontend.same(frontend)
}

#[inline(always)]
fn is_from(flow: &SocketFlow, address: Address, port: u16) -> bool {
    flow.used != 0 && flow.backend_port == port && flow.backend_address.same(address)
}
