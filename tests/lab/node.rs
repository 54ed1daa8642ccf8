//! A node of a lab: its host processes, its pods, its agent.

use crate::agent::{Agent, AgentSetup, HEALTHZ, METRICS, tail};
use crate::network::{
    PodLink, PodNetwork, SECOND_LAN, SYSCTLS, await_links, node_host, pod_addresses,
};
use crate::peer::{Identity, Peer};
use crate::program::fairlead;
use crate::retry::eventually;
use crate::spawn::{Netns, spawn};
use crate::wire::HttpAnswer;
use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A node.
#[derive(Debug)]
pub struct Node {
    number: u8,
    network: PodNetwork,
    /// The worker whose namespace is the node's.
    host: Peer,
    setup: Mutex<AgentSetup>,
    agent: Mutex<Option<Agent>>,
    next_pod: AtomicU8,
}

impl Node {
    pub(crate) fn new(number: u8, network: PodNetwork, host: Peer, setup: AgentSetup) -> Self {
        // .1 is the gateway's where there is one.
        Self {
            number,
            network,
            host,
            setup: Mutex::new(setup),
            agent: Mutex::new(None),
            next_pod: AtomicU8::new(2),
        }
    }

    /// `n1` and so on.
    pub fn name(&self) -> &str {
        self.host.node_name().unwrap_or_default()
    }

    /// LAN address.
    pub fn v4(&self) -> Ipv4Addr {
        self.host.v4()
    }

    /// LAN address.
    pub fn v6(&self) -> Ipv6Addr {
        self.host.v6()
    }

    /// Addresses of its `eth1` once it is on [the second LAN](crate::Lab::second_lan).
    pub fn second_uplink(&self) -> (Ipv4Addr, Ipv6Addr) {
        SECOND_LAN.addresses(node_host(self.number))
    }

    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    /// A process in the node's own namespace.
    pub fn host(&self) -> &Peer {
        &self.host
    }

    /// Root of the node's cgroup subtree.
    pub fn cgroup(&self) -> PathBuf {
        self.setup().cgroup_root.clone()
    }

    /// Where the node's agent pins its maps and links.
    pub fn pins(&self) -> PathBuf {
        self.setup().pins.clone()
    }

    /// Where the agent logs.
    pub fn log(&self) -> PathBuf {
        self.setup().log.clone()
    }

    fn setup(&self) -> MutexGuard<'_, AgentSetup> {
        self.setup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn agent(&self) -> MutexGuard<'_, Option<Agent>> {
        self.agent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new pod of this node. It ends with the last clone of the handle.
    pub fn pod(&self, name: &str) -> Result<Peer> {
        let number = self.next_pod.fetch_add(1, Ordering::Relaxed);
        ensure!(number < 255, "{} is full", self.name());
        let (v4, v6) = pod_addresses(self.number, number);
        let identity = Identity {
            name: name.to_owned(),
            node: Some(self.name().to_owned()),
            v4,
            v6,
        };
        let pod = Peer::start(identity, Netns::New, self.cgroup().join("pods").join(name))?;
        for (path, value) in SYSCTLS {
            pod.sysctl(path, value)?;
        }
        let setup = self.network.pod(&PodLink {
            node: self.number,
            pod: number,
            netns: pod.netns_fd(),
        });
        for script in &setup.node {
            script.run(self.host.netns_fd())?;
        }
        setup.pod.run(pod.netns_fd())?;
        await_links(pod.netns_fd())?;
        await_links(self.host.netns_fd())?;
        Ok(pod)
    }

    /// One more process in the node's own namespace.
    pub fn process(&self, name: &str) -> Result<Peer> {
        let identity = Identity {
            name: name.to_owned(),
            node: Some(self.name().to_owned()),
            v4: self.v4(),
            v6: self.v6(),
        };
        Peer::start(
            identity,
            Netns::Join(self.host.netns_fd()),
            self.cgroup().join("host"),
        )
    }

    /// Starts the agent.
    pub fn start_agent(&self) -> Result<()> {
        let mut agent = self.agent();
        ensure!(agent.is_none(), "{} has an agent already", self.name());
        *agent = Some(Agent::start(&self.setup(), self.host.netns_fd())?);
        Ok(())
    }

    /// Flags for the agent's next start, besides those that the lab gives. With
    /// `--kubeconfig` or `--master` it reads no manifests.
    pub fn agent_flags<'a>(&self, flags: impl IntoIterator<Item = &'a str>) {
        self.setup().extra_flags = flags.into_iter().map(str::to_owned).collect();
    }

    /// The program of the agent's next starts; `None` is the one under test.
    pub fn agent_program(&self, program: Option<PathBuf>) {
        self.setup().program = program;
    }

    /// Environment variables of the agent's next starts.
    pub fn agent_environment(&self, variables: &[(&str, String)]) {
        self.setup().environment = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
    }

    /// Whether the agent that was started has ended by itself.
    pub fn agent_has_ended(&self) -> Result<bool> {
        self.agent()
            .as_mut()
            .with_context(|| format!("{} has no agent", self.name()))?
            .has_ended()
    }

    /// Whether an agent was started and not stopped.
    pub fn has_agent(&self) -> bool {
        self.agent().is_some()
    }

    /// Process id of the agent.
    pub fn agent_pid(&self) -> Result<u32> {
        Ok(self
            .agent()
            .as_ref()
            .with_context(|| format!("{} has no agent", self.name()))?
            .pid())
    }

    /// SIGKILL to the agent.
    pub fn kill_agent(&self) -> Result<()> {
        self.take_agent()?.kill().map(drop)
    }

    /// SIGTERM to the agent, which must then end with success.
    pub fn terminate_agent(&self) -> Result<()> {
        let status = self.take_agent()?.terminate()?;
        ensure!(
            status.success(),
            "the agent of {} ended with {status} on SIGTERM",
            self.name()
        );
        Ok(())
    }

    /// SIGSTOP: the agent sees nothing until [`Self::resume_agent`].
    pub fn pause_agent(&self) -> Result<()> {
        self.signal_agent(Signal::SIGSTOP)
    }

    /// SIGCONT.
    pub fn resume_agent(&self) -> Result<()> {
        self.signal_agent(Signal::SIGCONT)
    }

    fn signal_agent(&self, signal: Signal) -> Result<()> {
        self.agent()
            .as_ref()
            .with_context(|| format!("{} has no agent", self.name()))?
            .signal(signal)
    }

    fn take_agent(&self) -> Result<Agent> {
        self.agent()
            .take()
            .with_context(|| format!("{} has no agent", self.name()))
    }

    /// Waits until the agent says that it is healthy; fails at once if it ends.
    pub fn wait_healthy(&self) -> Result<()> {
        let url = format!("http://{HEALTHZ}/healthz");
        let healthy = eventually(Duration::from_secs(20), || {
            if let Some(agent) = self.agent().as_mut()
                && let Err(death) = agent.check_alive()
            {
                return Ok(Err(death));
            }
            let answer = self.host.http_get(&url)?;
            ensure!(
                answer.status == 200,
                "/healthz says {}: {}",
                answer.status,
                answer.body
            );
            Ok(Ok(()))
        });
        healthy.flatten().with_context(|| {
            let log = tail(&self.log(), 30);
            format!(
                "wait for the agent of {}; its log ends:\n{log}",
                self.name()
            )
        })
    }

    /// `GET` from within the node.
    pub fn http_get(&self, url: &str) -> Result<HttpAnswer> {
        self.host.http_get(url)
    }

    /// The agent's `/metrics`.
    pub fn metrics(&self) -> Result<String> {
        let answer = self.http_get(&format!("http://{METRICS}/metrics"))?;
        ensure!(answer.status == 200, "/metrics says {}", answer.status);
        Ok(answer.body)
    }

    /// Runs `fairlead ARGS --pin-dir …` in the node and returns what it prints.
    pub fn fairlead(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(fairlead()?);
        command.args(args).arg("--pin-dir").arg(self.pins());
        self.run(command)
    }

    /// Runs `fairlead status --verify` with the agent's flags.
    pub fn verify(&self) -> Result<Verified> {
        self.verify_as("table")
    }

    /// The same with `--output`.
    pub fn verify_as(&self, form: &str) -> Result<Verified> {
        let arguments = ["status", "--verify", "--output", form];
        let command = self.setup().program(&arguments)?;
        let output = self.output(command)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Verified {
            code: output.status.code().context("it was killed")?,
            lines: text(&output.stdout).lines().map(str::to_owned).collect(),
            errors: text(&output.stderr),
        })
    }

    /// Runs `bpftool ARGS` in the node and returns what it prints.
    pub fn bpftool(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new("bpftool");
        command.args(args);
        self.run(command)
    }

    /// `bpftool map dump` of one of the agent's maps.
    pub fn dump_map(&self, map: &str) -> Result<String> {
        let path = self.pins().join(map);
        self.bpftool(&["map", "dump", "pinned", path_str(&path)?])
    }

    fn run(&self, command: Command) -> Result<String> {
        let what = format!("{command:?}");
        let output = self.output(command)?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!(
                "{what} on {}: {}\n{stdout}{stderr}",
                self.name(),
                output.status
            );
        }
        Ok(stdout)
    }

    fn output(&self, mut command: Command) -> Result<Output> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let what = format!("{command:?}");
        let child = spawn(
            command,
            Netns::Join(self.host.netns_fd()),
            Some(&self.cgroup().join("host")),
        )?;
        child
            .wait_with_output()
            .with_context(|| format!("wait for {what}"))
    }
}

/// What `fairlead status --verify` said.
#[derive(Debug)]
pub struct Verified {
    /// Its exit code.
    pub code: i32,
    /// What it printed.
    pub lines: Vec<String>,
    /// What it complained of.
    pub errors: String,
}

fn path_str(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{path:?} is not text"))
}
