//! Running the rows of one column.

use crate::check::is_mismatch;
use crate::proxy::Proxy;
use crate::row::{Family, Row, Why};
use crate::stage::Stage;
use crate::troupe::Troupe;
use crate::world::World;
use crate::{pending, report};
use anyhow::{Context, Result, anyhow};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What came of a row in one family.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// As expected.
    Met,
    /// Otherwise, as is known.
    Differs(Why, String),
    /// Otherwise, as is known of Fairlead so far.
    NotYet(&'static str, String),
    /// Otherwise.
    Failed(String),
    /// Known to be otherwise, and yet as expected: the list is out of date.
    OutOfDate(&'static str),
    /// The wrong lab was noticed.
    Noticed(String),
    /// The lab was wrong and nothing was noticed.
    Blind,
    /// It would be red in the right lab as well, and proves nothing.
    NotJudged,
}

impl Verdict {
    /// Whether the suite may succeed with it.
    pub(crate) fn is_good(&self) -> bool {
        !matches!(self, Self::Failed(_) | Self::OutOfDate(_) | Self::Blind)
    }
}

/// One outcome.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Index of the row.
    pub(crate) row: usize,
    pub(crate) family: Family,
    pub(crate) verdict: Verdict,
    pub(crate) time: Duration,
}

/// What one proxy did.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) proxy: Proxy,
    /// In the order of the rows.
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) time: Duration,
}

/// A row in one family.
#[derive(Clone, Copy)]
struct Task<'r> {
    index: usize,
    row: &'r Row,
    family: Family,
    broken: bool,
}

/// Runs all rows with one proxy.
pub(crate) fn column(proxy: Proxy, rows: &[&Row], broken: bool, jobs: usize) -> Result<Column> {
    let begun = Instant::now();
    eprintln!("conformance: {}", proxy.as_str());
    let world = World::new(proxy).with_context(|| format!("build a lab for {}", proxy.as_str()))?;
    let concerned = rows.iter().enumerate();
    let concerned = concerned.filter(|(_, row)| row.concerns(proxy));
    let tasks = concerned.flat_map(|(index, &row)| {
        row.families.iter().map(move |&family| Task {
            index,
            row,
            family,
            broken,
        })
    });
    let (alone, beside): (VecDeque<Task<'_>>, VecDeque<Task<'_>>) =
        tasks.partition(|task| task.row.alone || (broken && task.row.fault.is_of_the_lab()));
    let mut outcomes = together(&world, beside, jobs)?;
    outcomes.extend(together(&world, alone, 1)?);
    outcomes.sort_by_key(|outcome| outcome.row);
    Ok(Column {
        proxy,
        outcomes,
        time: begun.elapsed(),
    })
}

/// Runs tasks, some at a time.
fn together(world: &World, tasks: VecDeque<Task<'_>>, jobs: usize) -> Result<Vec<Outcome>> {
    static TROUPES: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let jobs = jobs.min(tasks.len());
    let tasks = Mutex::new(tasks);
    let next = || {
        tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs)
            .map(|_| {
                scope.spawn(|| {
                    let number = TROUPES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let troupe = Troupe::new(world, number)?;
                    let mut outcomes = Vec::new();
                    while let Some(task) = next() {
                        let outcome = perform(world, &troupe, task);
                        report::progress(task.row, &outcome);
                        outcomes.push(outcome);
                    }
                    Ok(outcomes)
                })
            })
            .collect();
        let mut all = Vec::new();
        for worker in workers {
            let outcomes: Result<Vec<Outcome>> = worker
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a row panicked")));
            all.extend(outcomes?);
        }
        Ok(all)
    })
}

fn perform(world: &World, troupe: &Troupe, task: Task<'_>) -> Outcome {
    let Task {
        index,
        row,
        family,
        broken,
    } = task;
    let begun = Instant::now();
    let known = known(row, world.proxy, family);
    let verdict = if broken && known.is_some() {
        Verdict::NotJudged
    } else {
        let told = tell(world, troupe, task);
        if broken {
            judge_broken(told)
        } else {
            judge(told, known)
        }
    };
    Outcome {
        row: index,
        family,
        verdict,
        time: begun.elapsed(),
    }
}

fn tell(world: &World, troupe: &Troupe, task: Task<'_>) -> Result<()> {
    let Task {
        row,
        family,
        broken,
        ..
    } = task;
    let space = format!("{}-{}", row.name, family.as_str().to_lowercase());
    let fault = broken.then_some(row.fault);
    let stage = Stage::new(world, troupe, family, space, fault)?;
    fault.map_or(Ok(()), |fault| world.go_wrong(fault))?;
    let told = (row.story)(&stage);
    let cleared = stage.clear();
    fault.map_or(Ok(()), |fault| world.put_right(fault))?;
    told.and(cleared)
}

/// What is known of a proxy that does not meet a row.
#[derive(Clone, Copy)]
enum Known {
    Differs(Why),
    NotYet(&'static str),
}

fn known(row: &Row, proxy: Proxy, family: Family) -> Option<Known> {
    if proxy == Proxy::Fairlead
        && let Some(reason) = pending::reason(row)
    {
        return Some(Known::NotYet(reason));
    }
    row.difference(proxy, family).map(Known::Differs)
}

fn judge(told: Result<()>, known: Option<Known>) -> Verdict {
    match (told, known) {
        (Ok(()), None) => Verdict::Met,
        (Ok(()), Some(Known::Differs(_))) => {
            Verdict::OutOfDate("it meets the row, which says that it differs")
        }
        (Ok(()), Some(Known::NotYet(_))) => {
            Verdict::OutOfDate("it meets the row: remove it from pending.rs")
        }
        (Err(error), Some(known)) if is_mismatch(&error) => match known {
            Known::Differs(why) => Verdict::Differs(why, format!("{error:#}")),
            Known::NotYet(reason) => Verdict::NotYet(reason, format!("{error:#}")),
        },
        (Err(error), None) if is_mismatch(&error) => Verdict::Failed(format!("{error:#}")),
        (Err(error), _) => Verdict::Failed(format!("could not try it: {error:#}")),
    }
}

fn judge_broken(told: Result<()>) -> Verdict {
    match told {
        Ok(()) => Verdict::Blind,
        Err(error) if is_mismatch(&error) => Verdict::Noticed(format!("{error:#}")),
        Err(error) => Verdict::Failed(format!("could not try it: {error:#}")),
    }
}
