//! Makes a history that fails small: steps, operations, flags, then fields.

use crate::compare::Probes;
use crate::steps::{History, Op, Step};
use crate::world::{Fault, run};
use serde_json::Value;

/// Runs that shrinking may cost.
const RUNS_MAX: usize = 6_000;

/// A small history that fails, and its fault.
pub(crate) fn shrink(history: &History, probes: &Probes) -> (History, Fault) {
    let Err(fault) = run(history, probes) else {
        panic!("a history that failed does not fail again: the agent is not deterministic");
    };
    let mut shrinker = Shrinker {
        best: history.clone(),
        fault,
        probes,
        runs_left: RUNS_MAX,
    };
    while shrinker.round() {}
    (shrinker.best, shrinker.fault)
}

struct Shrinker<'p> {
    best: History,
    fault: Fault,
    probes: &'p Probes,
    runs_left: usize,
}

impl Shrinker<'_> {
    /// Tries everything once; whether anything helped.
    fn round(&mut self) -> bool {
        let mut helped = self.steps();
        let mut step = 0;
        while step < self.best.steps.len() {
            helped |= self.ops(step);
            helped |= self.flags(step);
            for op in 0..self.best.steps[step].ops.len() {
                helped |= self.fields(step, op);
            }
            step += 1;
        }
        helped
    }

    fn try_with(&mut self, edit: impl FnOnce(&mut History)) -> bool {
        if self.runs_left == 0 {
            return false;
        }
        self.runs_left -= 1;
        let mut candidate = self.best.clone();
        edit(&mut candidate);
        match run(&candidate, self.probes) {
            Ok(_) => false,
            // Another sort of fault would only hide this one.
            Err(fault) if fault.what.get(..9) != self.fault.what.get(..9) => false,
            Err(fault) => {
                (self.best, self.fault) = (candidate, fault);
                true
            }
        }
    }

    fn steps(&mut self) -> bool {
        let length = self.best.steps.len();
        let mut helped = false;
        let mut size = length.max(1);
        while size > 0 {
            let mut at = 0;
            while at < self.best.steps.len() {
                let end = (at + size).min(self.best.steps.len());
                if self.try_with(|it| drop(it.steps.drain(at..end))) {
                    helped = true;
                } else {
                    at += size;
                }
            }
            size /= 2;
        }
        helped
    }

    fn ops(&mut self, step: usize) -> bool {
        let mut helped = false;
        let mut at = 0;
        while at < self.best.steps[step].ops.len() {
            if self.try_with(|it| drop(it.steps[step].ops.remove(at))) {
                helped = true;
            } else {
                at += 1;
            }
        }
        helped
    }

    fn flags(&mut self, step: usize) -> bool {
        let Step {
            restart,
            crash_at,
            free,
            order,
            ..
        } = self.best.steps[step];
        let mut helped = restart && self.try_with(|it| it.steps[step].restart = false);
        helped |= crash_at.is_some() && self.try_with(|it| it.steps[step].crash_at = None);
        helped |= free && self.try_with(|it| it.steps[step].free = false);
        helped |= order != 0 && self.try_with(|it| it.steps[step].order = 0);
        helped
    }

    fn fields(&mut self, step: usize, op: usize) -> bool {
        let mut helped = false;
        let mut at = 0;
        loop {
            let mut edited = self.best.steps[step].ops[op].clone();
            let (Op::Apply(value) | Op::MissedApply(value)) = &mut edited else {
                return helped;
            };
            if !remove_nth(value, &mut at.clone()) {
                return helped;
            }
            if self.try_with(|it| it.steps[step].ops[op] = edited) {
                helped = true;
            } else {
                at += 1;
            }
        }
    }
}

/// Removes the nth field or element, in the order of a walk; `false` if there
/// are not so many.
fn remove_nth(value: &mut Value, n: &mut usize) -> bool {
    match value {
        Value::Object(map) => {
            let keys: Vec<String> = map.keys().cloned().collect();
            for key in keys {
                // What makes the object this object stays.
                let names = ["apiVersion", "kind", "metadata", "name", "namespace"];
                if !names.contains(&key.as_str()) {
                    if *n == 0 {
                        map.remove(&key);
                        return true;
                    }
                    *n -= 1;
                }
                if map.get_mut(&key).is_some_and(|inner| remove_nth(inner, n)) {
                    return true;
                }
            }
            false
        }
        Value::Array(items) => {
            for index in 0..items.len() {
                if *n == 0 {
                    items.remove(index);
                    return true;
                }
                *n -= 1;
                if remove_nth(&mut items[index], n) {
                    return true;
                }
            }
            false
        }
        _ => false,
    }
}
