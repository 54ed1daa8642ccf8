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
