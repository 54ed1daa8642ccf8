//! Packets of no flow: where they go is decided here.

use super::{
    Arrival,
    client::PacketClient,
    dsr,
    flows::{self, refusal},
    route, snat, socket,
};
use crate::{
    maps::{self, FLOWS, FLOWS_NEW, KernelMaps, Work},
    packet::{TCP, zero},
};
use core::hint::black_box;
use proxy_common::{
    Address, Device, DropReason, Flow, Forwarding, Protocol, Scope,
    decide::{self, BackendRef, Refusal, Request, Target},
};

/// Decides about a packet of no flow. Whether it begins one, which then is in the
/// scratch space; if not, it is none of ours.
#[inline(always)]
pub fn begin(arrival: &mut Arrival<'_>) -> Result<bool, Refusal> {
    let packet = arrival.packet;
    if !packet.source.is_answerable() {
        return Ok(false);
    }
    let protocol = if packet.protocol == TCP {
        Protocol::Tcp
    } else {
        Protocol::Udp
    };
    let is_pod = arrival.device.role & Device::PODS != 0;
    let request = Request {
        destination: packet.destination,
        port: packet.destination_port,
        protocol,
        scope: if is_pod {
            Scope::Internal
        } else {
            Scope::External
        },
    };
    let is_handed_over = arrival.scratch.tunnel_port != 0;
    let maps = KernelMaps(PacketClient {
        packet,
        is_handed_over,
    });
    let frontend = &mut arrival.scratch.frontend;
    let refused = match decide::find_frontend(&maps, &request, frontend) {
        Ok(false) => {
            if arrival.scratch.tunnel_port == 0 {
                make_way(arrival);
            }
            return Ok(false);
        }
        Ok(true) => None,
        Err(reason) => Some(reason),
    };
    arrival.forget();
    let packet = arrival.packet;
    let is_tunnelled = arrival.scratch.tunnel_port != 0;
    let maps = KernelMaps(PacketClient {
        packet,
        is_handed_over: is_tunnelled,
    });
    if is_tunnelled && refused.is_some() {
        return Err(refusal(DropReason::TunnelToStranger));
    }
    let opens = packet.protocol != TCP || packet.is_first_syn();
    // A host socket's own port may have a NodePort's number.
    let may_be_answer = packet.protocol != TCP || !opens;
    if !is_tunnelled && may_be_answer && socket::is_connected(arrival.ctx, packet) {
        return Ok(false);
    }
    // Any node may be the next one to get the packets of a connection with DSR.
    let is_dsr = arrival.scratch.frontend.forwarding as u8 == Forwarding::Dsr as u8;
    if !opens && !is_tunnelled && (refused.is_some() || !is_dsr) {
        return stray();
    }
    if let Some(reason) = refused {
        return Err(refusal(reason));
    }
    let target = if is_tunnelled {
        dsr::target(arrival.scratch).map_err(refusal)?
    } else {
        decide::decide_at(&maps, &arrival.scratch.frontend, BackendRef::NONE)?
    };
    arrival.forget();
    store(arrival, &target).map_err(refusal)
}

/// A client that goes straight to a local backend may do so from a port that it had
/// a connection by a frontend with. That flow goes: the backend's answers would get
/// the frontend's address. One of TCP only if it is over; the client may have both.
#[inline(always)]
fn make_way(arrival: &mut Arrival<'_>) {
    let is_udp = arrival.packet.protocol != TCP;
    if !is_udp && !arrival.packet.is_first_syn() {
        return;
    }
    let scratch = &mut *arrival.scratch;
    scratch.other_key.source = scratch.key.destination;
    scratch.other_key.destination = scratch.key.source;
    scratch.other_key.source_port = scratch.key.destination_port;
    scratch.other_key.destination_port = scratch.key.source_port;
    scratch.other_key.protocol = scratch.key.protocol;
    if !flows::find_other(scratch) || !scratch.other.is_reply() || scratch.other.is_snat() {
        return;
    }
    if is_udp {
        let request = scratch.other.other_key(scratch.key.protocol);
        let _ = FLOWS.remove(&request);
        let _ = FLOWS_NEW.remove(&request);
    } else if !replaces(scratch) {
        return;
    }
    let _ = FLOWS.remove(&scratch.other_key);
    let _ = FLOWS_NEW.remove(&scratch.other_key);
}

/// A TCP packet in mid-connection to a frontend, of no flow and no socket.
#[inline(always)]
fn stray() -> Result<bool, Refusal> {
    if maps::device_settings().is_some_and(|settings| settings.take_over != 0) {
        return Ok(false);
    }
    Err(refusal(DropReason::NoFlow))
}

/// Stores both halves of a flow to a backend.
#[inline(always)]
fn store(arrival: &mut Arrival<'_>, target: &Target) -> Result<bool, DropReason> {
    arrival.forget();
    let mut local = maps::current_backend(target.backend).is_some_and(|it| it.local != 0);
    prepare(arrival, target, local);
    let is_pod = arrival.device.role & Device::PODS != 0;
    let is_handed_over = !local && !is_pod && dsr::hand_over(arrival, target);
    arrival.forget();
    if !local || is_pod {
        route::ask(arrival)?;
    }
    if is_handed_over {
        return store_alone(arrival, target);
    }
    let out = arrival.scratch.flow.out;
    if is_pod {
        // The stack sends it on, and what comes back leaves by this device, unless
        // the backend is behind it, too, or is the client itself (semantics 21).
        local = out != arrival.index && !target.address.same(arrival.packet.source);
        let flow = &mut arrival.scratch.flow;
        flow.kind = if local { 0 } else { Flow::SNAT };
        flow.device = if local { arrival.index } else { out };
    }
    // An endpoint that is here although nobody says so: its replies would come back
    // where no program is.
    if !local && !is_pod && maps::device(out).is_none() {
        local = true;
        arrival.scratch.flow.kind = 0;
    }
    if !local {
        // A bridge behind ports that are pods' devices is none of the packet path.
        let device = if is_pod { arrival.index } else { out };
        let address = route::source_address(device, arrival.packet.is_v4())?;
        arrival.scratch.flow.source = address;
    }
    flows::derive_other(arrival.scratch);
    // A local backend sees the client's own address, and its port if it can be.
    if !local || !store_local(arrival)? {
        snat::claim(arrival)?;
    }
    let scratch = &mut *arrival.scratch;
    let stored = FLOWS_NEW.insert(&scratch.key, &scratch.flow, flows::NO_EXIST);
    if stored.is_ok() {
        maps::count_flow(target.backend);
        return Ok(true);
    }
    // Another CPU was faster with the same tuple: its flow is the one, and its
    // reply's half may be the one that is there.
    let found = flows::find(scratch);
    if found.is_none()
        || !scratch
            .flow
            .other_key(scratch.key.protocol)
            .same(&scratch.other_key)
    {
        let _ = FLOWS_NEW.remove(&scratch.other_key);
    }
    found.map(|_| true).ok_or(DropReason::FlowsFull)
}

/// Stores the one half of a flow whose backend answers its client by itself.
#[inline(always)]
fn store_alone(arrival: &mut Arrival<'_>, target: &Target) -> Result<bool, DropReason> {
    let scratch = &mut *arrival.scratch;
    if FLOWS_NEW
        .insert(&scratch.key, &scratch.flow, flows::NO_EXIST)
        .is_ok()
    {
        maps::count_flow(target.backend);
        return Ok(true);
    }
    // Another CPU was faster with the same tuple: its flow is the one.
    let found = flows::find(scratch);
    found.map(|_| true).ok_or(DropReason::FlowsFull)
}

/// The request's half, but for the source that a remote backend sees.
#[inline(always)]
fn prepare(arrival: &mut Arrival<'_>, target: &Target, local: bool) {
    let packet = arrival.packet;
    let bytes = packet.length;
    let now_s = maps::now_s();
    let tag = arrival.scratch.key.tag();
    let flow = &mut arrival.scratch.flow;
    flow.tag = tag;
    flow.kind = if local { 0 } else { Flow::SNAT };
    flow.state = flows::next_state(0, packet);
    flow._reserved = 0;
    flow.packets = 1;
    flow.bytes = bytes as u64;
    // By words, since a copy from map to map is a call.
    let [first, second, third, fourth] = packet.source.words();
    flow.source = Address::from_words([first, second, third, black_box(fourth)]);
    flow.destination = target.address;
    flow.source_port = packet.source_port;
    flow.destination_port = target.port;
    flow.device = arrival.index;
    if arrival.scratch.tunnel_port != 0 {
        // The reply does not go back through the tunnel.
        flow.kind = Flow::TUNNELLED;
        flow.device = 0;
    }
    flow.backend = target.backend.id;
    flow.generation = target.backend.generation;
    flow.last_seen_s = now_s;
    flow.created_s = now_s;
    let zero = zero() as u32;
    flow.out = zero;
    flow.mtu = zero;
    flow.next_hop = Address::from_words([zero; 4]);
}

/// Stores the reply's half of a flow to a local backend, which sees the client's
/// own address. `false` if that address and port have a flow with it already, by
/// another frontend.
#[inline(always)]
fn store_local(arrival: &mut Arrival<'_>) -> Result<bool, DropReason> {
    let scratch = &mut *arrival.scratch;
    let stored = FLOWS_NEW
        .insert(&scratch.other_key, &scratch.other, flows::NO_EXIST)
        .is_ok();
    if stored && FLOWS.get_ptr(&scratch.other_key).is_none() {
        return Ok(true);
    }
    if flows::find_other(scratch) && !replaces(scratch) {
        if stored {
            // The other flow's is in `flows`.
            let _ = FLOWS_NEW.remove(&scratch.other_key);
        }
        flows::derive_other(scratch);
        return Ok(false);
    }
    let _ = FLOWS.remove(&scratch.other_key);
    flows::derive_other(scratch);
    FLOWS_NEW
        .insert(&scratch.other_key, &scratch.other, flows::ANY)
        .map_err(|_| DropReason::FlowsFull)?;
    Ok(true)
}

/// Whether the flow may take the place of the one whose reply's half is `other`:
/// it has the same frontend, and so is the same one, or that one is over. What
/// the client sent to that one's frontend must not go on to the backend, then.
#[inline(always)]
fn replaces(scratch: &Work) -> bool {
    let key = scratch.other.other_key(scratch.key.protocol);
    if key.same(&scratch.key) {
        return true;
    }
    let element = FLOWS.get_ptr(&key).or_else(|| FLOWS_NEW.get_ptr(&key));
    if let Some(element) = element {
        // SAFETY: the element is valid memory while the program runs. If it was
        // recycled, the flow was over.
        let state = unsafe { (&raw const (*element).state).read_volatile() };
        if !flows::is_over(state, scratch.other.state) {
            return false;
        }
    }
    let _ = FLOWS.remove(&key);
    let _ = FLOWS_NEW.remove(&key);
    true
}
