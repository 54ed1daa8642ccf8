//! The real maps of Nodes, and of backends on this one.

use super::bpf::BpfKernel;
use super::nodes::is_node;
use super::pinned::{absent_is_fine, max_entries, open, refused, typed};
use super::{KernelError, NodeMaps};
use crate::crash;
use aya::maps::{Array, HashMap, MapData};
use proxy_common::{Address, BackendId, LocalBackendKey, NodeAddresses, NodeId};
use std::path::Path;

const ADDRESS: usize = size_of::<Address>();
const NODE: usize = size_of::<NodeAddresses>();
const LOCAL: usize = size_of::<LocalBackendKey>();

/// The pinned maps.
pub(super) struct PinnedNodes {
    nodes: Array<MapData, [u8; NODE]>,
    nodes_max: u32,
    node_ids: HashMap<MapData, [u8; ADDRESS], NodeId>,
    local_backends: HashMap<MapData, [u8; LOCAL], BackendId>,
}

impl PinnedNodes {
    pub(super) fn open(directory: &Path) -> Result<Self, KernelError> {
        let nodes = open(directory, "nodes")?;
        let nodes_max = max_entries(&nodes, "nodes")?;
        let nodes = Array::try_from(aya::maps::Map::Array(nodes));
        Ok(Self {
            nodes: nodes.map_err(refused("open", "nodes"))?,
            nodes_max,
            node_ids: typed(open(directory, "node_ids")?, "node_ids")?,
            local_backends: typed(open(directory, "local_backends")?, "local_backends")?,
        })
    }
}

impl NodeMaps for BpfKernel {
    fn nodes_max(&self) -> u32 {
        self.nodes.nodes_max
    }

    fn nodes(&self) -> Result<Vec<(NodeId, NodeAddresses)>, KernelError> {
        let mut nodes = Vec::new();
        for id in 1..self.nodes.nodes_max {
            let bytes = self.nodes.nodes.get(&id, 0);
            let bytes = bytes.map_err(refused("look-up", "nodes"))?;
            let addresses: NodeAddresses = zerocopy::transmute!(bytes);
            if is_node(&addresses) {
                nodes.push((id, addresses));
            }
        }
        Ok(nodes)
    }

    fn set_node(&mut self, id: NodeId, addresses: &NodeAddresses) -> Result<(), KernelError> {
        crash::point();
        let bytes: [u8; NODE] = zerocopy::transmute!(*addresses);
        let written = self.nodes.nodes.set(id, bytes, 0);
        written.map_err(refused("update", "nodes"))
    }

    fn node_ids(&self) -> Result<Vec<(Address, NodeId)>, KernelError> {
        let elements = self.nodes.node_ids.iter().map(|element| {
            let (bytes, id) = element.map_err(refused("iterate", "node_ids"))?;
            Ok((Address { bytes }, id))
        });
        elements.collect()
    }

    fn set_node_id(&mut self, address: &Address, id: NodeId) -> Result<(), KernelError> {
        crash::point();
        let written = self.nodes.node_ids.insert(address.bytes, id, 0);
        written.map_err(refused("update", "node_ids"))
    }

    fn remove_node_id(&mut self, address: &Address) -> Result<(), KernelError> {
        crash::point();
        absent_is_fine(self.nodes.node_ids.remove(&address.bytes), "node_ids")
    }

    fn local_backends(&self) -> Result<Vec<(LocalBackendKey, BackendId)>, KernelError> {
        let elements = self.nodes.local_backends.iter().map(|element| {
            let (key, id) = element.map_err(refused("iterate", "local_backends"))?;
            Ok((zerocopy::transmute!(key), id))
        });
        elements.collect()
    }

    fn set_local_backend(
        &mut self,
        key: &LocalBackendKey,
        id: BackendId,
    ) -> Result<(), KernelError> {
        crash::point();
        let key: [u8; LOCAL] = zerocopy::transmute!(*key);
        let written = self.nodes.local_backends.insert(key, id, 0);
        written.map_err(refused("update", "local_backends"))
    }

    fn remove_local_backend(&mut self, key: &LocalBackendKey) -> Result<(), KernelError> {
        crash::point();
        let key: [u8; LOCAL] = zerocopy::transmute!(*key);
        absent_is_fine(self.nodes.local_backends.remove(&key), "local_backends")
    }
}
