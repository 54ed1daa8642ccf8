//! `cargo xtask build`: the BPF object, then every crate.

use anyhow::Result;

use crate::{bpf, command, paths};

/// Builds everything.
pub(crate) fn run() -> Result<()> {
    bpf::run()?;
    command::run(
        command::clean("cargo")
            .args(["build", "--workspace"])
            .current_dir(paths::root()),
    )
}
