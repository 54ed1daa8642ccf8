//! Source ports of our own, for connections to remote backends.
//!
//! There are some ten thousand towards each backend, and a flood of SYNs takes them
//! all: its connections are half-open and keep theirs until they age. So one that
//! finds no free port takes that of one which has been half-open for long.
//!
//! What the backend still sends to the former owner reaches the new one, and TCP sorts
//! it out: only SYN-ACKs can come, since a client that acknowledged one is no longer
//! half-open. This one acknowledges a number that the new client has not sent, so the
//! client answers it with a RST (RFC 9293, 3.10.7.3), and that ends what the backend
//! has of the former owner; without it the backend would not take the new one's SYN.
//! The same is true of the acknowledgement by which the backend answers that SYN. The
//! former owner's next SYN gets another port, and everything else of it is dropped.
//! Datagrams have no such numbers: nobody takes a port from a flow of UDP.

use super::{Arrival, flows, socket};
use crate::{
    maps::{self, FLOWS, FLOWS_NEW, Work, device_settings},
    packet::TCP,
};
use core::sync::atomic::{Ordering, compiler_fence};
use proxy_common::DropReason;

/// Ports that are tried for one connection.
const TRIES: u32 = 16;

/// Seconds that a connection must have been half-open to lose its port: more than
/// one, by a clock that counts whole ones. A handshake takes one round trip, and who
/// has lost a packet of it sends again after a second (RFC 6298, 2.1); a shorter time
/// would end handshakes that are under way, a longer one keep more of a flood's ports.
const HALF_OPEN_S: u32 = 2;

/// No protocol of a packet.
const TAKING: u32 = 1 << 8 | TCP as u32;

/// Claims a source port towards the backend by storing the reply's half, whose
/// key it completes, and notes it in the request's. Two CPUs cannot claim the same one.
#[inline(always)]
pub fn claim(arrival: &mut Arrival<'_>) -> Result<(), DropReason> {
    let settings = device_settings().ok_or(DropReason::SnatPortsExhausted)?;
    let first = settings.snat_first_port as u32;
    let count = (settings.snat_last_port as u32 + 1).saturating_sub(first);
    if count == 0 {
        return Err(DropReason::SnatPortsExhausted);
    }
    // Each tuple has its own walk through the ports: with one stride for all,
    // ports in use would lie in the way of many tries at once.
    let start = arrival.scratch.key.hash(settings.seed);
    let stride = start.rotate_left(16) | 1;
    arrival.scratch.oldest_s = u32::MAX;
    for attempt in 0..TRIES {
        let port = (first + start.wrapping_add(attempt.wrapping_mul(stride)) % count) as u16;
        let scratch = &mut *arrival.scratch;
        scratch.other_key.destination_port = port;
        scratch.other.tag = scratch.other_key.tag();
        if socket::is_used(arrival.ctx, &scratch.other_key) {
            continue;
        }
        scratch.flow.source_port = port;
        if store(scratch) {
            return Ok(());
        }
        note_age(scratch);
    }
    arrival.forget();
    displace(arrival.scratch)
}

/// Stores the reply's half, if its port is free.
#[inline(always)]
fn store(scratch: &mut Work) -> bool {
    if FLOWS_NEW
        .insert(&scratch.other_key, &scratch.other, flows::NO_EXIST)
        .is_err()
    {
        return false;
    }
    // Only now: a half on its way to `flows` is in both for a moment.
    let is_free = FLOWS.get_ptr(&scratch.other_key).is_none();
    if !is_free {
        let _ = FLOWS_NEW.remove(&scratch.other_key);
    }
    is_free
}

/// Remembers the port if its connection is the oldest half-open one so far.
#[inline(always)]
fn note_age(scratch: &mut Work) {
    let Some(element) = FLOWS_NEW.get_ptr(&scratch.other_key) else {
        return;
    };
    // SAFETY: the element is valid memory while the program runs; if it was recycled,
    // `make_room` notices.
    let created_s = unsafe { (&raw const (*element).created_s).read_volatile() };
    if created_s < scratch.oldest_s {
        scratch.oldest_s = created_s;
        scratch.oldest_port = scratch.other_key.destination_port as u32;
    }
}

/// Takes the port of the oldest half-open connection that was met, if that is old
/// enough: both its halves go.
///
/// Should its handshake end on another CPU at this moment, the port may stay its, and
/// our request's half be a stranger to it: `flows::complete` finds that with our
/// client's next SYN.
#[inline(always)]
fn displace(scratch: &mut Work) -> Result<(), DropReason> {
    if scratch.key.protocol != TCP as u32 || scratch.oldest_s == u32::MAX {
        return Err(DropReason::SnatPortsExhausted);
    }
    let port = scratch.oldest_port as u16;
    scratch.flow.source_port = port;
    scratch.other_key.destination_port = port;
    scratch.other.tag = scratch.other_key.tag();
    // One CPU at a time takes a port: it holds it by an element that no flow has.
    scratch.other_key.protocol = TAKING;
    let is_held = FLOWS_NEW
        .insert(&scratch.other_key, &scratch.other, flows::NO_EXIST)
        .is_ok();
    scratch.other_key.protocol = TCP as u32;
    if !is_held {
        return Err(DropReason::SnatPortsExhausted);
    }
    let is_taken = make_room(scratch) && store(scratch);
    scratch.other_key.protocol = TAKING;
    let _ = FLOWS_NEW.remove(&scratch.other_key);
    scratch.other_key.protocol = TCP as u32;
    if is_taken {
        Ok(())
    } else {
        Err(DropReason::SnatPortsExhausted)
    }
}

/// Removes the halves of the connection whose reply's half is in the way, unless it is
/// another one by now.
#[inline(always)]
fn make_room(scratch: &mut Work) -> bool {
    let Some(element) = FLOWS_NEW.get_ptr(&scratch.other_key) else {
        return true;
    };
    // SAFETY: the element is valid memory while the program runs. If it is recycled
    // meanwhile, its tag is another one afterwards.
    let tag = unsafe {
        let reply = &*element;
        scratch.oldest_s = reply.created_s;
        scratch.displaced = reply.other_key(TCP as u32);
        compiler_fence(Ordering::Acquire);
        (&raw const (*element).tag).read_volatile()
    };
    let age_s = maps::now_s().saturating_sub(scratch.oldest_s);
    if tag != scratch.other.tag || age_s < HALF_OPEN_S {
        return false;
    }
    if let Some(element) = FLOWS_NEW.get_ptr(&scratch.displaced) {
        // SAFETY: the element is valid memory while the program runs.
        let port = unsafe { (&raw const (*element).source_port).read_volatile() };
        // Else that half was evicted, and its client has made another one since.
        if port as u32 == scratch.oldest_port {
            let _ = FLOWS_NEW.remove(&scratch.displaced);
        }
    }
    let _ = FLOWS_NEW.remove(&scratch.other_key);
    true
}
