//! Links: each program is on its hook exactly once, and is replaced in place.

use crate::sys;
use anyhow::{Context, Result, bail};
use aya::programs::{CgroupAttachMode, Program, ProgramFd, links::FdLink};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Loads the program and puts it in place of the one of the pinned link, or
/// attaches it: then the link is not pinned yet, and ends if it is dropped.
pub(super) fn put_in_place(
    program: &mut Program,
    cgroup: &File,
    pin: &Path,
) -> Result<Option<FdLink>> {
    // Types with the same methods and no trait for them.
    macro_rules! put {
        ($program:expr) => {{
            $program.load()?;
            if replace($program.fd()?, cgroup, pin)? {
                return Ok(None);
            }
            let link = $program.attach(cgroup, CgroupAttachMode::Single)?;
            Ok(Some($program.take_link(link)?.try_into()?))
        }};
    }
    match program {
        Program::CgroupSockAddr(program) => put!(program),
        Program::CgroupSock(program) => put!(program),
        Program::SockOps(program) => put!(program),
        other => bail!(
            "no hook is known for a program of type {:?}",
            other.prog_type()
        ),
    }
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
        .cgroup_id
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
pub(super) fn pin_link(link: FdLink, pin: &Path) -> Result<()> {
    match std::fs::remove_file(pin) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).context("removing the old link");
        }
        _ => {}
    }
    link.pin(pin)
        .with_context(|| format!("pinning {}", pin.display()))?;
    Ok(())
}
