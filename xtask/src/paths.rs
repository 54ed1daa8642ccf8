//! Where things are: the work tree, and the cache outside it.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The root of the work tree.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Cargo's target folder for the host crates.
pub(crate) fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        // A relative one is relative to where cargo was started; every cargo
        // that we start is started at the root.
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The folder of everything about the BPF object; fixed, since the agent's
/// build script must find it without asking cargo.
pub(crate) fn bpf_target() -> PathBuf {
    root().join("target/bpf")
}

/// What takes minutes to make and belongs to no work tree (a clean clone must
/// not make it again). Each entry's name holds its version.
pub(crate) fn cache() -> Result<PathBuf> {
    if let Some(dir) = env::var_os("FAIRLEAD_CACHE") {
        return Ok(PathBuf::from(dir));
    }
    if let Some(dir) = env::var_os("XDG_CACHE_HOME") {
        return Ok(PathBuf::from(dir).join("fairlead"));
    }
    let home =
        env::var_os("HOME").context("neither FAIRLEAD_CACHE, XDG_CACHE_HOME nor HOME is set")?;
    Ok(PathBuf::from(home).join(".cache/fairlead"))
}

/// The first program of this name on PATH.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|candidate| candidate.is_file())
}
