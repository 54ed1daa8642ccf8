//! Counters by the ids of their owners, in shared memory.

use super::bpf::BpfKernel;
use super::{Kernel, KernelError};
use proxy_common::{BackendId, BackendStats, Flow, ServiceId, ServiceStats};
use std::collections::BTreeMap;

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

    /// Counters of a service port.
    pub fn service_stats(&self, id: ServiceId) -> ServiceStats {
        let stats = self.service_stats.at::<ServiceStats>(id as usize);
        // SAFETY: as above.
        stats.map_or_else(ServiceStats::default, |stats| unsafe {
            stats.read_volatile()
        })
    }

    /// Takes over the counters of what is still the same in `old`.
    pub fn copy_stats(&mut self, old: &Self) -> Result<(), KernelError> {
        for id in 1..self.backends_max.min(old.backends_max) {
            let backend = old.backend(id);
            if backend.service != 0
                && backend.generation == self.backend(id).generation
                && let Some(stats) = self.backend_stats.at::<BackendStats>(id as usize)
            {
                // SAFETY: inside the mapping and aligned; no program counts there yet.
                unsafe { stats.write_volatile(old.backend_stats(id)) };
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
