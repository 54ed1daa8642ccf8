//! `cargo xtask bench`: builds for release, measures, and judges the bounds.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::setup::{control_plane, lab};
use crate::{bpf, command, paths};

/// Options of `cargo xtask bench`.
#[derive(Args)]
pub(crate) struct Options {
    /// Run only rows whose name contains this (repeatable)
    #[arg(long = "filter", value_name = "ROW")]
    filters: Vec<String>,
    /// Take few samples: to see that it works, not to judge
    #[arg(long)]
    quick: bool,
    /// Measure kube-proxy with 10,000 Services, too, which it needs minutes to program
    #[arg(long)]
    full: bool,
}

/// Runs the rows; the exit code says whether a bound is missed.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    lab::prepare()?;
    bpf::run()?;
    command::run(command::cargo().args([
        "build",
        "--release",
        "--workspace",
        "--exclude=xtask",
        "--bins",
    ]))?;
    let programs = paths::target().join("release");
    let bench = programs.join("bench");
    let mut command = Command::new(&bench);
    command
        .env("FAIRLEAD_BIN", programs.join("fairlead"))
        .env("FAIRLEAD_CONTROL_PLANE", control_plane::control_plane()?)
        .env("FAIRLEAD_COMMIT", commit())
        .arg("--json")
        .arg(paths::target().join("bench/bench.json"));
    for filter in &options.filters {
        command.args(["--filter", filter]);
    }
    for (wanted, flag) in [(options.quick, "--quick"), (options.full, "--full")] {
        if wanted {
            command.arg(flag);
        }
    }
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", bench.display()))?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What is measured, as far as git knows.
fn commit() -> String {
    let mut git = command::clean("git");
    git.args(["describe", "--always", "--dirty"])
        .current_dir(paths::root());
    let text = command::output(&mut git).unwrap_or_else(|_| "unknown".to_owned());
    text.trim().to_owned()
}
