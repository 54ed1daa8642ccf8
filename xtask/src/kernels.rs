//! `cargo xtask kernels`: runs the smoke test on older kernels, in virtual
//! machines that share this machine's file system.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::setup::kernel::{KERNELS, Kernel};
use crate::setup::virtme;
use crate::{build, command, paths};

/// Booting takes half a minute without hardware support.
const TIME_LIMIT: &str = "900";

/// How much longer the smoke test waits for things there.
const SLOWNESS: u32 = 6;

/// Options of `cargo xtask kernels`.
#[derive(Args)]
pub(crate) struct Options {
    /// Run on this kernel only (repeatable), for example 5.10
    #[arg(long = "kernel", value_name = "VERSION")]
    kernels: Vec<String>,
    /// Run this shell command instead of the smoke test
    #[arg(long, value_name = "COMMAND")]
    command: Option<String>,
}

/// How it went on one kernel.
struct Report {
    kernel: &'static str,
    outcome: Result<(), String>,
    time: Duration,
}

/// Runs the smoke test on each kernel; the exit code is the verdict.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let kernels = chosen(&options.kernels)?;
    let programs = virtme::virtme()?;
    let command = match &options.command {
        Some(command) => command.clone(),
        None => smoke_test()?,
    };
    let reports: Vec<_> = kernels
        .into_iter()
        .map(|kernel| report(kernel, &programs, &command))
        .collect();
    Ok(conclude(&reports))
}

fn chosen(names: &[String]) -> Result<Vec<&'static Kernel>> {
    for name in names {
        let known = KERNELS.iter().map(|kernel| kernel.name);
        if !known.clone().any(|kernel| kernel == name) {
            bail!(
                "no kernel {name}; there are {}",
                known.collect::<Vec<_>>().join(", ")
            );
        }
    }
    Ok(KERNELS
        .iter()
        .filter(|kernel| names.is_empty() || names.iter().any(|name| name == kernel.name))
        .collect())
}

/// Builds the smoke test; returns the command that runs it.
fn smoke_test() -> Result<String> {
    build::run()?;
    build::other_layout()?;
    let program = paths::target().join("debug/kernel_smoke");
    ensure!(
        program.is_file(),
        "no {}: package fairlead-tests builds it",
        program.display()
    );
    // The shell of the virtual machine splits it again.
    Ok(format!(
        "FAIRLEAD_SLOWNESS={SLOWNESS} '{}'",
        program.display()
    ))
}

fn report(kernel: &'static Kernel, programs: &Path, command: &str) -> Report {
    let begun = Instant::now();
    let outcome = boot(kernel, programs, command).map_err(|error| format!("{error:#}"));
    Report {
        kernel: kernel.name,
        outcome,
        time: begun.elapsed(),
    }
}

/// Boots the kernel, runs the command as root and shuts down.
fn boot(kernel: &Kernel, programs: &Path, shell_command: &str) -> Result<()> {
    let image = kernel.image()?;
    eprintln!("kernels: booting {}", image.display());
    let path = env::join_paths(std::iter::once(programs.to_owned()).chain(env::split_paths(
        &env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/sbin:/usr/bin")),
    )))
    .context("PATH cannot be extended")?;
    let status = command::clean("timeout")
        .args(["--kill-after=10", TIME_LIMIT])
        .arg(programs.join("vng"))
        .arg("--run")
        .arg(image)
        // The emulated machine is the same everywhere; a nested one is not.
        .args([
            "--disable-kvm",
            "--force-9p",
            "--memory",
            "2G",
            "--cpus",
            "2",
            "--user",
            "root",
        ])
        // virtme-ng mounts everything that we need but this.
        .args([
            "--",
            &format!("mount -t bpf bpf /sys/fs/bpf && {shell_command}"),
        ])
        // virtme-ng calls its other programs by name.
        .env("PATH", path)
        .current_dir(paths::root())
        .stdin(std::process::Stdio::null())
        .status()
        .context("cannot start virtme-ng")?;
    judge(status)
}

fn judge(status: ExitStatus) -> Result<()> {
    match status.code() {
        Some(0) => Ok(()),
        Some(124 | 137) => bail!("not done after {TIME_LIMIT} s"),
        Some(255) => bail!("the virtual machine did not run"),
        _ => bail!("{status}"),
    }
}

fn conclude(reports: &[Report]) -> ExitCode {
    let mut success = true;
    println!("\n{:<8}{:>11}  outcome", "kernel", "time");
    for Report {
        kernel,
        outcome,
        time,
    } in reports
    {
        let outcome = match outcome {
            Ok(()) => "ok",
            Err(reason) => {
                success = false;
                &format!("failed: {reason}")
            }
        };
        println!("{kernel:<8}{:>9.1} s  {outcome}", time.as_secs_f32());
    }
    if success {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_kernel_is_answered_with_the_known_ones() {
        let error = chosen(&["4.19".to_owned()])
            .err()
            .expect("4.19 is not supported");
        assert!(error.to_string().contains("5.10, 6.1"), "{error}");
    }

    #[test]
    fn all_kernels_run_when_none_is_named() {
        assert_eq!(
            chosen(&[]).expect("no name to be wrong").len(),
            KERNELS.len()
        );
        assert_eq!(chosen(&["6.1".to_owned()]).expect("a known name").len(), 1);
    }
}
