//! Two CPUs on one tuple at once: one flow comes of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use proxy_common::FrontendKind;

use crate::bpf::Context;
use crate::cast::{CASES, Case, Place, SERVICE};
use crate::node::{Link, Listing, Node, Program, UNSPEC, addresses, node};
use crate::packet::{ACK, Frame, Packet};

/// Tuples that the two meet at, between two looks at the maps: few enough that
/// an LRU map evicts none.
const ROUNDS: u16 = 100;
const BATCHES: u16 = 15;

/// Where two threads meet without sleeping, since what takes turns does not race.
#[derive(Default)]
struct Meeting(AtomicUsize);

impl Meeting {
    fn wait(&self, round: u16) {
        self.0.fetch_add(1, Ordering::AcqRel);
        while self.0.load(Ordering::Acquire) < 2 * (usize::from(round) + 1) {
            thread::yield_now();
        }
    }
}

/// Runs `run` on two CPUs at once for each round; what came of it on each.
pub(crate) fn together<T: Send>(rounds: u16, run: impl Fn(usize, u16) -> T + Sync) -> Vec<[T; 2]> {
    let (meeting, run) = (&Meeting::default(), &run);
    let [there, here] = thread::scope(|scope| {
        let threads = [1, 0].map(|cpu| {
            scope.spawn(move || {
                let mut set = CpuSet::new();
                set.set(cpu).expect("a CPU's number");
                sched_setaffinity(Pid::from_raw(0), &set).expect("the machine has two CPUs");
                let rounds = (0..rounds).map(|round| {
                    meeting.wait(round);
                    run(cpu, round)
                });
                rounds.collect::<Vec<_>>()
            })
        });
        threads.map(|it| it.join().expect("it ran to its end"))
    });
    here.into_iter().zip(there).map(|(a, b)| [a, b]).collect()
}

/// Runs a program on a packet, without a look at the counters.
pub(crate) fn run(node: &Node, program: Program, link: Link, packet: &Packet) -> (i32, Frame) {
    let context = Context {
        device: link.index(),
        ..Context::default()
    };
    node.run_uncounted(program, context, &packet.frame())
}

fn first(case: Case, batch: u16, round: u16) -> Packet {
    let client = case.client(20_000 + batch * ROUNDS + round);
    Packet::first(
        case.protocol,
        client,
        case.frontend(FrontendKind::LoadBalancer),
    )
}

#[test]
fn the_first_packet_of_a_tuple_on_two_cpus() {
    for case in CASES {
        for place in [Place::Local, Place::Overlay] {
            println!("{case:?} {place:?}");
            let mut node = node();
            let endpoints = [2, 3, 4].map(|number| case.endpoint(place, number));
            let backends = endpoints.map(|it| node.backend(SERVICE, it).id).to_vec();
            node.publish(&Listing {
                backends,
                ..case.listing(FrontendKind::LoadBalancer)
            });
            for batch in 0..BATCHES {
                node.clear_flows();
                let node = &*node;
                let seen = together(ROUNDS, |_, round| {
                    run(
                        node,
                        Program::Ingress,
                        Link::Up0,
                        &first(case, batch, round),
                    )
                });
                for (round, [here, there]) in (0..).zip(&seen) {
                    assert_eq!(here, there, "the same packet came out of both");
                    let key = first(case, batch, round).key();
                    let flow = node.flows_new.get(&key).expect("the request's half");
                    let back = flow.other_key(key.protocol);
                    let reply = node.flows_new.get(&back).expect("the reply's half");
                    assert_eq!(reply.other_key(key.protocol), key);
                    let (_, destination) = addresses(&here.1);
                    assert_eq!(destination.ip(), flow.destination.to_ip());
                }
                let count = node.flows_new.entries().len();
                assert_eq!(count, 2 * usize::from(ROUNDS), "one pair for each tuple");
            }
        }
    }
}

/// The answer comes on one CPU while the client sends again on the other.
#[test]
fn the_answer_and_a_retransmission_on_two_cpus() {
    for case in CASES {
        for place in [Place::Local, Place::Overlay] {
            println!("{case:?} {place:?}");
            let mut node = node();
            let endpoint = case.endpoint(place, 2);
            let backends = vec![node.backend(SERVICE, endpoint).id];
            node.publish(&Listing {
                backends,
                ..case.listing(FrontendKind::LoadBalancer)
            });
            for batch in 0..BATCHES {
                node.clear_flows();
                let node = &*node;
                let requests: Vec<Packet> = (0..ROUNDS).map(|it| first(case, batch, it)).collect();
                let answers: Vec<Packet> = requests
                    .iter()
                    .map(|request| {
                        let (_, got) = run(node, Program::Ingress, Link::Up0, request);
                        let (source, destination) = addresses(&got);
                        request.clone().from(source).to(destination).answer()
                    })
                    .collect();
                let seen = together(ROUNDS, |cpu, round| {
                    let at = usize::from(round);
                    match (cpu, place) {
                        (0, _) => run(node, Program::Ingress, Link::Up0, &requests[at]),
                        (_, Place::Local) => run(node, Program::Egress, Link::Up0, &answers[at]),
                        _ => run(node, Program::Ingress, Link::Ov0, &answers[at]),
                    }
                });
                for ((request, answer), [again, back]) in requests.iter().zip(&answers).zip(&seen) {
                    let got = addresses(&again.1);
                    assert_eq!(
                        got,
                        (answer.destination, answer.source),
                        "as the first time"
                    );
                    let got = addresses(&back.1);
                    assert_eq!(got, (request.destination, request.source));
                    let next = request.clone().flags(ACK);
                    let (verdict, frame) = run(node, Program::Ingress, Link::Up0, &next);
                    assert_eq!(addresses(&frame), (answer.destination, answer.source));
                    assert_eq!(verdict == UNSPEC, place == Place::Local);
                }
                let count = node.flows.entries().len() + node.flows_new.entries().len();
                assert_eq!(count, 2 * usize::from(ROUNDS), "no half is in both maps");
            }
        }
    }
}
