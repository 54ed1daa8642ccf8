//! Refusing: a TCP client gets a RST, a UDP client ICMP port unreachable, both
//! from the frontend's address. Where a policy asks for silence there is silence.

use super::{Arrival, answer};
use crate::{maps, packet::TCP};
use proxy_common::{DropReason, decide::Refusal};

/// Refuses a packet, or drops it: see [`is_refused`].
#[inline(always)]
pub fn refuse(arrival: &mut Arrival<'_>, refusal: Refusal) -> Result<i32, Refusal> {
    if !is_refused(refusal.reason) || !maps::may_answer() {
        return Err(refusal);
    }
    let answered = if arrival.packet.protocol == TCP {
        answer::reset(arrival)
    } else {
        answer::port_unreachable(arrival)
    };
    match answered {
        Some(verdict) => {
            maps::count_refused(refusal);
            Ok(verdict)
        }
        None => Err(refusal),
    }
}

/// Whether the client is told (semantics 7, 17, 18, 22): a Service that nobody
/// serves is refused; who may not come in, or comes to the wrong node, hears nothing.
#[inline(always)]
fn is_refused(reason: DropReason) -> bool {
    matches!(
        reason,
        DropReason::NoEndpoint | DropReason::PortNotInService
    )
}
