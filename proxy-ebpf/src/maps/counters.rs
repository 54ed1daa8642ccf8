//! Counters that other CPUs and the agent change at the same time.

use super::{BACKEND_STATS, DROP_STATS, SERVICE_STATS, current_backend};
use core::intrinsics::{AtomicOrdering, atomic_xadd};
use proxy_common::{
    BackendStats, DropReason,
    decide::{BackendRef, Refusal},
};

/// Counts one refused or dropped connection or datagram.
#[inline(always)]
pub fn count_refused(refusal: Refusal) {
    if let Some(counter) = DROP_STATS.get_ptr_mut(refusal.reason as u32) {
        // SAFETY: the element is this CPU's own and outlives the program.
        unsafe { *counter += 1 };
    }
    if refusal.service == 0 {
        return;
    }
    let Some(stats) = SERVICE_STATS.get_ptr_mut(refusal.service) else {
        return;
    };
    // SAFETY: an element of an array map is always valid.
    match refusal.reason {
        DropReason::NoEndpoint => unsafe { add_one(&raw mut (*stats).no_endpoint) },
        DropReason::NoLocalEndpoint => unsafe { add_one(&raw mut (*stats).no_local_endpoint) },
        _ => {}
    }
}

/// Counts one connection or conversation that goes to a backend.
#[inline(always)]
pub fn count_opened(backend: BackendRef) {
    if let Some(stats) = BACKEND_STATS.get_ptr_mut(backend.id) {
        // SAFETY: an element of an array map is always valid.
        unsafe { add_one(&raw mut (*stats).opened) };
    }
}

/// Counts one flow of the packet path that begins.
#[inline(always)]
pub fn count_flow(backend: BackendRef) {
    count_opened(backend);
    if let Some(stats) = BACKEND_STATS.get_ptr_mut(backend.id) {
        // SAFETY: an element of an array map is always valid.
        unsafe { add_open(&raw mut (*stats).open_flows, 1) };
    }
}

/// Counts one connection that did not come to be, unless the id has changed hands.
#[inline(always)]
pub fn count_failed(backend: BackendRef) {
    if let Some(stats) = current_stats(backend) {
        // SAFETY: an element of an array map is always valid.
        unsafe { add_one(&raw mut (*stats).failed) };
    }
}

/// Counts one more open connection of a socket, or with -1 one less, unless the id
/// has changed hands. Whether it did.
#[inline(always)]
pub fn count_open_socket(backend: BackendRef, change: i32) -> bool {
    let Some(stats) = current_stats(backend) else {
        return false;
    };
    // SAFETY: an element of an array map is always valid.
    unsafe { add_open(&raw mut (*stats).open_sockets, change) };
    true
}

/// The counters of a backend whose id has not changed hands.
#[inline(always)]
fn current_stats(backend: BackendRef) -> Option<*mut BackendStats> {
    current_backend(backend)?;
    BACKEND_STATS.get_ptr_mut(backend.id)
}

/// Adds to a number of open connections that other CPUs change as well.
///
/// # Safety
/// `number` is valid and aligned.
#[inline(always)]
unsafe fn add_open(number: *mut i32, change: i32) {
    // As in `add`; wrapping, so that the sign does not matter.
    let number = number.cast::<u32>();
    unsafe { atomic_xadd::<u32, u32, { AtomicOrdering::Relaxed }>(number, change as u32) };
}

/// Adds one to a counter that other CPUs add to as well.
///
/// # Safety
/// `counter` is valid and aligned.
#[inline(always)]
unsafe fn add_one(counter: *mut u64) {
    unsafe { add(counter, 1) };
}

/// Adds to such a counter.
///
/// # Safety
/// `counter` is valid and aligned.
#[inline(always)]
pub unsafe fn add(counter: *mut u64, amount: u64) {
    // The old value is not used: that is the one atomic that every kernel has.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(counter, amount) };
}
