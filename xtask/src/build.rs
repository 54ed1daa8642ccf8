//! `cargo xtask build`: the BPF object, then every crate.

use anyhow::Result;

use crate::{bpf, command};

/// Builds everything.
pub(crate) fn run() -> Result<()> {
    bpf::run()?;
    command::run(command::cargo().args(["build", "--workspace"]))
}
