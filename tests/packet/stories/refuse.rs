//! Refused, dropped, too big: who is told, and how.

use proxy_common::{
    Address, DeviceSettings, DropReason, EndpointSet, FrontendKind, Protocol, SourceFilter,
};

use crate::bpf::Context;
use crate::cast::{CASES, Case, KINDS, PORT, Place, SERVICE, Scene};
use crate::node::{Guard, Link, Listing, Outcome, Program, REDIRECT, node};
use crate::packet::{ACK, Error, FIN, Frame, Packet, RST, SYN, Transport, icmp_error, turned};

/// A node with a frontend without endpoints.
fn without_endpoint(case: Case, kind: FrontendKind) -> Guard {
    let mut node = node();
    node.publish(&case.listing(kind));
    node
}

/// A packet comes in by up0 that is to be answered by an error.
///
/// Cutting a packet makes the kernel forget the sum that came with it, which a
/// test run takes for a wrong one: so there is none.
#[track_caller]
fn asks(node: &Guard, packet: &Packet) -> Outcome {
    node.run_bytes(Program::Ingress, Link::Up0, &packet.frame())
}

/// The RST that answers a packet (RFC 9293, 3.10.7.1). Options and payload stay.
fn reset(packet: &Packet) -> Frame {
    let mut answer = packet.clone().from(packet.destination).to(packet.source);
    answer.hops = 64;
    let length = packet.payload.len() as u32;
    if let Transport::Tcp {
        flags,
        sequence,
        acknowledged,
        ..
    } = &mut answer.transport
    {
        if *flags & ACK != 0 {
            (*flags, *sequence, *acknowledged) = (RST, *acknowledged, 0);
        } else {
            let syn_and_fin = u32::from(*flags & SYN != 0) + u32::from(*flags & FIN != 0);
            (*flags, *acknowledged) = (RST | ACK, *sequence + length + syn_and_fin);
            *sequence = 0;
        }
    }
    turned(without_window(answer.frame(), &answer))
}

/// A RST says nothing of a window; the story's packets have one.
fn without_window(frame: Frame, packet: &Packet) -> Frame {
    let mut bytes = frame.0;
    let at = 14 + packet.ip_bytes().len() - packet.payload.len() - tcp_header(packet);
    let checksum = u16::from_be_bytes([bytes[at + 16], bytes[at + 17]]);
    let window = u16::from_be_bytes([bytes[at + 14], bytes[at + 15]]);
    bytes[at + 14..at + 16].fill(0);
    // One word less in the sum is one more in its complement.
    let (sum, carry) = checksum.overflowing_add(window);
    let sum = sum + u16::from(carry);
    bytes[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    Frame(bytes)
}

fn tcp_header(packet: &Packet) -> usize {
    match &packet.transport {
        Transport::Tcp { options, .. } => 20 + options.len(),
        Transport::Udp { .. } => 8,
    }
}

#[test]
fn a_service_without_endpoint_refuses() {
    for case in CASES {
        for kind in KINDS {
            println!("{case:?} {kind:?}");
            let node = without_endpoint(case, kind);
            let first = case.first(kind);
            let wanted = match case.protocol {
                Protocol::Tcp => reset(&first),
                _ => icmp_error(&first, Error::PortUnreachable),
            };
            let seen = asks(&node, &first);
            seen.answered(&wanted, DropReason::NoEndpoint);
            assert_eq!(
                (node.flows.entries(), node.flows_new.entries()),
                (vec![], vec![])
            );
        }
    }
}

/// With data, options and FIN a SYN's RST acknowledges all that it answers.
#[test]
fn a_reset_acknowledges_what_it_answers() {
    for case in CASES.into_iter().filter(|it| it.protocol == Protocol::Tcp) {
        let node = without_endpoint(case, FrontendKind::LoadBalancer);
        for (flags, size) in [(SYN, 0), (SYN, 1), (SYN, 301), (SYN | FIN, 10)] {
            let mut first = case
                .first(FrontendKind::LoadBalancer)
                .flags(flags)
                .sized(size);
            first.dont_fragment = true;
            if let Transport::Tcp { options, .. } = &mut first.transport {
                *options = vec![2, 4, 5, 180];
            }
            let seen = node.ingress(Link::Up0, &first);
            seen.answered(&reset(&first), DropReason::NoEndpoint);
        }
    }
}

#[test]
fn datagrams_of_every_size_are_refused_with_the_same_quote() {
    for case in CASES.into_iter().filter(|it| it.protocol == Protocol::Udp) {
        let node = without_endpoint(case, FrontendKind::LoadBalancer);
        // Nothing is cut from this one, so its sum must stay right.
        let empty = case.first(FrontendKind::LoadBalancer).sized(0);
        let wanted = icmp_error(&empty, Error::PortUnreachable);
        let seen = node.ingress(Link::Up0, &empty);
        seen.answered(&wanted, DropReason::NoEndpoint);
        for size in [0, 1, 2, 3, 13, 20, 64, 1_400] {
            let first = case.first(FrontendKind::LoadBalancer).sized(size);
            let seen = asks(&node, &first);
            let wanted = icmp_error(&first, Error::PortUnreachable);
            seen.answered(&wanted, DropReason::NoEndpoint);
        }
    }
}

/// On a device without link header the answer has none either.
#[test]
fn a_device_without_link_header_is_answered_too() {
    for case in CASES {
        let node = without_endpoint(case, FrontendKind::LoadBalancer);
        let frontend = case.frontend(FrontendKind::LoadBalancer);
        let first = Packet::first(case.protocol, case.l3_client(40_000), frontend);
        let seen = node.run_bytes(Program::Ingress, Link::L3, &Frame(first.ip_bytes()));
        let wanted = match case.protocol {
            Protocol::Tcp => reset(&first),
            _ => icmp_error(&first, Error::PortUnreachable),
        };
        if case.protocol == Protocol::Udp {
            // A test run always believes in a link header, and room is made
            // behind that: here, in the middle of the IP header.
            assert_eq!(seen.counted, Some(DropReason::NoEndpoint));
            continue;
        }
        let wanted = Frame(wanted.0[14..].to_vec());
        seen.expect(REDIRECT, &wanted, Some(DropReason::NoEndpoint));
    }
}

/// So that nobody makes an amplifier of us.
#[test]
fn answers_are_limited() {
    for case in CASES {
        let mut node = without_endpoint(case, FrontendKind::LoadBalancer);
        // The limit is for each second and CPU, and the second may change meanwhile.
        let first = case.first(FrontendKind::LoadBalancer);
        let frame = first.frame();
        let context = Context {
            device: Link::Up0.index(),
            ..Context::default()
        };
        let answered = |node: &Guard| {
            let runs = 0..10_000;
            runs.filter(|_| node.run_uncounted(Program::Ingress, context, &frame).0 == REDIRECT)
                .count()
        };
        let begun = std::time::Instant::now();
        let count = answered(&node);
        let seconds = begun.elapsed().as_secs() as usize + 2;
        assert!(
            count <= 1_000 * seconds * 2,
            "{count} answers in {seconds} s"
        );
        node.may_answer();
        let seen = asks(&node, &first);
        assert_eq!(
            (seen.verdict, seen.counted),
            (REDIRECT, Some(DropReason::NoEndpoint))
        );
    }
}

/// Policy Local, and endpoints elsewhere: silence, so that a load balancer in
/// front may try another node (semantics 18).
#[test]
fn policy_local_without_local_endpoint_is_silent() {
    for case in CASES {
        let mut node = node();
        let kind = FrontendKind::NodePort;
        let listing = case.listing(kind);
        node.publish(&Listing {
            set: EndpointSet::Local,
            elsewhere: true,
            ..listing.clone()
        });
        let first = case.first(kind);
        asks(&node, &first).dropped(DropReason::NoLocalEndpoint);
        // Without endpoints elsewhere it refuses as ever.
        node.publish(&Listing {
            set: EndpointSet::Local,
            ..listing
        });
        let seen = asks(&node, &first);
        assert_eq!(
            (seen.verdict, seen.counted),
            (REDIRECT, Some(DropReason::NoEndpoint))
        );
    }
}

/// What is left of a ClusterIP is refused (semantics 7), what is left of other
/// frontends' addresses is not ours (semantics 11).
#[test]
fn another_port_of_a_frontends_address() {
    for case in CASES {
        for kind in KINDS {
            let node = without_endpoint(case, kind);
            let mut first = case.first(kind);
            first.destination.set_port(PORT + 1);
            let seen = asks(&node, &first);
            if kind != FrontendKind::ClusterIp {
                seen.passed(&first);
                continue;
            }
            let wanted = match case.protocol {
                Protocol::Tcp => reset(&first),
                _ => icmp_error(&first, Error::PortUnreachable),
            };
            seen.answered(&wanted, DropReason::PortNotInService);
        }
    }
}

#[test]
fn source_ranges_let_in_whom_they_name() {
    for case in CASES {
        for place in [Place::Local, Place::Overlay] {
            let kind = FrontendKind::LoadBalancer;
            let mut scene = Scene::new(case, kind, place);
            scene.node.publish(&Listing {
                backends: vec![scene.backend.id],
                source_filter: SourceFilter::Ranges,
                ..case.listing(kind)
            });
            let first = scene.first();
            scene.drops(&first, DropReason::SourceNotAllowed);
            let bits = if case.v4 { 32 } else { 128 };
            scene.node.allow(SERVICE, case.other_client(0).ip(), bits);
            scene.drops(&first, DropReason::SourceNotAllowed);
            scene.node.allow(SERVICE + 1, first.source.ip(), bits);
            scene.drops(&first, DropReason::SourceNotAllowed);
            scene.node.allow(SERVICE, first.source.ip(), bits - 8);
            scene.open(&first);
        }
    }
}

#[test]
fn a_route_that_leads_nowhere_drops() {
    for case in CASES {
        let scene = Scene::new(case, FrontendKind::NodePort, Place::Nowhere);
        scene.drops(&scene.first(), DropReason::NoRoute);
    }
}

#[test]
fn a_device_without_address_drops() {
    for case in CASES {
        let scene = Scene::new(case, FrontendKind::NodePort, Place::Overlay);
        scene.node.change_device(Link::Ov0, |device| {
            device.v4 = Address::ANY_V4;
            device.v6 = Address::ANY_V6;
        });
        scene.drops(&scene.first(), DropReason::NoSourceAddress);
    }
}

/// Who may not be fragmented is told the MTU; who may goes to the stack, if there
/// is a way, and is else dropped and counted.
#[test]
fn too_big_for_the_overlay() {
    for case in CASES {
        let scene = Scene::new(case, FrontendKind::LoadBalancer, Place::Overlay);
        let first = scene.first();
        let got = scene.open(&first);
        let headers = first.clone().sized(0).ip_bytes().len();
        let mut fits = first.clone().flags(ACK).sized(1_450 - headers);
        fits.dont_fragment = true;
        scene.request(&fits);
        let mut large = fits.sized(1_451 - headers);
        let seen = asks(&scene.node, &large);
        seen.answered(
            &icmp_error(&large, Error::TooBig(1_450)),
            DropReason::TooBig,
        );
        large.dont_fragment = false;
        let seen = asks(&scene.node, &large);
        if !case.v4 {
            let wanted = icmp_error(&large, Error::TooBig(1_450));
            seen.answered(&wanted, DropReason::TooBig);
            continue;
        }
        seen.dropped(DropReason::TooBig);
        scene.node.slow_path(Link::Cni0);
        let source = got.source;
        let wanted = large.clone().from(source).to(scene.endpoint).hop();
        let mut wanted = wanted.frame();
        wanted.0[..6].copy_from_slice(&DeviceSettings::SLOW_PATH_MAC);
        scene
            .node
            .ingress(Link::Up0, &large)
            .expect(REDIRECT, &wanted, None);
    }
}

/// What the kernel cuts into segments is judged by those.
#[test]
fn a_large_packet_of_small_segments_is_not_too_big() {
    for case in CASES.into_iter().filter(|it| it.protocol == Protocol::Tcp) {
        let scene = Scene::new(case, FrontendKind::LoadBalancer, Place::Overlay);
        let first = scene.first();
        let got = scene.open(&first);
        let mut large = first.clone().flags(ACK).sized(3_000);
        large.dont_fragment = true;
        let wanted = large.clone().from(got.source).to(got.destination).hop();
        let context = |segment| Context {
            device: Link::Up0.index(),
            came_by: 0,
            segment,
            // See `asks`.
            summed: false,
        };
        let run = |segment| {
            scene
                .node
                .run_with(Program::Ingress, context(segment), &large.frame())
        };
        // All that fits beside headers without options.
        let most = 1_450 - if case.v4 { 40 } else { 60 };
        run(most).sent(&wanted);
        run(most + 1).answered(
            &icmp_error(&large, Error::TooBig(1_450)),
            DropReason::TooBig,
        );
    }
}
