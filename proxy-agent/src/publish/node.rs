//! What the maps hold of the node itself: its addresses, and the seed of the packet path.

use super::{AddressSet, Kernel, KernelError, Publisher};
use proxy_common::{Address, DeviceSettings, NodeAddresses};
use std::collections::BTreeSet;
use std::net::IpAddr;

impl<K: Kernel> Publisher<K> {
    /// Makes map `node_addresses` hold just these.
    pub fn set_node_addresses(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<(), KernelError> {
        let wanted: BTreeSet<Address> = addresses.iter().map(|&ip| ip.into()).collect();
        let mut outcome = Ok(());
        for address in self.node_addresses.clone().difference(&wanted) {
            self.kernel
                .remove_address(AddressSet::NodeAddresses, address)?;
            self.node_addresses.remove(address);
        }
        for address in wanted.difference(&self.node_addresses.clone()) {
            match self.kernel.add_address(AddressSet::NodeAddresses, address) {
                Ok(()) => {
                    self.node_addresses.insert(*address);
                }
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    /// From which of its addresses this node hands packets to others.
    pub fn set_own_node(&mut self, node: NodeAddresses) -> Result<(), KernelError> {
        if self.own_node == node {
            return Ok(());
        }
        let settings = DeviceSettings {
            node,
            ..self.kernel.device_settings()?
        };
        self.kernel.set_device_settings(&settings)?;
        self.own_node = node;
        Ok(())
    }

    /// The seed of Maglev tables: what an earlier agent wrote, or 0.
    pub fn seed(&self) -> u32 {
        self.seed
    }

    /// Makes this the seed of Maglev tables, and of the programs' hash. After a
    /// change every Service must be published anew.
    pub fn set_seed(&mut self, seed: u32) -> Result<(), KernelError> {
        let settings = DeviceSettings {
            seed,
            ..self.kernel.device_settings()?
        };
        self.kernel.set_device_settings(&settings)?;
        self.seed = seed;
        Ok(())
    }
}
