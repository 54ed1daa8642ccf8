//! Map `external_addresses`: the addresses of frontends that are neither ClusterIPs nor
//! addresses of nodes, so that a fragment without ports is known to be for one.

use super::{AddressSet, Kernel, KernelError};
use proxy_common::{Address, Frontend, FrontendKind};
use std::collections::{BTreeSet, HashMap};

/// The mirror of the map.
pub(super) struct External {
    /// How many frontends have each; none, if the map still has it from before.
    frontends: HashMap<Address, u32>,
    /// Those that the kernel did not take yet.
    missing: BTreeSet<Address>,
}

impl External {
    /// As the maps have it.
    pub(super) fn restore<'a>(
        kernel: &impl Kernel,
        frontends: impl Iterator<Item = &'a Frontend>,
    ) -> Result<Self, KernelError> {
        let known = kernel.addresses(AddressSet::External)?;
        let mut external = Self {
            frontends: known.into_iter().map(|address| (address, 0)).collect(),
            missing: BTreeSet::new(),
        };
        for address in frontends.filter_map(|it| address(*it)) {
            external.add(address);
        }
        Ok(external)
    }

    /// A frontend of the kernel has changed.
    pub(super) fn change(
        &mut self,
        kernel: &mut impl Kernel,
        before: Option<Frontend>,
        now: Option<Frontend>,
    ) {
        let (before, now) = (before.and_then(address), now.and_then(address));
        if before != now {
            if let Some(address) = now {
                self.add(address);
            }
            if let Some(address) = before {
                self.remove(kernel, address);
            }
        }
        self.add_missing(kernel);
    }

    fn add_missing(&mut self, kernel: &mut impl Kernel) {
        let missing = &mut self.missing;
        missing.retain(|address| said(kernel.add_address(AddressSet::External, address)).is_err());
    }

    fn add(&mut self, address: Address) {
        let missing = &mut self.missing;
        let count = self.frontends.entry(address).or_insert_with(|| {
            missing.insert(address);
            0
        });
        *count += 1;
    }

    fn remove(&mut self, kernel: &mut impl Kernel, address: Address) {
        let Some(count) = self.frontends.get_mut(&address) else {
            return;
        };
        *count = count.saturating_sub(1);
        if *count > 0 {
            return;
        }
        self.frontends.remove(&address);
        if !self.missing.remove(&address) {
            let _ = said(kernel.remove_address(AddressSet::External, &address));
        }
    }

    /// Removes addresses without frontends, and adds those that are missing.
    pub(super) fn prune(&mut self, kernel: &mut impl Kernel) -> Result<(), KernelError> {
        self.add_missing(kernel);
        let unused = self.frontends.iter().filter(|(_, count)| **count == 0);
        let unused: Vec<Address> = unused.map(|(address, _)| *address).collect();
        for address in unused {
            kernel.remove_address(AddressSet::External, &address)?;
            self.frontends.remove(&address);
        }
        Ok(())
    }
}

/// The address of a frontend, if it belongs into the map.
fn address(frontend: Frontend) -> Option<Address> {
    let is_external = matches!(
        frontend.kind,
        FrontendKind::LoadBalancer | FrontendKind::ExternalIp
    );
    is_external.then_some(frontend.key.address)
}

/// Only fragments that come before their first one depend on it.
fn said(result: Result<(), KernelError>) -> Result<(), KernelError> {
    result.inspect_err(
        |error| tracing::error!(%error, "map external_addresses is not as it should be"),
    )
}
