//! Starting processes inside a network namespace and a cgroup of the lab.

use anyhow::{Context, Result, anyhow};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

/// Which network namespace a process starts in.
#[derive(Clone, Copy)]
pub(crate) enum Netns<'a> {
    /// A new one, which lives as long as something holds it.
    New,
    /// An existing one.
    Join(&'a OwnedFd),
}

/// Starts `command` in `netns` and, if given, in `cgroup`. It dies with this process.
pub(crate) fn spawn(
    mut command: Command,
    netns: Netns<'_>,
    cgroup: Option<&Path>,
) -> Result<Child> {
    let what = format!("{command:?}");
    let netns = match netns {
        Netns::New => None,
        Netns::Join(fd) => Some(fd.as_fd().try_clone_to_owned()?),
    };
    let procs = cgroup
        .map(|dir| {
            File::options()
                .write(true)
                .open(dir.join("cgroup.procs"))
                .with_context(|| format!("open {dir:?}"))
        })
        .transpose()?;
    let before_exec = move || enter(netns.as_ref(), procs.as_ref());
    // SAFETY: `enter` makes system calls on descriptors that the closure owns,
    // and neither allocates nor takes locks.
    unsafe { command.pre_exec(before_exec) };
    on_spawner_thread(move || command.spawn()).with_context(|| format!("start {what}"))
}

/// Runs in the child between fork and exec.
fn enter(netns: Option<&OwnedFd>, procs: Option<&File>) -> io::Result<()> {
    // "0" is whoever writes.
    if let Some(procs) = procs {
        nix::unistd::write(procs, b"0")?;
    }
    match netns {
        Some(fd) => nix::sched::setns(fd, nix::sched::CloneFlags::CLONE_NEWNET)?,
        None => nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?,
    }
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    Ok(())
}

/// The namespace of a running process.
pub(crate) fn netns_of(child: &Child) -> Result<OwnedFd> {
    let path = format!("/proc/{}/ns/net", child.id());
    Ok(File::open(&path)
        .with_context(|| format!("open {path}"))?
        .into())
}

/// `/proc/PID/fd/FD` of a descriptor of ours, which `ip … netns` takes as a name.
pub(crate) fn netns_path(fd: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd())
}

type Job = Box<dyn FnOnce() + Send>;

/// `PR_SET_PDEATHSIG` fires when the *thread* that forked ends, and tests run
/// in threads that end early: one thread that never ends forks for all.
fn on_spawner_thread<T: Send + 'static>(
    job: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    static SPAWNER: OnceLock<Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = channel::<Job>();
        std::thread::spawn(move || {
            for job in jobs {
                job();
            }
        });
        sender
    });
    let (sender, answer) = channel();
    spawner
        .send(Box::new(move || {
            // The asker waits below; if it is gone nobody wants the answer.
            let _ = sender.send(job());
        }))
        .map_err(|_| anyhow!("the spawner thread is gone"))?;
    Ok(answer.recv().context("the spawner thread is gone")??)
}
