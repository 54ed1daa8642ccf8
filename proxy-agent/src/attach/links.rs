//! Links: each program is on its hook exactly once, and is replaced in place.

use super::devices::DevicePin;
use super::{link_path, pins};
use crate::{crash, sys};
use anyhow::{Context, Result, bail};
use aya::programs::{CgroupAttachMode, CgroupSkbAttachType, Program, ProgramFd, links::FdLink};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Types with the same methods and no trait for them; CgroupSkb's differ.
macro_rules! each_type {
    ($program:expr, $it:ident => $body:expr) => {
        match $program {
            Program::CgroupSockAddr($it) => $body,
            Program::CgroupSock($it) => $body,
            Program::SockOps($it) => $body,
            other => bail!(
                "no hook is known for a program of type {:?}",
                other.prog_type()
            ),
        }
    };
}

/// Hands the program to the kernel, which checks it. It does not run yet.
pub(super) fn load(program: &mut Program) -> Result<()> {
    if let Program::SchedClassifier(program) = program {
        program.load()?;
        return Ok(());
    }
    if let Program::CgroupSkb(program) = program {
        return Ok(program.load()?);
    }
    each_type!(program, program => program.load()?);
    Ok(())
}

/// A descriptor of a loaded program.
pub(super) fn descriptor(program: &Program) -> Result<OwnedFd> {
    Ok(program.fd()?.as_fd().try_clone_to_owned()?)
}

/// Puts a loaded program in place of the one of the pinned link, or attaches it:
/// then the link is not pinned yet, and ends if it is dropped.
pub(super) fn put_in_place(
    program: &mut Program,
    cgroup: &File,
    pin: &Path,
) -> Result<Option<FdLink>> {
    crash::point();
    if let Program::CgroupSkb(program) = program {
        if replace(program.fd()?, cgroup, pin)? {
            return Ok(None);
        }
        let egress = CgroupSkbAttachType::Egress;
        let link = program.attach(cgroup, egress, CgroupAttachMode::Single)?;
        return Ok(Some(program.take_link(link)?.try_into()?));
    }
    each_type!(program, program => {
        if replace(program.fd()?, cgroup, pin)? {
            return Ok(None);
        }
        let link = program.attach(cgroup, CgroupAttachMode::Single)?;
        Ok(Some(program.take_link(link)?.try_into()?))
    })
}

/// Takes programs off hooks that this build does not use.
pub(super) fn remove_others(pin_dir: &Path, hooks: &[&str]) -> Result<()> {
    for hook in pins::maps(&pins::links(pin_dir)).context("listing the links")? {
        if !hooks.contains(&hook.as_str()) && !DevicePin::is_one(&hook) {
            tracing::info!(
                hook,
                "this build has no program there; the earlier one's ends"
            );
            pins::remove(&link_path(pin_dir, &hook))?;
        }
    }
    Ok(())
}

/// Whether the pinned link is on our cgroup and has the new program now.
fn replace(program: &ProgramFd, cgroup: &File, pin: &Path) -> Result<bool> {
    let link = match sys::open_pinned(pin) {
        Ok(link) => link,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).with_context(|| format!("opening {}", pin.display())),
    };
    // Another cgroup, or one that is gone (its id is 0).
    if sys::link_info(link.as_fd())
        .context("asking for the link's cgroup")?
        .cgroup_id()
        != cgroup.metadata()?.ino()
    {
        return Ok(false);
    }
    sys::replace_program(link.as_fd(), program.as_fd())
        .with_context(|| format!("replacing the program of {}", pin.display()))?;
    Ok(true)
}

/// Pins the new link in place of one on another cgroup, which ends with its pin:
/// the new one is already in force.
pub(super) fn pin_link(link: FdLink, pin_dir: &Path, pin: &Path) -> Result<()> {
    let next = pins::next_link(pin_dir);
    // A rename, so that a crash leaves one of them.
    link.pin(&next)
        .with_context(|| format!("pinning {}", next.display()))?;
    std::fs::rename(&next, pin).with_context(|| format!("pinning {}", pin.display()))
}
