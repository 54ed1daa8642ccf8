//! `bench worker`: a process with ends in clients' namespaces and in their
//! servers', which compares on request. It moves between cgroups, since that
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

/// Rounds that are tried for each that counts: those that other work disturbs do not.
const ATTEMPTS: u32 = 5;

/// Ways to compare, and how often to go each.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) exchange: Exchange,
    /// The baseline, and what is compared with it.
    pub(crate) sides: Vec<Side>,
    /// Rounds of one batch for each side.
    pub(crate) rounds: u32,
    /// Exchanges of one batch.
    pub(crate) batch: u32,
}

/// One of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Side {
    /// Which of the worker's ends.
    pub(crate) ends: usize,
    /// Where the client's sockets are made.
    pub(crate) cgroup: PathBuf,
    /// Taken in turn.
    pub(crate) targets: Vec<SocketAddr>,
}

/// What a comparison gave: rounds of batches that ran right after each other.
pub(crate) type Samples<const SIDES: usize> = Vec<[Sample; SIDES]>;

#[derive(Serialize, Deserialize)]
enum Answer {
    Ready,
    Samples(Vec<Vec<Sample>>),
    Error(String),
}

/// The bench's side of a worker.
pub(crate) struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts one between clients and their servers; `outside` is a cgroup
    /// without programs.
    pub(crate) fn start(ends: &[[&Peer; 2]], outside: &Path) -> Result<Self> {
        fs::create_dir_all(outside).with_context(|| format!("make {outside:?}"))?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("worker")
            .arg(outside)
            .args(
                ends.as_flattened()
                    .iter()
                    .map(|peer| format!("/proc/{}/ns/net", peer.pid())),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let [_, server] = ends.first().context("a worker has ends")?;
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

    /// Compares the sides, `rounds` times.
    pub(crate) fn compare<const SIDES: usize>(
        &mut self,
        exchange: Exchange,
        sides: [Side; SIDES],
        [rounds, batch]: [u32; 2],
    ) -> Result<Samples<SIDES>> {
        let mut line = serde_json::to_string(&Comparison {
            exchange,
            sides: sides.into(),
            rounds,
            batch,
        })?;
        line.push('\n');
        let stdin = self.stdin.as_mut().context("the worker was stopped")?;
        stdin.write_all(line.as_bytes())?;
        let samples = match self.read()? {
            Answer::Samples(samples) => samples.into_iter(),
            Answer::Error(error) => bail!("{exchange:?}: {error}"),
            Answer::Ready => bail!("an answer to something else"),
        };
        let whole = |round: Vec<Sample>| round.try_into().ok().context("a sample of each side");
        samples.map(whole).collect()
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

/// A client's namespace, and the servers that listen in another.
struct Ends {
    client: File,
    servers: Servers,
}

/// What the worker process does.
pub(crate) fn work(outside: &str, netns: &[String]) -> Result<()> {
    pin(0, CLIENT_CPU)?;
    real_time()?;
    enter(Path::new(outside))?;
    let open = |path: &String| File::open(path).with_context(|| format!("open {path}"));
    let ends: Vec<Ends> = netns
        .chunks_exact(2)
        .map(|pair| {
            enter_netns(&open(&pair[1])?)?;
            Ok(Ends {
                client: open(&pair[0])?,
                servers: Servers::new()?,
            })
        })
        .collect::<Result<_>>()?;
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
        tell(&match compare(&ends, &comparison) {
            Ok(samples) => Answer::Samples(samples),
            Err(error) => Answer::Error(format!("{error:#}")),
        })?;
    }
    Ok(())
}

fn compare(ends: &[Ends], comparison: &Comparison) -> Result<Vec<Vec<Sample>>> {
    let Comparison {
        exchange,
        sides,
        rounds,
        batch,
    } = comparison;
    let targets = sides.iter().map(|side| side.targets.iter().copied());
    let mut targets: Vec<_> = targets.map(Iterator::cycle).collect();
    let mut here: Option<&Side> = None;
    let mut samples = Vec::new();
    for round in 0..=(rounds * ATTEMPTS) as usize {
        let mut sample = vec![Sample::default(); sides.len()];
        let mut disturbed = false;
        // Another one is first each time: what drifts cancels out.
        for turn in 0..sides.len() {
            let number = (round + turn) % sides.len();
            let side = &sides[number];
            let Ends { client, servers } = ends.get(side.ends).context("no such ends")?;
            if here.is_none_or(|here| here.cgroup != side.cgroup) {
                enter(&side.cgroup)?;
            }
            if here.is_none_or(|here| here.ends != side.ends) {
                enter_netns(client)?;
            }
            here = Some(side);
            let before = switches()?;
            sample[number] = servers.batch(*exchange, &mut targets[number], *batch)?;
            disturbed |= switches()? != before;
        }
        // The first round only warms up.
        if round > 0 && !disturbed {
            samples.push(sample);
        }
        if samples.len() >= *rounds as usize {
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

fn enter_netns(netns: &File) -> Result<()> {
    setns(netns, CloneFlags::CLONE_NEWNET).context("enter a namespace")
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
