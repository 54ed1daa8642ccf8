//! The Nodes that packets are handed to, and taken from (DSR).

use super::Agent;
use crate::model::{Kind, ObjectName, Reason, Warning};

impl Agent {
    /// Before the Services: their backends refer to Nodes.
    pub(super) fn publish_nodes(&mut self) {
        if !self.store.node_known() {
            return;
        }
        if let Err(error) = self.publisher.set_own_node(self.store.own_addresses()) {
            tracing::error!(
                "packets are not handed to other Nodes from the right address: {error}"
            );
        }
        let changed = self.store.take_nodes_changed();
        if !changed && self.nodes_failed.is_empty() && self.publisher.has_nodes() {
            return;
        }
        let outcome = self.publisher.set_nodes(self.store.nodes());
        self.all_due |= outcome.is_first;
        if outcome.is_first && !self.store.node_seen() {
            tracing::warn!(
                node = &*self.store.node().name,
                "our Node does not exist (yet): no zone, no address; does the node name match?"
            );
        }
        self.store.touch_on_nodes(&outcome.changed);
        let known = std::mem::take(&mut self.nodes_failed);
        for (name, error) in outcome.failures {
            if !known.contains(&name) {
                tracing::error!(node = &*name, "not published: {error}");
                let reason = if error.is_full() {
                    Reason::MapFull
                } else {
                    Reason::NotPublished
                };
                let name = ObjectName::new("", name.clone());
                self.warn(&Warning::new(Kind::Node, &name, reason, error.to_string()));
            }
            self.nodes_failed.insert(name);
        }
    }
}
