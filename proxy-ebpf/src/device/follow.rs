//! Packets of flows that are known.

use super::{
    Arrival, PASS,
    flows::{self, Found, refusal},
    route,
};
use crate::{
    maps::{self, FLOWS, FLOWS_NEW},
    packet::{UDP, rewrite},
};
use proxy_common::{
    DropReason,
    decide::{BackendRef, Refusal},
};

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
        answered(arrival, &mut found)?;
    } else {
        if begins_anew(arrival) {
            flows::derive_other_key(arrival.scratch);
            flows::remove(arrival.scratch);
            return Ok(false);
        }
        if found.is_new {
            restore_other(arrival)?;
        }
    }
    if flows::touch(arrival, &found) && arrival.scratch.flow.is_snat() {
        route::ask(arrival)?;
        flows::note_way(arrival.scratch, &found);
        arrival.forget();
    }
    Ok(true)
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
    let _ = flows::touch(arrival, found);
    let (packet, flow) = (arrival.packet, &arrival.scratch.flow);
    rewrite(arrival.ctx, packet, flow, packet.ttl)?;
    if arrival.scratch.flow.device == arrival.index {
        return Ok(PASS);
    }
    route::leave_by(arrival, arrival.scratch.flow.device)
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
