//! cgroup v2 subtrees of a lab.

use anyhow::{Context, Result};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where cgroup v2 is mounted. Mounts it at `/run/fairlead-cgroup2` on a
/// machine that has no such mount.
pub(crate) fn mount_point() -> Result<PathBuf> {
    if let Some(found) = find_mount("cgroup2")? {
        return Ok(found);
    }
    let dir = PathBuf::from("/run/fairlead-cgroup2");
    fs::create_dir_all(&dir)?;
    mount("cgroup2", &dir)?;
    Ok(dir)
}

/// Where bpffs is mounted; mounts it at `/sys/fs/bpf` if it is not.
pub(crate) fn bpffs() -> Result<PathBuf> {
    let dir = PathBuf::from("/sys/fs/bpf");
    if find_mount("bpf")?.as_ref() != Some(&dir) {
        mount("bpf", &dir)?;
    }
    Ok(dir)
}

fn mount(kind: &str, dir: &Path) -> Result<()> {
    nix::mount::mount(
        Some(kind),
        dir,
        Some(kind),
        nix::mount::MsFlags::empty(),
        None::<&str>,
    )
    .with_context(|| format!("mount {kind} at {dir:?}"))
}

/// First mount point of a file system type, from `/proc/self/mountinfo`
/// (proc_pid_mountinfo(5): mount point is field 5, the type follows " - ").
fn find_mount(kind: &str) -> Result<Option<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("read mountinfo")?;
    Ok(table.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        (right.split(' ').next() == Some(kind))
            .then(|| left.split(' ').nth(4))?
            .map(PathBuf::from)
    }))
}

/// Ends every process in the subtree `dir` and removes it.
pub(crate) fn remove(dir: &Path) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        kill(dir);
        match remove_tree(dir) {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("remove {dir:?}"));
            }
            // The dead are still leaving.
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn kill(dir: &Path) {
    // cgroup.kill came with Linux 5.14 (661ee6280931); process by process before.
    if fs::write(dir.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    for sub in sub_directories(dir) {
        kill(&sub);
    }
    let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for pid in procs.lines().filter_map(|line| line.parse().ok()) {
        // It may have ended in between.
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGKILL,
        );
    }
}

fn remove_tree(dir: &Path) -> io::Result<()> {
    for sub in sub_directories(dir) {
        remove_tree(&sub)?;
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn sub_directories(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}
