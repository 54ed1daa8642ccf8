//! Source ports towards remote backends, and what happens when there are none.

use std::net::{TcpListener, UdpSocket};

use nix::time::{ClockId, clock_gettime};
use proxy_common::{DropReason, Flow, FrontendKind, Protocol};

use crate::cast::{CASES, Case, Place, SERVICE, Scene};
use crate::node::{Link, Listing, Node, Program, REDIRECT, addresses, node};
use crate::packet::{ACK, Packet, RST, SYN};
use crate::stories::race::{run, together};

const PLACES: [Place; 2] = [Place::Overlay, Place::Routed];
const KIND: FrontendKind = FrontendKind::LoadBalancer;

/// For so long a connection must be half-open before another one gets its port.
const HALF_OPEN_S: u32 = 2;

/// A node with so few ports for SNAT.
fn scenes(protocol: Protocol, ports: (u16, u16)) -> impl Iterator<Item = Scene> {
    let cases = CASES.into_iter().filter(move |it| it.protocol == protocol);
    let all = cases.flat_map(|case| PLACES.map(|place| (case, place)));
    all.map(move |(case, place)| {
        println!("{case:?} {place:?}");
        let scene = Scene::new(case, KIND, place);
        scene.node.snat_ports(ports);
        scene
    })
}

/// The new flows are so much older.
fn age(node: &Node, seconds: u32) {
    for (key, flow) in node.flows_new.entries() {
        let created_s = flow.created_s - seconds;
        node.flows_new.put(&key, &Flow { created_s, ..flow });
    }
}

/// The new flows begin now, and this second goes on for a while: programs count whole
/// ones.
fn begin_now(node: &Node) {
    let now = loop {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("there is a clock");
        if now.tv_nsec() < 900_000_000 {
            break now;
        }
    };
    for (key, flow) in node.flows_new.entries() {
        let created_s = now.tv_sec() as u32;
        node.flows_new.put(&key, &Flow { created_s, ..flow });
    }
}

#[track_caller]
fn finds_no_port(scene: &Scene, packet: &Packet) {
    let seen = scene.node.ingress(Link::Up0, packet);
    seen.dropped(DropReason::SnatPortsExhausted);
}

#[test]
fn no_source_port_is_left() {
    for case in CASES {
        for place in [Place::Overlay, Place::Routed] {
            let scene = Scene::new(case, KIND, place);
            scene.node.snat_ports((61_000, 61_000));
            let first = scene.first();
            let got = scene.open(&first);
            assert_eq!(got.source.port(), 61_000);
            let second = first.clone().from(case.client(40_001));
            let seen = scene.node.ingress(Link::Up0, &second);
            seen.dropped(DropReason::SnatPortsExhausted);
            assert_eq!(scene.node.flows_new.entries(), []);
            // Another endpoint is another tuple.
            scene.node.snat_ports((61_000, 61_003));
            assert_ne!(scene.request(&second).source.port(), 61_000);
        }
    }
}

/// A port that a socket of the node would get answers on is not taken.
#[test]
fn a_source_port_of_a_local_socket_is_left_to_it() {
    for case in CASES {
        let scene = Scene::new(case, KIND, Place::Overlay);
        scene.node.snat_ports((61_000, 61_000));
        let address = (Link::Ov0.address(scene.endpoint), 61_000);
        let first = scene.first();
        {
            let _udp = UdpSocket::bind(address).expect("a free port");
            let _tcp = TcpListener::bind(address).expect("a free port");
            scene.drops(&first, DropReason::SnatPortsExhausted);
        }
        scene.open(&first);
    }
}

/// One of a flood of SYNs keeps its port while it is young, whether the backend has
/// answered or not. Then the next client gets it.
#[test]
fn a_half_open_connection_loses_its_port() {
    for scene in scenes(Protocol::Tcp, (61_000, 61_000)) {
        for answered in [false, true] {
            scene.node.clear_flows();
            let forged = scene.first();
            let got = scene.request(&forged);
            if answered {
                scene.reply(&got.answer(), forged.source);
            }
            let first = forged.clone().from(scene.case.client(40_001));
            begin_now(&scene.node);
            finds_no_port(&scene, &first);
            age(&scene.node, HALF_OPEN_S - 1);
            finds_no_port(&scene, &first);
            assert_eq!(scene.request(&forged), got, "nothing happened to it");
            age(&scene.node, 1);
            assert_eq!(scene.request(&first).source, got.source);
            assert_eq!(scene.node.flows_new.entries().len(), 2);
            // What the backend still says to the other one acknowledges nothing that
            // this client has sent. Its RST ends that at the backend.
            scene.reply(&got.answer(), first.source);
            scene.request(&first.clone().flags(RST));
            let late = forged.clone().flags(ACK);
            scene
                .node
                .ingress(Link::Up0, &late)
                .dropped(DropReason::NoFlow);
            finds_no_port(&scene, &forged);
            // Theirs is a connection now: it keeps the port.
            scene.open(&first);
            age(&scene.node, HALF_OPEN_S);
            finds_no_port(&scene, &forged);
            scene.request(&first.clone().flags(ACK));
        }
    }
}

/// The request's half was evicted: what is left gives the port away as well, and the
/// flow that its client has made since stays.
#[test]
fn a_half_of_a_half_open_connection_loses_its_port() {
    for scene in scenes(Protocol::Tcp, (61_000, 61_000)) {
        let forged = scene.first();
        let got = scene.request(&forged);
        scene.node.flows_new.remove(&forged.key());
        age(&scene.node, HALF_OPEN_S);
        scene.node.snat_ports((61_001, 61_001));
        let again = scene.request(&forged);
        scene.node.snat_ports((61_000, 61_000));
        let first = forged.clone().from(scene.case.client(40_001));
        assert_eq!(scene.request(&first).source, got.source);
        assert_eq!(scene.request(&forged), again);
        assert_eq!(scene.node.flows_new.entries().len(), 4);
    }
}

#[test]
fn the_oldest_half_open_connection_loses_its_port() {
    for scene in scenes(Protocol::Tcp, (61_000, 61_007)) {
        let forged: Vec<Packet> = (0..8)
            .map(|number| {
                age(&scene.node, 1);
                let forged = scene.first().from(scene.case.client(41_000 + number));
                scene.request(&forged)
            })
            .collect();
        age(&scene.node, HALF_OPEN_S);
        for (number, oldest) in (0..).zip(&forged) {
            let first = scene.first().from(scene.case.client(42_000 + number));
            assert_eq!(scene.request(&first).source, oldest.source);
        }
        finds_no_port(&scene, &scene.first());
    }
}

/// Nothing in a late answer would show whose it is.
#[test]
fn an_unanswered_datagram_keeps_its_port() {
    for scene in scenes(Protocol::Udp, (61_000, 61_000)) {
        let first = scene.first();
        let got = scene.request(&first);
        age(&scene.node, 10 * HALF_OPEN_S);
        finds_no_port(&scene, &first.clone().from(scene.case.client(40_001)));
        scene.reply(&got.answer(), first.source);
    }
}

/// A connection was completed on one CPU while another CPU took its port: the port
/// stays with it, and the client that believed to have it gets another one.
#[test]
fn a_port_that_went_back_is_given_up() {
    for scene in scenes(Protocol::Tcp, (61_000, 61_001)) {
        let first = scene.first();
        let got = scene.open(&first);
        let late = first.clone().from(scene.case.client(40_001));
        let half = scene.node.flows.get(&first.key()).expect("it is answered");
        let tag = late.key().tag();
        let state = 0;
        let half = Flow { tag, state, ..half };
        scene.node.flows_new.put(&late.key(), &half);
        let other = scene.open(&late);
        assert_ne!(other.source, got.source);
        scene.reply(&got.answer().flags(ACK), first.source);
        scene.reply(&other.answer().flags(ACK), late.source);
        // Had it been in mid-connection, it would have none.
        scene.node.flows_new.put(&late.key(), &half);
        scene.node.flows.remove(&late.key());
        let seen = scene.node.ingress(Link::Up0, &late.clone().flags(ACK));
        seen.dropped(DropReason::NoFlow);
        assert_eq!(scene.node.flows_new.get(&late.key()), None);
    }
}

/// Two CPUs want the ports of the same few half-open connections: each is taken once.
#[test]
fn two_cpus_take_the_same_port() {
    const PORTS: u16 = 8;
    const BATCHES: u16 = 300;
    let mut shared = 0;
    for case in CASES.into_iter().filter(|it| it.protocol == Protocol::Tcp) {
        for place in PLACES {
            println!("{case:?} {place:?}");
            let mut node = node();
            node.snat_ports((61_000, 61_000 + PORTS - 1));
            let backends = vec![node.backend(SERVICE, case.endpoint(place, 2)).id];
            node.publish(&Listing {
                backends,
                ..case.listing(KIND)
            });
            for batch in 0..BATCHES {
                node.clear_flows();
                for port in 0..PORTS {
                    age(&node, 1);
                    let forged = Packet::tcp(case.client(50_000 + port), case.frontend(KIND), SYN);
                    node.ingress(Link::Up0, &forged);
                }
                age(&node, HALF_OPEN_S);
                shared += take(&node, case, 20_000 + batch * 2 * PORTS, PORTS);
            }
        }
    }
    assert!(shared > 0, "no two wanted the same one");
}

/// Clients come on two CPUs, until all ports are taken; how many found none.
fn take(node: &Node, case: Case, first_port: u16, ports: u16) -> usize {
    let first = |cpu: usize, round: u16| {
        let client = case.client(first_port + round * 2 + cpu as u16);
        Packet::tcp(client, case.frontend(KIND), SYN)
    };
    let seen = together(ports / 2, |cpu, round| {
        run(node, Program::Ingress, Link::Up0, &first(cpu, round))
    });
    let mut taken = Vec::new();
    for (round, both) in (0..).zip(&seen) {
        for (cpu, (verdict, frame)) in both.iter().enumerate() {
            let key = first(cpu, round).key();
            let half = node.flows_new.get(&key);
            if *verdict != REDIRECT {
                assert_eq!(half, None, "what is dropped leaves nothing");
                continue;
            }
            let (source, _) = addresses(frame);
            let half = half.expect("the request's half");
            assert_eq!(half.source_port, source.port());
            let back = half.other_key(key.protocol);
            let reply = node.flows_new.get(&back).expect("the reply's half");
            assert_eq!(reply.other_key(key.protocol), key, "one port, one client");
            taken.push(source);
        }
    }
    let halves = node.flows_new.entries().len();
    assert_eq!(halves, 2 * usize::from(ports), "every port has one pair");
    usize::from(ports) - taken.len()
}
