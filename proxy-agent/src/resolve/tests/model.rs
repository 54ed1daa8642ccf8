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

/// Weight 0 for everybody.
const WEIGHTLESS: &str = "10.244.1.1=0,10.244.1.2=0,10.244.1.3=0,10.244.1.4=0,10.244.1.5=0";

fn any_slices() -> impl Strategy<Value = Vec<EndpointSlice>> {
    let port = proptest::sample::select(&[("http", 8080), ("http", 8081), ("other", 8080)][..]);
    let weights = proptest::sample::select(&["", "", "10.244.1.1=0,10.244.1.2=3", WEIGHTLESS][..]);
    let one = (
        port,
        proptest::collection::vec(any_endpoint(), 0..6),
        weights,
    );
    proptest::collection::vec(one, 0..5).prop_map(|slices| {
        let named = |(number, ((name, port), endpoints, weights)): (usize, _)| EndpointSlice {
            weights: Weights::parse(weights).unwrap(),
            ..slice(
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
    let mut copies = BTreeMap::<(IpAddr, u16), Vec<(&Endpoint, u16)>>::new();
    for slice in slices {
        for port in slice.ports.iter().filter(|port| &*port.name == "http") {
            for endpoint in &slice.endpoints {
                copies
                    .entry((endpoint.address, port.port))
                    .or_default()
                    .push((
                        endpoint,
                        slice.weights.of(endpoint.address, "").unwrap_or(1),
                    ));
            }
        }
    }
    let best = |copies: &Vec<(&Endpoint, u16)>| -> Option<(Endpoint, u16)> {
        let tests: [fn(&Endpoint) -> bool; 3] = [
            |it| it.ready,
            |it| it.serving && it.terminating,
            |it| it.serving,
        ];
        let test = tests
            .into_iter()
            .find(|test| copies.iter().any(|(it, _)| test(it)))?;
        let usable = copies.iter().copied().filter(|(it, _)| test(it));
        let (chosen, weight) = usable.max_by_key(|(it, weight)| {
            let draining = it.serving && it.terminating;
            (
                draining,
                it.serving,
                it.hints.clone(),
                *weight,
                it.node.clone(),
            )
        })?;
        let on_us = copies
            .iter()
            .any(|(it, _)| it.node.as_deref() == Some("n1"));
        let node = if on_us {
            Some("n1".into())
        } else {
            chosen.node.clone()
        };
        Some((
            Endpoint {
                node,
                ..chosen.clone()
            },
            weight,
        ))
    };
    let weights: BTreeMap<(IpAddr, u16), u16> = copies
        .iter()
        .filter_map(|(key, copies)| Some((*key, best(copies)?.1)))
        .collect();
    let all: Vec<((IpAddr, u16), Endpoint)> = copies
        .iter()
        .filter_map(|(key, copies)| Some((*key, best(copies)?.0)))
        .collect();
    let keys = |wanted: &dyn Fn(&Endpoint) -> bool| -> Vec<(IpAddr, u16)> {
        all.iter()
            .filter(|(_, it)| wanted(it))
            .map(|(key, _)| *key)
            .collect()
    };
    let on_us = |it: &Endpoint| it.node.as_deref() == Some("n1");
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
    let weighty = |set: Vec<(IpAddr, u16)>| -> Vec<(IpAddr, u16)> {
        let heavy: Vec<_> = set.iter().copied().filter(|key| weights[key] > 0).collect();
        if heavy.is_empty() { set } else { heavy }
    };
    let (cluster, local) = (weighty(cluster), weighty(local));
    let resolved = |((address, port), it): &((IpAddr, u16), Endpoint)| ResolvedEndpoint {
        address: *address,
        port: *port,
        weight: weights[&(*address, *port)],
        local: on_us(it),
        node: it.node.clone(),
        in_cluster_set: cluster.contains(&(*address, *port)),
        in_local_set: local.contains(&(*address, *port)),
    };
    all.iter().map(resolved).collect()
}

/// Kind of Service, the two policies, and source ranges.
fn any_service() -> impl Strategy<Value = Service> {
    let kinds = [
        ServiceType::ClusterIp,
        ServiceType::NodePort,
        ServiceType::LoadBalancer,
    ];
    let ranges = &["192.0.2.0/24", "198.18.0.0/15", "0.0.0.0/0", "fd00::/8"];
    (
        proptest::sample::select(kinds.to_vec()),
        any::<(bool, bool)>(),
        proptest::sample::subsequence(ranges.to_vec(), 0..=2),
        proptest::sample::select(vec![0, 30080]),
    )
        .prop_map(|(kind, policies, ranges, node_port)| Service {
            kind,
            internal_local: policies.0,
            external_local: policies.1,
            external_ips: [ip("203.0.113.9"), ip("10.96.0.20")].into(),
            load_balancer_ips: [ip("198.51.100.7")].into(),
            source_ranges: ranges.iter().map(|it| it.parse().expect("range")).collect(),
            ports: [port("http", Protocol::Tcp, 80, node_port)].into(),
            ..service()
        })
}

/// The model of frontends: one sentence of the API after another.
fn frontends(service: &Service) -> Vec<String> {
    let mut lines = Vec::new();
    for outside in [false, true] {
        let mut add = |address: &str, local: bool, filter: &str| {
            let set = if local { "local" } else { "cluster" };
            lines.push(format!("{outside} {address} {set} {filter}"));
        };
        add("10.96.0.20:80", service.internal_local, "anyone");
        add("[fd00:96::20]:80", service.internal_local, "anyone");
        let external = outside && service.external_local;
        if service.kind == ServiceType::LoadBalancer {
            let v4: Vec<String> = service
                .source_ranges
                .iter()
                .map(ToString::to_string)
                .collect();
            let has = |range: &str| v4.iter().any(|it| it == range);
            let filter = if has("0.0.0.0/0") || !(has("192.0.2.0/24") || has("198.18.0.0/15")) {
                "anyone"
            } else if has("192.0.2.0/24") && !outside {
                "ranges, and the host"
            } else {
                "ranges"
            };
            add("198.51.100.7:80", external, filter);
        }
        add("203.0.113.9:80", external, "anyone");
        if service.kind != ServiceType::ClusterIp && service.ports[0].node_port != 0 {
            add("0.0.0.0:30080", service.external_local, "anyone");
            add("[::]:30080", service.external_local, "anyone");
        }
    }
    lines.sort();
    lines
}

proptest! {
    #[test]
    fn frontends_agree_with_the_model(service in any_service()) {
        let (resolved, _) = resolve(&service, &[], &node(), |_| false, &options());
        let shown = |it: &ResolvedFrontend| {
            let set = match it.set {
                EndpointSet::Cluster => "cluster",
                EndpointSet::Local => "local",
            };
            let filter = match it.source_filter {
                SourceFilter::Anyone => "anyone",
                SourceFilter::Ranges => "ranges",
                SourceFilter::RangesAndHost => "ranges, and the host",
            };
            let outside = it.scope == Scope::External;
            let address = std::net::SocketAddr::new(it.address.to_ip(), it.port);
            format!("{outside} {address} {set} {filter}")
        };
        let mut got: Vec<String> = resolved.ports[0].frontends.iter().map(shown).collect();
        got.sort();
        prop_assert_eq!(got, frontends(&service));
    }

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
