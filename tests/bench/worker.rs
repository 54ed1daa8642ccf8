//! `bench worker`: a process with one end in a client's namespace and one in a
//! server's, which compares on request. It moves between cgroups, since that
//! is what decides whether Fairlead's programs run for a socket.

use crate::exchange::{Exchange, Sample, Servers};
use anyhow::{Context, Result, bail, ensure};
use lab::Peer;
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, setns};
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The CPU of everything that is timed by socket calls.
pub(crate) const CLIENT_CPU: usize = 0;

/// Pairs that are tried for each that counts: those that other work disturbs do not.
const ATTEMPTS: u32 = 5;

/// Two ways to the same server, and how often to go each.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) exchange: Exchange,
    /// The baseline, and what is compared with it.
    pub(crate) sides: [Side; 2],
    /// Pairs of batches.
    pub(crate) pairs: u32,
    /// Exchanges of one batch.
    pub(crate) batch: u32,
}

/// One of them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Side {
    /// Where the client's sockets are made.
    pub(crate) cgroup: PathBuf,
    /// Taken in turn.
    pub(crate) targets: Vec<SocketAddr>,
}

/// What a comparison gave: pairs of batches that ran right after each other.
pub(crate) type Samples = Vec<[Sample; 2]>;

#[derive(Serialize, Deserialize)]
enum Answer {
    Ready,
    Samples(Samples),
    Error(String),
}

/// The bench's side of a worker.
pub(crate) struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts one between two pods; `outside` is a cgroup without programs.
    pub(crate) fn start(client: &Peer, server: &Peer, outside: &Path) -> Result<Self> {
        fs::create_dir_all(outside).with_context(|| format!("make {outside:?}"))?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("worker")
            .arg(format!("/proc/{}/ns/net", client.pid()))
            .arg(outside)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = server.spawn(command)?;
        let mut worker = Self {
            stdin: child.stdin.take(),
            stdout: BufReader::new(child.stdout.take().context("no standard output")?),
            child,
        };
        match worker.read()? {
            Answer::Ready => Ok(worker),
            _ => bail!("the worker is not ready"),
        }
    }

    /// Compares.
    pub(crate) fn compare(&mut self, comparison: &Comparison) -> Result<Samples> {
        let mut line = serde_json::to_string(comparison)?;
        line.push('\n');
        let stdin = self.stdin.as_mut().context("the worker was stopped")?;
        stdin.write_all(line.as_bytes())?;
        match self.read()? {
            Answer::Samples(samples) => Ok(samples),
            Answer::Error(error) => bail!("{:?}: {error}", comparison.exchange),
            Answer::Ready => bail!("an answer to something else"),
        }
    }

    fn read(&mut self) -> Result<Answer> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the worker ended without an answer");
        serde_json::from_str(&line).context("the worker's answer")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.stdin.take());
        // It ends with its standard input.
        let _ = self.child.wait();
    }
}

/// What the worker process does.
pub(crate) fn work(client_netns: &str, outside: &str) -> Result<()> {
    pin(0, CLIENT_CPU)?;
    real_time()?;
    enter(Path::new(outside))?;
    let servers = Servers::new()?;
    let netns = File::open(client_netns).with_context(|| format!("open {client_netns}"))?;
    setns(netns, CloneFlags::CLONE_NEWNET).context("enter the client's namespace")?;
    let mut out = std::io::stdout().lock();
    let mut tell = |answer: &Answer| -> Result<()> {
        let mut text = serde_json::to_string(answer)?;
        text.push('\n');
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    };
    tell(&Answer::Ready)?;
    for line in std::io::stdin().lock().lines() {
        let comparison: Comparison = serde_json::from_str(&line?)?;
        tell(&match compare(&servers, &comparison) {
            Ok(samples) => Answer::Samples(samples),
            Err(error) => Answer::Error(format!("{error:#}")),
        })?;
    }
    Ok(())
}

fn compare(servers: &Servers, comparison: &Comparison) -> Result<Samples> {
    let Comparison {
        exchange,
        sides,
        pairs,
        batch,
    } = comparison;
    let mut targets = sides
        .each_ref()
        .map(|side| side.targets.iter().copied().cycle());
    let one_cgroup = sides[0].cgroup == sides[1].cgroup;
    enter(&sides[0].cgroup)?;
    let mut samples = Samples::new();
    for pair in 0..=pairs * ATTEMPTS {
        let mut sample = [Sample::default(); 2];
        let mut disturbed = false;
        // First one first, then the other: what drifts cancels out.
        let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            if !one_cgroup {
                enter(&sides[side].cgroup)?;
            }
            let before = switches()?;
            sample[side] = servers.batch(*exchange, &mut targets[side], *batch)?;
            disturbed |= switches()? != before;
        }
        // The first pair only warms up.
        if pair > 0 && !disturbed {
            samples.push(sample);
        }
        if samples.len() >= *pairs as usize {
            break;
        }
    }
    Ok(samples)
}

/// How often this thread lost the CPU: what ran meanwhile is in its times.
fn switches() -> Result<i64> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).context("getrusage")?;
    Ok(usage.voluntary_context_switches() + usage.involuntary_context_switches())
}

/// Ahead of all ordinary work on its CPU. The kernel leaves 5 % to that.
fn real_time() -> Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the pointer is valid for the call; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) };
    nix::errno::Errno::result(result).context("become a real-time process")?;
    Ok(())
}

fn enter(cgroup: &Path) -> Result<()> {
    // "0" is whoever writes.
    fs::write(cgroup.join("cgroup.procs"), "0").with_context(|| format!("enter {cgroup:?}"))
}

/// Pins a thread; 0 is the calling one.
pub(crate) fn pin(thread: i32, cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(thread), &set).with_context(|| format!("pin to CPU {cpu}"))
}

/// Pins all threads of a process.
pub(crate) fn pin_process(pid: u32, cpu: usize) -> Result<()> {
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("list threads")? {
        let name = task?.file_name();
        let thread = name.to_str().and_then(|it| it.parse().ok());
        pin(thread.context("a thread has a number")?, cpu)?;
    }
    Ok(())
}
