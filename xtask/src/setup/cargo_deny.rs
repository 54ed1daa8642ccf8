//! cargo-deny: checks licenses, sources and banned crates.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{clear, lock, step};
use crate::{command, paths};

const VERSION: &str = "0.20.2";

/// Finds cargo-deny of our version on PATH or in the cache, or builds it there.
pub(crate) fn cargo_deny() -> Result<PathBuf> {
    let name = format!("cargo-deny {VERSION}");
    let fits = |path: &PathBuf| {
        command::output(command::clean(path).arg("--version"))
            .is_ok_and(|version| version.trim() == name)
    };
    let home = paths::cache()?.join(format!("cargo-deny-{VERSION}"));
    let cached = home.join("bin/cargo-deny");
    let on_path = paths::on_path("cargo-deny").filter(fits);
    let _lock = if on_path.is_some() || fits(&cached) {
        None
    } else {
        Some(lock("cargo-deny")?)
    };
    let found = on_path.unwrap_or_else(|| cached.clone());
    step(&name, fits(&found), || {
        let partial = home.with_extension("partial");
        clear(&partial)?;
        let log = paths::cache()?.join("logs/cargo-deny.log");
        let package = format!("cargo-deny@{VERSION}");
        command::logged(
            command::clean("cargo")
                .args(["install", &package, "--locked", "--root"])
                .arg(&partial),
            &log,
        )
        .context("could not build cargo-deny: crates.io must be reachable")?;
        clear(&home)?;
        fs::rename(&partial, &home)
            .with_context(|| format!("cannot rename {} to its place", partial.display()))
    })?;
    Ok(found)
}
