//! Rows about Maglev tables: how long one takes, and what moves when a backend goes.

use crate::Options;
use crate::report::{Bound, Report, Row};
use crate::stats::Spread;
use crate::worker::{CLIENT_CPU, pin};
use anyhow::{Result, ensure};
use proxy_agent::compile::maglev::{self, Member};
use proxy_common::Address;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

/// Backends of the table that is timed.
const BACKENDS: u32 = 1000;
/// What it may take, ms.
const TABLE_MS: Bound = Bound::AtMost(3.0);
/// What may move beyond the share of the one that goes, percent of all slots.
const MOVED_PERCENT: f64 = 2.0;

/// Runs the rows of this file that are wanted.
pub(crate) fn run(options: &Options, report: &mut Report) -> Result<()> {
    if options.wants("maglev-time") {
        // Pinned alone: what the bench starts later shall not inherit it.
        let tables = if options.quick { 40 } else { 300 };
        let timed = std::thread::spawn(move || time(tables));
        let times = timed
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let what = format!("maglev-time: a table of {BACKENDS} backends");
        let row = Row::plain("maglev-time", &what, "ms", &times, Some(TABLE_MS));
        report.add(row);
    }
    for backends in [10, 100, BACKENDS] {
        let name = format!("maglev-moved-{backends}");
        if !options.wants(&name) {
            continue;
        }
        let moved = moved(backends, if options.quick { 20 } else { 300 })?;
        let own = 100.0 / f64::from(backends);
        let bound = Bound::AtMost(own + MOVED_PERCENT);
        let what = format!("{name}: moved when one of {backends} goes, mean");
        report.add(Row::mean(&name, &what, "% of slots", &moved, bound));
    }
    Ok(())
}

fn time(tables: u32) -> Result<Spread> {
    pin(0, CLIENT_CPU)?;
    let members = members(BACKENDS);
    let size = maglev::size(members.len());
    let seed = maglev::seed(maglev::DEFAULT_SEED_TEXT);
    let one = |_| {
        let start = Instant::now();
        black_box(maglev::table(black_box(&members), seed, size));
        start.elapsed().as_secs_f64() * 1000.0
    };
    Ok(Spread::of((0..tables).map(one).collect()))
}

/// Percent of the slots whose backend is another one, for backends spread over
/// the set that go, one at a time.
fn moved(backends: u32, tries: u32) -> Result<Vec<f64>> {
    let all = members(backends);
    let size = maglev::size(all.len());
    ensure!(
        size == maglev::size(all.len() - 1),
        "the table shrinks with the one that goes"
    );
    let seed = maglev::seed(maglev::DEFAULT_SEED_TEXT);
    let before = maglev::table(&all, seed, size);
    let step = (all.len() / tries as usize).max(1);
    let gone = (0..all.len()).step_by(step);
    let moved = |gone: usize| {
        let mut left = all.clone();
        left.remove(gone);
        let after = maglev::table(&left, seed, size);
        let slots = before.iter().zip(&after);
        let others = slots.filter(|(a, b)| all[**a as usize].key != left[**b as usize].key);
        100.0 * others.count() as f64 / f64::from(size)
    };
    Ok(gone.map(moved).collect())
}

fn members(count: u32) -> Vec<Member> {
    let first = Ipv4Addr::new(10, 128, 0, 1).to_bits();
    let member = |number| {
        let ip = IpAddr::from(Ipv4Addr::from_bits(first + number));
        Member {
            key: (Address::from(ip), 8080),
            weight: 1,
        }
    };
    (0..count).map(member).collect()
}
