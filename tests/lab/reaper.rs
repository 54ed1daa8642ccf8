//! Cleaning up: by `Drop`, by a child that outlives a SIGKILLed test, and by
//! the next lab.
//!
//! All three do the same work. A lab leaves traces in three places only: its
//! cgroup subtree (with its processes, and with them the namespaces, which are
//! anonymous), its pins in bpffs, and its temp directory. All are named
//! `fairlead-lab-<pid>-<number>`.

use crate::cgroup;
use crate::program::sibling;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "fairlead-lab-";

/// The places where a lab leaves traces.
#[derive(Clone, Debug)]
pub(crate) struct Traces {
    /// Unique on this machine.
    pub(crate) name: String,
    /// Root of the lab's cgroup v2 subtree.
    pub(crate) cgroup: PathBuf,
    /// Pins in bpffs.
    pub(crate) pins: PathBuf,
    /// Manifests, logs.
    pub(crate) temp: PathBuf,
}

impl Traces {
    /// Places for one more lab of this process.
    pub(crate) fn unique() -> Result<Self> {
        static LABS: AtomicU32 = AtomicU32::new(1);
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        Self::named(format!("{PREFIX}{}-{number}", std::process::id()))
    }

    fn named(name: String) -> Result<Self> {
        Ok(Self {
            cgroup: cgroup::mount_point()?.join(&name),
            pins: cgroup::bpffs()?.join(&name),
            temp: std::env::temp_dir().join(&name),
            name,
        })
    }

    /// Ends what runs in the lab and removes what it left.
    pub(crate) fn remove(&self) -> Result<()> {
        // Agents first: a living one might pin again.
        let results = [
            cgroup::remove(&self.cgroup),
            remove_dir(&self.pins),
            remove_dir(&self.temp),
        ];
        results.into_iter().collect()
    }
}

fn remove_dir(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {dir:?}"))
        }
        _ => Ok(()),
    }
}

/// Removes the traces of labs whose process is gone and whose reaper was
/// killed as well.
pub(crate) fn remove_stale() -> Result<()> {
    let places = [
        cgroup::mount_point()?,
        cgroup::bpffs()?,
        std::env::temp_dir(),
    ];
    for place in places {
        for entry in fs::read_dir(&place)
            .with_context(|| format!("read {place:?}"))?
            .flatten()
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            if owner(&name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                // Its reaper may be at it right now; whoever comes second finds nothing.
                let _ = Traces::named(name)?.remove();
            }
        }
    }
    Ok(())
}

/// Process that made the lab of this name.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

/// The child that cleans up once this process is gone, however it went.
#[derive(Debug)]
pub(crate) struct Reaper {
    child: Child,
}

impl Reaper {
    /// Starts a reaper for the lab of these traces.
    pub(crate) fn start(traces: &Traces) -> Result<Self> {
        let mut command = Command::new(sibling("peer")?);
        // A session of its own: Ctrl-C and the death of the process group pass it by.
        // SAFETY: setsid is async-signal-safe.
        unsafe { command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(io::Error::from)) };
        let child = command
            .args(["reap", &traces.name])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .current_dir("/")
            .spawn()
            .context("start the reaper")?;
        Ok(Self { child })
    }

    /// Lets the reaper do its work now and waits for it.
    pub(crate) fn reap(&mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait().context("wait for the reaper")?;
        ensure!(status.success(), "the reaper failed: {status}");
        Ok(())
    }
}

/// What the reaper process does: waits until its standard input ends, which
/// happens when the process that holds the other end dies, then cleans up.
pub fn reap_when_stdin_ends(name: &str) -> Result<()> {
    if owner(name).is_none() {
        bail!("{name} is not the name of a lab");
    }
    io::stdin()
        .read_to_end(&mut Vec::new())
        .context("wait for the lab's end")?;
    Traces::named(name.to_owned())?.remove()
}
