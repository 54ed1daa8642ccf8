//! From one set of maps to another of the same meaning and other sizes.
//!
//! The copy keeps ids and generations, so that what remembers a backend (sockets,
//! affinity) stays right. It is then restored as after any restart
//! ([`Publisher::restore`]). What does not fit is left out: its Service gets new
//! ids, or an error, from the publish that follows.

use super::{AddressSet, Kernel, KernelError, Publisher};
use proxy_common::{Address, Backend, BackendId, DeviceSettings, Frontend};
use zerocopy::FromZeros;

/// What became of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Frontends that the new maps have, too.
    pub frontends: usize,
    /// Elements with an id beyond the new sizes, or for which there is no room.
    pub left_out: usize,
}

/// Fills empty maps with the content of `old`. Backends that it does not have
/// begin with generation `base`, or above all of `old`'s.
pub fn copy(old: &impl Kernel, new: &mut impl Kernel, base: u32) -> Result<Migrated, KernelError> {
    let mut migrated = Migrated::default();
    let last = (1..old.backends_max()).map(|id| old.backend(id).generation);
    set_generations(new, base.max(last.max().unwrap_or(0)));
    // Their maps have one size.
    for (id, addresses) in old.nodes()? {
        new.set_node(id, &addresses)?;
    }
    for (address, id) in old.node_ids()? {
        new.set_node_id(&address, id)?;
    }
    for id in 1..old.backends_max().min(new.backends_max()) {
        let backend = old.backend(id);
        // One without state was about to be freed.
        if backend.state != 0 {
            new.set_backend(id, &backend);
        }
    }
    for (key, id) in old.local_backends()? {
        if id < new.backends_max() {
            new.set_local_backend(&key, id)?;
        }
    }
    for (id, record) in old.services()? {
        if id < new.services_max() {
            new.set_service(id, &record)?;
        }
    }
    for (prefix_length, range) in old.source_ranges()? {
        if range.service < new.services_max()
            && new.add_source_range(prefix_length, &range).is_err()
        {
            migrated.left_out += 1;
        }
    }
    while new.chunks() < old.chunks() {
        new.add_chunk()?;
    }
    for frontend in old.frontends()? {
        if copy_frontend(old, new, &frontend) {
            migrated.frontends += 1;
        } else {
            migrated.left_out += 1;
        }
    }
    let DeviceSettings { seed, node, .. } = old.device_settings()?;
    let settings = DeviceSettings {
        seed,
        node,
        ..new.device_settings()?
    };
    new.set_device_settings(&settings)?;
    for set in [
        AddressSet::Vips,
        AddressSet::External,
        AddressSet::NodeAddresses,
    ] {
        for address in old.addresses(set)? {
            if new.add_address(set, &address).is_err() {
                migrated.left_out += 1;
            }
        }
    }
    Ok(migrated)
}

/// Lets the backends of empty maps begin with this generation.
pub fn set_generations(new: &mut impl Kernel, generation: u32) {
    for id in 1..new.backends_max() {
        new.set_backend(id, &unused(generation));
    }
}

/// A generation above every one that an earlier set of maps can have reached: a
/// clock in milliseconds, since ids change hands more slowly than that. It wraps
/// after 49 days, and a reference would have to be that old to the millisecond.
pub fn fresh_generation() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    (now.unwrap_or_default().as_millis() & u128::from(u32::MAX)) as u32
}

/// Whether the frontend, and all that it names, fit.
fn copy_frontend(old: &impl Kernel, new: &mut impl Kernel, frontend: &Frontend) -> bool {
    let ids: Vec<BackendId> = old.table(frontend.table);
    let has =
        |id: &BackendId| *id < new.backends_max() && new.backend(*id).service == frontend.service;
    let fits = ids.len() == frontend.table.length as usize
        && ids.iter().all(has)
        && frontend.service < new.services_max();
    if !fits {
        return false;
    }
    if !new.table_is(frontend.table, &ids) {
        new.write_table(frontend.table, &ids);
    }
    new.set_frontend(frontend).is_ok()
}

fn unused(generation: u32) -> Backend {
    Backend {
        address: Address::ANY_V6,
        generation,
        ..Backend::new_zeroed()
    }
}

impl<K: Kernel> Publisher<K> {
    /// The maps, for what is no publish.
    pub fn kernel_mut(&mut self) -> &mut K {
        &mut self.kernel
    }
}
