//! Refusing: a TCP client gets a RST, a UDP client ICMP port unreachable, both
//! from the frontend's address; who sends what is too big is told what is not.
//! Where a policy asks for silence there is silence.

use super::{Arrival, answer};
use crate::{
    maps,
    packet::{TCP, icmp},
};
use proxy_common::DropReason;

/// Answers a packet that is refused; `None` if it gets no answer: who may not
/// come in, or comes to the wrong node, hears nothing (semantics 7, 17, 18, 22).
#[inline(always)]
pub fn answer(arrival: &mut Arrival<'_>, reason: DropReason) -> Option<i32> {
    let v4 = arrival.packet.is_v4();
    let is_tcp = arrival.packet.protocol == TCP;
    let (kind, code, rest) = match (reason, v4) {
        // Nobody serves the port (RFC 792, RFC 4443).
        (DropReason::NoEndpoint | DropReason::PortNotInService, true) => (3, 3, 0),
        (DropReason::NoEndpoint | DropReason::PortNotInService, false) => (1, 4, 0),
        // RFC 1191, RFC 8201.
        (DropReason::TooBig, true) => (3, 4, arrival.scratch.mtu),
        (DropReason::TooBig, false) => (2, 0, arrival.scratch.mtu),
        _ => return None,
    };
    // Who does not forbid fragments asks for no error (RFC 1191).
    let is_unasked = reason == DropReason::TooBig && !arrival.packet.dont_fragment;
    if is_unasked || !maps::may_answer() {
        return None;
    }
    arrival.forget();
    if is_tcp && reason != DropReason::TooBig {
        answer::reset(arrival)
    } else {
        answer::error(arrival, icmp::Error { kind, code, rest })
    }
}
