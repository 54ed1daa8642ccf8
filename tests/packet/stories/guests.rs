//! Clients behind devices of pods: their sockets nobody sees, so their packets are
//! translated, to ClusterIPs too.

use std::net::SocketAddr;

use proxy_common::{FrontendKind, Scope};

use crate::cast::{CASES, Case, KINDS, Listing, Place, SERVICE};
use crate::node::{Guard, Link, node};
use crate::packet::Packet;

/// A node with a Service of one endpoint.
fn with_endpoint(case: Case, kind: FrontendKind, endpoint: SocketAddr) -> Guard {
    let mut node = node();
    let backend = node.backend(SERVICE, endpoint);
    node.publish(&Listing {
        backends: vec![backend.id],
        scope: Scope::Internal,
        ..case.listing(kind)
    });
    node
}

/// The stack sends packets on and back: only the frontend becomes the endpoint.
#[test]
fn guests_reach_every_frontend_and_keep_their_address() {
    for case in CASES {
        for kind in KINDS {
            for place in [Place::Local, Place::Overlay, Place::Routed] {
                println!("{case:?} {kind:?} {place:?}");
                let endpoint = case.endpoint(place, 2);
                let node = with_endpoint(case, kind, endpoint);
                let first = Packet::first(case.protocol, case.guest(40_000), case.frontend(kind));
                let got = first.clone().to(endpoint);
                for size in [0, 300] {
                    let packet = first.clone().sized(size);
                    let wanted = packet.clone().to(endpoint);
                    node.ingress(Link::Guests, &packet).passed(&wanted);
                    let answer = got.answer().sized(size);
                    let back = answer.clone().from(first.destination);
                    node.egress(Link::Guests, &answer).passed(&back);
                }
            }
        }
    }
}

/// What comes back from behind the same device would not pass here, and a guest
/// does not take packets from itself (semantics 21).
#[test]
fn an_endpoint_behind_the_same_device_sees_the_node() {
    for case in CASES {
        for number in [3, 9] {
            let endpoint = case.endpoint(Place::Guest, number);
            let node = with_endpoint(case, FrontendKind::ClusterIp, endpoint);
            let to = case.frontend(FrontendKind::ClusterIp);
            let first = Packet::first(case.protocol, case.guest(40_000), to);
            let seen = node.ingress(Link::Guests, &first);
            let source = seen.source();
            assert_eq!(source.ip(), Link::Guests.address(to));
            let got = first.clone().to(endpoint).from(source);
            seen.sent(&got.clone().hop());
            let back = got.answer().from(to).to(first.source).hop();
            node.ingress(Link::Guests, &got.answer()).sent(&back);
        }
    }
}

/// Frontends of clients outside are none of theirs.
#[test]
fn guests_are_clients_of_this_node() {
    for case in CASES {
        let mut node = node();
        let backend = node.backend(SERVICE, case.endpoint(Place::Routed, 2));
        node.publish(&Listing {
            backends: vec![backend.id],
            ..case.listing(FrontendKind::LoadBalancer)
        });
        let to = case.frontend(FrontendKind::LoadBalancer);
        let first = Packet::first(case.protocol, case.guest(40_000), to);
        node.ingress(Link::Guests, &first).passed(&first);
    }
}
