//! Histories of Kubernetes objects, through the real store, resolve and publish
//! into a kernel in memory, against a plain model of the Service API.
//!
//! A history that fails is shrunk and printed: as lines that
//! `FAIRLEAD_REPLAY=file cargo test -p proxy-agent --test history` runs again,
//! and as the manifest of its last state for `fairlead agent --manifests`.
//! `FAIRLEAD_LONG=1` (`cargo xtask test --tier unit --long`) runs a million steps.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod compare;
mod generate;
mod kernel;
mod large;
mod model;
mod node_maps;
mod random;
mod shrink;
mod steps;
mod world;

use compare::Probes;
use generate::{ADDRESSES, PORTS, history};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;
use steps::{History, Room};

/// Steps of one history.
const STEPS: usize = 30;

/// Steps of each of the two tests in the long form.
const LONG_STEPS: usize = 500_000;

/// Room for everything.
fn plenty(_: u64) -> Room {
    Room::PLENTY
}

/// Too little in one of the maps, or in all.
fn scarce(seed: u64) -> Room {
    let (backends, services, frontends) = [
        (12, 64, 128),
        (24, 64, 128),
        (256, 8, 128),
        (256, 64, 16),
        (24, 8, 32),
    ][seed as usize % 5];
    Room {
        backends,
        services,
        frontends,
    }
}

/// Runs so many steps of histories on all CPUs.
fn explore(steps: usize, room: fn(u64) -> Room) {
    let long = std::env::var_os("FAIRLEAD_LONG").is_some();
    let histories = if long { LONG_STEPS } else { steps }.div_ceil(STEPS);
    let first = std::env::var("FAIRLEAD_SEED").map_or(0, |seed| seed.parse().unwrap());
    let (next, failed) = (AtomicUsize::new(0), AtomicU64::new(u64::MAX));
    let started = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let explorer = || {
        let probes = Probes::of(ADDRESSES, PORTS);
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= histories || failed.load(Ordering::Relaxed) != u64::MAX {
                break;
            }
            let seed = first + number as u64;
            if world::run(&history(seed, STEPS, room(seed)), &probes).is_err() {
                failed.fetch_min(seed, Ordering::Relaxed);
            }
            if number % 1000 == 999 {
                println!("{number} histories in {:?}", started.elapsed());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(explorer);
        }
    });
    let failed = failed.into_inner();
    if failed != u64::MAX {
        report(&history(failed, STEPS, room(failed)), failed);
    }
    println!(
        "{histories} histories of {STEPS} steps in {:?}",
        started.elapsed()
    );
}

/// Shrinks a history that fails and fails with it.
fn report(history: &History, seed: u64) {
    let probes = Probes::of(ADDRESSES, PORTS);
    let (small, fault) = shrink::shrink(history, &probes);
    panic!(
        "FAIRLEAD_SEED={seed}, step {}: {}\n\n--- history, for FAIRLEAD_REPLAY ---\n{}\n\n--- manifest of the last state ---\n{}",
        fault.step,
        fault.what,
        small.to_lines(),
        small.last_manifest()
    );
}

#[test]
fn clients_get_what_the_model_says_after_any_history() {
    if let Ok(file) = std::env::var("FAIRLEAD_REPLAY") {
        let history = History::from_lines(&std::fs::read_to_string(file).unwrap());
        if let Err(fault) = world::run(&history, &Probes::of(ADDRESSES, PORTS)) {
            panic!("step {}: {}", fault.step, fault.what);
        }
        return;
    }
    explore(3_000, plenty);
}

/// Histories that failed once.
#[test]
fn what_was_found_stays_mended() {
    let found = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/history/found");
    for file in std::fs::read_dir(found).unwrap() {
        let path = file.unwrap().path();
        let history = History::from_lines(&std::fs::read_to_string(&path).unwrap());
        if let Err(fault) = world::run(&history, &Probes::of(ADDRESSES, PORTS)) {
            panic!("{}, step {}: {}", path.display(), fault.step, fault.what);
        }
    }
}

#[test]
fn full_maps_harm_nobody_but_those_who_find_no_room() {
    explore(1_500, scarce);
}
