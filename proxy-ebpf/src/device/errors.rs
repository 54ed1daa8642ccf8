//! ICMP errors about packets of flows.

use super::{
    Arrival, PASS, dsr,
    flows::{self, refusal},
    route,
};
use crate::packet::{Quoted, Translation, decrement_ttl, quoted, rewrite_error};
use proxy_common::{Address, DropReason, Flow, decide::Refusal};

/// What becomes of an ICMP packet that comes in.
pub enum Fate {
    /// It is about no flow.
    NotOurs,
    /// It goes on as packets of the flow do, which is in the scratch space: the node
    /// that has answered the client translates it.
    HandOver,
    /// It is translated; the verdict.
    Done(i32),
}

/// An ICMP packet comes in.
#[inline(always)]
pub fn incoming(arrival: &mut Arrival<'_>) -> Result<Fate, Refusal> {
    let Some(quoted) = quoted(arrival.ctx, arrival.packet) else {
        return Ok(Fate::NotOurs);
    };
    dsr::note_path_mtu(arrival, &quoted);
    arrival.scratch.key = quoted.reversed();
    let is_known = flows::find(arrival.scratch).is_some();
    let flow = &arrival.scratch.flow;
    // Errors about replies of local backends come in, those about requests to
    // them leave.
    if !is_known || (flow.is_reply() && !flow.is_snat()) {
        return Ok(Fate::NotOurs);
    }
    if flow.is_dsr() {
        return Ok(Fate::HandOver);
    }
    deliver(arrival, &quoted).map(Fate::Done).map_err(refusal)
}

/// An ICMP packet leaves: this node's own error about a request to a local backend.
/// Whether it is one.
#[inline(always)]
pub fn outgoing(arrival: &mut Arrival<'_>) -> Result<bool, DropReason> {
    let Some(quoted) = quoted(arrival.ctx, arrival.packet) else {
        return Ok(false);
    };
    arrival.scratch.key = quoted.reversed();
    let is_known = flows::find(arrival.scratch).is_some();
    let flow = &arrival.scratch.flow;
    if !is_known || !flow.is_reply() || flow.is_snat() {
        return Ok(false);
    }
    translate(arrival, &quoted)?;
    Ok(true)
}

#[inline(always)]
fn deliver(arrival: &mut Arrival<'_>, quoted: &Quoted) -> Result<i32, DropReason> {
    if !arrival.scratch.flow.is_snat() {
        translate(arrival, quoted)?;
        return Ok(PASS);
    }
    let out = if arrival.scratch.flow.is_reply() && route::leads_back(arrival) {
        arrival.scratch.flow.device
    } else {
        let destination = arrival.scratch.flow.destination;
        route::to(arrival, arrival.packet.source, destination)?
    };
    decrement_ttl(arrival.ctx, arrival.packet)?;
    translate(arrival, quoted)?;
    route::leave_by(arrival, out)
}

#[inline(always)]
fn translate(arrival: &Arrival<'_>, quoted: &Quoted) -> Result<(), DropReason> {
    let flow = &arrival.scratch.flow;
    let translation = Translation {
        source: source(arrival, flow),
        destination: flow.destination,
        quoted_source: flow.destination,
        quoted_destination: flow.source,
        quoted_source_port: flow.destination_port,
        quoted_destination_port: flow.source_port,
    };
    rewrite_error(arrival.ctx, arrival.packet, quoted, &translation)
        .map_err(|_| DropReason::RewriteFailed)
}

/// Who sends the error: an end of the flow as the other end knows it; towards
/// remote backends an address of ours, as with all that goes there; a router on
/// the way keeps its own address.
#[inline(always)]
fn source(arrival: &Arrival<'_>, flow: &Flow) -> Address {
    let sender = arrival.packet.source;
    let is_end = sender.same(arrival.scratch.key.source);
    if is_end || (flow.is_snat() && !flow.is_reply()) {
        flow.source
    } else {
        sender
    }
}
