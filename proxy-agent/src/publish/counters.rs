//! Counters by the ids of their owners, in shared memory.

use super::bpf::BpfKernel;
use super::{Kernel, KernelError};
use proxy_common::decide::BackendRef;
use proxy_common::{BackendId, BackendStats, Flow, ServiceId, ServiceStats};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, Ordering};

impl BpfKernel {
    /// Counters of a backend.
    pub fn backend_stats(&self, id: BackendId) -> BackendStats {
        let stats = self.backend_stats.at::<BackendStats>(id as usize);
        // SAFETY: inside the mapping and aligned; a counter may be one behind.
        stats.map_or_else(BackendStats::default, |stats| unsafe {
            stats.read_volatile()
        })
    }

    /// Adds what a flow carried to its backend's counters, unless the id has
    /// changed hands. One thread at a time; programs write other fields.
    pub fn count_flow(&self, request: &Flow, reply: Option<&Flow>) {
        if self.backend(request.backend).generation != request.generation {
            return;
        }
        let Some(stats) = self
            .backend_stats
            .at::<BackendStats>(request.backend as usize)
        else {
            return;
        };
        let reply = reply.map_or((0, 0), |it| (it.packets, it.bytes));
        // SAFETY: pointers to fields of an element inside the mapping, aligned.
        let counters = unsafe {
            [
                (&raw mut (*stats).closed, 1),
                (&raw mut (*stats).packets_to, request.packets),
                (&raw mut (*stats).bytes_to, request.bytes),
                (&raw mut (*stats).packets_from, reply.0),
                (&raw mut (*stats).bytes_from, reply.1),
            ]
        };
        for (counter, more) in counters {
            // SAFETY: as above.
            unsafe { counter.write_volatile(counter.read_volatile().wrapping_add(more)) };
        }
    }

    /// Backends that open flows are counted for: id, generation, number.
    pub(crate) fn open_flows(&self) -> impl Iterator<Item = (BackendId, u32, i32)> {
        (1..self.backends_max).filter_map(|id| {
            let open = self.backend_stats(id).open_flows;
            (open != 0).then(|| (id, self.backend(id).generation, open))
        })
    }

    /// Adds to the number of a backend's open flows, unless the id has changed hands.
    pub(crate) fn correct_open_flows(&self, backend: BackendRef, change: i32) {
        if self.backend(backend.id).generation == backend.generation {
            self.add_open(backend.id, 0, change);
        }
    }

    /// Adds what has been open in `old` all the while, whose programs no longer
    /// run: until then they have changed its numbers, and not these.
    pub(crate) fn take_over_open(&self, old: &Self) {
        for id in 1..self.backends_max.min(old.backends_max) {
            let BackendStats {
                open_sockets,
                open_flows,
                ..
            } = old.backend_stats(id);
            if self.is_still(id, old) && (open_sockets, open_flows) != (0, 0) {
                self.add_open(id, open_sockets, open_flows);
            }
        }
    }

    /// Adds to numbers that programs change at the same time.
    fn add_open(&self, id: BackendId, sockets: i32, flows: i32) {
        let Some(stats) = self.backend_stats.at::<BackendStats>(id as usize) else {
            return;
        };
        // SAFETY: pointers to fields of an element inside the mapping, aligned; all
        // that changes them does so by atomic additions.
        let numbers = unsafe {
            [
                (AtomicI32::from_ptr(&raw mut (*stats).open_sockets), sockets),
                (AtomicI32::from_ptr(&raw mut (*stats).open_flows), flows),
            ]
        };
        for (number, change) in numbers {
            number.fetch_add(change, Ordering::Relaxed);
        }
    }

    /// Whether a backend is the same one as in `old`.
    fn is_still(&self, id: BackendId, old: &Self) -> bool {
        let backend = old.backend(id);
        backend.service != 0 && backend.generation == self.backend(id).generation
    }

    /// Counters of a service port.
    pub fn service_stats(&self, id: ServiceId) -> ServiceStats {
        let stats = self.service_stats.at::<ServiceStats>(id as usize);
        // SAFETY: as above.
        stats.map_or_else(ServiceStats::default, |stats| unsafe {
            stats.read_volatile()
        })
    }

    /// Takes over the counters of what is still the same in `old`, but for what is
    /// open: see [`Self::take_over_open`].
    pub fn copy_stats(&mut self, old: &Self) -> Result<(), KernelError> {
        for id in 1..self.backends_max.min(old.backends_max) {
            if self.is_still(id, old)
                && let Some(stats) = self.backend_stats.at::<BackendStats>(id as usize)
            {
                // SAFETY: inside the mapping and aligned; no program counts there yet.
                unsafe {
                    stats.write_volatile(BackendStats {
                        open_sockets: 0,
                        open_flows: 0,
                        ..old.backend_stats(id)
                    });
                }
            }
        }
        let names: BTreeMap<_, _> = old.services()?.into_iter().collect();
        for (id, record) in self.services()? {
            if names.get(&id).is_some_and(|it| it.name == record.name)
                && let Some(stats) = self.service_stats.at::<ServiceStats>(id as usize)
            {
                // SAFETY: as above.
                unsafe { stats.write_volatile(old.service_stats(id)) };
            }
        }
        Ok(())
    }
}
