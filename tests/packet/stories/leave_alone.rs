//! What is not ours, or no packet at all, is not touched.

use std::net::{IpAddr, SocketAddr};

use proxy_common::{FrontendKind, Protocol};

use crate::cast::{CASES, Case, PORT, Place, Scene};
use crate::node::{Link, Outcome, Program, UNSPEC};
use crate::packet::{Frame, Packet};

const PROGRAMS: [Program; 2] = [Program::Ingress, Program::Egress];

fn scene(case: Case) -> Scene {
    Scene::new(case, FrontendKind::NodePort, Place::Overlay)
}

/// Every program leaves the frame as it is, on every device.
#[track_caller]
fn untouched(scene: &Scene, frame: &Frame) {
    for link in [Link::Up0, Link::Up1, Link::Ov0, Link::Cni0] {
        for program in PROGRAMS {
            let seen = scene.node.run_bytes(program, link, frame);
            seen.expect(UNSPEC, frame, None);
        }
    }
    assert_eq!(scene.node.flows_new.entries(), []);
}

#[test]
fn packets_between_others() {
    for case in CASES {
        let scene = scene(case);
        let there = case.other_client(PORT);
        untouched(
            &scene,
            &Packet::first(case.protocol, case.client(1_000), there).frame(),
        );
        let pod = case.endpoint(Place::Local, 7);
        untouched(
            &scene,
            &Packet::first(case.protocol, case.client(1_000), pod).frame(),
        );
        untouched(
            &scene,
            &Packet::first(case.protocol, pod, case.client(1_000)).frame(),
        );
    }
}

/// Connections that the node opens itself, from a port with a NodePort's number.
#[test]
fn outgoing_connections_from_a_node_ports_number() {
    for case in CASES {
        let scene = scene(case);
        let mut here = scene.frontend();
        here.set_ip(Link::Up0.address(here));
        let out = Packet::first(case.protocol, here, case.client(443));
        scene.node.egress(Link::Up0, &out).passed(&out);
    }
}

/// The same port in another protocol, and on an address that serves no NodePorts.
#[test]
fn other_protocols_and_addresses() {
    for case in CASES {
        let scene = scene(case);
        let other = match case.protocol {
            Protocol::Tcp => Protocol::Udp,
            Protocol::Udp | Protocol::Sctp => Protocol::Tcp,
        };
        untouched(
            &scene,
            &Packet::first(other, case.client(1_000), scene.frontend()).frame(),
        );
        let mut here = scene.frontend();
        here.set_ip(Link::Cni0.address(here));
        untouched(
            &scene,
            &Packet::first(case.protocol, case.client(1_000), here).frame(),
        );
    }
}

/// A device that the packet path does not know, and one where only answers count.
#[test]
fn other_devices() {
    for case in CASES {
        let scene = scene(case);
        let first = scene.first();
        for link in [Link::Ov0, Link::Cni0] {
            scene.node.ingress(link, &first).passed(&first);
        }
        let got = scene.request(&first);
        let answer = got.answer();
        scene.node.ingress(Link::Cni0, &answer).passed(&answer);
        scene.reply(&answer, first.source);
    }
}

#[test]
fn vlan_tags_arp_and_what_is_no_ip() {
    for case in CASES {
        let scene = scene(case);
        let frame = scene.first().sized(40).frame();
        let mut tagged = frame.0[..12].to_vec();
        tagged.extend([0x81, 0, 0, 7]);
        tagged.extend(&frame.0[12..]);
        untouched(&scene, &Frame(tagged));
        for kind in [
            [0x08, 0x06],
            [0x88, 0xcc],
            [0, 46],
            [0x86, 0xdd],
            [0x08, 0x00],
        ] {
            let mut other = frame.clone();
            if other.0[12..14] != kind {
                other.0[12..14].copy_from_slice(&kind);
                untouched(&scene, &other);
            }
        }
    }
}

/// Ping and SCTP to a frontend's address.
#[test]
fn transports_that_services_do_not_have() {
    for case in CASES {
        let scene = scene(case);
        let mut frame = scene.first().frame();
        let at = if case.v4 { 23 } else { 20 };
        for protocol in [1, 2, 4, 41, 47, 50, 51, 58, 59, 88, 132, 136, 255] {
            frame.0[at] = protocol;
            untouched(&scene, &frame);
        }
    }
}

/// Every shorter beginning of a packet: its headers are cut off, or they promise
/// more than there is.
#[test]
fn packets_that_are_cut_off() {
    for case in CASES {
        let scene = scene(case);
        let mut first = scene.first().sized(9);
        if case.v4 {
            first.options = vec![1, 1, 1, 0];
        } else {
            first.extensions = vec![(0, vec![0, 1, 4, 0, 0, 0, 0])];
        }
        let whole = first.frame().0;
        // A test run takes no less than an IP header.
        let shortest = if case.v4 { 34 } else { 54 };
        for length in shortest..whole.len() {
            let cut = Frame(whole[..length].to_vec());
            let seen = scene.node.run_bytes(Program::Ingress, Link::Up0, &cut);
            never_forwarded(&scene, length, seen, &cut);
        }
    }
}

/// It passed as it was, or was dropped and counted.
#[track_caller]
fn never_forwarded(scene: &Scene, what: impl std::fmt::Debug, seen: Outcome, frame: &Frame) {
    let dropped = seen.verdict == crate::node::SHOT && seen.counted.is_some();
    let passed = seen.verdict == UNSPEC && seen.frame == *frame;
    assert!(dropped || passed, "{what:?}: {seen:?}");
    assert_eq!(scene.node.flows_new.entries(), [], "{what:?}");
}

/// IP headers that contradict the packet. What only the transport's receiver looks
/// at, such as UDP's length, is no router's business.
#[test]
fn headers_that_contradict_each_other() {
    for case in CASES {
        let scene = scene(case);
        let frame = scene.first().sized(40).frame();
        let mut wrong: Vec<(&str, usize, Vec<u8>)> = Vec::new();
        if case.v4 {
            wrong.push(("version 5", 14, vec![0x55]));
            wrong.push(("version 6", 14, vec![0x65]));
            wrong.push(("header of 16 bytes", 14, vec![0x44]));
            wrong.push(("no length", 16, vec![0, 0]));
            wrong.push(("shorter than its headers", 16, vec![0, 27]));
            wrong.push(("longer than it is", 16, vec![0x05, 0xdc]));
            wrong.push(("header ends behind the packet", 14, vec![0x4f, 0, 0, 40]));
        } else {
            wrong.push(("version 4", 14, vec![0x45]));
            wrong.push(("shorter than its headers", 18, vec![0, 7]));
            wrong.push(("longer than it is", 18, vec![0x05, 0xdc]));
        }
        for (what, at, bytes) in wrong {
            let mut bad = frame.clone();
            bad.0[at..at + bytes.len()].copy_from_slice(&bytes);
            let seen = scene.node.run_bytes(Program::Ingress, Link::Up0, &bad);
            never_forwarded(&scene, (case, what), seen, &bad);
        }
    }
}

/// From addresses that no packet on a wire has as its source (RFC 1122, 3.2.1.3;
/// RFC 4291, 2.7): nobody could be answered there.
#[test]
fn sources_that_nobody_has() {
    for case in CASES {
        let scene = scene(case);
        let sources: &[&str] = if case.v4 {
            &["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"]
        } else {
            &["::", "::1", "ff02::1"]
        };
        for text in sources {
            let mut first = scene.first();
            first.source.set_ip(text.parse().expect("an address"));
            let seen = scene.node.ingress(Link::Up0, &first);
            never_forwarded(&scene, text, seen, &first.frame());
        }
    }
}

/// Bytes behind the packet, as Ethernet pads small frames, belong to nobody.
#[test]
fn padding_does_not_count() {
    for case in CASES {
        let scene = scene(case);
        let first = scene.first().sized(1);
        let mut padded = first.frame();
        padded.0.extend([0xee; 17]);
        let seen = scene.node.run_bytes(Program::Ingress, Link::Up0, &padded);
        let flow = scene.node.flows_new.get(&first.key()).expect("a flow");
        assert_eq!(flow.bytes, first.ip_bytes().len() as u64, "{case:?}");
        let mut wanted = first.to(scene.endpoint).from(seen.source()).hop().frame();
        wanted.0.extend([0xee; 17]);
        seen.expect(crate::node::REDIRECT, &wanted, None);
    }
}

/// Frames for another host, which a device sees that listens to all (PROMISC), and
/// for many hosts.
#[test]
fn frames_for_other_hosts() {
    for case in CASES {
        let scene = scene(case);
        let first = scene.first().frame();
        for receiver in [[2, 0, 0, 0, 0, 0x12], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
            let mut frame = first.clone();
            frame.0[..6].copy_from_slice(&receiver);
            untouched(&scene, &frame);
        }
    }
}

/// Packets of IPv6 with addresses that stand for those of IPv4, of a flow or not.
#[test]
fn packets_that_pass_for_the_other_family() {
    for case in CASES.into_iter().filter(|it| it.v4) {
        let scene = scene(case);
        let first = scene.first();
        let disguise = |from: SocketAddr| match from.ip() {
            IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), from.port()),
            IpAddr::V6(_) => from,
        };
        let disguised = |packet: &Packet| {
            let (from, to) = (disguise(packet.source), disguise(packet.destination));
            packet.clone().from(from).to(to).frame()
        };
        untouched(&scene, &disguised(&first));
        let got = scene.open(&first);
        for (link, packet) in [(Link::Up0, first), (Link::Ov0, got.answer())] {
            let frame = disguised(&packet);
            let seen = scene.node.run_bytes(Program::Ingress, link, &frame);
            seen.expect(UNSPEC, &frame, None);
        }
    }
}
