//! Where the programs lie that a lab runs.

use anyhow::{Context, Result, ensure};
use std::path::PathBuf;

/// A binary that Cargo builds into the same target directory as the running one.
pub(crate) fn sibling(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe().context("find the running program")?;
    let mut dir = this.parent().context("the running program lies nowhere")?;
    if dir.ends_with("deps") {
        dir = dir.parent().context("deps lies nowhere")?;
    }
    let path = dir.join(name);
    ensure!(
        path.is_file(),
        "{path:?} is missing: build it with `cargo build --workspace`"
    );
    Ok(path)
}

/// The program under test: `$FAIRLEAD_BIN`, else the one that Cargo built.
pub fn fairlead() -> Result<PathBuf> {
    match std::env::var_os("FAIRLEAD_BIN") {
        Some(path) => Ok(path.into()),
        None => sibling("fairlead"),
    }
}

/// The agent with another layout of the maps and with points where it can be
/// made to die: `$FAIRLEAD_OTHER_BIN`, else the one that `cargo xtask` built.
pub fn other_fairlead() -> Result<PathBuf> {
    match std::env::var_os("FAIRLEAD_OTHER_BIN") {
        Some(path) => Ok(path.into()),
        None => sibling("fairlead-other").context("`cargo xtask test --tier lab` builds it"),
    }
}
