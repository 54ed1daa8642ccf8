//! ICMP errors about translated packets reach who sent those, as about what they
//! sent (semantics 30).

use proxy_common::FrontendKind;

use crate::cast::{CASES, Place, Scene};
use crate::node::{Link, Program, REDIRECT, UNSPEC};
use crate::packet::{Error, Frame, Packet, translated_error};

const PLACES: [Place; 3] = [Place::Local, Place::Overlay, Place::Routed];
const ERRORS: [Error; 2] = [Error::PortUnreachable, Error::TooBig(1_280)];

fn every_scene() -> impl Iterator<Item = Scene> {
    let all = CASES
        .into_iter()
        .flat_map(|case| PLACES.map(|place| (case, place)));
    all.map(|(case, place)| {
        println!("{case:?} {place:?}");
        Scene::new(case, FrontendKind::LoadBalancer, place)
    })
}

/// An error about a packet, from who should have got it.
fn about(packet: &Packet, error: Error) -> Frame {
    translated_error(packet, packet, 64, error)
}

/// The backend, or its node, answers a request with an error.
#[test]
fn clients_are_told_of_errors_behind_the_frontend() {
    for scene in every_scene() {
        let first = scene.first();
        for answered in [false, true] {
            let got = scene.request(&first);
            if answered {
                scene.reply(&got.answer(), first.source);
            }
            for error in ERRORS {
                let (program, link, verdict, hops) = match scene.place {
                    Place::Local => (Program::Egress, Link::Up0, UNSPEC, 64),
                    place => (Program::Ingress, place.link(), REDIRECT, 63),
                };
                let seen = scene.node.run_bytes(program, link, &about(&got, error));
                let mut sent = first.clone();
                sent.hops = got.hops;
                let wanted = translated_error(&sent, &got, hops, error);
                seen.expect(verdict, &wanted, None);
            }
        }
    }
}

/// The client, or its router, answers a reply with an error.
#[test]
fn backends_are_told_of_errors_towards_the_client() {
    for scene in every_scene() {
        let first = scene.first();
        let answer = scene.request(&first).answer();
        let got = scene.reply(&answer, first.source);
        for error in ERRORS {
            let seen = scene
                .node
                .run_bytes(Program::Ingress, Link::Up0, &about(&got, error));
            let mut sent = answer.clone();
            sent.hops = got.hops;
            let (verdict, hops) = match scene.place {
                Place::Local => (UNSPEC, 64),
                _ => (REDIRECT, 63),
            };
            seen.expect(verdict, &translated_error(&sent, &got, hops, error), None);
        }
    }
}

/// An error about a packet that is nobody's, or that no flow explains.
#[test]
fn other_errors_are_left_alone() {
    for scene in every_scene() {
        let first = scene.first();
        scene.open(&first);
        let stranger = Packet::first(scene.case.protocol, scene.frontend(), scene.case.client(9));
        for link in [Link::Up0, Link::Ov0] {
            for program in [Program::Ingress, Program::Egress] {
                let frame = about(&stranger, Error::TooBig(1_280));
                let seen = scene.node.run_bytes(program, link, &frame);
                seen.expect(UNSPEC, &frame, None);
            }
        }
    }
}
