//! The one place where packets that come in are sent on their way.

use super::{Arrival, PASS, dsr, route};
use crate::packet::{decrement_ttl, next_ttl, rewrite};
use proxy_common::DropReason;

/// Where a packet goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Up this node's stack.
    Up,
    /// Out as the flow says.
    Out,
    /// Out as it is, in a tunnel.
    Tunnel,
    /// Out by the stack, which cuts it into fragments.
    Fragmented,
}

/// Makes of a packet what `flow` says, and sends it there.
#[inline(always)]
pub fn forward(arrival: &mut Arrival<'_>) -> Result<i32, DropReason> {
    arrival.forget();
    let way = way(arrival)?;
    let (ctx, packet) = (arrival.ctx, arrival.packet);
    if way == Way::Tunnel {
        decrement_ttl(ctx, packet)?;
        dsr::wrap(arrival)?;
    } else {
        let ttl = if way == Way::Up {
            packet.ttl
        } else {
            next_ttl(packet)?
        };
        rewrite(ctx, packet, &arrival.scratch.flow, ttl)?;
    }
    match way {
        Way::Up => Ok(PASS),
        Way::Out | Way::Tunnel => route::send_on(arrival),
        Way::Fragmented => route::leave_by_stack(arrival),
    }
}

/// The way of a packet; [`DropReason::TooBig`] if there is one for smaller ones
/// only, whose MTU is in the scratch space then.
#[inline(always)]
fn way(arrival: &mut Arrival<'_>) -> Result<Way, DropReason> {
    let is_dsr = arrival.scratch.flow.is_dsr();
    if !arrival.scratch.flow.is_snat() && !is_dsr {
        return Ok(Way::Up);
    }
    match route::exceeds(arrival) {
        None if is_dsr => Ok(Way::Tunnel),
        None => Ok(Way::Out),
        // No node puts fragments of a tunnel together.
        Some(_) if is_dsr && !arrival.packet.dont_fragment => Err(DropReason::TooBig),
        Some(_) if !arrival.packet.dont_fragment => Ok(Way::Fragmented),
        Some(mtu) => {
            arrival.scratch.mtu = mtu;
            Err(DropReason::TooBig)
        }
    }
}
