//! Random slices against a plain model that is written another way: by rounds
//! over a map instead of sorting, and with the sets spelled out as lists.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Any endpoint over few addresses, nodes and zones, so that they collide.
fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    let names = |all: &'static [&'static str]| proptest::sample::subsequence(all, 0..=all.len());
    let flags = proptest::sample::select(&["R", "R", "A", "T", "S", "D", "N"][..]);
    let node = proptest::sample::select(&["", "n1", "n2"][..]);
    (
        1..6_u8,
        flags,
        node,
        names(&["za", "zb"]),
        names(&["n1", "n2"]),
        any::<bool>(),
    )
        .prop_map(|(number, flags, node, zones, nodes, hinted)| {
            let hints = if hinted {
                format!("[{}:{}]", zones.join(","), nodes.join(","))
            } else {
                String::new()
            };
            endpoint(
                ip(&format!("10.244.1.{number}")),
                &format!("{flags}@{node}{hints}"),
            )
        })
}

fn any_slices() -> impl Strategy<Value = Vec<EndpointSlice>> {
    let port = proptest::sample::select(&[("http", 8080), ("http", 8081), ("other", 8080)][..]);
    let one = (port, proptest::collection::vec(any_endpoint(), 0..6));
    proptest::collection::vec(one, 0..5).prop_map(|slices| {
        let named = |(number, ((name, port), endpoints)): (usize, _)| {
            slice(
                &format!("web-{number}"),
                (name, Protocol::Tcp, port),
                endpoints,
            )
        };
        slices.into_iter().enumerate().map(named).collect()
    })
}

fn any_node() -> impl Strategy<Value = NodeView> {
    proptest::sample::select(&[None, Some("za"), Some("zc"), Some("")][..]).prop_map(|zone| {
        NodeView {
            addresses: Vec::new(),
            name: "n1".into(),
            zone: zone.map(Arc::from),
        }
    })
}

/// The model: all of one service port's endpoints.
fn model(slices: &[EndpointSlice], node: &NodeView) -> Vec<ResolvedEndpoint> {
    let mut copies = BTreeMap::<(IpAddr, u16), Vec<&Endpoint>>::new();
    for slice in slices {
        for port in slice.ports.iter().filter(|port| &*port.name == "http") {
            for endpoint in &slice.endpoints {
                copies
                    .entry((endpoint.address, port.port))
                    .or_default()
                    .push(endpoint);
            }
        }
    }
    let best = |copies: &Vec<&Endpoint>| -> Option<Endpoint> {
        let tests: [fn(&Endpoint) -> bool; 3] = [
            |it| it.ready,
            |it| it.serving && it.terminating,
            |it| it.serving,
        ];
        let test = tests
            .into_iter()
            .find(|test| copies.iter().any(|it| test(it)))?;
        let mut usable: Vec<&Endpoint> = copies.iter().copied().filter(|it| test(it)).collect();
        usable.sort_by_key(|it| (it.serving && it.terminating, it.serving, it.hints.clone()));
        let mut chosen = (*usable.last()?).clone();
        if copies.iter().any(|it| it.node.as_deref() == Some("n1")) {
            chosen.node = Some("n1".into());
        } else {
            chosen.node = None;
        }
        Some(chosen)
    };
    let all: Vec<((IpAddr, u16), Endpoint)> = copies
        .iter()
        .filter_map(|(key, copies)| Some((*key, best(copies)?)))
        .collect();
    let keys = |wanted: &dyn Fn(&Endpoint) -> bool| -> Vec<(IpAddr, u16)> {
        all.iter()
            .filter(|(_, it)| wanted(it))
            .map(|(key, _)| *key)
            .collect()
    };
    let on_us = |it: &Endpoint| it.node.is_some();
    let draining = |it: &Endpoint| it.serving && it.terminating;
    let named = |list: &[Arc<str>], name: &str| list.iter().any(|it| &**it == name);
    let zone = node.zone.as_deref().unwrap_or_default();
    let hints = |it: &Endpoint| it.hints.as_deref().cloned().unwrap_or_default();
    let ready = keys(&|it| it.ready);
    let with_nodes = keys(&|it| it.ready && !hints(it).nodes.is_empty());
    let with_zones = keys(&|it| it.ready && !hints(it).zones.is_empty());
    let our_node = keys(&|it| it.ready && named(&hints(it).nodes, "n1"));
    let our_zone = keys(&|it| it.ready && !zone.is_empty() && named(&hints(it).zones, zone));
    let cluster = if ready.is_empty() {
        keys(&draining)
    } else if with_nodes == ready && !our_node.is_empty() {
        our_node
    } else if with_zones == ready && !our_zone.is_empty() {
        our_zone
    } else {
        ready
    };
    let local_ready = keys(&|it| on_us(it) && it.ready);
    let local = if local_ready.is_empty() {
        keys(&|it| on_us(it) && draining(it))
    } else {
        local_ready
    };
    let resolved = |((address, port), it): &((IpAddr, u16), Endpoint)| ResolvedEndpoint {
        address: *address,
        port: *port,
        local: on_us(it),
        in_cluster_set: cluster.contains(&(*address, *port)),
        in_local_set: local.contains(&(*address, *port)),
    };
    all.iter().map(resolved).collect()
}

proptest! {
    #[test]
    fn resolve_agrees_with_the_model(slices in any_slices(), node in any_node()) {
        prop_assert_eq!(endpoints_of(&slices, &node).0, model(&slices, &node));
    }

    #[test]
    fn order_and_repetition_change_nothing(slices in any_slices(), node in any_node(), turn in 0..5_usize) {
        let want = endpoints_of(&slices, &node).0;
        let mut other = slices.clone();
        other.rotate_left(turn.min(slices.len()));
        other.reverse();
        for slice in &mut other {
            slice.endpoints.reverse();
        }
        prop_assert_eq!(&endpoints_of(&other, &node).0, &want);
        // The same endpoints once more, in a slice of another name.
        let again = slices.iter().map(|it| EndpointSlice { name: ObjectName::new("shop", format!("{}-b", it.name.name)), ..it.clone() });
        let doubled: Vec<EndpointSlice> = slices.iter().cloned().chain(again).collect();
        prop_assert_eq!(&endpoints_of(&doubled, &node).0, &want);
    }

    #[test]
    fn a_ready_endpoint_anywhere_means_that_the_cluster_set_has_some(slices in any_slices(), node in any_node()) {
        let (endpoints, _) = endpoints_of(&slices, &node);
        let ready = slices.iter().filter(|it| &*it.ports[0].name == "http").flat_map(|it| &it.endpoints).any(|it| it.ready);
        prop_assert!(!ready || endpoints.iter().any(|it| it.in_cluster_set));
        prop_assert!(endpoints.iter().all(|it| it.local || !it.in_local_set));
    }
}
