//! `cargo xtask lint`: formatting, clippy, and what dependencies may be.

use std::process::Command;

use anyhow::{Result, bail};

use crate::setup::cargo_deny;
use crate::{bpf, command, paths};

/// Runs every check, then fails if any failed: one run shows all there is.
pub(crate) fn run() -> Result<()> {
    let deny = cargo_deny::cargo_deny()?;
    // The agent does not compile without it.
    bpf::run()?;
    let mut failed = Vec::new();
    for (name, mut check) in checks(&deny) {
        eprintln!("lint: {name}");
        if let Err(error) = command::run(&mut check) {
            eprintln!("lint: {name} failed: {error:#}");
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        bail!("lint failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Both workspaces, each with its checks. Clippy needs the compiler's own
/// build and so leaves out the BPF programs, whose compiler has none.
fn checks(deny: &std::path::Path) -> Vec<(&'static str, Command)> {
    let cargo = |words: &[&str]| {
        let mut command = command::cargo();
        command.args(words);
        command
    };
    let deny = |manifest: &str| {
        let mut command = command::clean(deny);
        command.current_dir(paths::root()).args([
            "--manifest-path",
            manifest,
            "--config",
            "deny.toml",
        ]);
        command.args(["check", "bans", "licenses", "sources"]);
        command
    };
    vec![
        ("formatting", cargo(&["fmt", "--all", "--check"])),
        (
            "formatting of proxy-ebpf",
            cargo(&["fmt", "--manifest-path=proxy-ebpf/Cargo.toml", "--check"]),
        ),
        (
            "clippy",
            cargo(&[
                "clippy",
                "--workspace",
                "--all-targets",
                "--",
                "--deny=warnings",
            ]),
        ),
        ("dependencies", deny("Cargo.toml")),
        ("dependencies of proxy-ebpf", deny("proxy-ebpf/Cargo.toml")),
    ]
}
