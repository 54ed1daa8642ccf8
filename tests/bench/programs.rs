//! The kernel's own statistics of BPF programs.

use anyhow::{Context, Result, ensure};
use lab::Node;
use serde_json::Value;
use std::fs;
use std::process::Command;

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// The statistics while they are on; they slow every program a little.
pub(crate) struct Statistics {
    before: String,
}

impl Statistics {
    pub(crate) fn switch_on() -> Result<Self> {
        let before = fs::read_to_string(SWITCH).with_context(|| format!("read {SWITCH}"))?;
        fs::write(SWITCH, "1").with_context(|| format!("write {SWITCH}"))?;
        Ok(Self { before })
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        // It was written a moment ago.
        let _ = fs::write(SWITCH, self.before.trim());
    }
}

/// A program on its hook.
pub(crate) struct Hook {
    name: String,
    program: u64,
}

impl Hook {
    pub(crate) fn new(name: &str, program: u32) -> Self {
        Self {
            name: name.to_owned(),
            program: program.into(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// The agent's programs for sockets.
pub(crate) fn hooks(node: &Node) -> Result<Vec<Hook>> {
    let status: Value = serde_json::from_str(&node.fairlead(&["status", "-o", "json"])?)?;
    let hooks = status["hooks"].as_array().context("status has no hooks")?;
    let hook = |it: &Value| {
        Some(Hook {
            name: it["hook"].as_str()?.to_owned(),
            program: it["program_id"].as_u64()?,
        })
    };
    Ok(hooks.iter().filter_map(hook).collect())
}

/// Of each program: nanoseconds and runs so far.
pub(crate) type RunTimes = Vec<(String, u64, u64)>;

pub(crate) fn run_times(hooks: &[Hook]) -> Result<RunTimes> {
    hooks
        .iter()
        .map(|Hook { name, program }| {
            let output = Command::new("bpftool")
                .args(["-j", "prog", "show", "id", &program.to_string()])
                .output()
                .context("start bpftool")?;
            ensure!(output.status.success(), "bpftool does not know {name}");
            let program: Value = serde_json::from_slice(&output.stdout)?;
            let number = |key: &str| program[key].as_u64().unwrap_or(0);
            Ok((name.clone(), number("run_time_ns"), number("run_cnt")))
        })
        .collect()
}

/// The mean run time of the programs that ran often between two readings.
pub(crate) fn means(before: &RunTimes, after: &RunTimes) -> Vec<(String, f64)> {
    let names = before.iter().map(|(name, ..)| name.clone());
    let means = names.zip(each_mean(before, after));
    means
        .filter_map(|(name, mean)| Some((name, mean?)))
        .collect()
}

/// Of each program the mean run time between two readings, if it ran often.
pub(crate) fn each_mean(before: &RunTimes, after: &RunTimes) -> Vec<Option<f64>> {
    let mean = |(before, after): (&(String, u64, u64), &(String, u64, u64))| {
        let ((_, ns_before, runs_before), (_, ns, runs)) = (before, after);
        let runs = runs.checked_sub(*runs_before).filter(|&runs| runs > 1000)?;
        Some(ns.checked_sub(*ns_before)? as f64 / runs as f64)
    };
    before.iter().zip(after).map(mean).collect()
}
