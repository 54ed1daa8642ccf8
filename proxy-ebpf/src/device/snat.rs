//! Source ports of our own, for connections to remote backends.

use super::{Arrival, flows, socket};
use crate::maps::{FLOWS, FLOWS_NEW, device_settings};
use proxy_common::DropReason;

/// Ports that are tried for one connection.
const TRIES: u32 = 16;

/// Claims a source port towards the backend by storing the reply's half, whose
/// key it completes. Two CPUs cannot claim the same one.
#[inline(always)]
pub fn claim(arrival: &mut Arrival<'_>) -> Result<u16, DropReason> {
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
    for attempt in 0..TRIES {
        let port = (first + start.wrapping_add(attempt.wrapping_mul(stride)) % count) as u16;
        let scratch = &mut *arrival.scratch;
        scratch.other_key.destination_port = port;
        scratch.other.tag = scratch.other_key.tag();
        if socket::is_used(arrival.ctx, &scratch.other_key)
            || FLOWS_NEW
                .insert(&scratch.other_key, &scratch.other, flows::NO_EXIST)
                .is_err()
        {
            continue;
        }
        // Only now: a half on its way to `flows` is in both for a moment.
        if FLOWS.get_ptr(&scratch.other_key).is_none() {
            return Ok(port);
        }
        let _ = FLOWS_NEW.remove(&scratch.other_key);
    }
    Err(DropReason::SnatPortsExhausted)
}
