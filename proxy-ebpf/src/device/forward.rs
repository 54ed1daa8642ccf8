//! The one place where packets that come in are sent on their way.

use super::{Arrival, PASS, route};
use crate::packet::{decrement_ttl, rewrite};
use proxy_common::DropReason;

/// Where a packet goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Up this node's stack.
    Up,
    /// Out by the device of this index.
    Out(u32),
    /// Out by the stack, which cuts it into fragments.
    Fragmented,
}

/// Makes of a packet what `flow` says, and sends it there.
#[inline(always)]
pub fn forward(arrival: &mut Arrival<'_>) -> Result<i32, DropReason> {
    arrival.forget();
    let way = way(arrival)?;
    let (ctx, packet) = (arrival.ctx, arrival.packet);
    if way != Way::Up {
        decrement_ttl(ctx, packet)?;
    }
    rewrite(ctx, packet, &arrival.scratch.flow)?;
    match way {
        Way::Up => Ok(PASS),
        Way::Out(index) => route::leave_by(arrival, index),
        Way::Fragmented => route::leave_by_stack(arrival),
    }
}

/// The way of a packet; [`DropReason::TooBig`] if there is one for smaller ones
/// only, whose MTU is in the scratch space then.
#[inline(always)]
fn way(arrival: &mut Arrival<'_>) -> Result<Way, DropReason> {
    let flow = &arrival.scratch.flow;
    if !flow.is_snat() {
        return Ok(Way::Up);
    }
    let out = if flow.is_reply() {
        flow.device
    } else {
        route::to(arrival, arrival.packet.source, flow.destination)?
    };
    match route::exceeds(arrival, out) {
        None => Ok(Way::Out(out)),
        Some(_) if !arrival.packet.dont_fragment => Ok(Way::Fragmented),
        Some(mtu) => {
            arrival.scratch.mtu = mtu;
            Err(DropReason::TooBig)
        }
    }
}
