//! Packets that nobody has thought of: damaged ones, and noise. Whatever is
//! changed or sent by a program has checksums that are as right as they were,
//! and a translation that the maps explain.

use proxy_common::FrontendKind;

use crate::bpf::Context;
use crate::cast::{CASES, Case, KINDS, Place, SERVICE};
use crate::node::{Guard, Link, Listing, Program, REDIRECT, SHOT, UNSPEC, node};
use crate::packet::{ACK, Error, Frame, Packet, icmp_error};
use crate::view::{TCP, UDP, View};

/// Packets, by default and with FAIRLEAD_LONG.
const COUNT: usize = 100_000;
const COUNT_LONG: usize = 5_000_000;
/// Packets between two clearings of the maps.
const ROUND: usize = 2_000;

const PLACES: [Place; 3] = [Place::Local, Place::Overlay, Place::Routed];

/// Marsaglia's xorshift64: what fails can be tried again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

/// Publishes frontends, opens flows; packets that all belong to something.
fn scenery(node: &mut Guard) -> Vec<(Program, Link, Frame)> {
    node.clear_flows();
    let mut packets = Vec::new();
    for case in CASES {
        for (number, kind) in (0..).zip(KINDS) {
            let first = case.first(kind);
            packets.push((Program::Ingress, Link::Up0, first.frame()));
            let place = PLACES[number % 3];
            let seen = node.ingress(Link::Up0, &first);
            if seen.verdict == SHOT {
                continue;
            }
            let got = first.clone().from(seen.source()).to(seen.destination());
            let (program, link) = way_back(&seen.destination(), case);
            packets.push((
                Program::Ingress,
                Link::Up0,
                first.clone().flags(ACK).sized(99).frame(),
            ));
            packets.push((program, link, got.answer().frame()));
            packets.push((program, link, icmp_error(&got, Error::TooBig(1_280))));
            let back = got.answer().from(first.destination).to(first.source);
            packets.push((
                Program::Ingress,
                Link::Up0,
                icmp_error(&back, Error::TooBig(1_280)),
            ));
            let mut optional = got.answer();
            optional.options = vec![1; 8];
            optional.extensions = vec![
                (0, vec![0, 1, 4, 0, 0, 0, 0]),
                (44, vec![0, 0, 1, 0, 0, 0, 9]),
            ];
            packets.push((program, link, optional.frame()));
            let stranger = Packet::first(case.protocol, case.endpoint(place, 2), case.client(9));
            packets.push((program, link, stranger.frame()));
        }
    }
    packets
}

fn way_back(backend: &std::net::SocketAddr, case: Case) -> (Program, Link) {
    let of = |place| case.endpoint(place, 2).ip() == backend.ip();
    if of(Place::Local) {
        (Program::Egress, Link::Up0)
    } else if of(Place::Overlay) {
        (Program::Ingress, Link::Ov0)
    } else {
        (Program::Ingress, Link::Up0)
    }
}

fn publish(node: &mut Guard) {
    for case in CASES {
        let backends = PLACES.map(|place| node.backend(SERVICE, case.endpoint(place, 2)).id);
        for kind in KINDS {
            node.publish(&Listing {
                backends: backends.to_vec(),
                ..case.listing(kind)
            });
        }
        let mut empty = case.listing(FrontendKind::NodePort);
        empty.address.set_port(30_081);
        node.publish(&empty);
    }
}

fn damage(random: &mut Random, frame: &Frame) -> Frame {
    let mut bytes = frame.0.clone();
    for _ in 0..random.below(4) {
        // Headers are what counts.
        let end = if random.chance(4) {
            bytes.len()
        } else {
            bytes.len().min(80)
        };
        let at = 12 + random.below(end - 12);
        match random.below(3) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            _ => bytes[at] = [0, 1, 0xff, 0x80, 44, 6, 17, 58][random.below(8)],
        }
    }
    match random.below(8) {
        0 => bytes.truncate(14 + random.below(bytes.len() - 14)),
        1 => bytes.resize(bytes.len() + random.below(64), 0xa5),
        2 => {
            // Noise behind an Ethernet header.
            bytes.truncate(14);
            let length = random.below(120);
            bytes.extend((0..length).map(|_| random.next() as u8));
        }
        _ => {}
    }
    Frame(bytes)
}

#[test]
fn nothing_leaves_mistranslated() {
    let count = if std::env::var_os("FAIRLEAD_LONG").is_some() {
        COUNT_LONG
    } else {
        COUNT
    };
    let mut node = node();
    publish(&mut node);
    let mut random = Random(0x5eed_0fa1_71ea_d001);
    let mut verdicts = [0_usize; 3];
    let mut changed = 0;
    let mut packets = Vec::new();
    for number in 0..count {
        if number % ROUND == 0 {
            packets = scenery(&mut node);
        }
        let (program, link, frame) = &packets[random.below(packets.len())];
        let frame = damage(&mut random, frame);
        // A test run takes no less than an IP header of the kind that it is told.
        let shortest = match frame.0[12..14] {
            [0x86, 0xdd] => 54,
            [0x08, 0x00] => 34,
            _ => 15,
        };
        if frame.0.len() < shortest {
            continue;
        }
        let context = Context {
            device: link.index(),
            ..Context::default()
        };
        let (verdict, out) = node.run_uncounted(*program, context, &frame);
        match verdict {
            UNSPEC => verdicts[0] += 1,
            SHOT => verdicts[1] += 1,
            REDIRECT => verdicts[2] += 1,
            other => panic!("verdict {other} for {frame:?}"),
        }
        if verdict == SHOT || (verdict == UNSPEC && frame == out) {
            continue;
        }
        changed += 1;
        if let Err(what) = judge(&node, &frame, &out) {
            panic!("packet {number}, {program:?} on {link:?}: {what}\nin {frame:?}\nout {out:?}");
        }
    }
    println!("{verdicts:?} passed, dropped, sent; {changed} changed");
    assert!(
        changed > count / 20,
        "only {changed} of {count} were anybody's"
    );
}

/// Whether what came out is explained.
fn judge(node: &Guard, before: &Frame, after: &Frame) -> Result<(), String> {
    let old = View::of(before).ok_or("it was no IP packet")?;
    let new = View::of(after).ok_or("it is no IP packet any more")?;
    if (new.source, new.destination) == (old.destination, old.source) {
        return judge_answer(&old, &new, after);
    }
    if old.errors(before) != new.errors(after) {
        return Err(format!(
            "checksums: {:?} and {:?}",
            old.errors(before),
            new.errors(after)
        ));
    }
    if old.protocol != new.protocol {
        return Err("another protocol".into());
    }
    if ![TCP, UDP].contains(&old.protocol) {
        let key = old.quoted(before).ok_or("an error about nothing")?;
        let known = node.flows.get(&key).or_else(|| node.flows_new.get(&key));
        return known.map(drop).ok_or("an error about no flow".into());
    }
    let Some(key) = old.key(before) else {
        // A later fragment: its ports are in map `fragments` alone.
        return Ok(());
    };
    let flow = node.flows.get(&key).or_else(|| node.flows_new.get(&key));
    let flow = flow.ok_or("no flow explains it")?;
    let wanted = (
        flow.source,
        flow.destination,
        flow.source_port,
        flow.destination_port,
    );
    let is = new.key(after).ok_or("it has no ports any more")?;
    let is = (
        is.source,
        is.destination,
        is.source_port,
        is.destination_port,
    );
    if is != wanted {
        return Err(format!("the flow says {wanted:?}, not {is:?}"));
    }
    Ok(())
}

/// A RST or an ICMP error, with checksums that are right where the program makes
/// them: a RST's is as right as that of what it answers.
fn judge_answer(old: &View, new: &View, after: &Frame) -> Result<(), String> {
    match new.protocol {
        TCP if old.protocol == TCP => Ok(()),
        1 | 58 => match new.errors(after) {
            (0xffff | 0, 0xffff) => Ok(()),
            wrong => Err(format!("checksums of the error: {wrong:?}")),
        },
        other => Err(format!("an answer of protocol {other}")),
    }
}
