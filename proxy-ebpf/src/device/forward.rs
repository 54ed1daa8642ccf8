//! The one place where packets that come in are sent on their way.

use super::{Arrival, PASS, route};
use crate::packet::rewrite;
use proxy_common::DropReason;

/// Where a packet goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Up this node's stack.
    Up,
    /// Out as the flow says.
    Out,
    /// Out by the stack, which cuts it into fragments.
    Fragmented,
}

/// Makes of a packet what `flow` says, and sends it there.
#[inline(always)]
pub fn forward(arrival: &mut Arrival<'_>) -> Result<i32, DropReason> {
    arrival.forget();
    let way = way(arrival)?;
    let (ctx, packet) = (arrival.ctx, arrival.packet);
    let ttl = match way {
        Way::Up => packet.ttl,
        // As everybody who forwards does (RFC 1812, 5.3.1; RFC 8200, 3).
        _ if packet.ttl > 1 => packet.ttl - 1,
        _ => return Err(DropReason::TtlExceeded),
    };
    rewrite(ctx, packet, &arrival.scratch.flow, ttl)?;
    match way {
        Way::Up => Ok(PASS),
        Way::Out => route::send_on(arrival),
        Way::Fragmented => route::leave_by_stack(arrival),
    }
}

/// The way of a packet; [`DropReason::TooBig`] if there is one for smaller ones
/// only, whose MTU is in the scratch space then.
#[inline(always)]
fn way(arrival: &mut Arrival<'_>) -> Result<Way, DropReason> {
    if !arrival.scratch.flow.is_snat() {
        return Ok(Way::Up);
    }
    match route::exceeds(arrival) {
        None => Ok(Way::Out),
        Some(_) if !arrival.packet.dont_fragment => Ok(Way::Fragmented),
        Some(mtu) => {
            arrival.scratch.mtu = mtu;
            Err(DropReason::TooBig)
        }
    }
}
