//! How a backend is picked (docs/annotations.md).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use proxy_common::{Algorithm, FrontendKind};

use crate::cast::{CASES, Case, Place, SERVICE};
use crate::node::{Guard, Link, Listing, node};
use crate::packet::Packet;

const KIND: FrontendKind = FrontendKind::LoadBalancer;

/// A node with a Service of local endpoints 2 and on, which have so many flows.
fn with_open(case: Case, algorithm: Algorithm, open: &[i32]) -> Guard {
    let mut node = node();
    let backends = (2..).zip(open).map(|(number, &open)| {
        let endpoint = case.endpoint(Place::Local, number);
        let id = node.backend(SERVICE, endpoint).id;
        node.set_open_flows(id, open);
        id
    });
    let backends = backends.collect();
    node.publish(&Listing {
        backends,
        algorithm,
        ..case.listing(KIND)
    });
    node
}

/// Where the flows of so many clients go, from this port on.
fn picks(node: &Guard, case: Case, ports: std::ops::Range<u16>) -> BTreeMap<SocketAddr, u16> {
    let mut picks = BTreeMap::new();
    for port in ports {
        let first = Packet::first(case.protocol, case.client(port), case.frontend(KIND));
        let to = node.ingress(Link::Up0, &first).destination();
        assert_eq!(
            node.ingress(Link::Up0, &first).destination(),
            to,
            "a known flow"
        );
        *picks.entry(to).or_default() += 1;
    }
    picks
}

#[test]
fn random_is_chance_for_one_tuple_and_maglev_is_none() {
    for case in CASES {
        for (algorithm, backends) in [(Algorithm::Maglev, 1), (Algorithm::Random, 4)] {
            let node = with_open(case, algorithm, &[0; 4]);
            let mut seen = BTreeMap::<SocketAddr, u16>::new();
            // One of four is missed by chance in one of 10^12 runs.
            for _ in 0..100 {
                node.clear_flows();
                for to in picks(&node, case, 40_000..40_001).into_keys() {
                    *seen.entry(to).or_default() += 1;
                }
            }
            assert_eq!(seen.len(), backends, "{case:?} {algorithm:?}: {seen:?}");
        }
    }
}

#[test]
fn of_two_backends_the_one_with_fewer_flows_gets_the_next() {
    for case in CASES {
        let endpoints = [2, 3].map(|number| case.endpoint(Place::Local, number));
        for (open, clients, wanted) in [
            ([0, 0], 20, [10, 10]),
            ([17, 5], 12, [0, 12]),
            ([17, 5], 20, [4, 16]),
            // Less than none is none.
            ([-9, 5], 1, [1, 0]),
        ] {
            let node = with_open(case, Algorithm::LeastConnections, &open);
            let got = picks(&node, case, 40_000..40_000 + clients);
            let got = endpoints.map(|it| got.get(&it).copied().unwrap_or_default());
            assert_eq!(got, wanted, "{case:?} {open:?}");
        }
    }
}
