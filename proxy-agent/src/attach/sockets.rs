//! The socket programs in force, to put them back where somebody has taken them off.

use super::{AttachOptions, PROGRAMS, attach_type, link_path, links, pins, program};
use crate::sys;
use anyhow::{Context, Result};
use aya::Ebpf;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The programs on the hooks of the cgroup.
pub struct SocketHooks {
    pin_dir: PathBuf,
    cgroup: File,
    programs: Vec<Program>,
}

struct Program {
    name: &'static str,
    fd: OwnedFd,
    id: u32,
}

impl SocketHooks {
    /// Hooks whose programs have just been put in place.
    pub(super) fn new(options: &AttachOptions, object: &mut Ebpf, cgroup: &File) -> Result<Self> {
        let keep = |name| {
            let fd = links::descriptor(program(object, name)?);
            let fd = fd.with_context(|| format!("keeping {name}"))?;
            let id = sys::program_id(fd.as_fd()).with_context(|| format!("looking at {name}"))?;
            Ok(Program { name, fd, id })
        };
        Ok(Self {
            pin_dir: options.pin_dir.clone(),
            cgroup: cgroup.try_clone().context("keeping the cgroup")?,
            programs: PROGRAMS.into_iter().map(keep).collect::<Result<_>>()?,
        })
    }

    /// Attaches anew what somebody has detached. Returns which hooks that were.
    pub fn restore(&self) -> Result<Vec<&'static str>> {
        let cgroup_id = self
            .cgroup
            .metadata()
            .context("asking for the cgroup")?
            .ino();
        let mut restored = Vec::new();
        for Program { name, fd, id } in &self.programs {
            let pin = link_path(&self.pin_dir, name);
            if is_on(&pin, cgroup_id, *id).with_context(|| format!("looking at hook {name}"))? {
                continue;
            }
            let attach_type =
                attach_type(name).with_context(|| format!("{name} is no hook of a cgroup"))?;
            let link = sys::attach_cgroup(fd.as_fd(), self.cgroup.as_fd(), attach_type)
                .with_context(|| format!("attaching {name} anew"))?;
            pins::replace_link(link.as_fd(), &self.pin_dir, &pin)?;
            restored.push(*name);
        }
        Ok(restored)
    }
}

/// Whether the pinned link is on the cgroup, with the program; not if it was
/// detached, or the pin removed.
fn is_on(pin: &Path, cgroup_id: u64, program_id: u32) -> io::Result<bool> {
    match sys::open_pinned(pin) {
        Ok(link) => {
            let info = sys::link_info(link.as_fd())?;
            Ok(info.cgroup_id() == cgroup_id && info.program_id == program_id)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
