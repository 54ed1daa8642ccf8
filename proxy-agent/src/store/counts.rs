//! How often each address occurs.

use std::collections::HashMap;
use std::net::IpAddr;

/// A multiset of addresses.
#[derive(Debug, Default)]
pub(super) struct AddressCounts {
    counts: HashMap<IpAddr, u32>,
}

impl AddressCounts {
    /// Adds one; whether it is the first of this address.
    pub(super) fn add(&mut self, address: IpAddr) -> bool {
        let count = self.counts.entry(address).or_default();
        *count += 1;
        *count == 1
    }

    /// Removes one; whether it was the last of this address.
    pub(super) fn remove(&mut self, address: IpAddr) -> bool {
        let Some(count) = self.counts.get_mut(&address) else {
            return false;
        };
        *count -= 1;
        let last = *count == 0;
        if last {
            self.counts.remove(&address);
        }
        last
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.counts.contains_key(&address)
    }
}
