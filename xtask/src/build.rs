//! `cargo xtask build`: the BPF object, then every crate; and what only tests need.

use anyhow::Result;

use crate::{bpf, command};

/// Builds everything.
pub(crate) fn run() -> Result<()> {
    bpf::run()?;
    command::run(command::cargo().args(["build", "--workspace"]))
}

/// Builds the agent with another layout of the maps, for the tests of upgrades.
///
/// A program of its own name beside the real one, so that both stay built. The
/// whole workspace is named for the same features of dependencies: only the
/// agent itself is compiled once more.
pub(crate) fn other_layout() -> Result<()> {
    bpf::other_layout()?;
    command::run(command::cargo().args([
        "build",
        "--workspace",
        "--bin=fairlead-other",
        "--features=proxy-agent/other-layout,proxy-agent/crash-points",
    ]))
}
