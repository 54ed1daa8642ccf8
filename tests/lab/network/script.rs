//! Programs that set up a namespace, and what they read.

use super::Family;
use crate::retry::eventually;
use crate::spawn::{Netns, spawn};
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A program with its arguments and its standard input.
#[derive(Debug)]
pub(crate) struct Script {
    program: &'static str,
    args: &'static [&'static str],
    input: String,
}

impl Script {
    /// `ip` commands, one a line.
    pub(crate) fn ip(input: impl Into<String>) -> Self {
        Self::new("ip", &["-batch", "-"], input)
    }

    /// `ip` commands about one family: only for those that do not see it from their addresses.
    pub(crate) fn ip_of(family: Family, input: impl Into<String>) -> Self {
        let args: &[_] = match family {
            Family::V4 => &["-4", "-batch", "-"],
            Family::V6 => &["-6", "-batch", "-"],
        };
        Self::new("ip", args, input)
    }

    /// `bridge` commands, one a line.
    pub(crate) fn bridge(input: impl Into<String>) -> Self {
        Self::new("bridge", &["-batch", "-"], input)
    }

    /// Rules as `iptables-save` writes them. The legacy programs, since their
    /// kernel side is there on every machine.
    pub(crate) fn rules(family: Family, input: impl Into<String>) -> Self {
        let program = match family {
            Family::V4 => "iptables-legacy-restore",
            Family::V6 => "ip6tables-legacy-restore",
        };
        // All namespaces of the machine share one lock.
        Self::new(program, &["--wait", "--noflush"], input)
    }

    fn new(program: &'static str, args: &'static [&'static str], input: impl Into<String>) -> Self {
        Self {
            program,
            args,
            input: input.into(),
        }
    }

    /// Runs it in a namespace.
    pub(crate) fn run(&self, netns: &OwnedFd) -> Result<()> {
        let Self {
            program,
            args,
            input,
        } = self;
        let mut command = Command::new(program);
        command
            .args(*args)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = spawn(command, Netns::Join(netns), None)?;
        let mut stdin = child.stdin.take().context("no standard input")?;
        // If it ended before it had read all, its own message says more.
        let written = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child
            .wait_with_output()
            .with_context(|| format!("wait for {program}"))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{program}: {stderr}in\n{input}");
        written.with_context(|| format!("write to {program}"))
    }
}

/// Runs `ip` commands in a namespace, one a line.
pub(crate) fn ip(netns: &OwnedFd, commands: impl Into<String>) -> Result<()> {
    Script::ip(commands).run(netns)
}

/// Waits until every device that was set up can send: the kernel activates a link
/// in its own time, and what is sent earlier is lost.
pub(crate) fn await_links(netns: &OwnedFd) -> Result<()> {
    eventually(Duration::from_secs(5), || {
        let mut command = Command::new("ip");
        command
            .args(["-oneline", "link", "show", "up"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let output = spawn(command, Netns::Join(netns), None)?
            .wait_with_output()
            .context("wait for ip")?;
        let links = String::from_utf8_lossy(&output.stdout);
        let down = links.lines().find(|link| {
            ["state DOWN", "state LOWERLAYERDOWN"]
                .iter()
                .any(|state| link.contains(state))
        });
        ensure!(
            down.is_none(),
            "not active yet: {}",
            down.unwrap_or_default()
        );
        Ok(())
    })
}
