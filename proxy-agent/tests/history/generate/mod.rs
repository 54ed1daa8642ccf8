//! Random histories: few names, addresses and ports, so that they collide.

mod objects;
mod pools;

use crate::random::Random;
use crate::steps::{History, Key, Kind, Objects, Op, Room, Step, change};
use objects::object;
pub(crate) use pools::{ADDRESSES, PORTS};
use pools::{NODE_IPS, SERVICES, SLICES};
use std::net::IpAddr;

/// The history of a seed.
pub(crate) fn history(seed: u64, steps: usize, room: Room) -> History {
    let mut random = Random::new(seed);
    let mut cluster = Objects::new();
    let mut steps: Vec<Step> = (0..steps)
        .map(|_| step(&mut random, &mut cluster))
        .collect();
    if let Some(first) = steps.first_mut() {
        // Most histories have a node with addresses and a zone from the start.
        let key = (Kind::Node, String::new(), crate::model::OUR_NODE.to_owned());
        first
            .ops
            .push(Op::NodeAddresses(node_addresses(&mut random)));
        let node = object(&mut random, &key, None);
        first.ops.push(Op::Apply(node));
    }
    History { room, steps }
}

fn step(random: &mut Random, cluster: &mut Objects) -> Step {
    let size = if random.percent(20) { 12 } else { 4 };
    let restart = random.percent(6);
    let mut step = Step {
        restart,
        crash_at: random.percent(14).then(|| crash_at(random)),
        free: random.percent(50),
        order: random.next(),
        ops: Vec::new(),
    };
    for _ in 0..=random.below(size) {
        let op = op(random, cluster);
        change(cluster, &op);
        step.ops.push(op);
        // Deleted and created again, or two changes of one object, in one batch.
        if random.percent(10)
            && let Some(again) = step.ops.last().cloned()
            && let Some(op) = sequel(random, cluster, &again)
        {
            change(cluster, &op);
            step.ops.push(op);
        }
    }
    step
}

/// Writes before the end: a few, or as many as Maglev tables take.
fn crash_at(random: &mut Random) -> usize {
    let most = if random.percent(60) { 60 } else { 1_500 };
    random.below(most)
}

fn op(random: &mut Random, cluster: &Objects) -> Op {
    let key = any_key(random);
    let known = cluster.get(&key);
    match random.below(100) {
        0..4 => Op::List(random.pick(&Kind::ALL)),
        4..6 => Op::BrokenList(random.pick(&Kind::ALL), random.below(6)),
        6..9 => Op::NodeAddresses(node_addresses(random)),
        9..12 => Op::MissedDelete(key),
        12..16 => Op::MissedApply(object(random, &key, known)),
        16..28 => Op::Delete(key),
        _ => Op::Apply(object(random, &key, known)),
    }
}

/// What may follow in the same batch for the same object.
fn sequel(random: &mut Random, cluster: &Objects, op: &Op) -> Option<Op> {
    match op {
        Op::Apply(value) => {
            let key = crate::steps::key_of(value)?;
            Some(if random.percent(50) {
                Op::Delete(key)
            } else {
                Op::Apply(object(random, &key, cluster.get(&key)))
            })
        }
        Op::Delete(key) => Some(Op::Apply(object(random, key, None))),
        _ => None,
    }
}

fn any_key(random: &mut Random) -> Key {
    let of = |kind, (namespace, name): (&str, &str)| (kind, namespace.to_owned(), name.to_owned());
    match random.below(20) {
        0 | 1 => of(Kind::Node, ("", random.pick(&["n1", "n1", "n2", "n3"]))),
        2..9 => of(Kind::Service, random.pick(SERVICES)),
        _ => of(Kind::EndpointSlice, random.pick(SLICES)),
    }
}

fn node_addresses(random: &mut Random) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for text in NODE_IPS {
        if random.percent(75) {
            addresses.push(text.parse().unwrap());
        }
    }
    addresses
}
