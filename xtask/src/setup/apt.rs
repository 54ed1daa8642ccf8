//! Debian packages: one installation of only what is missing.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::step;
use crate::{command, paths};

/// Makes sure that the packages are installed. `what_for` names the group in
/// the progress line.
pub(crate) fn packages(what_for: &str, wanted: &[&str]) -> Result<()> {
    let missing = missing(wanted)?;
    step(
        &format!("packages for {what_for}"),
        missing.is_empty(),
        || install(&missing),
    )
}

/// The packages among `wanted` that are not installed.
fn missing<'a>(wanted: &[&'a str]) -> Result<Vec<&'a str>> {
    if paths::on_path("dpkg-query").is_none() {
        bail!(
            "this is no Debian machine (no dpkg-query): see xtask/src/setup/ for what to install by hand"
        );
    }
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${Package} ${db:Status-Status}\n"])
        .args(wanted)
        .output()
        .context("cannot start dpkg-query")?;
    // It exits non-zero when it does not know a package, and lists the others.
    Ok(not_installed(
        wanted,
        &String::from_utf8_lossy(&output.stdout),
    ))
}

/// The names in `wanted` that dpkg-query's listing does not show as installed.
fn not_installed<'a>(wanted: &[&'a str], listing: &str) -> Vec<&'a str> {
    let installed = |name: &str| {
        listing
            .lines()
            .any(|line| line == format!("{name} installed"))
    };
    wanted
        .iter()
        .copied()
        .filter(|name| !installed(name))
        .collect()
}

fn install(missing: &[&str]) -> Result<()> {
    let names = missing.join(" ");
    let advice =
        || format!("could not install {names}; as root: apt-get update && apt-get install {names}");
    let log = paths::cache()?.join("logs/apt.log");
    command::logged(apt_get().arg("update"), &log).with_context(advice)?;
    command::logged(
        apt_get()
            .args(["install", "--yes", "--no-install-recommends"])
            .args(missing),
        &log,
    )
    .with_context(advice)
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    // Another apt-get may be at work: wait for it, and ask no questions.
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["-o", "DPkg::Lock::Timeout=300"]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_fully_installed_counts_as_there() {
        let listing = "git installed\ncurl config-files\n";
        assert_eq!(
            not_installed(&["git", "curl", "qemu"], listing),
            ["curl", "qemu"]
        );
    }
}
