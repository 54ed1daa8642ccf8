//! virtme-ng: boots a kernel in QEMU on this machine's own file system.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::{apt, clear, lock, step};
use crate::{command, paths};

const VERSION: &str = "1.42";

/// QEMU, and what virtme-ng makes its initial file system from.
const PACKAGES: [&str; 5] = [
    "busybox-static",
    "kmod",
    "python3-venv",
    "qemu-system-x86",
    "udev",
];

/// The folder with virtme-ng's programs.
pub(crate) fn virtme() -> Result<PathBuf> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("other kernels can be booted on x86_64 only");
    }
    apt::packages("virtual machines", &PACKAGES)?;
    let home = paths::cache()?.join(format!("virtme-ng-{VERSION}"));
    // Its last product: a virtual environment cannot be moved to its place
    // when it is complete.
    let complete = home.join("complete");
    let _lock = if complete.is_file() {
        None
    } else {
        Some(lock("virtme-ng")?)
    };
    step(&format!("virtme-ng {VERSION}"), complete.is_file(), || {
        clear(&home)?;
        let advice = "could not install virtme-ng: PyPI must be reachable";
        let log = paths::cache()?.join("logs/virtme-ng.log");
        command::logged(
            command::clean("/usr/bin/python3")
                .args(["-m", "venv"])
                .arg(&home),
            &log,
        )
        .context(advice)?;
        let package = format!("virtme-ng=={VERSION}");
        command::logged(
            command::clean(home.join("bin/pip")).args(["install", &package]),
            &log,
        )
        .context(advice)?;
        fs::write(&complete, "").with_context(|| format!("cannot write {}", complete.display()))
    })?;
    Ok(home.join("bin"))
}
