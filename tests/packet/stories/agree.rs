//! Histories of packets and changes, as the model has them.

use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use proxy_common::FrontendKind;

use crate::cast::{CASES, Case, Place, SERVICE};
use crate::model::{Endpoint, Model};
use crate::node::{Guard, Link, Listing, Outcome, Program, is_local, node};
use crate::packet::{ACK, FIN, Packet, RST, SYN, Transport};

/// Histories for each family and protocol, by default and with FAIRLEAD_LONG.
const HISTORIES: u32 = 40;
const HISTORIES_LONG: u32 = 3_000;

const FRONTENDS: [FrontendKind; 2] = [FrontendKind::LoadBalancer, FrontendKind::NodePort];
const PLACES: [Place; 3] = [Place::Local, Place::Overlay, Place::Routed];

#[derive(Clone, Debug)]
enum Event {
    /// A client's packet: which client, port, frontend, flags, size.
    Request(bool, u16, usize, u8, usize),
    /// An endpoint's packet in one of the connections there are.
    Reply(usize, u8, usize),
    /// A packet of no connection, from an endpoint's port.
    Stranger(usize, u16),
    /// An endpoint comes or goes: usable, serving.
    Change(usize, bool, bool),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let flags = prop_oneof![
        4 => Just(SYN), 4 => Just(ACK), 2 => Just(FIN | ACK), 1 => Just(RST),
        1 => Just(RST | ACK), 1 => Just(SYN | ACK), 1 => Just(SYN | FIN),
    ];
    let request = (
        any::<bool>(),
        40_000..40_002_u16,
        0..3_usize,
        flags.clone(),
        0..100_usize,
    );
    let event = prop_oneof![
        6 => request.prop_map(|(a, b, c, d, e)| Event::Request(a, b, c, d, e)),
        5 => (0..8_usize, flags, 0..100_usize).prop_map(|(a, b, c)| Event::Reply(a, b, c)),
        1 => (0..6_usize, 50_000..50_002_u16).prop_map(|(a, b)| Event::Stranger(a, b)),
        1 => (0..6_usize, any::<bool>(), any::<bool>()).prop_map(|(a, b, c)| Event::Change(a, b, c)),
    ];
    prop::collection::vec(event, 1..60)
}

/// The node's address towards an endpoint.
fn source(endpoint: SocketAddr) -> IpAddr {
    place(endpoint).link().address(endpoint)
}

fn place(endpoint: SocketAddr) -> Place {
    let is = |case: &Case, place| {
        case.endpoint(place, 2).ip() == endpoint.ip()
            || case.endpoint(place, 3).ip() == endpoint.ip()
    };
    let found = PLACES
        .into_iter()
        .find(|&place| CASES.iter().any(|case| is(case, place)));
    found.expect("an endpoint of the cast")
}

/// The node and the model, side by side.
struct Pair {
    node: Guard,
    model: Model,
    case: Case,
}

impl Pair {
    fn new(case: Case) -> Self {
        let mut node = node();
        let addresses = PLACES.map(|place| [2, 3].map(|number| case.endpoint(place, number)));
        let endpoints = addresses.concat().into_iter().map(|address| Endpoint {
            address,
            id: node.backend(SERVICE, address).id,
            usable: true,
            serving: true,
        });
        let endpoints = endpoints.collect();
        let frontends = FRONTENDS.map(|kind| case.frontend(kind)).to_vec();
        let mut pair = Self {
            node,
            model: Model::new(frontends, endpoints, source),
            case,
        };
        pair.publish();
        pair
    }

    fn publish(&mut self) {
        let usable = self.model.endpoints.iter().filter(|it| it.usable);
        let backends: Vec<_> = usable.map(|it| it.id).collect();
        for kind in FRONTENDS {
            let listing = Listing {
                backends: backends.clone(),
                ..self.case.listing(kind)
            };
            self.node.publish(&listing);
        }
    }

    fn play(&mut self, event: &Event) -> Result<(), String> {
        let case = self.case;
        match *event {
            Event::Request(other, port, frontend, flags, size) => {
                let client = if other {
                    case.other_client(port)
                } else {
                    case.client(port)
                };
                // The third one is nobody's.
                let to = self.model.frontends.get(frontend).copied();
                let to = to.unwrap_or_else(|| case.other_client(443));
                let packet = self.packet(client, to, flags, size);
                let seen = self.run(Program::Ingress, Link::Up0, &packet);
                let verdict = self.model.request(&packet, &seen);
                verdict.map_err(|what| format!("{what}\n{packet:?}\n{seen:?}"))
            }
            Event::Reply(number, flags, size) => {
                let replies = self.model.replies();
                let Some((from, to, _)) = replies.get(number % replies.len().max(1)) else {
                    return Ok(());
                };
                let packet = self.packet(*from, *to, flags, size);
                self.reply(&packet)
            }
            Event::Stranger(endpoint, port) => {
                let from = self.model.endpoints[endpoint].address;
                let packet = self.packet(from, case.client(port), ACK, 5);
                self.reply(&packet)
            }
            Event::Change(number, usable, serving) => {
                let endpoint = &mut self.model.endpoints[number];
                (endpoint.usable, endpoint.serving) = (usable && serving, serving);
                self.node.set_serving(endpoint.id, serving);
                self.publish();
                Ok(())
            }
        }
    }

    fn packet(&self, from: SocketAddr, to: SocketAddr, flags: u8, size: usize) -> Packet {
        Packet::first(self.case.protocol, from, to)
            .flags(flags)
            .sized(size)
    }

    fn reply(&mut self, packet: &Packet) -> Result<(), String> {
        let seen = if is_local(packet.source) {
            self.run(Program::Egress, Link::Up0, packet)
        } else {
            self.run(Program::Ingress, place(packet.source).link(), packet)
        };
        let verdict = self.model.reply(packet, &seen);
        verdict.map_err(|what| format!("{what}\n{packet:?}\n{seen:?}"))
    }

    /// An ICMP error cuts the packet: see the stories of refusals.
    fn run(&mut self, program: Program, link: Link, packet: &Packet) -> Outcome {
        let may_be_cut = matches!(packet.transport, Transport::Udp { .. })
            && !self.model.endpoints.iter().any(|it| it.usable);
        self.node.may_answer();
        if may_be_cut {
            return self.node.run_bytes(program, link, &packet.frame());
        }
        self.node.run(program, link, packet)
    }

    /// Neither side has connections that the other one does not know of.
    fn compare(&self) -> Result<(), String> {
        let (settled, new) = (self.node.flows.entries(), self.node.flows_new.entries());
        let count = settled.len() + new.len();
        if count == self.model.len() {
            return Ok(());
        }
        Err(format!(
            "{count} halves, and {} in the model: {settled:#?} {new:#?}",
            self.model.len()
        ))
    }
}

#[test]
fn the_programs_and_the_model_agree() {
    let long = std::env::var_os("FAIRLEAD_LONG").is_some();
    let config = Config {
        cases: if long { HISTORIES_LONG } else { HISTORIES },
        failure_persistence: None,
        ..Config::default()
    };
    for case in CASES {
        println!("{case:?}");
        let outcome = TestRunner::new(config.clone()).run(&events(), |events| {
            let mut pair = Pair::new(case);
            for (number, event) in events.iter().enumerate() {
                let verdict = pair.play(event).and_then(|()| pair.compare());
                verdict.map_err(|what| TestCaseError::fail(format!("event {number}: {what}")))?;
            }
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{error}");
        }
    }
}
