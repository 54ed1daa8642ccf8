//! What a flow remembers, and how it ends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};

use proxy_common::{DropReason, FrontendKind, Protocol};

use crate::cast::{CASES, Case, PORT, Place, SERVICE, Scene};
use crate::node::{FLOWS_MAX, Guard, Link, Listing, Outcome, Program, SNAT_PORTS, node};
use crate::packet::{ACK, FIN, Packet, RST, SYN};

const PLACES: [Place; 3] = [Place::Local, Place::Overlay, Place::Routed];
const KIND: FrontendKind = FrontendKind::LoadBalancer;

fn scenes(protocol: Protocol) -> impl Iterator<Item = Scene> {
    let cases = CASES
        .into_iter()
        .filter(move |case| case.protocol == protocol);
    cases
        .flat_map(|case| PLACES.map(|place| (case, place)))
        .map(|(case, place)| {
            println!("{case:?} {place:?}");
            Scene::new(case, KIND, place)
        })
}

/// A node with a Service of several endpoints, local and remote.
fn with_several(case: Case, affinity_timeout_s: u32) -> Guard {
    let mut node = node();
    let endpoints = PLACES.map(|place| [2, 3, 4].map(|number| case.endpoint(place, number)));
    let backends = endpoints
        .concat()
        .into_iter()
        .map(|it| node.backend(SERVICE, it).id);
    let backends = backends.collect();
    node.publish(&Listing {
        backends,
        affinity_timeout_s,
        ..case.listing(KIND)
    });
    node
}

/// The endpoint to which a client's first packet goes.
fn picked(node: &Guard, case: Case, client: SocketAddr) -> SocketAddr {
    let first = Packet::first(case.protocol, client, case.frontend(KIND));
    node.ingress(Link::Up0, &first).destination()
}

#[test]
fn clients_spread_over_the_endpoints() {
    for case in CASES {
        let node = with_several(case, 0);
        let mut seen: Vec<_> = (0..200_u16)
            .map(|port| picked(&node, case, case.client(40_000 + port)))
            .collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 9, "{case:?}: {seen:?}");
    }
}

/// The same tuple goes to the same endpoint, whatever happened to its flow.
#[test]
fn the_same_tuple_goes_to_the_same_endpoint() {
    for case in CASES {
        let node = with_several(case, 0);
        for port in 40_000..40_050 {
            let before = picked(&node, case, case.client(port));
            node.clear_flows();
            assert_eq!(picked(&node, case, case.client(port)), before);
        }
    }
}

/// With ClientIP a client has one endpoint, and clients differ (semantics 24).
#[test]
fn affinity_is_by_the_clients_address() {
    for case in CASES {
        let node = with_several(case, 100);
        let mut all = Vec::new();
        for host in 1..=40 {
            let mut client = case.client(40_000);
            client.set_ip(match client.ip() {
                IpAddr::V4(ip) => Ipv4Addr::from(u32::from(ip) + host).into(),
                IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) + u128::from(host)).into(),
            });
            let endpoint = picked(&node, case, client);
            for port in [40_001, 50_000] {
                client.set_port(port);
                assert_eq!(picked(&node, case, client), endpoint);
            }
            all.push(endpoint);
        }
        all.sort();
        all.dedup();
        assert!(all.len() > 5, "{case:?}: all clients at {all:?}");
    }
}

/// Both sides have closed: a SYN on the same tuple begins anew, and may go
/// elsewhere (semantics 25).
#[test]
fn a_syn_on_a_closed_connection_begins_anew() {
    for mut scene in scenes(Protocol::Tcp) {
        let first = scene.first();
        let got = scene.open(&first);
        scene.request(&first.clone().flags(FIN | ACK));
        scene.reply(&got.answer().flags(FIN | ACK), first.source);
        let other = scene.case.endpoint(scene.place, 3);
        let backend = scene.node.backend(SERVICE, other);
        let listing = Listing {
            backends: vec![backend.id],
            ..scene.case.listing(KIND)
        };
        scene.node.publish(&listing);
        let old = scene.endpoint;
        scene.request(&first.clone().flags(ACK));
        scene.endpoint = other;
        let now = scene.open(&first);
        assert_eq!(now.destination, other);
        assert_eq!(scene.node.flows.entries().len(), 2, "{old} is forgotten");
    }
}

/// One side has closed, or a RST came that may be forged: the connection goes on,
/// and a SYN goes where the first went.
#[test]
fn a_half_closed_connection_goes_on() {
    for scene in scenes(Protocol::Tcp) {
        let first = scene.first();
        let got = scene.open(&first);
        scene.request(&first.clone().flags(FIN | ACK));
        scene.reply(&got.answer().flags(ACK).sized(99), first.source);
        scene.request(&first.clone().flags(ACK));
        assert_eq!(scene.request(&first), got);
    }
}

#[test]
fn a_stray_reset_ends_nothing() {
    for scene in scenes(Protocol::Tcp) {
        let first = scene.first();
        let got = scene.open(&first);
        scene.request(&first.clone().flags(RST));
        let next = scene.request(&first.clone().flags(ACK));
        assert_eq!(next.source, got.source);
        scene.reply(&got.answer().flags(ACK), first.source);
        assert_eq!(scene.request(&first), got, "its SYN is not a new one");
    }
}

#[test]
fn a_syn_after_a_reset_begins_anew() {
    for scene in scenes(Protocol::Tcp) {
        let before = scene.node.opened(scene.backend.id);
        let first = scene.first();
        let got = scene.open(&first);
        scene.reply(&got.answer().flags(RST), first.source);
        scene.open(&first);
        assert_eq!(scene.node.flows.entries().len(), 2);
        assert_eq!(scene.node.opened(scene.backend.id), before + 2);
    }
}

/// An established connection stays with its endpoint, whatever the API says.
#[test]
fn tcp_stays_with_an_endpoint_that_is_gone() {
    for scene in scenes(Protocol::Tcp) {
        let first = scene.first();
        let got = scene.open(&first);
        scene.node.remove_backend(scene.backend.id);
        let next = scene.request(&first.clone().flags(ACK));
        assert_eq!(next.source, got.source);
        scene.reply(&got.answer().flags(ACK), first.source);
    }
}

/// A conversation moves when its endpoint no longer serves, and stays while it
/// does (semantics 26).
#[test]
fn udp_moves_when_its_endpoint_is_gone() {
    for mut scene in scenes(Protocol::Udp) {
        for answered in [false, true] {
            scene.node.clear_flows();
            scene.node.set_serving(scene.backend.id, true);
            let listing = Listing {
                backends: vec![scene.backend.id],
                ..scene.case.listing(KIND)
            };
            scene.node.publish(&listing);
            scene.endpoint = scene.case.endpoint(scene.place, 2);
            let first = scene.first();
            let got = scene.request(&first);
            if answered {
                scene.reply(&got.answer(), first.source);
            }
            let other = scene.case.endpoint(scene.place, 3);
            let backend = scene.node.backend(SERVICE, other);
            scene.node.publish(&Listing {
                backends: vec![backend.id],
                ..listing.clone()
            });
            assert_eq!(scene.request(&first), got, "it serves");
            scene.node.set_serving(scene.backend.id, false);
            scene.endpoint = other;
            scene.open(&first);
            scene.node.publish(&Listing {
                backends: vec![],
                ..listing.clone()
            });
            scene.node.remove_backend(backend.id);
            let seen = scene
                .node
                .run_bytes(Program::Ingress, Link::Up0, &first.frame());
            assert_eq!(seen.counted, Some(DropReason::NoEndpoint));
            assert_eq!(scene.node.flows.entries(), []);
            assert_eq!(scene.node.flows_new.entries(), []);
        }
    }
}

/// The request's half was evicted before the answer came: the answer, which says
/// all that there is to know, brings it back.
#[test]
fn an_answer_restores_the_requests_half() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for scene in scenes(protocol) {
            let first = scene.first();
            let got = scene.request(&first);
            scene.node.flows_new.remove(&first.key());
            scene.reply(&got.answer(), first.source);
            let next = scene.request(&first.clone().flags(ACK));
            assert_eq!(next.source, got.source);
        }
    }
}

/// The same the other way round.
#[test]
fn a_request_restores_the_answers_half() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for scene in scenes(protocol) {
            let first = scene.first();
            let got = scene.request(&first);
            scene.node.flows_new.remove(&got.answer().key());
            assert_eq!(scene.request(&first), got);
            scene.reply(&got.answer(), first.source);
        }
    }
}

/// The request's half was evicted, and the client's next packet made it anew with
/// another source port: what answers the first one must not go into the second.
#[test]
fn an_answer_to_a_flow_that_was_made_anew_does_not_mix() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for scene in scenes(protocol).filter(|it| it.place != Place::Local) {
            let first = scene.first();
            let old = scene.request(&first);
            scene.node.flows_new.remove(&first.key());
            let new = scene.request(&first);
            assert_ne!(old.source, new.source);
            scene
                .node
                .ingress(scene.place.link(), &old.answer())
                .dropped(DropReason::NoFlow);
            scene.reply(&new.answer(), first.source);
            assert_eq!(scene.request(&first.clone().flags(ACK)).source, new.source);
        }
    }
}

/// SYNs that a backend answers and no client acknowledges fill nothing but the map of
/// new flows: not before the handshake is complete does a connection get out of there.
#[test]
fn half_open_connections_are_new_ones() {
    for scene in scenes(Protocol::Tcp) {
        let first = scene.first();
        let got = scene.request(&first);
        let half_open = |scene: &Scene| {
            assert_eq!(scene.node.flows.entries(), []);
            assert_eq!(scene.node.flows_new.entries().len(), 2);
        };
        // The backend has not answered.
        scene.request(&first.clone().flags(ACK));
        half_open(&scene);
        scene.reply(&got.answer(), first.source);
        half_open(&scene);
        // What the owner of a forged address says, a retransmission, an answer to that.
        scene.request(&first.clone().flags(RST));
        scene.request(&first);
        scene.reply(&got.answer(), first.source);
        half_open(&scene);
        scene.request(&first.clone().flags(ACK));
        assert_eq!(scene.node.flows.entries().len(), 2);
        assert_eq!(scene.node.flows_new.entries(), []);
    }
}

/// No room for flows that have been answered: the packet that makes one so is dropped,
/// counted, and nobody else suffers.
#[test]
fn the_map_of_flows_is_full() {
    for case in CASES {
        for place in PLACES {
            println!("{case:?} {place:?}");
            let scene = Scene::new(case, KIND, place);
            let first = scene.first();
            let settled = scene.open(&first);
            let mut port = 40_000;
            let refused = loop {
                port += 1;
                let next = first.clone().from(case.client(port));
                let answer = scene.request(&next).answer();
                let seen = if case.protocol == Protocol::Tcp {
                    scene.reply(&answer, next.source);
                    scene.node.ingress(Link::Up0, &next.clone().flags(ACK))
                } else if place == Place::Local {
                    scene.node.egress(Link::Up0, &answer)
                } else {
                    scene.node.ingress(scene.place.link(), &answer)
                };
                if seen.counted.is_some() {
                    seen.dropped(DropReason::FlowsFull);
                    break (next, answer);
                }
                assert!(
                    u32::from(port - 40_000) <= FLOWS_MAX / 2,
                    "it has room for all"
                );
            };
            let known = scene.node.flows.entries();
            assert_eq!(known.len() % 2, 0, "half a pair");
            scene.request(&first.clone().flags(ACK));
            scene.reply(&settled.answer().flags(ACK), first.source);
            // Room comes back, and with it the way.
            scene.node.flows.clear();
            scene.request(&refused.0.clone().flags(ACK));
            scene.reply(&refused.1, refused.0.source);
            assert_eq!(scene.node.flows.entries().len(), 2);
        }
    }
}

/// A TCP packet in mid-connection of which no flow is known: dropped, or the
/// stack's while conntrack may own it.
#[test]
fn a_packet_in_mid_connection_without_flow() {
    for scene in scenes(Protocol::Tcp) {
        for flags in [ACK, FIN | ACK, RST, SYN | ACK, RST | ACK] {
            let packet = scene.first().flags(flags);
            scene.node.take_over(false);
            scene.drops(&packet, DropReason::NoFlow);
            scene.node.take_over(true);
            scene.node.ingress(Link::Up0, &packet).passed(&packet);
            assert_eq!(scene.node.flows_new.entries(), []);
        }
    }
}

/// A host process whose own port has a NodePort's number gets its answers.
#[test]
fn a_host_socket_with_a_node_ports_number() {
    for case in CASES {
        let scene = Scene::new(case, FrontendKind::NodePort, Place::Overlay);
        let here = scene.frontend();
        let there = case.client(443);
        let _socket = connecting(case.protocol, here, there);
        let answer = match case.protocol {
            Protocol::Tcp => Packet::tcp(there, here, SYN | ACK),
            _ => Packet::udp(there, here),
        };
        let pass = |seen: Outcome| seen.passed(&answer);
        pass(scene.node.ingress(Link::Up0, &answer));
        // Another client's packets are a NodePort's.
        scene.open(&scene.first());
        assert_eq!(here.port(), PORT);
    }
}

/// A socket on its way to a peer that says nothing.
fn connecting(protocol: Protocol, here: SocketAddr, there: SocketAddr) -> OwnedFd {
    let family = if here.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let kind = match protocol {
        Protocol::Tcp => SockType::Stream,
        Protocol::Udp | Protocol::Sctp => SockType::Datagram,
    };
    let fd = socket(family, kind, SockFlag::SOCK_NONBLOCK, None).expect("a socket");
    bind(fd.as_raw_fd(), &SockaddrStorage::from(here)).expect("a free port");
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(there)) {
        Ok(()) | Err(Errno::EINPROGRESS) => fd,
        Err(error) => panic!("connecting to {there}: {error}"),
    }
}

/// A local backend sees the client's own address. One port of the client can have
/// one connection with it: a second one, by another frontend, gets another port.
#[test]
fn a_second_frontend_of_the_same_local_endpoint() {
    for case in CASES {
        println!("{case:?}");
        let scene = two_frontends(case);
        let first = scene.first();
        let second = case.first(FrontendKind::NodePort);
        for answered in [false, true] {
            scene.node.clear_flows();
            let got = scene.request(&first);
            if answered {
                scene.reply(&got.answer(), first.source);
            }
            let seen = scene.node.ingress(Link::Up0, &second);
            let source = seen.source();
            assert_eq!(source.ip(), second.source.ip());
            assert!((SNAT_PORTS.0..=SNAT_PORTS.1).contains(&source.port()));
            let other = second.clone().from(source).to(scene.endpoint);
            seen.passed(&other);
            // Each goes on by its own frontend, also when it is late.
            for _ in 0..2 {
                let back = other.answer();
                let wanted = back.clone().from(second.destination).to(second.source);
                scene.node.egress(Link::Up0, &back).passed(&wanted);
                scene.request(&first.clone().flags(ACK));
                scene.reply(&got.answer(), first.source);
                let more = second.clone().flags(ACK);
                let wanted = other.clone().flags(ACK);
                scene.node.ingress(Link::Up0, &more).passed(&wanted);
            }
            assert_eq!(scene.node.flows.entries().len(), 4);
            assert_eq!(scene.node.flows_new.entries(), []);
        }
    }
}

/// A connection that is over makes room for one by another frontend, and what
/// still comes for it does not reach that one.
#[test]
fn a_second_frontend_after_the_first_ones_connection() {
    for case in CASES.into_iter().filter(|it| it.protocol == Protocol::Tcp) {
        println!("{case:?}");
        let mut scene = two_frontends(case);
        let first = scene.first();
        let got = scene.open(&first);
        scene.request(&first.clone().flags(FIN | ACK));
        scene.reply(&got.answer().flags(FIN | ACK), first.source);
        scene.kind = FrontendKind::NodePort;
        scene.open(&case.first(FrontendKind::NodePort));
        for late in [ACK, FIN | ACK, RST] {
            let late = first.clone().flags(late);
            let seen = scene.node.ingress(Link::Up0, &late);
            seen.dropped(DropReason::NoFlow);
        }
        assert_eq!(scene.node.flows.entries().len(), 2);
    }
}

/// One local endpoint by two frontends; the scene's own is the first.
fn two_frontends(case: Case) -> Scene {
    let mut scene = Scene::new(case, KIND, Place::Local);
    scene.node.publish(&Listing {
        backends: vec![scene.backend.id],
        ..case.listing(FrontendKind::NodePort)
    });
    scene
}
