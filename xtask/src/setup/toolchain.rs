//! The compiler for the BPF programs: one with the sources of `core`, and
//! with the same LLVM as the linker.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Result, bail};

use super::apt;
use super::linker::LLVM_MAJOR;
use crate::command;

/// Debian's packages of a compiler new enough, with the sources of `core`.
const DEBIAN_PACKAGES: [&str; 3] = ["cargo-web", "rust-web-src", "rustc-web"];

/// A compiler, and the cargo that belongs to it.
pub(crate) struct Toolchain {
    pub(crate) rustc: PathBuf,
    pub(crate) cargo: PathBuf,
    origin: &'static str,
    release: String,
    llvm: String,
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rustc,
            origin,
            release,
            llvm,
            ..
        } = self;
        write!(f, "{origin}: {} {release}, LLVM {llvm}", rustc.display())
    }
}

/// Takes the first that works: the toolchain in use (a developer's rustup,
/// when it has `rust-src`), then Debian's, installing the latter if need be.
pub(crate) fn toolchain() -> Result<Toolchain> {
    let in_use = match in_use() {
        Ok(toolchain) => return Ok(announce(toolchain)),
        Err(error) => error,
    };
    apt::packages("the BPF compiler", &DEBIAN_PACKAGES).and_then(|()| probe("Debian", "/usr".into())).map(announce).map_err(
        |debian| {
            debian.context(format!(
                "no compiler for the BPF programs: the toolchain in use does not fit ({in_use:#}): \
                 `rustup component add rust-src` for one with LLVM {LLVM_MAJOR}, or install Debian's {}",
                DEBIAN_PACKAGES.join(" ")
            ))
        },
    )
}

fn announce(toolchain: Toolchain) -> Toolchain {
    eprintln!("setup: BPF compiler: ok ({toolchain})");
    toolchain
}

/// The toolchain that cargo runs us with; its own variables are kept for this
/// one question, so that `cargo +nightly xtask …` means nightly.
fn in_use() -> Result<Toolchain> {
    let sysroot =
        command::output(std::process::Command::new("rustc").args(["--print", "sysroot"]))?;
    probe("toolchain in use", PathBuf::from(sysroot.trim()))
}

/// Checks the toolchain below a folder; an error says what it lacks.
fn probe(origin: &'static str, sysroot: PathBuf) -> Result<Toolchain> {
    let rustc = sysroot.join("bin/rustc");
    let about = command::output(command::clean(&rustc).arg("-vV"))?;
    let field = |name: &str| {
        let found = about
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        found.unwrap_or("unknown").to_owned()
    };
    let (release, llvm) = (field("release"), field("LLVM version"));
    if llvm.split('.').next() != Some(&LLVM_MAJOR.to_string()) {
        bail!(
            "{} has LLVM {llvm}, the linker LLVM {LLVM_MAJOR}",
            rustc.display()
        );
    }
    if !sysroot
        .join("lib/rustlib/src/rust/library/Cargo.lock")
        .is_file()
    {
        bail!("{} has no rust-src", rustc.display());
    }
    Ok(Toolchain {
        rustc,
        cargo: sysroot.join("bin/cargo"),
        origin,
        release,
        llvm,
    })
}
