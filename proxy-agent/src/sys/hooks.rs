//! Programs on hooks: links, and who is there.

use super::{bpf, info, owned, raw};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

// include/uapi/linux/bpf.h, enum bpf_cmd
const BPF_PROG_QUERY: i64 = 16;
const BPF_LINK_CREATE: i64 = 28;
const BPF_LINK_UPDATE: i64 = 29;

// enum bpf_attach_type
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;

// Flags of links
const BPF_F_BEFORE: u32 = 1 << 3;
const BPF_F_AFTER: u32 = 1 << 4;

/// Programs on one hook that are listed at most.
const PROGRAMS_MAX: usize = 64;

#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct LinkCreate {
    prog_fd: u32,
    /// A device's index, or a descriptor.
    target: u32,
    attach_type: u32,
    flags: u32,
    relative_id: u32,
    padding: u32,
    expected_revision: u64,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable)]
struct ProgramQuery {
    /// A device's index, or a descriptor.
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_count: u32,
    padding: u32,
    prog_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}

#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct LinkUpdate {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

/// What the kernel tells of a link (`struct bpf_link_info`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct LinkInfo {
    /// Kind of link.
    pub link_type: u32,
    /// Id of the link.
    pub id: u32,
    /// Id of its program.
    pub program_id: u32,
    padding: u32,
    /// What it is attached to, by kind of link.
    target: [u32; 4],
}

impl LinkInfo {
    /// Of a cgroup link: inode number of the cgroup's directory; 0 once the cgroup is gone.
    pub fn cgroup_id(&self) -> u64 {
        let [first, second, ..] = self.target;
        zerocopy::transmute!([first, second])
    }

    /// Of a TCX link: index of the device; 0 once the device is gone.
    pub fn device(&self) -> u32 {
        self.target[0]
    }
}

/// What the kernel tells of a link.
pub fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    info(link)
}

/// Whether the object is a link, and no program or map.
pub fn is_link(object: BorrowedFd<'_>) -> io::Result<bool> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", object.as_raw_fd()))?;
    Ok(info.lines().any(|line| line.starts_with("link_type:")))
}

/// Hook of a device for TCX links (Linux 6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcxHook {
    /// Packets that come in; a new link's program runs before all others.
    Ingress,
    /// Packets that leave; a new link's program runs after all others.
    Egress,
}

impl TcxHook {
    fn attach_type(self) -> u32 {
        match self {
            Self::Ingress => BPF_TCX_INGRESS,
            Self::Egress => BPF_TCX_EGRESS,
        }
    }
}

/// Whether the kernel has TCX links. Loopback, which has index 1, is asked.
pub fn has_tcx() -> bool {
    let answer = query(1, BPF_TCX_INGRESS);
    !answer.is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL))
}

/// Ids of the programs that TCX has on a device's hook, in the order in which they run.
pub fn tcx_programs(device: u32, hook: TcxHook) -> io::Result<Vec<u32>> {
    query(device, hook.attach_type())
}

/// Ids of the programs on a hook of a cgroup, but for those of cgroups above it.
pub fn cgroup_programs(cgroup: BorrowedFd<'_>, attach_type: u32) -> io::Result<Vec<u32>> {
    query(raw(cgroup), attach_type)
}

/// `target` is the index of a device, or a descriptor.
fn query(target: u32, attach_type: u32) -> io::Result<Vec<u32>> {
    let mut ids = vec![0_u32; PROGRAMS_MAX];
    let mut attributes = ProgramQuery {
        target,
        attach_type,
        query_flags: 0,
        attach_flags: 0,
        prog_ids: ids.as_mut_ptr() as u64,
        prog_count: PROGRAMS_MAX as u32,
        padding: 0,
        // Of Linux 5.18 and later; an older kernel takes them as long as they are 0.
        prog_attach_flags: 0,
        link_ids: 0,
        link_attach_flags: 0,
        revision: 0,
    };
    // SAFETY: the kernel writes at most `prog_count` ids, and their number.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_QUERY,
            std::ptr::from_mut(&mut attributes),
            size_of::<ProgramQuery>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    ids.truncate(attributes.prog_count as usize);
    Ok(ids)
}

/// Attaches a program to a device, by a link that ends with its last descriptor.
pub fn attach_tcx(program: BorrowedFd<'_>, device: u32, hook: TcxHook) -> io::Result<OwnedFd> {
    let flags = match hook {
        TcxHook::Ingress => BPF_F_BEFORE,
        TcxHook::Egress => BPF_F_AFTER,
    };
    create_link(program, device, hook.attach_type(), flags)
}

/// Attaches a program to a cgroup, by a link that ends with its last descriptor.
pub fn attach_cgroup(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    create_link(program, raw(cgroup), attach_type, 0)
}

fn create_link(
    program: BorrowedFd<'_>,
    target: u32,
    attach_type: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    let create = LinkCreate {
        prog_fd: raw(program),
        target,
        attach_type,
        flags,
        relative_id: 0,
        padding: 0,
        expected_revision: 0,
    };
    bpf(BPF_LINK_CREATE, &create).and_then(owned)
}

/// Puts another program in place of a link's, in one step.
pub fn replace_program(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let update = LinkUpdate {
        link_fd: raw(link),
        new_prog_fd: raw(program),
        flags: 0,
        old_prog_fd: 0,
    };
    bpf(BPF_LINK_UPDATE, &update).map(|_| ())
}
