//! Packets of flows that are known.

use super::{
    Arrival, PASS, answer,
    flows::{self, Found, refusal},
    route,
};
use crate::{
    maps::{self, FLOWS, FLOWS_NEW},
    packet::{UDP, decrement_ttl, rewrite},
};
use proxy_common::{
    DropReason,
    decide::{BackendRef, Refusal},
};

/// A packet of a flow comes in; `None` if it belongs to none, or begins anew.
#[inline(always)]
pub fn incoming(arrival: &mut Arrival<'_>) -> Option<Result<i32, Refusal>> {
    let mut found = flows::find(arrival.scratch)?;
    if arrival.scratch.flow.is_reply() {
        if !arrival.scratch.flow.is_snat() {
            // Replies of local backends leave by egress.
            return None;
        }
        return Some(reply(arrival, &mut found).map_err(refusal));
    }
    if begins_anew(arrival) {
        flows::derive_other_key(arrival.scratch);
        flows::remove(arrival.scratch);
        return None;
    }
    Some(request(arrival, &found).map_err(refusal))
}

/// A packet leaves: the reply of a local backend gets its frontend's address.
#[inline(always)]
pub fn outgoing(arrival: &mut Arrival<'_>) -> Result<i32, Refusal> {
    let Some(mut found) = flows::find(arrival.scratch) else {
        return Ok(PASS);
    };
    if !arrival.scratch.flow.is_reply() || arrival.scratch.flow.is_snat() {
        return Ok(PASS);
    }
    leave(arrival, &mut found).map_err(refusal)
}

#[inline(always)]
fn leave(arrival: &mut Arrival<'_>, found: &mut Found) -> Result<i32, DropReason> {
    answered(arrival, found)?;
    flows::touch(arrival, found);
    rewrite(arrival.ctx, arrival.packet, &arrival.scratch.flow)?;
    if arrival.scratch.flow.device == arrival.index {
        return Ok(PASS);
    }
    route::leave_by(arrival, arrival.scratch.flow.device)
}

/// From the client to the backend.
#[inline(always)]
fn request(arrival: &mut Arrival<'_>, found: &Found) -> Result<i32, DropReason> {
    if found.is_new {
        restore_other(arrival)?;
    }
    flows::touch(arrival, found);
    forward(arrival)
}

/// The other half of a new flow may have been evicted by itself.
#[inline(always)]
fn restore_other(arrival: &mut Arrival<'_>) -> Result<(), DropReason> {
    flows::derive_other(arrival.scratch);
    let key = &arrival.scratch.other_key;
    if FLOWS_NEW.get_ptr(key).is_some() || FLOWS.get_ptr(key).is_some() {
        return Ok(());
    }
    FLOWS_NEW
        .insert(key, &arrival.scratch.other, flows::NO_EXIST)
        .map_err(|_| DropReason::TupleTaken)?;
    // Another CPU may have moved it to `flows` meanwhile.
    if FLOWS.get_ptr(key).is_some() {
        let _ = FLOWS_NEW.remove(key);
    }
    Ok(())
}

/// Sends a request on its way, as `flow` says.
#[inline(always)]
pub fn forward(arrival: &mut Arrival<'_>) -> Result<i32, DropReason> {
    let (ctx, packet) = (arrival.ctx, arrival.packet);
    if !arrival.scratch.flow.is_snat() {
        rewrite(ctx, packet, &arrival.scratch.flow)?;
        return Ok(PASS);
    }
    let out = route::to(arrival, packet.source, arrival.scratch.flow.destination)?;
    let too_large = route::exceeds(arrival, out);
    if let Some(mtu) = too_large
        && packet.dont_fragment
    {
        return too_big(arrival, mtu);
    }
    decrement_ttl(ctx, packet)?;
    rewrite(ctx, packet, &arrival.scratch.flow)?;
    match too_large {
        Some(_) => route::leave_by_stack(arrival),
        None => route::leave_by(arrival, out),
    }
}

/// The sender is told, if it asked for that by DF (RFC 1191) or by IPv6.
#[inline(always)]
fn too_big(arrival: &mut Arrival<'_>, mtu: u32) -> Result<i32, DropReason> {
    if maps::may_answer()
        && let Some(verdict) = answer::too_big(arrival, mtu)
    {
        maps::count_refused(refusal(DropReason::TooBig));
        return Ok(verdict);
    }
    Err(DropReason::TooBig)
}

/// From a remote backend to the client.
#[inline(always)]
fn reply(arrival: &mut Arrival<'_>, found: &mut Found) -> Result<i32, DropReason> {
    answered(arrival, found)?;
    flows::touch(arrival, found);
    decrement_ttl(arrival.ctx, arrival.packet)?;
    rewrite(arrival.ctx, arrival.packet, &arrival.scratch.flow)?;
    route::leave_by(arrival, arrival.scratch.flow.device)
}

#[inline(always)]
fn answered(arrival: &mut Arrival<'_>, found: &mut Found) -> Result<(), DropReason> {
    if found.is_new {
        return flows::promote(arrival.scratch, found);
    }
    Ok(())
}

/// Whether a request of a known flow asks anew where to go: a SYN on a connection
/// that is over, a datagram whose backend no longer serves (semantics 25, 26).
#[inline(always)]
fn begins_anew(arrival: &mut Arrival<'_>) -> bool {
    let flow = &arrival.scratch.flow;
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
    flows::derive_other_key(arrival.scratch);
    flows::find_other(arrival.scratch)
        && flows::is_over(arrival.scratch.flow.state, arrival.scratch.other.state)
}
