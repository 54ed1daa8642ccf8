//! Packets of flows that are known.

use super::{
    Arrival, PASS,
    flows::{self, Found},
    route,
};
use crate::{
    maps::{self, FLOWS_NEW},
    packet::{Packet, UDP, geneve, mss, rewrite},
};
use proxy_common::{DropReason, Flow, decide::BackendRef};

/// A packet comes in. Whether it is one of a flow, which then is in the scratch
/// space, and does not begin anew.
#[inline(always)]
pub fn incoming(arrival: &mut Arrival<'_>) -> Result<bool, DropReason> {
    let Some(mut found) = flows::find(arrival.scratch) else {
        return Ok(false);
    };
    if arrival.scratch.flow.is_reply() {
        if !arrival.scratch.flow.is_snat() {
            // Replies of local backends leave by egress.
            return Ok(false);
        }
    } else if begins_anew(arrival) {
        flows::derive_other_key(arrival.scratch);
        flows::remove(arrival.scratch);
        return Ok(false);
    }
    if found.is_new && !settle(arrival, &mut found)? {
        return Ok(false);
    }
    if flows::touch(arrival, &found) && arrival.scratch.flow.kind & (Flow::SNAT | Flow::DSR) != 0 {
        route::ask(arrival)?;
        flows::note_way(arrival.scratch, &found);
        arrival.forget();
    }
    Ok(true)
}

/// A packet leaves: the reply of a local backend gets its frontend's address. Whether
/// it is one.
#[inline(always)]
pub fn outgoing(arrival: &mut Arrival<'_>) -> Result<bool, DropReason> {
    let Some(mut found) = flows::find(arrival.scratch) else {
        return Ok(false);
    };
    if !arrival.scratch.flow.is_reply() || arrival.scratch.flow.is_snat() {
        return Ok(false);
    }
    if found.is_new {
        settle(arrival, &mut found)?;
    }
    let _ = flows::touch(arrival, &found);
    let (packet, flow) = (arrival.packet, &arrival.scratch.flow);
    rewrite(arrival.ctx, packet, flow, packet.ttl)?;
    if flow.is_tunnelled() && packet.tcp_flags & Packet::SYN != 0 {
        // What the client sends must fit into the tunnel, beside the headers.
        let v4 = packet.is_v4();
        let headers = geneve::overhead(v4) + if v4 { 40 } else { 60 };
        let most = arrival.device.mtu.saturating_sub(headers);
        mss::clamp(arrival.ctx, packet, most.min(u16::MAX as u32) as u16)
            .map_err(|_| DropReason::RewriteFailed)?;
    }
    Ok(true)
}

/// Sends what answers a flow out by the device of its request, unless it leaves there
/// anyway, or another node has handed that over, or that is no way to the client (any
/// more).
#[inline(always)]
pub fn go_back(arrival: &mut Arrival<'_>) -> Result<i32, DropReason> {
    let device = arrival.scratch.flow.device;
    if device == arrival.index || device == 0 || !route::leads_back(arrival) {
        return Ok(PASS);
    }
    route::leave_by(arrival, device)
}

/// A packet of a new flow, which may be the one that shows that it is answered.
/// `false` if it is a request's, and begins anew since another flow has the place of
/// its other half; a reply in that case is none of this client's.
#[inline(always)]
fn settle(arrival: &mut Arrival<'_>, found: &mut Found) -> Result<bool, DropReason> {
    if arrival.scratch.flow.is_dsr() {
        if arrival.packet.protocol != UDP && arrival.packet.only_acknowledges() {
            flows::promote_alone(arrival.scratch, found)?;
        }
        return Ok(true);
    }
    let is_reply = arrival.scratch.flow.is_reply();
    if !flows::complete(arrival.scratch)? {
        let _ = FLOWS_NEW.remove(&arrival.scratch.key);
        return if is_reply {
            Err(DropReason::NoFlow)
        } else {
            Ok(false)
        };
    }
    if is_answered(arrival, is_reply) {
        flows::promote(arrival.scratch, found)?;
    }
    Ok(true)
}

/// Whether the packet shows that a new flow is answered: one of UDP by what its
/// backend sends. In TCP the client must have acknowledged that: a flood of SYNs
/// makes backends send, and shall not get into `flows`.
#[inline(always)]
fn is_answered(arrival: &Arrival<'_>, is_reply: bool) -> bool {
    if arrival.packet.protocol == UDP {
        return is_reply;
    }
    !is_reply && arrival.scratch.other.packets != 0 && arrival.packet.only_acknowledges()
}

/// Whether a request of a known flow asks anew where to go: a SYN on a connection
/// that is over, a datagram whose backend no longer serves (semantics 25, 26). What
/// another node has handed us stays here, and goes to the backend that was chosen
/// there; in TCP a connection that we have keeps its own.
#[inline(always)]
fn begins_anew(arrival: &mut Arrival<'_>) -> bool {
    let flow = &arrival.scratch.flow;
    if arrival.scratch.tunnel_port != 0 {
        let is_elsewhere = flow.kind & (Flow::SNAT | Flow::DSR) != 0;
        let is_other = !flow.destination.same(arrival.scratch.tunnel_to)
            || flow.destination_port as u32 != arrival.scratch.tunnel_port;
        let opens = arrival.packet.protocol == UDP || arrival.packet.is_first_syn();
        if is_elsewhere || (opens && is_other) {
            return true;
        }
    }
    if arrival.packet.protocol == UDP {
        let backend = maps::current_backend(BackendRef {
            id: flow.backend,
            generation: flow.generation,
        });
        return backend.is_none_or(|it| !it.is_serving());
    }
    if !arrival.packet.is_first_syn() {
        return false;
    }
    if flow.is_dsr() {
        // Of both sides one is seen.
        return flow.state & (Flow::FIN | Flow::RST) != 0;
    }
    flows::derive_other_key(arrival.scratch);
    flows::find_other(arrival.scratch)
        && flows::is_over(arrival.scratch.flow.state, arrival.scratch.other.state)
}
