//! `cargo xtask conformance`: builds everything and runs the suite. Its
//! arguments are its own; the outcomes also go to target/conformance.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

use crate::setup::{control_plane, lab};
use crate::{build, paths};

/// Tells the suite where the control plane's programs are.
const PROGRAMS: &str = "FAIRLEAD_CONTROL_PLANE";

/// Runs the suite with the arguments that follow.
pub(crate) fn run(arguments: &[OsString]) -> Result<()> {
    build::run()?;
    lab::prepare()?;
    let mut command = suite();
    command.env(PROGRAMS, control_plane::control_plane()?);
    let folder = paths::target().join("conformance");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    command
        .arg("--json")
        .arg(folder.join("conformance.json"))
        .args(arguments);
    // It takes this process's place: its signals, terminal and exit code are
    // the user's own.
    let error = command.exec();
    Err(error).context("cannot start the conformance suite")
}

/// The runs of the test tier. Fairlead must meet every row that it is said to
/// meet, and those must notice a wrong lab. kube-proxy stands in where Fairlead
/// does not meet a row yet: so each row is known to be able to pass and to fail.
pub(crate) fn of_the_tier(filter: Option<&str>) -> Result<Vec<Command>> {
    lab::prepare()?;
    let programs = control_plane::control_plane()?;
    let mut commands = Vec::new();
    for arguments in [
        &["--proxy", "fairlead"][..],
        &["--proxy", "fairlead", "--break", "all"],
        &["--proxy", "kube-proxy-nftables", "--pending"],
        &[
            "--proxy",
            "kube-proxy-nftables",
            "--pending",
            "--break",
            "all",
        ],
    ] {
        let with = |mut command: Command| {
            command.args(arguments);
            if let Some(filter) = filter {
                command.args(["--filter", filter]);
            }
            command
        };
        // With a filter there may be no such row; without one that is an error,
        // but for the rows that Fairlead does not meet yet.
        let mut list = with(suite());
        list.arg("--list");
        let optional = filter.is_some() || arguments.contains(&"--pending");
        let listed = list.output().context("cannot list the rows")?;
        if listed.status.success() || !optional {
            let mut run = with(suite());
            run.env(PROGRAMS, &programs);
            commands.push(run);
        }
    }
    Ok(commands)
}

fn suite() -> Command {
    Command::new(paths::target().join("debug/conformance"))
}
