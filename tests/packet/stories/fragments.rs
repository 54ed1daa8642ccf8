//! Fragments: delivered after their first one, or dropped and counted; never
//! delivered elsewhere, and never leaving with a pod's address (case K14).

use std::net::SocketAddr;

use proxy_common::{DropReason, FragmentPorts, FrontendKind, Protocol};

use crate::bpf::Context;
use crate::cast::{CASES, KINDS, Place, Scene};
use crate::node::{Link, Outcome, Program, REDIRECT, SHOT, UNSPEC};
use crate::packet::{Frame, Packet, fragments};

const PLACES: [Place; 3] = [Place::Local, Place::Overlay, Place::Routed];
/// Bytes of a datagram's payload, and of the data in each of its three fragments.
const PAYLOAD: usize = 3_500;
const PART: usize = 1_400;

/// A datagram in fragments, and those as they should arrive.
struct Pieces {
    before: Vec<Frame>,
    after: Vec<Frame>,
}

impl Pieces {
    fn new(before: &Packet, after: &Packet, id: u32) -> Self {
        let pieces = Self {
            before: fragments(before, id, PART),
            after: fragments(after, id, PART),
        };
        assert_eq!(pieces.before.len(), 3);
        pieces
    }
}

fn scenes(kinds: &[FrontendKind]) -> impl Iterator<Item = Scene> {
    let cases = CASES.into_iter().filter(|it| it.protocol == Protocol::Udp);
    let kinds = kinds.to_vec();
    let all = cases.flat_map(move |case| kinds.clone().into_iter().map(move |kind| (case, kind)));
    all.flat_map(|(case, kind)| PLACES.map(|place| (case, kind, place)))
        .map(|(case, kind, place)| {
            println!("{case:?} {kind:?} {place:?}");
            Scene::new(case, kind, place)
        })
}

/// A fragment of a request comes in.
fn asks(scene: &Scene, frame: &Frame) -> Outcome {
    scene.node.run_bytes(Program::Ingress, Link::Up0, frame)
}

/// A fragment of a reply comes from the endpoint: its pod's, or by the network.
fn answers(scene: &Scene, frame: &Frame) -> Outcome {
    let (program, device, came_by) = match scene.place {
        Place::Local => (Program::Egress, Link::Up0, Link::Cni0.index()),
        place => (Program::Ingress, place.link(), 0),
    };
    let context = Context {
        device: device.index(),
        came_by,
        ..Context::default()
    };
    scene.node.run_with(program, context, frame)
}

/// The verdict about what is translated.
fn verdict(scene: &Scene) -> i32 {
    if scene.place == Place::Local {
        UNSPEC
    } else {
        REDIRECT
    }
}

/// Request and reply of a conversation, each as it comes and as it should go on.
fn conversation(scene: &Scene) -> [(Packet, Packet); 2] {
    let first = scene.first();
    let got = scene.open(&first);
    let reply = got.answer();
    let mut wanted = reply.clone().from(scene.frontend()).to(first.source);
    if scene.place != Place::Local {
        wanted = wanted.hop();
    }
    [(first, got), (reply, wanted)]
        .map(|(before, after)| (before.sized(PAYLOAD), after.sized(PAYLOAD)))
}

#[test]
fn fragments_in_order_follow_the_first_one() {
    for scene in scenes(&KINDS) {
        let [request, reply] = conversation(&scene);
        let request = Pieces::new(&request.0, &request.1, 7);
        let reply = Pieces::new(&reply.0, &reply.1, 7);
        for (before, after) in request.before.iter().zip(&request.after) {
            asks(&scene, before).expect(verdict(&scene), after, None);
        }
        for (before, after) in reply.before.iter().zip(&reply.after) {
            answers(&scene, before).expect(verdict(&scene), after, None);
        }
    }
}

/// Identifications come again: what was remembered of an old datagram is not for a new
/// one, whose first fragment was lost.
#[test]
fn a_datagram_is_forgotten_after_thirty_seconds() {
    for scene in scenes(&[FrontendKind::ClusterIp]) {
        let [request, _] = conversation(&scene);
        let Pieces { before, after } = Pieces::new(&request.0, &request.1, 7);
        asks(&scene, &before[0]).expect(verdict(&scene), &after[0], None);
        let grow_older = |seconds| {
            for (key, ports) in scene.node.fragments.entries() {
                let seen_s = ports.seen_s - seconds;
                scene
                    .node
                    .fragments
                    .put(&key, &FragmentPorts { seen_s, ..ports });
            }
        };
        grow_older(29);
        asks(&scene, &before[1]).expect(verdict(&scene), &after[1], None);
        grow_older(2);
        let seen = asks(&scene, &before[2]);
        seen.dropped(DropReason::FragmentUnknown);
        asks(&scene, &before[0]).expect(verdict(&scene), &after[0], None);
        asks(&scene, &before[2]).expect(verdict(&scene), &after[2], None);
    }
}

/// The first packet of a conversation comes in fragments.
#[test]
fn a_first_datagram_in_fragments() {
    for scene in scenes(&KINDS) {
        let first = scene.first().sized(PAYLOAD);
        let before = fragments(&first, 7, PART);
        let seen = asks(&scene, &before[0]);
        let mut wanted = first.clone().to(scene.endpoint);
        if scene.place != Place::Local {
            let flow = scene.node.flows_new.get(&first.key()).expect("a flow");
            let address = scene.place.link().address(first.source);
            wanted = wanted
                .from(SocketAddr::new(address, flow.source_port))
                .hop();
        }
        let after = fragments(&wanted, 7, PART);
        seen.expect(verdict(&scene), &after[0], None);
        for (before, after) in before.iter().zip(&after).skip(1) {
            asks(&scene, before).expect(verdict(&scene), after, None);
        }
    }
}

/// Two datagrams of one client to two frontends, and fragments of both in turn.
#[test]
fn interleaved_datagrams_do_not_mix() {
    for scene in scenes(&[FrontendKind::LoadBalancer]) {
        let [(first, first_got), (first_reply, first_back)] = conversation(&scene);
        let other = first.clone().from(scene.case.client(40_001));
        let other_got = scene.request(&other.clone().sized(10)).sized(PAYLOAD);
        let other_reply = other_got.answer().sized(PAYLOAD);
        let mut other_back = other_reply.clone().from(scene.frontend()).to(other.source);
        other_back.hops = first_back.hops;
        let pairs = [
            (
                Pieces::new(&first, &first_got, 7),
                Pieces::new(&other, &other_got, 8),
            ),
            (
                Pieces::new(&first_reply, &first_back, 9),
                Pieces::new(&other_reply, &other_back, 10),
            ),
        ];
        for (number, (one, two)) in pairs.iter().enumerate() {
            let run = if number == 0 { asks } else { answers };
            for part in 0..3 {
                for pieces in [one, two] {
                    let seen = run(&scene, &pieces.before[part]);
                    seen.expect(verdict(&scene), &pieces.after[part], None);
                }
            }
        }
    }
}

/// 2, 3, 1: a request's later fragments are dropped where the address is known as
/// ours without a port, and left to the stack as they are where it is the node's own.
#[test]
fn requests_whose_first_fragment_comes_last() {
    for scene in scenes(&KINDS) {
        let [(request, got), _] = conversation(&scene);
        let pieces = Pieces::new(&request, &got, 7);
        for later in [1, 2] {
            let frame = &pieces.before[later];
            let seen = asks(&scene, frame);
            if scene.kind != FrontendKind::NodePort {
                seen.dropped(DropReason::FragmentUnknown);
            } else {
                seen.expect(UNSPEC, frame, None);
            }
        }
        asks(&scene, &pieces.before[0]).expect(verdict(&scene), &pieces.after[0], None);
        // Had one been late only, it would follow.
        asks(&scene, &pieces.before[2]).expect(verdict(&scene), &pieces.after[2], None);
    }
}

/// 2, 3, 1: a reply's later fragments do not leave with the pod's address. Those
/// of a remote endpoint are for the node's own address, and stay there.
#[test]
fn replies_whose_first_fragment_comes_last() {
    for scene in scenes(&[FrontendKind::LoadBalancer]) {
        let [_, (reply, back)] = conversation(&scene);
        let pieces = Pieces::new(&reply, &back, 7);
        for later in [1, 2] {
            let frame = &pieces.before[later];
            let seen = answers(&scene, frame);
            if scene.place == Place::Local {
                seen.dropped(DropReason::FragmentUnknown);
            } else {
                seen.expect(UNSPEC, frame, None);
            }
        }
        answers(&scene, &pieces.before[0]).expect(verdict(&scene), &pieces.after[0], None);
    }
}

/// What comes by another device, or from the host, is nobody's reply; other
/// protocols have no ports.
#[test]
fn fragments_of_others_are_left_alone() {
    for scene in scenes(&[FrontendKind::ClusterIp]) {
        let [(request, _), (reply, _)] = conversation(&scene);
        let mut of_icmp = fragments(&request, 7, PART).remove(1);
        let at = if scene.case.v4 { 14 + 9 } else { 14 + 40 };
        of_icmp.0[at] = if scene.case.v4 { 1 } else { 58 };
        asks(&scene, &of_icmp).expect(UNSPEC, &of_icmp, None);
        let later = fragments(&reply, 7, PART).remove(1);
        for came_by in [0, Link::Up1.index(), Link::Ov0.index()] {
            let context = Context {
                device: Link::Up0.index(),
                came_by,
                ..Context::default()
            };
            let seen = scene.node.run_with(Program::Egress, context, &later);
            seen.expect(UNSPEC, &later, None);
        }
        let asked = fragments(&request, 8, PART).remove(1);
        let seen = scene.node.run_bytes(Program::Ingress, Link::Ov0, &asked);
        assert_ne!(seen.verdict, SHOT, "it came by no uplink");
    }
}
