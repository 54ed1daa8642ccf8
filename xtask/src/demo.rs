//! `cargo xtask demo`: builds everything and becomes the demo.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

use crate::setup::lab;
use crate::{build, paths};

/// Runs the demo with the arguments that follow `--`.
pub(crate) fn run(arguments: &[OsString]) -> Result<()> {
    lab::prepare()?;
    build::run()?;
    let program = paths::target().join("debug/demo");
    // It takes this process's place: its signals, terminal and exit code are
    // the user's own.
    let error = Command::new(&program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}
