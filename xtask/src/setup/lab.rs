//! What labs need of this machine: root, the programs that they call, and the
//! file systems that BPF programs are pinned in and attached to.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{apt, step};
use crate::command;

/// Where a machine without any cgroup v2 gets it; the lab looks for the mount,
/// not for a path.
const CGROUP: &str = "/run/fairlead-cgroup2";

/// What the lab and its tests call.
const PACKAGES: [&str; 5] = ["bpftool", "iproute2", "iptables", "openssl", "procps"];

/// Makes this machine fit for labs.
pub(crate) fn prepare() -> Result<()> {
    let user = command::output(command::clean("id").arg("-u"))?;
    ensure!(
        user.trim() == "0",
        "network namespaces and BPF programs need root: run it as root (sudo -E)"
    );
    apt::packages("the lab", &PACKAGES)?;
    mount_missing()
}

fn mount_missing() -> Result<()> {
    let table = fs::read_to_string("/proc/self/mounts").context("cannot read /proc/self/mounts")?;
    let bpffs = mounted(&table).any(|(dir, kind)| kind == "bpf" && dir == "/sys/fs/bpf");
    step("bpffs at /sys/fs/bpf", bpffs, || {
        mount("bpf", Path::new("/sys/fs/bpf"))
    })?;
    let cgroup = mounted(&table).any(|(_, kind)| kind == "cgroup2");
    step("cgroup v2", cgroup, || mount("cgroup2", Path::new(CGROUP)))
}

/// Mount points and file system types in the kernel's table.
fn mounted(table: &str) -> impl Iterator<Item = (&str, &str)> {
    table.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.next()?))
    })
}

fn mount(kind: &str, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    command::output(command::clean("mount").args(["-t", kind, kind]).arg(dir))
        .map(drop)
        .with_context(|| {
            format!(
                "cannot mount {kind} at {}: run as root, on a kernel that has it",
                dir.display()
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_come_with_their_types() {
        let table = "tmpfs /run tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(
            mounted(table).collect::<Vec<_>>(),
            [("/run", "tmpfs"), ("/sys/fs/cgroup/unified", "cgroup2")]
        );
    }
}
