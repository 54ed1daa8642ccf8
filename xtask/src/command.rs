//! Running other programs: with a clean environment, with their output kept
//! for the day that they fail, and with errors that name them.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::paths;

/// How often a long step says that it is still alive.
const HEARTBEAT: Duration = Duration::from_secs(60);

/// A command without what the outer cargo and rustup left in the environment:
/// `RUSTUP_TOOLCHAIN`, `CARGO` and their like name the host's toolchain, and
/// would quietly replace the one that is meant.
pub(crate) fn clean(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        if leaks(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    command
}

/// Whether a variable belongs to the outer build. Where cargo keeps its
/// downloads and how it reaches registries belongs to the user, and stays.
fn leaks(name: &str) -> bool {
    const KEPT: [&str; 2] = ["CARGO_HOME", "RUSTUP_HOME"];
    const KEPT_PREFIXES: [&str; 4] = [
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTRIES_",
        "CARGO_SOURCE_",
    ];
    let rust = [
        "CARGO",
        "RUSTUP_",
        "RUSTC",
        "RUSTFLAGS",
        "RUSTDOC",
        "LD_LIBRARY_PATH",
    ];
    rust.iter().any(|prefix| name.starts_with(prefix))
        && !KEPT.contains(&name)
        && !KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The host's cargo, as the user called it (toolchain, target folder, flags),
/// at the root. Only what describes the package xtask is taken away: some
/// build scripts build again whenever those variables differ.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new("cargo");
    for (name, _) in env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"]
            .iter()
            .any(|prefix| name.to_string_lossy().starts_with(prefix))
        {
            command.env_remove(name);
        }
    }
    command.current_dir(paths::root());
    command
}

/// Runs a command with our own output and input; fails unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let name = name(command);
    let status = command
        .status()
        .with_context(|| format!("cannot start {name}"))?;
    if !status.success() {
        bail!("{name}: {status}");
    }
    Ok(())
}

/// Runs a command and returns what it printed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = name(command);
    let output = command
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{name}: {}: {}", output.status, last_line(&said));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a long command with its output in a file, a line per minute on our
/// own output, and the end of that file in the error.
pub(crate) fn logged(command: &mut Command, log: &Path) -> Result<()> {
    let name = name(command);
    if let Some(dir) = log.parent() {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    let file = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone().context("cannot share the log file")?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let begun = Instant::now();
    let mut next = HEARTBEAT;
    let status = loop {
        if let Some(status) = child
            .try_wait()
            .with_context(|| format!("cannot wait for {name}"))?
        {
            break status;
        }
        if begun.elapsed() >= next {
            eprintln!("setup:   {name} still runs after {} s", next.as_secs());
            next += HEARTBEAT;
        }
        thread::sleep(Duration::from_millis(100));
    };
    if !status.success() {
        let said = fs::read_to_string(log).unwrap_or_default();
        bail!(
            "{name}: {status}: {} (all of it: {})",
            last_line(&said),
            log.display()
        );
    }
    Ok(())
}

/// The last line that says anything, of an error output.
fn last_line(text: &str) -> &str {
    text.lines()
        .map(str::trim)
        .rfind(|line| !line.is_empty())
        .unwrap_or("it printed nothing")
}

/// A command's program and first words, enough to recognise it.
fn name(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or(command.get_program());
    let words = command
        .get_args()
        .take(2)
        .map(|word| word.to_string_lossy().into_owned());
    std::iter::once(program.to_string_lossy().into_owned())
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outer_builds_variables_are_dropped_and_the_users_kept() {
        for name in [
            "RUSTUP_TOOLCHAIN",
            "CARGO",
            "CARGO_MANIFEST_DIR",
            "RUSTFLAGS",
            "CARGO_ENCODED_RUSTFLAGS",
        ] {
            assert!(leaks(name), "{name}");
        }
        for name in ["CARGO_HOME", "CARGO_HTTP_PROXY", "PATH", "RUST_BACKTRACE"] {
            assert!(!leaks(name), "{name}");
        }
    }

    #[test]
    fn a_failing_command_is_named_with_its_last_words() {
        let error =
            output(Command::new("sh").args(["-c", "echo first >&2; echo last >&2; exit 3"]))
                .expect_err("exit 3 is a failure");
        let text = format!("{error:#}");
        assert!(text.contains("sh -c") && text.ends_with("last"), "{text}");
    }
}
