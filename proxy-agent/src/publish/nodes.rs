//! Maps `nodes` and `node_ids`: the Nodes that packets are handed to, and taken from.
//!
//! An element of `nodes` does not change while a backend refers to it: a Node with
//! other addresses gets another id. So its way is elements → backends, and back
//! backends → elements; `node_ids`, which says from whom packets are taken, follows
//! the Nodes at once. After a restart an id is known by its addresses.

use super::{Ids, Kernel, KernelError, PublishError, Publisher};
use proxy_common::{Address, NodeAddresses, NodeId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The Nodes with an address, by name.
pub type Nodes = BTreeMap<Arc<str>, NodeAddresses>;

/// What became of Nodes.
#[derive(Debug, Default)]
pub struct NodesOutcome {
    /// Those with another id than before, or with none any more: Services with
    /// endpoints there must be published anew.
    pub changed: BTreeSet<Arc<str>>,
    /// Whether these are the first Nodes since the start. Then all Services must be:
    /// a backend may have the id of a Node that went while no agent was there.
    pub is_first: bool,
    /// Those that are not as they should be, and why.
    pub failures: Vec<(Arc<str>, PublishError)>,
}

/// The mirror of both maps.
#[derive(Debug)]
pub(super) struct NodeMirror {
    ids: Ids,
    /// Map `nodes`, but for what is empty.
    elements: HashMap<NodeId, NodeAddresses>,
    by_name: BTreeMap<Arc<str>, NodeId>,
    /// Map `node_ids`.
    by_address: BTreeMap<Address, NodeId>,
    /// Ids of no Node, or of none that is known yet; backends may refer to them.
    nameless: BTreeSet<NodeId>,
    is_told: bool,
}

impl NodeMirror {
    pub(super) fn restore(kernel: &impl Kernel) -> Result<Self, KernelError> {
        let elements: HashMap<NodeId, NodeAddresses> = kernel.nodes()?.into_iter().collect();
        Ok(Self {
            ids: Ids::new(kernel.nodes_max(), |id| elements.contains_key(&id)),
            nameless: elements.keys().copied().collect(),
            elements,
            by_name: BTreeMap::new(),
            by_address: kernel.node_ids()?.into_iter().collect(),
            is_told: false,
        })
    }

    /// The id of an endpoint's Node. Until the Nodes are told a backend keeps the
    /// one that it `had`.
    pub(super) fn id_of(&self, name: Option<&Arc<str>>, had: NodeId) -> NodeId {
        let Some(name) = name else {
            return 0;
        };
        match self.by_name.get(name) {
            Some(&id) => id,
            None if self.is_told => 0,
            None => had,
        }
    }

    /// Takes ids from Nodes that are gone or have other addresses.
    fn release(&mut self, wanted: &Nodes) -> BTreeSet<Arc<str>> {
        let Self {
            by_name,
            elements,
            nameless,
            ..
        } = self;
        let mut changed = BTreeSet::new();
        by_name.retain(|name, id| {
            let stays = elements.get(id) == wanted.get(name);
            if !stays {
                nameless.insert(*id);
                changed.insert(name.clone());
            }
            stays
        });
        changed
    }

    fn is_full(&self) -> PublishError {
        PublishError::NodesFull {
            capacity: self.ids.capacity(),
        }
    }
}

impl<K: Kernel> Publisher<K> {
    /// Whether [`Self::set_nodes`] was called since the start.
    pub fn has_nodes(&self) -> bool {
        self.nodes.is_told
    }

    /// Makes the maps hold just these Nodes. What a backend may still refer to goes
    /// in the publish that changes that.
    pub fn set_nodes(&mut self, wanted: &Nodes) -> NodesOutcome {
        let mut outcome = NodesOutcome {
            changed: self.nodes.release(wanted),
            is_first: !self.nodes.is_told,
            failures: Vec::new(),
        };
        self.nodes.is_told = true;
        let mut known: BTreeMap<[Address; 2], NodeId> = self
            .nodes
            .nameless
            .iter()
            .filter_map(|id| self.nodes.elements.get(id).map(|it| ([it.v4, it.v6], *id)))
            .collect();
        for (name, addresses) in wanted {
            if self.nodes.by_name.contains_key(name) {
                continue;
            }
            let known = known.remove(&[addresses.v4, addresses.v6]);
            match known.map_or_else(|| self.create_node(addresses), Ok) {
                Ok(id) => {
                    self.nodes.nameless.remove(&id);
                    self.nodes.by_name.insert(name.clone(), id);
                    outcome.changed.insert(name.clone());
                }
                Err(error) => outcome.failures.push((name.clone(), error)),
            }
        }
        self.follow_node_ids(&mut outcome);
        self.retire_nodes();
        outcome
    }

    fn create_node(&mut self, addresses: &NodeAddresses) -> Result<NodeId, PublishError> {
        let id = self.nodes.ids.allocate();
        let id = id.ok_or_else(|| self.nodes.is_full())?;
        if let Err(error) = self.kernel.set_node(id, addresses) {
            self.nodes.ids.release(id);
            return Err(error.into());
        }
        self.nodes.elements.insert(id, *addresses);
        Ok(id)
    }

    /// Of two Nodes with one address the first has it.
    fn follow_node_ids(&mut self, outcome: &mut NodesOutcome) {
        let mut wanted: BTreeMap<Address, (NodeId, &Arc<str>)> = BTreeMap::new();
        for (name, id) in &self.nodes.by_name {
            let Some(addresses) = self.nodes.elements.get(id) else {
                continue;
            };
            for address in known(addresses) {
                wanted.entry(address).or_insert((*id, name));
            }
        }
        let present = self.nodes.by_address.keys().copied();
        let gone: Vec<Address> = present.filter(|it| !wanted.contains_key(it)).collect();
        for address in gone {
            match self.kernel.remove_node_id(&address) {
                Ok(()) => drop(self.nodes.by_address.remove(&address)),
                Err(error) => {
                    tracing::error!(address = %address.to_ip(), %error, "packets by DSR are still taken from there");
                }
            }
        }
        for (address, (id, name)) in wanted {
            if self.nodes.by_address.get(&address) == Some(&id) {
                continue;
            }
            match self.kernel.set_node_id(&address, id) {
                Ok(()) => drop(self.nodes.by_address.insert(address, id)),
                Err(error) => outcome.failures.push((name.clone(), error.into())),
            }
        }
    }

    /// Ids of no Node to which no backend refers any more: programs that have read
    /// them from one a moment ago are waited for.
    pub(super) fn retire_nodes(&mut self) {
        if !self.nodes.is_told || self.nodes.nameless.is_empty() {
            return;
        }
        let backends = self.ports.values().flat_map(|port| &port.backends);
        let in_use: BTreeSet<NodeId> = backends.map(|it| it.node).collect();
        let unused: Vec<NodeId> = self.nodes.nameless.difference(&in_use).copied().collect();
        for id in unused {
            self.nodes.nameless.remove(&id);
            self.retired.nodes.push(id);
        }
    }

    /// Empties an element that nobody refers to.
    pub(super) fn free_node(&mut self, id: NodeId) -> Result<(), KernelError> {
        self.kernel.set_node(id, &NodeAddresses::NONE)?;
        self.nodes.elements.remove(&id);
        self.nodes.ids.release(id);
        Ok(())
    }
}

/// The addresses that it has.
fn known(addresses: &NodeAddresses) -> impl Iterator<Item = Address> {
    let both = [addresses.v4, addresses.v6].into_iter();
    both.filter(|it| !it.same(it.wildcard()))
}

/// Whether an element is of a Node; a new map is all zero.
pub(super) fn is_node(addresses: &NodeAddresses) -> bool {
    known(addresses).next().is_some()
}
