//! The maps of Nodes, and of backends on this one.

use super::{Fake, Maps};
use crate::publish::{KernelError, NodeMaps};
use proxy_common::{Address, BackendId, LocalBackendKey, NodeAddresses, NodeId};
use std::collections::BTreeMap;
use std::io;

/// Number of elements of `nodes`.
const NODES_MAX: u32 = 128;

#[derive(Default)]
pub(in crate::publish::tests) struct Nodes {
    pub(in crate::publish::tests) elements: BTreeMap<NodeId, NodeAddresses>,
    pub(in crate::publish::tests) ids: BTreeMap<Address, NodeId>,
    pub(in crate::publish::tests) local: BTreeMap<LocalKey, BackendId>,
    /// Room of `local_backends`; 0 for plenty.
    pub(in crate::publish::tests) local_max: usize,
}

/// Address, port and service.
pub(in crate::publish::tests) type LocalKey = (Address, u32, u32);

fn local_key(key: &LocalBackendKey) -> LocalKey {
    (key.address, key.port, key.service)
}

impl Maps {
    /// Whoever reads a backend finds its Node, and takes none for another; whoever
    /// takes packets from a Node finds it.
    pub(super) fn check_nodes(&self) {
        for backend in self.backends.iter().filter(|it| it.service != 0) {
            let known = backend.node == 0 || self.nodes.elements.contains_key(&backend.node);
            assert!(known, "the Node of a backend is gone: {backend:?}");
        }
        for (address, id) in &self.nodes.ids {
            let node = self.nodes.elements.get(id);
            assert!(
                node.is_some_and(|it| it.v4 == *address || it.v6 == *address),
                "{address:?} leads to {node:?}"
            );
        }
    }
}

fn full(map: &'static str) -> KernelError {
    KernelError {
        call: "update",
        map,
        error: io::Error::from_raw_os_error(libc::E2BIG),
    }
}

impl NodeMaps for Fake {
    fn nodes_max(&self) -> u32 {
        NODES_MAX
    }
    fn nodes(&self) -> Result<Vec<(NodeId, NodeAddresses)>, KernelError> {
        let elements = &self.0.borrow().nodes.elements;
        Ok(elements.iter().map(|(id, it)| (*id, *it)).collect())
    }
    fn set_node(&mut self, id: NodeId, addresses: &NodeAddresses) -> Result<(), KernelError> {
        self.write(|maps| {
            assert!((1..NODES_MAX).contains(&id), "{id}");
            let old = if *addresses == NodeAddresses::NONE {
                maps.nodes.elements.remove(&id)
            } else {
                maps.nodes.elements.insert(id, *addresses)
            };
            let in_use = maps
                .backends
                .iter()
                .any(|it| it.service != 0 && it.node == id);
            assert!(
                !in_use,
                "the Node of a backend changes: {old:?} {addresses:?}"
            );
        });
        Ok(())
    }
    fn node_ids(&self) -> Result<Vec<(Address, NodeId)>, KernelError> {
        let ids = &self.0.borrow().nodes.ids;
        Ok(ids.iter().map(|(address, id)| (*address, *id)).collect())
    }
    fn set_node_id(&mut self, address: &Address, id: NodeId) -> Result<(), KernelError> {
        self.write(|maps| maps.nodes.ids.insert(*address, id));
        Ok(())
    }
    fn remove_node_id(&mut self, address: &Address) -> Result<(), KernelError> {
        self.write(|maps| maps.nodes.ids.remove(address));
        Ok(())
    }
    fn local_backends(&self) -> Result<Vec<(LocalBackendKey, BackendId)>, KernelError> {
        let local = &self.0.borrow().nodes.local;
        let element = |(&(address, port, service), &id): (&LocalKey, &BackendId)| {
            let key = LocalBackendKey {
                address,
                port,
                service,
            };
            (key, id)
        };
        Ok(local.iter().map(element).collect())
    }
    fn set_local_backend(
        &mut self,
        key: &LocalBackendKey,
        id: BackendId,
    ) -> Result<(), KernelError> {
        self.write(|maps| {
            let key = local_key(key);
            let Nodes {
                local, local_max, ..
            } = &mut maps.nodes;
            if *local_max != 0 && local.len() >= *local_max && !local.contains_key(&key) {
                return Err(full("local_backends"));
            }
            local.insert(key, id);
            Ok(())
        })
    }
    fn remove_local_backend(&mut self, key: &LocalBackendKey) -> Result<(), KernelError> {
        self.write(|maps| maps.nodes.local.remove(&local_key(key)));
        Ok(())
    }
}
