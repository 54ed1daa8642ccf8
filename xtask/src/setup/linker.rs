//! bpf-linker: turns the bitcode that rustc writes into a BPF object.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{apt, clear, lock, step};
use crate::{command, paths};

/// The version that the build is proven with.
const VERSION: &str = "0.13.0";

/// The LLVM that the linker is built on. It must be the major version of the
/// compiler's LLVM: another one cannot read its bitcode.
pub(crate) const LLVM_MAJOR: u32 = 22;

/// Finds a fitting bpf-linker on PATH or in the cache, or builds it there.
pub(crate) fn linker() -> Result<PathBuf> {
    let home = paths::cache()?.join(format!("bpf-linker-{VERSION}-llvm-{LLVM_MAJOR}"));
    let cached = home.join("bin/bpf-linker");
    let name = format!("bpf-linker {VERSION}");
    let on_path = paths::on_path("bpf-linker").filter(|path| fits(path));
    if let Some(found) = on_path.or_else(|| Some(cached.clone()).filter(|path| fits(path))) {
        step(&name, true, || Ok(()))?;
        return Ok(found);
    }
    let llvm_dev = format!("llvm-{LLVM_MAJOR}-dev");
    let polly_dev = format!("libpolly-{LLVM_MAJOR}-dev");
    apt::packages(
        "bpf-linker",
        &[&llvm_dev, &polly_dev, "zlib1g-dev", "libzstd-dev"],
    )?;
    let _lock = lock("bpf-linker")?;
    // Another run may have built it while this one waited.
    step(&name, fits(&cached), || build(&home))?;
    Ok(cached)
}

/// Whether this is a bpf-linker of our version on our LLVM. It does not print
/// the LLVM's version, so the library that it loads tells.
fn fits(path: &Path) -> bool {
    let version = command::output(command::clean(path).arg("--version")).unwrap_or_default();
    let libraries = command::output(command::clean("ldd").arg(path)).unwrap_or_default();
    version.trim() == format!("bpf-linker {VERSION}")
        && libraries.contains(&format!("libLLVM.so.{LLVM_MAJOR}."))
}

fn build(home: &Path) -> Result<()> {
    let llvm = format!("/usr/lib/llvm-{LLVM_MAJOR}");
    let partial = home.with_extension("partial");
    clear(&partial)?;
    command::logged(
        command::clean("cargo")
            .args([
                "install",
                &format!("bpf-linker@{VERSION}"),
                "--locked",
                "--no-default-features",
            ])
            .args(["--features", &format!("llvm-{LLVM_MAJOR}")])
            .arg("--root")
            .arg(&partial)
            .env("LLVM_PREFIX", &llvm)
            .env(format!("LLVM_SYS_{LLVM_MAJOR}1_PREFIX"), &llvm),
        &paths::cache()?.join("logs/bpf-linker.log"),
    )
    .context(
        "could not build bpf-linker: crates.io must be reachable, and its LLVM packages installed",
    )?;
    clear(home)?;
    fs::rename(&partial, home)
        .with_context(|| format!("cannot rename {} to its place", partial.display()))
}
