//! A client's packet reaches a backend, and the answer finds its way back.

use proxy_common::{Flow, FrontendKind, Protocol};

use crate::cast::{CASES, KINDS, Place, Scene};
use crate::node::{Link, REDIRECT};
use crate::packet::{ACK, FIN, Frame, Packet, SYN, Transport};

const PLACES: [Place; 3] = [Place::Local, Place::Overlay, Place::Routed];

fn every_scene() -> impl Iterator<Item = (Scene, String)> {
    let places = PLACES
        .into_iter()
        .flat_map(|place| KINDS.map(|kind| (place, kind)));
    let all = places.flat_map(|(place, kind)| CASES.map(|case| (case, kind, place)));
    all.map(|(case, kind, place)| {
        let name = format!("{case:?} {kind:?} {place:?}");
        (Scene::new(case, kind, place), name)
    })
}

/// A connection opens, carries data both ways and closes; a datagram is answered
/// and followed by another one.
#[test]
fn clients_and_backends_talk() {
    for (scene, name) in every_scene() {
        println!("{name}");
        let first = scene.first();
        let client = first.source;
        let got = scene.open(&first);
        let mut steps = vec![ACK, ACK, FIN | ACK];
        if scene.case.protocol == Protocol::Udp {
            steps = vec![0; 2];
        }
        for flags in steps {
            let request = first.clone().flags(flags).sized(333);
            let again = scene.request(&request);
            assert_eq!(again.source, got.source, "one connection, one source");
            scene.reply(&again.answer().flags(flags).sized(501), client);
        }
        assert_eq!(scene.node.flows.entries().len(), 2);
        assert_eq!(scene.node.flows_new.entries(), []);
    }
}

/// Both halves count what passed: packets, and bytes from the IP header on.
#[test]
fn a_flow_counts_its_packets_and_bytes() {
    for (scene, name) in every_scene() {
        println!("{name}");
        let before = scene.node.opened(scene.backend.id);
        let first = scene.first().sized(7);
        let got = scene.request(&first);
        let answer = got.answer().sized(70);
        scene.reply(&answer, first.source);
        let second = first.clone().flags(ACK).sized(700);
        scene.request(&second);
        assert_eq!(scene.node.opened(scene.backend.id), before + 1);
        let there = scene
            .node
            .flows
            .get(&first.key())
            .expect("the request's half");
        let size = first.ip_bytes().len() + second.ip_bytes().len();
        assert_eq!((there.packets, there.bytes), (2, size as u64));
        let back = scene
            .node
            .flows
            .get(&answer.key())
            .expect("the reply's half");
        assert_eq!(
            (back.packets, back.bytes),
            (1, answer.ip_bytes().len() as u64)
        );
        assert_eq!(there.state & back.state & Flow::ANSWERED, Flow::ANSWERED);
    }
}

#[test]
fn ipv4_options_and_ipv6_extension_headers_stay() {
    for (scene, name) in every_scene() {
        println!("{name}");
        let mut first = scene.first();
        if scene.case.v4 {
            // Router alert, and padding.
            first.options = vec![0x94, 4, 0, 0, 1, 1, 1, 0];
        } else {
            let padding = vec![0, 1, 4, 0, 0, 0, 0];
            let longer = [&[1, 1, 12][..], &[0; 12]].concat();
            first.extensions = vec![(0, padding), (60, longer)];
        }
        let client = first.source;
        // etherparse does not look behind extension headers for the source.
        let got = if scene.place == Place::Local {
            scene.request(&first)
        } else {
            let seen = scene.node.ingress(Link::Up0, &first);
            let key = scene.node.flows_new.get(&first.key()).expect("a flow");
            let source = (key.source.to_ip(), key.source_port).into();
            let wanted = first.clone().to(scene.endpoint).from(source).hop();
            seen.sent(&wanted);
            wanted
        };
        let mut answer = got.answer();
        answer.options = first.options.clone();
        answer.extensions = first.extensions.clone();
        scene.reply(&answer, client);
    }
}

#[test]
fn tcp_options_stay() {
    let mss_and_timestamps = vec![2, 4, 5, 180, 1, 1, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0];
    for (scene, _) in every_scene().filter(|it| it.0.case.protocol == Protocol::Tcp) {
        let mut first = scene.first();
        if let Transport::Tcp { options, .. } = &mut first.transport {
            *options = mss_and_timestamps.clone();
        }
        scene.open(&first);
    }
}

/// A checksum of zero means that there is none; and one that comes to zero is
/// written as ones, since zero would mean that there is none (RFC 768).
#[test]
fn a_datagram_without_checksum_stays_without() {
    for (scene, _) in every_scene() {
        if scene.case.protocol != Protocol::Udp || !scene.case.v4 {
            continue;
        }
        let mut first = scene.first();
        first.transport = Transport::Udp { summed: false };
        let got = scene.request(&first);
        let mut answer = got.answer();
        answer.transport = Transport::Udp { summed: false };
        scene.reply(&answer, first.source);
    }
}

#[test]
fn a_checksum_that_comes_to_zero_is_written_as_ones() {
    for (scene, name) in every_scene().filter(|it| it.0.case.protocol == Protocol::Udp) {
        let first = scene.first();
        let got = scene.request(&first);
        // A payload that is the checksum over the rest makes the sum all ones.
        let mut wanted = got.clone();
        wanted.payload = vec![0, 0];
        let bytes = wanted.ip_bytes();
        let at = bytes.len() - 4;
        wanted.payload = bytes[at..at + 2].to_vec();
        let bytes = wanted.ip_bytes();
        assert_eq!(bytes[at..at + 2], [0xff, 0xff], "{name}");
        let mut packet = first.clone();
        packet.payload = wanted.payload;
        scene.request(&packet);
    }
}

/// Only who forwards a packet takes a hop from it: for a local backend that is
/// the stack.
#[test]
fn the_last_hop_ends_at_who_forwards() {
    for (scene, name) in every_scene() {
        println!("{name}");
        let mut first = scene.first();
        first.hops = 1;
        if scene.place == Place::Local {
            let got = scene.request(&first);
            let mut answer = got.answer();
            answer.hops = 1;
            scene.reply(&answer, first.source);
            continue;
        }
        let seen = scene.node.ingress(Link::Up0, &first);
        seen.dropped(proxy_common::DropReason::TtlExceeded);
        let got = scene.request(&scene.first());
        let mut answer = got.answer();
        answer.hops = 1;
        let seen = scene.node.ingress(scene.place.link(), &answer);
        seen.dropped(proxy_common::DropReason::TtlExceeded);
        scene.reply(&got.answer(), first.source);
    }
}

/// The answer leaves by the device that the request came in by.
#[test]
fn an_answer_that_the_routes_send_elsewhere_is_redirected() {
    for case in CASES {
        let scene = Scene::new(case, FrontendKind::LoadBalancer, Place::Local);
        let first = scene.first();
        let seen = scene.node.ingress(Link::Up1, &first);
        let got = scene.check_request(&first, seen);
        let answer = got.answer();
        let wanted = answer.clone().from(scene.frontend()).to(first.source);
        scene.node.egress(Link::Up0, &answer).sent(&wanted);
        scene.node.egress(Link::Up1, &answer).passed(&wanted);
    }
}

/// What is too big for the device of the request leaves by the one that the routes have
/// chosen: the stack has judged it by that one, and redirected it would be lost.
#[test]
fn an_answer_that_is_too_big_for_the_device_of_its_request_leaves_as_routes_say() {
    for case in CASES {
        let scene = Scene::new(case, FrontendKind::LoadBalancer, Place::Local);
        scene.node.change_device(Link::Up1, |it| it.mtu = 1_280);
        let first = scene.first();
        let seen = scene.node.ingress(Link::Up1, &first);
        let got = scene.check_request(&first, seen);
        for (size, fits) in [(1_000, true), (1_300, false)] {
            let answer = got.answer().sized(size);
            let wanted = answer.clone().from(scene.frontend()).to(first.source);
            let seen = scene.node.egress(Link::Up0, &answer);
            if fits {
                seen.sent(&wanted);
            } else {
                seen.passed(&wanted);
            }
        }
    }
}

/// On a device without link header packets begin with the IP header; where they
/// go on to another device they get room for one.
#[test]
fn a_device_without_link_header_is_an_uplink_too() {
    for case in CASES {
        for place in PLACES {
            let scene = Scene::new(case, FrontendKind::LoadBalancer, place);
            let first = Packet::first(case.protocol, case.l3_client(40_000), scene.frontend());
            let bytes = Frame(first.ip_bytes());
            let seen = scene
                .node
                .run_bytes(crate::node::Program::Ingress, Link::L3, &bytes);
            let flow = scene.node.flows_new.get(&first.key()).expect("a flow");
            let source = (flow.source.to_ip(), flow.source_port).into();
            let wanted = first.clone().to(scene.endpoint).from(source);
            if place == Place::Local {
                seen.expect(crate::node::UNSPEC, &Frame(wanted.ip_bytes()), None);
                continue;
            }
            let wanted = [&[0; 14][..], &wanted.clone().hop().ip_bytes()].concat();
            seen.expect(REDIRECT, &Frame(wanted), None);
            let answer = first.clone().to(scene.endpoint).from(source).answer();
            let back = answer.clone().from(scene.frontend()).to(first.source).hop();
            scene.node.ingress(place.link(), &answer).sent(&back);
        }
    }
}

/// A second client with the same port, and another port of the same client, are
/// told apart, also where the backend sees one address for all.
#[test]
fn connections_of_several_clients_do_not_mix() {
    for (scene, name) in every_scene() {
        println!("{name}");
        let clients = [
            scene.case.client(40_000),
            scene.case.client(40_001),
            scene.case.other_client(40_000),
        ];
        let first = scene.first();
        let got = clients.map(|client| scene.request(&first.clone().from(client)));
        assert!(got[0].source != got[1].source && got[1].source != got[2].source);
        assert_ne!(got[0].source, got[2].source);
        for (client, got) in clients.into_iter().zip(&got).rev() {
            scene.reply(&got.answer(), client);
        }
        for (client, got) in clients.into_iter().zip(&got) {
            let next = first.clone().from(client).flags(ACK);
            assert_eq!(scene.request(&next).source, got.source);
        }
        assert_eq!(scene.node.flows.entries().len(), 6);
    }
}

/// A SYN that is sent again goes where the first went.
#[test]
fn a_retransmitted_first_packet_changes_nothing() {
    for (scene, _) in every_scene() {
        let first = scene.first();
        let got = scene.request(&first);
        assert_eq!(scene.request(&first), got);
        scene.reply(&got.answer(), first.source);
        assert_eq!(scene.request(&first), got);
        scene.reply(&got.answer().flags(SYN | ACK), first.source);
        let known = [&scene.node.flows, &scene.node.flows_new].map(|it| it.entries().len());
        assert_eq!(known[0] + known[1], 2);
    }
}
