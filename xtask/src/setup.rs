//! What the verbs need on a machine, as steps that can run again and again:
//! each looks whether its thing is there before it makes it.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::paths;

pub(crate) mod apt;
pub(crate) mod cargo_deny;
pub(crate) mod control_plane;
pub(crate) mod kernel;
pub(crate) mod lab;
pub(crate) mod linker;
pub(crate) mod toolchain;
pub(crate) mod virtme;

/// `cargo xtask setup`: all steps of all verbs.
pub(crate) fn run() -> Result<()> {
    linker::linker()?;
    toolchain::toolchain()?;
    lab::prepare()?;
    cargo_deny::cargo_deny()?;
    virtme::virtme()?;
    for kernel in &kernel::KERNELS {
        kernel.image()?;
    }
    // Last, for it takes longest.
    control_plane::control_plane()?;
    Ok(())
}

/// Runs one step: nothing but a line when its thing is there, else the action
/// and the time it took. An error names the step.
pub(crate) fn step(name: &str, ready: bool, action: impl FnOnce() -> Result<()>) -> Result<()> {
    if ready {
        eprintln!("setup: {name}: ok (cached)");
        return Ok(());
    }
    eprintln!("setup: {name}: missing, getting it …");
    let begun = Instant::now();
    action().with_context(|| format!("setup step '{name}'"))?;
    eprintln!("setup: {name}: ok ({:.1} s)", begun.elapsed().as_secs_f32());
    Ok(())
}

/// Keeps other xtask runs of this user out while it is held; the kernel
/// releases it when its holder dies, however it dies.
pub(crate) struct CacheLock {
    _file: File,
}

/// Takes the lock of one thing in the cache, waiting for another run to end.
pub(crate) fn lock(thing: &str) -> Result<CacheLock> {
    let cache = paths::cache()?;
    fs::create_dir_all(&cache).with_context(|| {
        format!(
            "cannot create the cache folder {}; name another in FAIRLEAD_CACHE",
            cache.display()
        )
    })?;
    let path = cache.join(format!("{thing}.lock"));
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            eprintln!(
                "setup: waiting for another xtask run that holds {}",
                path.display()
            );
            file.lock()
                .with_context(|| format!("cannot lock {}", path.display()))?;
        }
        Err(fs::TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("cannot lock {}", path.display()));
        }
    }
    Ok(CacheLock { _file: file })
}

/// Removes what an earlier run may have left half made.
pub(crate) fn clear(path: &Path) -> Result<()> {
    let removed = if path.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
