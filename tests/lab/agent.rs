//! The agent of one node as a process.

use crate::program::fairlead;
use crate::spawn::{Netns, spawn};
use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// What an agent needs to know of its node.
#[derive(Clone, Debug)]
pub(crate) struct AgentSetup {
    pub(crate) node: String,
    pub(crate) manifests: PathBuf,
    /// Root of the node's part of the cgroup tree.
    pub(crate) cgroup_root: PathBuf,
    pub(crate) pins: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) extra_flags: Vec<String>,
    /// Another program than the one under test.
    pub(crate) program: Option<PathBuf>,
    /// Besides the test's own environment.
    pub(crate) environment: Vec<(String, String)>,
}

impl AgentSetup {
    /// The program of the agent, with a command of its own.
    pub(crate) fn program(&self, command: &[&str]) -> Result<Command> {
        let mut program = Command::new(match &self.program {
            Some(program) => program.clone(),
            None => fairlead()?,
        });
        program.args(command).envs(self.environment.iter().cloned());
        // There is one source of objects.
        let from_api = |flag: &String| flag == "--kubeconfig" || flag == "--master";
        if !self.extra_flags.iter().any(from_api) {
            program.arg("--manifests").arg(&self.manifests);
        }
        program
            .args(["--hostname-override", &self.node])
            .arg("--cgroup-root")
            .arg(&self.cgroup_root)
            .arg("--pin-dir")
            .arg(&self.pins)
            .args([
                "--healthz-bind-address",
                HEALTHZ,
                "--metrics-bind-address",
                METRICS,
            ])
            .args(&self.extra_flags)
            .stdin(std::process::Stdio::null());
        Ok(program)
    }
}

/// Where the lab's agents answer `/healthz`.
pub const HEALTHZ: &str = "127.0.0.1:10256";
/// Where they answer `/metrics`.
pub const METRICS: &str = "127.0.0.1:10249";

/// A running agent.
#[derive(Debug)]
pub(crate) struct Agent {
    child: Child,
    node: String,
}

impl Agent {
    /// Starts the agent in its node's namespace and cgroup; its log is appended.
    pub(crate) fn start(setup: &AgentSetup, netns: &OwnedFd) -> Result<Self> {
        let cgroup = setup.cgroup_root.join("agent");
        std::fs::create_dir_all(&cgroup).with_context(|| format!("make {cgroup:?}"))?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(&setup.log)
            .with_context(|| format!("open {:?}", setup.log))?;
        let mut command = setup.program(&["agent"])?;
        command.stdout(log.try_clone()?).stderr(log);
        let child = spawn(command, Netns::Join(netns), Some(&cgroup))?;
        Ok(Self {
            child,
            node: setup.node.clone(),
        })
    }

    /// Fails if the agent has ended.
    pub(crate) fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait().context("look at the agent")? {
            Some(status) => bail!("the agent of {} ended: {status}", self.node),
            None => Ok(()),
        }
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(
            self.child
                .id()
                .try_into()
                .context("a process id is positive")?,
        );
        kill(pid, signal).with_context(|| format!("{signal} to the agent of {}", self.node))
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self
            .child
            .try_wait()
            .context("look at the agent")?
            .is_some())
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) -> Result<ExitStatus> {
        self.child.kill().context("kill the agent")?;
        self.child.wait().context("wait for the agent")
    }

    /// SIGTERM; at most ten seconds to end.
    pub(crate) fn terminate(mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(status) = self.child.try_wait().context("wait for the agent")? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                let node = self.node.clone();
                self.kill()?;
                bail!("the agent of {node} did not end within 10 s of SIGTERM");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The last lines of a log.
pub fn tail(log: &Path, lines: usize) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
