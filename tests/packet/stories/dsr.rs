//! Direct server return: what goes into the tunnel, and what comes out of it.

use std::net::{IpAddr, SocketAddr};

use etherparse::{IpNumber, Ipv4Header, Ipv6Header};
use proxy_common::{DropReason, Flow, Forwarding, FrontendKind, NodeAddresses, Protocol};

use crate::cast::{CASES, Case, Listing, Place, SERVICE};
use crate::node::{DSR_PORT, Guard, Link, Outcome, Program, REDIRECT, UNSPEC, node};
use crate::packet::{
    ACK, Error, FIN, Frame, Packet, Transport, ethernet, icmp_error, translated_error,
};

const KIND: FrontendKind = FrontendKind::LoadBalancer;

/// Bytes that a tunnel adds.
fn overhead(case: Case) -> usize {
    if case.v4 { 60 } else { 80 }
}

/// The other Node: behind it is [`Place::Routed`].
fn other(case: Case) -> IpAddr {
    let text = if case.v4 {
        "192.0.2.13"
    } else {
        "2001:db8:2::13"
    };
    text.parse().expect("an address")
}

fn this(case: Case) -> IpAddr {
    Link::Up0.address(case.client(1))
}

/// A node with DSR, and a Service with an endpoint in each place.
fn with_endpoints(case: Case, places: &[Place]) -> Guard {
    let mut node = node();
    let [v4, v6] = ["192.0.2.13", "2001:db8:2::13"].map(|it| {
        let ip: IpAddr = it.parse().expect("an address");
        ip.into()
    });
    node.hands_over(&[NodeAddresses { v4, v6 }]);
    let backends = places.iter().map(|place| {
        let id = node.backend(SERVICE, case.endpoint(*place, 2)).id;
        if *place == Place::Routed {
            node.is_on(id, 1);
        }
        id
    });
    let backends = backends.collect();
    node.publish(&Listing {
        backends,
        forwarding: Forwarding::Dsr,
        ..case.listing(KIND)
    });
    node
}

/// A packet in its tunnel between two Nodes, bytes by hand (RFC 8926).
fn tunnel(inner: &[u8], from: IpAddr, to: IpAddr, source_port: u16, backend: SocketAddr) -> Frame {
    let ethertype: u16 = if from.is_ipv4() { 0x0800 } else { 0x86dd };
    let mut geneve = vec![6, 0x40];
    geneve.extend(ethertype.to_be_bytes());
    geneve.extend([0; 4]);
    geneve.extend([0xff, 0x1e, 0x81, 5]);
    geneve.extend(match backend.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    });
    geneve.extend(backend.port().to_be_bytes());
    geneve.extend([0; 2]);
    geneve.extend(inner);
    let mut udp = Vec::new();
    udp.extend(source_port.to_be_bytes());
    udp.extend(DSR_PORT.to_be_bytes());
    udp.extend((geneve.len() as u16 + 8).to_be_bytes());
    udp.extend([0; 2]);
    udp.extend(geneve);
    let header = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let size = udp.len() as u16;
            let mut header =
                Ipv4Header::new(size, 64, IpNumber::UDP, from.octets(), to.octets()).expect("fits");
            header.header_checksum = header.calc_header_checksum();
            header.to_bytes().to_vec()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => Ipv6Header {
            payload_length: udp.len() as u16,
            next_header: IpNumber::UDP,
            hop_limit: 64,
            source: from.octets(),
            destination: to.octets(),
            ..Ipv6Header::default()
        }
        .to_bytes()
        .to_vec(),
        _ => panic!("two families"),
    };
    ethernet([header, udp].concat())
}

/// The packet was handed over; the source port of the tunnel.
#[track_caller]
fn handed_over(case: Case, seen: Outcome, packet: &Packet) -> u16 {
    let port = seen.source().port();
    assert!(port >= 49_152, "{port}");
    let inner = packet.clone().hop().ip_bytes();
    let backend = case.endpoint(Place::Routed, 2);
    let wanted = tunnel(&inner, this(case), other(case), port, backend);
    seen.expect(REDIRECT, &wanted, None);
    port
}

/// What the other Node hands to this one for its endpoint.
fn comes(case: Case, packet: &Packet) -> Frame {
    let backend = case.endpoint(Place::Local, 2);
    tunnel(&packet.ip_bytes(), other(case), this(case), 50_000, backend)
}

fn receive(node: &Guard, frame: &Frame) -> Outcome {
    node.run_bytes(Program::Ingress, Link::Up0, frame)
}

/// Packets of one flow go into one tunnel, as they are but for a hop; there is one
/// half of it, which an acknowledgement makes an answered one.
#[test]
fn a_client_of_a_remote_backend() {
    for case in CASES {
        let node = with_endpoints(case, &[Place::Routed]);
        let first = case.first(KIND);
        let port = handed_over(case, node.ingress(Link::Up0, &first), &first);
        let flow = node.flows_new.get(&first.key()).expect("a new flow");
        assert_eq!(flow.kind, Flow::DSR);
        assert_eq!(node.flows_new.entries().len(), 1);
        for flags in [ACK, ACK, FIN | ACK] {
            let next = first.clone().flags(flags).sized(99);
            let again = handed_over(case, node.ingress(Link::Up0, &next), &next);
            assert_eq!(again, port, "one flow, one port");
        }
        let answered = case.protocol == Protocol::Tcp;
        assert_eq!(node.flows.entries().len(), usize::from(answered));
        assert_eq!(node.flows_new.entries().len(), usize::from(!answered));
    }
}

/// Another node may have had the connection so far.
#[test]
fn a_connection_that_comes_from_another_node_goes_on() {
    for case in CASES {
        let node = with_endpoints(case, &[Place::Routed]);
        let middle = case.first(KIND).flags(ACK);
        handed_over(case, node.ingress(Link::Up0, &middle), &middle);
    }
}

/// Nobody knows on which Node the endpoint is.
#[test]
fn an_endpoint_on_no_node_is_reached_by_snat() {
    for case in CASES {
        let node = with_endpoints(case, &[Place::Overlay]);
        let first = case.first(KIND);
        let seen = node.ingress(Link::Up0, &first);
        assert_eq!(seen.source().ip(), Link::Ov0.address(first.source));
        assert_eq!(seen.destination(), case.endpoint(Place::Overlay, 2));
    }
}

/// The endpoint gets what the client sent, and answers it from the frontend; so it
/// does when packets no longer come by the tunnel.
#[test]
fn what_another_node_hands_over_reaches_the_endpoint() {
    for case in CASES {
        let node = with_endpoints(case, &[Place::Local, Place::Routed]);
        let first = case.first(KIND);
        let endpoint = case.endpoint(Place::Local, 2);
        for flags in [first.clone(), first.clone().flags(ACK).sized(700)] {
            let wanted = flags.clone().to(endpoint);
            receive(&node, &comes(case, &flags)).passed(&wanted);
            let answer = wanted.answer().sized(70);
            let back = answer.clone().from(case.frontend(KIND));
            // As routed, whichever device that is.
            for link in [Link::Up0, Link::Up1] {
                node.egress(link, &answer).passed(&back);
            }
        }
        let directly = first.clone().flags(ACK).sized(33);
        let seen = node.ingress(Link::Up0, &directly);
        seen.passed(&directly.to(endpoint));
        assert_eq!(node.flows.entries().len(), 2);
    }
}

/// Who is no Node hands nothing over, and nobody for an endpoint that is not here.
#[test]
fn strangers_are_refused() {
    for case in CASES {
        let node = with_endpoints(case, &[Place::Local, Place::Routed]);
        let first = case.first(KIND);
        let inner = first.ip_bytes();
        let here = case.endpoint(Place::Local, 2);
        let stranger = case.other_client(1).ip();
        for (from, backend, packet, reason) in [
            (stranger, here, &inner, DropReason::TunnelFromStranger),
            (
                other(case),
                case.endpoint(Place::Local, 3),
                &inner,
                DropReason::TunnelToStranger,
            ),
            (
                other(case),
                case.endpoint(Place::Routed, 2),
                &inner,
                DropReason::TunnelToStranger,
            ),
            (
                other(case),
                here,
                &first.clone().to(case.other_client(80)).ip_bytes(),
                DropReason::TunnelToStranger,
            ),
            (
                other(case),
                here,
                &vec![0; 60],
                DropReason::TunnelToStranger,
            ),
        ] {
            let frame = tunnel(packet, from, this(case), 50_000, backend);
            receive(&node, &frame).dropped(reason);
        }
        assert_eq!(node.flows_new.entries(), []);
    }
}

/// Geneve of somebody else, or on its way to somebody else.
#[test]
fn other_tunnels_are_left_alone() {
    for case in CASES {
        let node = with_endpoints(case, &[Place::Local]);
        let udp = if case.v4 { 14 + 20 } else { 14 + 40 };
        let sound = comes(case, &case.first(KIND));
        // Another port, class or type, and one more word of options.
        for (at, byte) in [(3, 0xca), (8, 7), (16, 0), (18, 1)] {
            let mut frame = sound.clone();
            frame.0[udp + at] = byte;
            receive(&node, &frame).expect(UNSPEC, &frame, None);
        }
        // Guests are no Nodes, whatever their address.
        let seen = node.run_bytes(Program::Ingress, Link::Guests, &sound);
        seen.expect(UNSPEC, &sound, None);
        let inner = case.first(KIND).ip_bytes();
        let elsewhere = case.other_client(1).ip();
        let backend = case.endpoint(Place::Local, 2);
        let frame = tunnel(&inner, other(case), elsewhere, 50_000, backend);
        receive(&node, &frame).expect(UNSPEC, &frame, None);
    }
}

/// What comes by tunnel never leaves by one.
#[test]
fn nothing_goes_in_circles() {
    for case in CASES {
        let node = with_endpoints(case, &[Place::Routed]);
        let local = node_with_local(case, node);
        let first = case.first(KIND);
        // This node has handed the flow over before, and now is handed it itself.
        let seen = receive(&local, &comes(case, &first));
        seen.passed(&first.to(case.endpoint(Place::Local, 2)));
    }
}

/// A flow goes to the remote endpoint; then there is a local one.
fn node_with_local(case: Case, mut node: Guard) -> Guard {
    let first = case.first(KIND);
    handed_over(case, node.ingress(Link::Up0, &first), &first);
    node.backend(SERVICE, case.endpoint(Place::Local, 2));
    node
}

/// One port of a client talks to one endpoint by two frontends.
#[test]
fn two_frontends_of_one_endpoint() {
    for case in CASES {
        let mut node = with_endpoints(case, &[Place::Local]);
        node.publish(&Listing {
            backends: vec![1],
            forwarding: Forwarding::Dsr,
            ..case.listing(FrontendKind::ExternalIp)
        });
        let endpoint = case.endpoint(Place::Local, 2);
        let one = case.first(KIND);
        let two = one.clone().to(case.frontend(FrontendKind::ExternalIp));
        receive(&node, &comes(case, &one)).passed(&one.clone().to(endpoint));
        let seen = receive(&node, &comes(case, &two));
        let source = seen.source();
        assert_eq!(source.ip(), two.source.ip());
        assert_ne!(source.port(), two.source.port());
        let got = two.clone().to(endpoint).from(source);
        seen.passed(&got);
        let back = got.answer().from(two.destination).to(two.source);
        node.egress(Link::Up0, &got.answer()).passed(&back);
    }
}

/// The client is told what fits beside the tunnel.
#[test]
fn too_big_for_the_tunnel() {
    for case in CASES {
        let node = with_endpoints(case, &[Place::Routed]);
        let mut first = case.first(KIND);
        first.dont_fragment = true;
        handed_over(case, node.ingress(Link::Up0, &first), &first);
        let headers = first.clone().sized(0).ip_bytes().len();
        let most = 1_500 - overhead(case);
        let fits = first.clone().flags(ACK).sized(most - headers);
        handed_over(case, node.ingress(Link::Up0, &fits), &fits);
        let large = fits.sized(most - headers + 1);
        let answer = icmp_error(&large, Error::TooBig(most as u16));
        // Without the kernel's sum: an answer is a packet of its own.
        let seen = receive(&node, &large.frame());
        seen.answered(&answer, DropReason::TooBig);
    }
}

/// An error about what the endpoint sent gets to its node, which translates it.
#[test]
fn errors_of_the_client_reach_the_endpoint() {
    for case in CASES {
        let error = Error::TooBig(1_280);
        let first = case.first(KIND);
        let answer = first.answer();
        let about = translated_error(&answer, &answer, 64, error);
        let node = with_endpoints(case, &[Place::Routed]);
        let port = handed_over(case, node.ingress(Link::Up0, &first), &first);
        let hop = translated_error(&answer, &answer, 63, error);
        let backend = case.endpoint(Place::Routed, 2);
        let wanted = tunnel(&hop.0[14..], this(case), other(case), port, backend);
        receive(&node, &about).expect(REDIRECT, &wanted, None);
        drop(node);
        let node = with_endpoints(case, &[Place::Local]);
        let got = first.clone().to(case.endpoint(Place::Local, 2));
        receive(&node, &comes(case, &first)).passed(&got);
        let here = case.endpoint(Place::Local, 2);
        let frame = tunnel(&hop.0[14..], other(case), this(case), port, here);
        let seen = receive(&node, &frame);
        seen.expect(
            UNSPEC,
            &translated_error(&got.answer(), &answer, 63, error),
            None,
        );
    }
}

/// Segments of the client must fit into the tunnel.
#[test]
fn the_endpoint_asks_for_segments_that_fit() {
    for case in CASES.into_iter().filter(|it| it.protocol == Protocol::Tcp) {
        let most: u16 = if case.v4 { 1_400 } else { 1_360 };
        let [high, low] = most.to_be_bytes();
        for (asked, got) in [
            (vec![2, 4, 5, 180], vec![2, 4, high, low]),
            // Behind others, and at an odd place.
            (
                vec![4, 2, 1, 2, 4, 5, 180, 0],
                vec![4, 2, 1, 2, 4, high, low, 0],
            ),
            // Small enough, none, and no option at all.
            (vec![2, 4, 2, 24], vec![2, 4, 2, 24]),
            (vec![3, 3, 7, 0], vec![3, 3, 7, 0]),
            (vec![], vec![]),
            (vec![8, 0, 0, 0], vec![8, 0, 0, 0]),
        ] {
            let node = with_endpoints(case, &[Place::Local]);
            let first = case.first(KIND);
            let seen = first.clone().to(case.endpoint(Place::Local, 2));
            receive(&node, &comes(case, &first)).passed(&seen);
            let answer = |options| {
                let mut answer = seen.answer();
                if let Transport::Tcp { options: place, .. } = &mut answer.transport {
                    *place = options;
                }
                answer
            };
            let back = answer(got).from(case.frontend(KIND));
            node.egress(Link::Up0, &answer(asked)).passed(&back);
        }
    }
}

/// A router between the Nodes takes less than their devices.
#[test]
fn a_narrow_way_to_the_other_node() {
    for case in CASES {
        let node = with_endpoints(case, &[Place::Routed]);
        let hop = |ip, port| SocketAddr::new(ip, port);
        let wrapped = Packet::udp(hop(this(case), 50_000), hop(other(case), DSR_PORT));
        let told = translated_error(&wrapped, &wrapped, 64, Error::TooBig(1_400));
        receive(&node, &told).expect(UNSPEC, &told, None);
        let most = 1_400 - overhead(case);
        let mut first = case.first(KIND);
        first.dont_fragment = true;
        handed_over(case, node.ingress(Link::Up0, &first), &first);
        let headers = first.clone().sized(0).ip_bytes().len();
        let large = first.flags(ACK).sized(most - headers + 1);
        let answer = icmp_error(&large, Error::TooBig(most as u16));
        receive(&node, &large.frame()).answered(&answer, DropReason::TooBig);
    }
}

/// A NodePort of the other node, by its address.
#[test]
fn a_node_port_of_the_node_that_hands_over() {
    for case in CASES {
        let mut node = with_endpoints(case, &[Place::Local]);
        node.publish(&Listing {
            backends: vec![1],
            forwarding: Forwarding::Dsr,
            ..case.listing(FrontendKind::NodePort)
        });
        let mut port = case.frontend(FrontendKind::NodePort);
        port.set_ip(other(case));
        let first = case.first(FrontendKind::NodePort).to(port);
        let got = first.clone().to(case.endpoint(Place::Local, 2));
        receive(&node, &comes(case, &first)).passed(&got);
        let back = got.answer().from(port);
        node.egress(Link::Up0, &got.answer()).passed(&back);
        // Directly it is none of this node's.
        let again = Packet::first(case.protocol, case.client(40_001), port);
        node.ingress(Link::Up0, &again).passed(&again);
    }
}
