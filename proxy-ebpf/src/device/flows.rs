//! The two maps of flows. A flow's two halves are worked on in the scratch
//! space: `key` and `flow` are those of the packet's own direction.

use super::Arrival;
use crate::{
    maps::{self, FLOWS, FLOWS_NEW, Work},
    packet::{Packet, zero},
};
use core::hint::black_box;
use proxy_common::{Address, DropReason, Flow, FlowKey, decide::Refusal};

/// include/uapi/linux/bpf.h
pub const ANY: u64 = 0;
pub const NO_EXIST: u64 = 1;

/// A flow that is known; the scratch space has a copy.
pub struct Found {
    pub element: *mut Flow,
    /// Whether it is in `flows_new`.
    pub is_new: bool,
}

/// Finds the flow of `key` and copies it to `flow`.
#[inline(always)]
pub fn find(scratch: &mut Work) -> Option<Found> {
    let (element, is_new) = match FLOWS.get_ptr_mut(&scratch.key) {
        Some(element) => (element, false),
        None => match FLOWS_NEW.get_ptr_mut(&scratch.key) {
            Some(element) => (element, true),
            // Another CPU may have moved it between the two look-ups.
            None => (FLOWS.get_ptr_mut(&scratch.key)?, false),
        },
    };
    copy(element, &mut scratch.flow, &scratch.key).then_some(Found { element, is_new })
}

/// Copies the half of `other_key` to `other`, if it is there.
#[inline(always)]
pub fn find_other(scratch: &mut Work) -> bool {
    let element = match FLOWS.get_ptr(&scratch.other_key) {
        Some(element) => element,
        None => match FLOWS_NEW.get_ptr(&scratch.other_key) {
            Some(element) => element,
            None => return false,
        },
    };
    copy(element, &mut scratch.other, &scratch.other_key)
}

/// Copies an element out; `false` if it was recycled meanwhile.
#[inline(always)]
fn copy(element: *const Flow, to: &mut Flow, key: &FlowKey) -> bool {
    type Words = [u64; size_of::<Flow>() / 8];
    let (from, to_words) = (element.cast::<u64>(), (&raw mut *to).cast::<u64>());
    for word in 0..size_of::<Words>() / 8 {
        // SAFETY: both have that many words, and every sequence of bytes is a
        // `Flow`. By words, so that it does not go by the stack.
        unsafe { to_words.add(word).write(from.add(word).read_volatile()) };
    }
    // SAFETY: the element is valid memory while the program runs; volatile, so
    // that it is read again, and afterwards.
    let tag = unsafe { (&raw const (*element).tag).read_volatile() };
    tag == to.tag && tag == key.tag()
}

/// Notes a packet of the flow. Whether it is the first one in this second, or the
/// first at all.
#[inline(always)]
pub fn touch(arrival: &Arrival<'_>, found: &Found) -> bool {
    let packet = arrival.packet;
    let element = found.element;
    // SAFETY: the kernel hands a valid context.
    let segments = unsafe { (*arrival.ctx.skb.skb).gso_segs };
    let bytes = packet.length;
    let old = arrival.scratch.flow.state;
    let state = next_state(old, packet);
    let now_s = maps::now_s();
    // SAFETY: the element is valid memory while the program runs. If it was
    // recycled, another flow's counters are off by a packet.
    unsafe {
        maps::add(&raw mut (*element).packets, segments.max(1) as u64);
        maps::add(&raw mut (*element).bytes, bytes as u64);
        if state != old {
            (*element).state = state;
        }
        let flow = &arrival.scratch.flow;
        let is_first = flow.last_seen_s != now_s || flow.out == 0;
        if is_first {
            (*element).last_seen_s = now_s;
        }
        is_first
    }
}

/// Notes where packets of the flow are sent on. Another CPU that reads one part
/// from before and one from after sends one packet astray.
#[inline(always)]
pub fn note_way(scratch: &Work, found: &Found) {
    let (element, flow) = (found.element, &scratch.flow);
    // By words, since a copy from map to map is a call.
    let [first, second, third, fourth] = flow.next_hop.words();
    let next_hop = Address::from_words([first, second, third, black_box(fourth)]);
    // SAFETY: as in `touch`; if the element was recycled, its flow asks anew in its
    // next second.
    unsafe {
        (*element).out = flow.out;
        (*element).mtu = flow.mtu;
        (*element).next_hop = next_hop;
    }
}

/// A reset ends nothing by itself: it may be forged, or outside of the window
/// (RFC 5961). It makes the flow age fast, unless something follows it.
#[inline(always)]
pub fn next_state(state: u8, packet: &Packet) -> u8 {
    let mut next = state & !Flow::RST;
    if packet.tcp_flags & Packet::FIN != 0 {
        next |= Flow::FIN;
    }
    if packet.tcp_flags & Packet::RST != 0 {
        next |= Flow::RST;
    }
    next
}

/// Whether a connection is over in both directions, or reset in one, by the
/// states of its halves.
#[inline(always)]
pub fn is_over(state: u8, other: u8) -> bool {
    (state | other) & Flow::RST != 0 || state & other & Flow::FIN != 0
}

/// Finds the other half of a new flow. It may have been evicted by itself: then it
/// is made anew. `false` if another flow has its place: then this one was evicted in
/// part and made anew by the client's next packet, or lost its port (`snat`).
#[inline(always)]
pub fn complete(scratch: &mut Work) -> Result<bool, DropReason> {
    derive_other_key(scratch);
    if find_other(scratch) {
        let back = scratch.other.other_key(scratch.key.protocol);
        return Ok(back.same(&scratch.key));
    }
    derive_other(scratch);
    FLOWS_NEW
        .insert(&scratch.other_key, &scratch.other, NO_EXIST)
        .map_err(|_| DropReason::TupleTaken)?;
    // Another CPU may have moved it to `flows` meanwhile.
    if FLOWS.get_ptr(&scratch.other_key).is_some() {
        let _ = FLOWS_NEW.remove(&scratch.other_key);
    }
    Ok(true)
}

/// Removes both halves of a flow, wherever they are.
#[inline(always)]
pub fn remove(scratch: &Work) {
    // What is not there need not go.
    let _ = FLOWS.remove(&scratch.key);
    let _ = FLOWS.remove(&scratch.other_key);
    let _ = FLOWS_NEW.remove(&scratch.key);
    let _ = FLOWS_NEW.remove(&scratch.other_key);
}

/// Makes `other_key` from `key` and `flow`.
#[inline(always)]
pub fn derive_other_key(scratch: &mut Work) {
    scratch.other_key = scratch.flow.other_key(scratch.key.protocol);
}

/// Makes the other half from `key` and `flow`.
#[inline(always)]
pub fn derive_other(scratch: &mut Work) {
    derive_other_key(scratch);
    let Work {
        key,
        other_key,
        flow,
        other,
        ..
    } = scratch;
    other.tag = other_key.tag();
    other.kind = flow.kind ^ Flow::REPLY;
    other.state = flow.state & Flow::ANSWERED;
    let zero = zero();
    other._reserved = zero as u16;
    other.packets = zero;
    other.bytes = zero;
    other.source = key.destination;
    other.destination = key.source;
    other.source_port = key.destination_port;
    other.destination_port = key.source_port;
    other.device = flow.device;
    other.backend = flow.backend;
    other.generation = flow.generation;
    other.last_seen_s = flow.last_seen_s;
    other.created_s = flow.created_s;
    other.out = zero as u32;
    other.mtu = zero as u32;
    other.next_hop = Address::from_words([zero as u32; 4]);
}

/// The flow is answered: both halves, which are in the scratch space, move to
/// `flows`, where no flood of new ones can evict them.
#[inline(always)]
pub fn promote(scratch: &mut Work, found: &mut Found) -> Result<(), DropReason> {
    scratch.other.state |= Flow::ANSWERED;
    scratch.flow.state |= Flow::ANSWERED;
    let stored = FLOWS
        .insert(&scratch.other_key, &scratch.other, ANY)
        .and_then(|()| FLOWS.insert(&scratch.key, &scratch.flow, ANY));
    if stored.is_err() {
        let _ = FLOWS.remove(&scratch.other_key);
        return Err(DropReason::FlowsFull);
    }
    let _ = FLOWS_NEW.remove(&scratch.other_key);
    let _ = FLOWS_NEW.remove(&scratch.key);
    if let Some(element) = FLOWS.get_ptr_mut(&scratch.key) {
        found.element = element;
    }
    Ok(())
}

/// The same for a flow whose backend answers its client by itself: there is one half.
#[inline(always)]
pub fn promote_alone(scratch: &mut Work, found: &mut Found) -> Result<(), DropReason> {
    scratch.flow.state |= Flow::ANSWERED;
    FLOWS
        .insert(&scratch.key, &scratch.flow, ANY)
        .map_err(|_| DropReason::FlowsFull)?;
    let _ = FLOWS_NEW.remove(&scratch.key);
    if let Some(element) = FLOWS.get_ptr_mut(&scratch.key) {
        found.element = element;
    }
    Ok(())
}

/// A refusal for a reason that no single service port has.
#[inline(always)]
pub fn refusal(reason: DropReason) -> Refusal {
    Refusal { reason, service: 0 }
}
