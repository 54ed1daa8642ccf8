//! The objects by key, and which Services an event touches.
//!
//! Events only mark Services dirty; the agent's loop takes the marks at its own
//! pace and resolves those Services anew. An event costs work in proportion to
//! the one Service that it touches. Two changes reach further and are rare: the
//! zone of our Node touches all Services with zone hints, and a ClusterIP that
//! equals an endpoint's address touches the Services with that endpoint.

mod changes;
mod counts;
mod listing;
mod nodes;
mod opt_outs;
mod slices;
#[cfg(test)]
pub(crate) mod tests;

use crate::model::{EndpointSlice, Kind, Node, ObjectName, Service};
use crate::publish;
use crate::resolve::NodeView;
use crate::source::{Event, Object};
pub use changes::{Changes, Trigger};
pub use opt_outs::OptedOut;

use changes::Tally;
use counts::AddressCounts;
use listing::Listings;
use nodes::Nodes;
use opt_outs::OptOuts;
use proxy_common::NodeAddresses;
use slices::Slices;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// All objects that matter, and the marks.
#[derive(Debug)]
pub struct Store {
    node: NodeView,
    internal_ips: Box<[IpAddr]>,
    nodes: Nodes,
    leaving: bool,
    /// Whether our Node was there.
    node_seen: bool,
    tally: Tally,
    services: HashMap<ObjectName, Service>,
    slices: Slices,
    /// ClusterIPs of all Services that the source tells of, ours or not: an
    /// endpoint with such an address would be translated twice (semantics 5).
    cluster_ips: AddressCounts,
    with_source_ranges: BTreeSet<ObjectName>,
    opt_outs: OptOuts,
    listings: Listings,
    dirty: BTreeSet<ObjectName>,
}

impl Store {
    /// An empty store on the node of this name.
    pub fn new(node_name: Arc<str>) -> Self {
        Self {
            node: NodeView {
                name: node_name,
                zone: None,
                addresses: Vec::new(),
            },
            internal_ips: Box::default(),
            nodes: Nodes::default(),
            leaving: false,
            node_seen: false,
            tally: Tally::default(),
            services: HashMap::new(),
            slices: Slices::default(),
            cluster_ips: AddressCounts::default(),
            with_source_ranges: BTreeSet::new(),
            opt_outs: OptOuts::default(),
            listings: Listings::default(),
            dirty: BTreeSet::new(),
        }
    }

    /// Takes an event in. One that changes nothing marks nothing; warnings are
    /// not the store's business.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Begin(kind) => self.listings.begin(kind),
            Event::Apply(object) => {
                self.listings.see(object.kind(), object.name());
                self.apply_object(object);
            }
            Event::Delete(kind, name) => self.delete(kind, &name),
            Event::Done(kind) => self.finish(kind),
            Event::Unavailable(kind) => self.listings.unavailable(kind),
            Event::Warning(_) => {}
        }
    }

    /// The Services that events touched since the last call, in order of their
    /// names. Those that [`Store::view`] does not find are gone.
    pub fn take_dirty(&mut self) -> Vec<ObjectName> {
        std::mem::take(&mut self.dirty).into_iter().collect()
    }

    /// Whether complete lists of Services and EndpointSlices have come in;
    /// before, nothing may be removed from the kernel (semantics 34).
    pub fn complete(&self) -> bool {
        self.listings.complete(Kind::Service) && self.listings.complete(Kind::EndpointSlice)
    }

    /// Whether a complete list of Nodes has come in.
    pub fn node_known(&self) -> bool {
        self.listings.complete(Kind::Node)
    }

    /// Whether it is known, or known to be unknown for now, who opts out of socket
    /// translation: a first publish waits for that.
    pub fn opt_outs_settled(&self) -> bool {
        self.listings.settled(Kind::Pod) && self.listings.settled(Kind::Namespace)
    }

    /// The Pods of this node that opt out of socket translation; `None` until
    /// complete lists of Pods and Namespaces have come in.
    pub fn opted_out(&self) -> Option<OptedOut> {
        let complete = |kind| self.listings.complete(kind);
        (complete(Kind::Pod) && complete(Kind::Namespace)).then(|| self.opt_outs.opted_out())
    }

    /// The addresses of this node's interfaces; a change touches the Services
    /// with source ranges.
    pub fn set_node_addresses(&mut self, addresses: Vec<IpAddr>) {
        if self.node.addresses != addresses {
            self.node.addresses = addresses;
            self.dirty.extend(self.with_source_ranges.iter().cloned());
        }
    }

    /// Whether any Service has source ranges.
    pub fn has_source_ranges(&self) -> bool {
        !self.with_source_ranges.is_empty()
    }

    /// Names of all Services, ours or not.
    pub fn service_names(&self) -> impl Iterator<Item = &ObjectName> {
        self.services.keys()
    }

    /// A Service, ours or not, and its slices in order of their names.
    pub fn view(&self, name: &ObjectName) -> Option<(&Service, &[EndpointSlice])> {
        Some((self.services.get(name)?, self.slices.of(name)))
    }

    /// Whether an address is the ClusterIP of a Service.
    pub fn is_cluster_ip(&self, address: IpAddr) -> bool {
        self.cluster_ips.contains(address)
    }

    /// Our node.
    pub fn node(&self) -> &NodeView {
        &self.node
    }

    /// Whether our Node is about to go, or gone.
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// When the changes of slices since the last call began.
    pub fn take_triggers(&mut self) -> Vec<Trigger> {
        self.tally.take_triggers()
    }

    /// What has changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        Changes {
            to_publish: !self.dirty.is_empty(),
            ..self.tally.take_changes()
        }
    }

    /// InternalIPs of our Node, the last ones known.
    pub fn internal_ips(&self) -> &[IpAddr] {
        &self.internal_ips
    }

    /// Whether our Node was ever there.
    pub fn node_seen(&self) -> bool {
        self.node_seen
    }

    /// The address of our Node in each family by which others reach it, as last known.
    pub fn own_addresses(&self) -> NodeAddresses {
        nodes::addresses(&self.internal_ips).unwrap_or(NodeAddresses::NONE)
    }

    /// Whether all Nodes are known, and those with an address have changed since the
    /// last call.
    pub fn take_nodes_changed(&mut self) -> bool {
        self.node_known() && self.nodes.take_changed()
    }

    /// The Nodes that have an address, as far as known.
    pub fn nodes(&self) -> &publish::Nodes {
        self.nodes.published()
    }

    /// Marks the Services with endpoints on these Nodes. Looks at all endpoints, but
    /// once for all Nodes together.
    pub fn touch_on_nodes(&mut self, names: &BTreeSet<Arc<str>>) {
        if names.is_empty() {
            return;
        }
        let touched = self.slices.users_of_nodes(names);
        let services = &self.services;
        self.dirty
            .extend(touched.filter(|it| services.contains_key(it)).cloned());
    }

    fn apply_object(&mut self, object: Object) {
        match object {
            Object::Service(service) => self.apply_service(service),
            Object::Slice(slice) => self.apply_slice(slice),
            Object::Node(node) => self.apply_node(node),
            Object::Pod(pod) => self.opt_outs.apply_pod(pod),
            Object::Namespace(namespace) => self.opt_outs.apply_namespace(namespace),
        }
    }

    fn apply_service(&mut self, service: Service) {
        if self.services.get(&service.name) == Some(&service) {
            return;
        }
        self.tally.service();
        self.dirty.insert(service.name.clone());
        if service.source_ranges.is_empty() {
            self.with_source_ranges.remove(&service.name);
        } else {
            self.with_source_ranges.insert(service.name.clone());
        }
        let added = service.cluster_ips.clone();
        let old = self.services.insert(service.name.clone(), service);
        self.count_cluster_ips(&added, old.as_ref().map_or(&[], |old| &old.cluster_ips));
    }

    fn apply_slice(&mut self, slice: EndpointSlice) {
        let known = self.slices.get(&slice.name);
        if known.map_or(slice.service.is_none(), |it| it.is_alike(&slice)) {
            return;
        }
        // A slice whose Service is not here reaches no kernel.
        let is_used = |service: &ObjectName| self.services.contains_key(service);
        let used = slice.service.as_ref().is_some_and(is_used);
        self.tally.slice(&slice, used);
        let old = self.slices.remove(&slice.name);
        self.mark(old.and_then(|old| old.service));
        self.mark(slice.service.clone());
        self.slices.insert(slice);
    }

    fn apply_node(&mut self, node: Node) {
        self.nodes.apply(&node);
        if *node.name.name == *self.node.name {
            self.set_zone(node.zone);
            self.internal_ips = node.internal_ips;
            self.leaving = node.leaving;
            self.node_seen = true;
        }
    }

    fn delete(&mut self, kind: Kind, name: &ObjectName) {
        match kind {
            Kind::Service => {
                if let Some(old) = self.services.remove(name) {
                    self.tally.service();
                    self.with_source_ranges.remove(name);
                    self.dirty.insert(old.name);
                    self.count_cluster_ips(&[], &old.cluster_ips);
                }
            }
            Kind::EndpointSlice => {
                if let Some(old) = self.slices.remove(name) {
                    self.tally.slice_is_gone(&old);
                    self.mark(old.service);
                }
            }
            Kind::Node => {
                self.nodes.delete(name);
                if *name.name == *self.node.name {
                    self.set_zone(None);
                    // One that was never there may still come.
                    self.leaving = self.node_seen;
                }
            }
            Kind::Pod | Kind::Namespace => self.opt_outs.delete(kind, name),
        }
    }

    /// Deletes what a complete list did not name: deletions while no watch was
    /// running are not told in any other way.
    fn finish(&mut self, kind: Kind) {
        let Some(seen) = self.listings.finish(kind) else {
            return;
        };
        let gone: Vec<ObjectName> = match kind {
            Kind::Service => self
                .services
                .keys()
                .filter(|name| !seen.contains(*name))
                .cloned()
                .collect(),
            Kind::EndpointSlice => self
                .slices
                .names()
                .filter(|name| !seen.contains(*name))
                .cloned()
                .collect(),
            Kind::Node => {
                let ours = ObjectName::new("", self.node.name.clone());
                let known = self.nodes.names().chain([ours]);
                known.filter(|name| !seen.contains(name)).collect()
            }
            Kind::Pod | Kind::Namespace => {
                let mut known = self.opt_outs.names(kind);
                known.retain(|name| !seen.contains(name));
                known
            }
        };
        for name in &gone {
            self.delete(kind, name);
        }
    }

    fn set_zone(&mut self, zone: Option<Arc<str>>) {
        if self.node.zone != zone {
            self.node.zone = zone;
            self.dirty.extend(
                self.slices
                    .zone_hinted()
                    .filter(|name| self.services.contains_key(name))
                    .cloned(),
            );
        }
    }

    /// Marks a Service if it is there; a slice may come before its Service.
    fn mark(&mut self, service: Option<ObjectName>) {
        self.dirty
            .extend(service.filter(|name| self.services.contains_key(name)));
    }

    fn count_cluster_ips(&mut self, added: &[IpAddr], removed: &[IpAddr]) {
        // Added first: an address in both never leaves the set in between.
        let entered = added
            .iter()
            .filter(|&&address| self.cluster_ips.add(address))
            .copied()
            .collect::<Vec<_>>();
        let left = removed
            .iter()
            .filter(|&&address| self.cluster_ips.remove(address))
            .copied();
        let changed: Vec<IpAddr> = entered.into_iter().chain(left).collect();
        for address in changed {
            self.dirty.extend(
                self.slices
                    .users_of(address)
                    .filter(|name| self.services.contains_key(name))
                    .cloned(),
            );
        }
    }
}
