//! `cargo xtask bpf`: compiles the BPF programs and writes their object to
//! `target/bpf/fairlead.o`, which the agent's build embeds.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::setup::toolchain::Toolchain;
use crate::setup::{linker, toolchain};
use crate::{command, paths};

mod btf;

const TARGET: &str = "bpfel-unknown-none";

/// Builds the object.
pub(crate) fn run() -> Result<()> {
    object(&paths::bpf_target(), &[])
}

/// Builds the object with the maps' other layout, which the tests of upgrades
/// need; `proxy-agent/build.rs` knows its place.
pub(crate) fn other_layout() -> Result<()> {
    object(&paths::bpf_target().join("other"), &["other-layout"])
}

/// Builds one object, in a folder of its own.
fn object(target: &Path, features: &[&str]) -> Result<()> {
    let linker = linker::linker()?;
    let toolchain = toolchain::toolchain()?;
    let source = paths::root().join("proxy-ebpf");
    let linked = compile(&source, target, features, &toolchain, &linker)?;
    let mut object =
        fs::read(&linked).with_context(|| format!("cannot read {}", linked.display()))?;
    btf::mark_i8_as_text(&mut object)
        .with_context(|| format!("cannot patch the BTF of {}", linked.display()))?;
    let place = target.join("fairlead.o");
    let outcome = if write_if_changed(&place, &object)? {
        "written"
    } else {
        "unchanged"
    };
    eprintln!(
        "bpf: {} ({} KiB, {outcome})",
        place.display(),
        object.len() / 1024
    );
    Ok(())
}

/// Runs the BPF compiler's cargo; returns the linked object's path.
fn compile(
    source: &Path,
    target: &Path,
    features: &[&str],
    toolchain: &Toolchain,
    linker: &Path,
) -> Result<PathBuf> {
    let mut cargo = command::clean(&toolchain.cargo);
    cargo
        .current_dir(source)
        .args(["build", "--release", "--target", TARGET, "-Zbuild-std=core"])
        .arg("--message-format=json-render-diagnostics")
        .arg("--target-dir")
        .arg(target)
        .arg("--features")
        .arg(features.join(","))
        .env("RUSTC", &toolchain.rustc)
        // The target and building `core` are nightly features of a compiler
        // that is otherwise a stable one.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags(linker));
    let messages = stdout(&mut cargo)?;
    executable(&messages)
        .with_context(|| format!("{} has no binary for {TARGET}", source.display()))
}

/// The compiler flags, in cargo's encoding (which allows spaces in paths).
fn flags(linker: &Path) -> String {
    [
        format!("-Clinker={}", linker.display()),
        "-Clink-arg=--btf".into(),
        // BTF is made from debug information.
        "-Cdebuginfo=2".into(),
        // The newest instruction set that kernel 5.10 knows.
        "-Ctarget-cpu=v3".into(),
        // Packet headers are not aligned, and the verifier allows for it:
        // words instead of bytes save a quarter of the instructions.
        // aya-ebpf picks the register names of the machine by this one.
        format!("--cfg=bpf_target_arch=\"{}\"", env::consts::ARCH),
    ]
    .join("\x1f")
}

/// Runs cargo with its diagnostics on our own error output.
fn stdout(cargo: &mut Command) -> Result<String> {
    let output = cargo
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start the BPF compiler's cargo")?;
    if !output.status.success() {
        bail!("proxy-ebpf does not build ({})", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The last executable among cargo's messages.
fn executable(messages: &str) -> Option<PathBuf> {
    messages.lines().rev().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        message.get("executable")?.as_str().map(PathBuf::from)
    })
}

/// Writes a file unless it holds the same already: its time makes the agent
/// build again. Other builds read it meanwhile, so it is replaced whole.
fn write_if_changed(path: &Path, content: &[u8]) -> Result<bool> {
    if fs::read(path).is_ok_and(|present| present == content) {
        return Ok(false);
    }
    let partial = path.with_extension(format!("partial-{}", std::process::id()));
    fs::write(&partial, content).with_context(|| format!("cannot write {}", partial.display()))?;
    fs::rename(&partial, path)
        .with_context(|| format!("cannot rename {} to its place", partial.display()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_found_among_cargos_messages() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                        {\"reason\":\"compiler-artifact\",\"executable\":\"/t/fairlead\"}\n\
                        {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(messages), Some(PathBuf::from("/t/fairlead")));
        assert_eq!(executable("{\"reason\":\"build-finished\"}\n"), None);
    }
}
