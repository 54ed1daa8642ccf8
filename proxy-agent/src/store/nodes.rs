//! The Nodes of the cluster, of which only names and addresses are kept, and our
//! own one, which decides more.

use crate::model::{Node, ObjectName};
use crate::publish::Nodes as Published;
use proxy_common::{Address, NodeAddresses};
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

/// All Nodes, be they known to have an address or not.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    with_address: Published,
    /// A Node that has just registered has none yet.
    without: HashSet<Arc<str>>,
    changed: bool,
}

impl Nodes {
    /// Most events of a Node are heartbeats, which change nothing.
    pub(super) fn apply(&mut self, node: &Node) {
        let name = node.name.name.clone();
        let addresses = addresses(&node.internal_ips);
        if self.with_address.get(&name) == addresses.as_ref()
            && (addresses.is_some() || self.without.contains(&name))
        {
            return;
        }
        match addresses {
            Some(addresses) => {
                self.without.remove(&name);
                self.with_address.insert(name, addresses);
                self.changed = true;
            }
            None => {
                self.changed |= self.with_address.remove(&name).is_some();
                self.without.insert(name);
            }
        }
    }

    pub(super) fn delete(&mut self, name: &ObjectName) {
        self.changed |= self.with_address.remove(&name.name).is_some();
        self.without.remove(&name.name);
    }

    pub(super) fn names(&self) -> impl Iterator<Item = ObjectName> + '_ {
        let all = self.with_address.keys().chain(&self.without);
        all.map(|name| ObjectName::new("", name.clone()))
    }

    pub(super) fn published(&self) -> &Published {
        &self.with_address
    }

    /// Whether those with an address have changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }
}

/// The first InternalIP of each family that other Nodes can reach.
pub(super) fn addresses(internal_ips: &[IpAddr]) -> Option<NodeAddresses> {
    let first = |v4: bool, none: Address| {
        let found = internal_ips
            .iter()
            .find(|ip| ip.is_ipv4() == v4 && is_reachable(ip));
        found.map_or(none, |&ip| ip.into())
    };
    let node = NodeAddresses {
        v4: first(true, Address::ANY_V4),
        v6: first(false, Address::ANY_V6),
    };
    (node != NodeAddresses::NONE).then_some(node)
}

fn is_reachable(ip: &IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
    };
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_link_local)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{name, service, slice, store};
    use super::*;
    use crate::model::{Endpoint, Kind};
    use crate::source::{Event, Object};
    use crate::store::Store;
    use std::collections::BTreeSet;

    fn node(name: &str, internal_ips: &[&str]) -> Event {
        Event::Apply(Object::Node(Node {
            name: ObjectName::new("", name),
            zone: None,
            internal_ips: internal_ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            leaving: false,
        }))
    }

    /// Whether the Nodes with an address change by these events.
    fn changes(store: &mut Store, events: impl IntoIterator<Item = Event>) -> bool {
        events.into_iter().for_each(|event| store.apply(event));
        store.take_nodes_changed()
    }

    fn names(store: &Store) -> Vec<&str> {
        store.nodes().keys().map(|name| &**name).collect()
    }

    #[test]
    fn the_nodes_are_told_once_all_are_known_and_heartbeats_change_nothing() {
        let mut store = store([]);
        let list = || [node("n1", &["192.0.2.1"]), node("n2", &["192.0.2.2"])];
        assert!(!changes(&mut store, [Event::Begin(Kind::Node)]));
        assert!(!changes(&mut store, list()), "there may be more");
        assert!(changes(&mut store, [Event::Done(Kind::Node)]));
        assert_eq!(names(&store), ["n1", "n2"]);
        assert!(!changes(&mut store, list()));
        assert!(
            !changes(&mut store, [node("n3", &[])]),
            "it has no address yet"
        );
        assert!(!changes(&mut store, [node("n3", &[])]));
        assert!(changes(&mut store, [node("n3", &["192.0.2.3"])]));
        assert!(changes(&mut store, [node("n3", &["192.0.2.4"])]));
        assert!(changes(&mut store, [node("n3", &[])]));
        let gone = |name: &str| Event::Delete(Kind::Node, ObjectName::new("", name));
        assert!(!changes(&mut store, [gone("n3")]));
        assert!(changes(&mut store, [gone("n2")]));
        assert_eq!(names(&store), ["n1"]);
        // A list that does not name a Node.
        let relist = [Event::Begin(Kind::Node), Event::Done(Kind::Node)];
        assert!(changes(&mut store, relist));
        assert!(names(&store).is_empty() && store.nodes.without.is_empty());
    }

    #[test]
    fn a_node_is_reached_by_its_first_usable_address_of_each_family() {
        for (internal_ips, wanted) in [
            (vec!["192.0.2.1", "192.0.2.2"], "192.0.2.1 ::"),
            (vec!["fd00::2", "192.0.2.1", "fd00::1"], "192.0.2.1 fd00::2"),
            (vec!["fe80::1", "fd00::1", "127.0.0.1"], "0.0.0.0 fd00::1"),
            (vec!["169.254.0.1", "10.0.0.1", "::"], "10.0.0.1 ::"),
            (vec!["0.0.0.0", "224.0.0.1", "ff02::1"], ""),
            (vec![], ""),
        ] {
            let ips: Vec<IpAddr> = internal_ips.iter().map(|ip| ip.parse().unwrap()).collect();
            let got = addresses(&ips).map(|it| format!("{} {}", it.v4.to_ip(), it.v6.to_ip()));
            assert_eq!(got.unwrap_or_default(), wanted, "{internal_ips:?}");
        }
    }

    #[test]
    fn our_own_address_stays_while_our_node_is_gone() {
        let mut store = store([]);
        assert_eq!(store.own_addresses(), NodeAddresses::NONE);
        store.apply(node("n2", &["192.0.2.2"]));
        store.apply(node("n1", &["192.0.2.1"]));
        assert_eq!(store.own_addresses().v4.to_ip().to_string(), "192.0.2.1");
        store.apply(Event::Delete(Kind::Node, ObjectName::new("", "n1")));
        assert_eq!(store.own_addresses().v4.to_ip().to_string(), "192.0.2.1");
    }

    #[test]
    fn services_with_endpoints_on_some_nodes_are_found() {
        let on = |slice_name: &str, service: &str, node: &str| {
            let Object::Slice(mut made) = slice(slice_name, Some(service), &["10.244.0.1"], None)
            else {
                unreachable!("slice() makes slices")
            };
            made.endpoints = made
                .endpoints
                .iter()
                .map(|it| Endpoint {
                    node: Some(node.into()),
                    ..it.clone()
                })
                .collect();
            Object::Slice(made)
        };
        let mut store = store([
            service("web", "10.96.0.1"),
            service("api", "10.96.0.2"),
            on("web-1", "web", "n2"),
            on("api-1", "api", "n3"),
            on("www-1", "www", "n2"),
        ]);
        store.touch_on_nodes(&BTreeSet::from(["n2".into(), "n9".into()]));
        assert_eq!(store.take_dirty(), [name("web")]);
        store.touch_on_nodes(&BTreeSet::new());
        assert!(store.take_dirty().is_empty());
    }
}
