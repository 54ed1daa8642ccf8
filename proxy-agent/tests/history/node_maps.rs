//! The maps of Nodes, and of backends on this one, in the kernel in memory.

use crate::kernel::{FakeKernel, Pinned, Touches};
use proxy_agent::publish::{KernelError, NodeMaps};
use proxy_common::{Address, BackendId, LocalBackendKey, NodeAddresses, NodeId};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

#[derive(Default)]
pub(crate) struct NodeElements {
    elements: BTreeMap<NodeId, NodeAddresses>,
    ids: BTreeMap<Address, NodeId>,
    local: HashMap<LocalBackendKey, BackendId>,
}

impl NodeElements {
    /// The addresses that a backend's Node has; none for no Node.
    pub(crate) fn addresses_of(&self, id: NodeId) -> Vec<IpAddr> {
        let node = self.elements.get(&id);
        let both = node.into_iter().flat_map(|it| [it.v4, it.v6]);
        let known = both.filter(|it| !it.same(it.wildcard()));
        known.map(|it| it.to_ip()).collect()
    }

    /// The addresses from which packets are taken.
    pub(crate) fn friends(&self) -> Vec<IpAddr> {
        self.ids.keys().map(|it| it.to_ip()).collect()
    }

    /// Service port and endpoint of each backend on this node, with its id.
    pub(crate) fn local(&self) -> impl Iterator<Item = (&LocalBackendKey, BackendId)> {
        self.local.iter().map(|(key, id)| (key, *id))
    }
}

/// What a backend refers to stays as it is.
fn check(pinned: &Pinned, id: NodeId) -> Result<(), String> {
    match pinned
        .backends()
        .find(|it| it.service != 0 && it.node == id)
    {
        Some(user) => Err(format!("the Node of a backend changes: {user:?}")),
        None => Ok(()),
    }
}

impl NodeMaps for FakeKernel {
    fn nodes_max(&self) -> u32 {
        64
    }
    fn nodes(&self) -> Result<Vec<(NodeId, NodeAddresses)>, KernelError> {
        let elements = &self.0.borrow().nodes.elements;
        Ok(elements.iter().map(|(id, it)| (*id, *it)).collect())
    }
    fn set_node(&mut self, id: NodeId, addresses: &NodeAddresses) -> Result<(), KernelError> {
        self.write(Touches::Nothing, |it| {
            let broken = check(it, id).err();
            it.break_with(broken);
            if *addresses == NodeAddresses::NONE {
                it.nodes.elements.remove(&id);
            } else {
                it.nodes.elements.insert(id, *addresses);
            }
        });
        Ok(())
    }
    fn node_ids(&self) -> Result<Vec<(Address, NodeId)>, KernelError> {
        let ids = &self.0.borrow().nodes.ids;
        Ok(ids.iter().map(|(address, id)| (*address, *id)).collect())
    }
    fn set_node_id(&mut self, address: &Address, id: NodeId) -> Result<(), KernelError> {
        self.write(Touches::Nothing, |it| it.nodes.ids.insert(*address, id));
        Ok(())
    }
    fn remove_node_id(&mut self, address: &Address) -> Result<(), KernelError> {
        self.write(Touches::Nothing, |it| it.nodes.ids.remove(address));
        Ok(())
    }
    fn local_backends(&self) -> Result<Vec<(LocalBackendKey, BackendId)>, KernelError> {
        let local = &self.0.borrow().nodes.local;
        Ok(local.iter().map(|(key, id)| (*key, *id)).collect())
    }
    fn set_local_backend(
        &mut self,
        key: &LocalBackendKey,
        id: BackendId,
    ) -> Result<(), KernelError> {
        self.write(Touches::Nothing, |it| it.nodes.local.insert(*key, id));
        Ok(())
    }
    fn remove_local_backend(&mut self, key: &LocalBackendKey) -> Result<(), KernelError> {
        self.write(Touches::Nothing, |it| it.nodes.local.remove(key));
        Ok(())
    }
}
