//! The few bpf(2) commands that aya 0.14 does not offer for cgroup links.
//!
//! aya attaches and pins such links but neither replaces their program nor
//! shows their descriptor, and a link that cannot be replaced in place leaves a
//! gap at every upgrade.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

// include/uapi/linux/bpf.h, enum bpf_cmd
const BPF_OBJ_GET: i64 = 7;
const BPF_OBJ_GET_INFO_BY_FD: i64 = 15;
const BPF_LINK_UPDATE: i64 = 29;

#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct ObjGet {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct InfoByFd {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct LinkUpdate {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

/// What the kernel tells of a cgroup link (`struct bpf_link_info`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct CgroupLinkInfo {
    /// Kind of link.
    pub link_type: u32,
    /// Id of the link.
    pub id: u32,
    /// Id of its program.
    pub program_id: u32,
    padding: u32,
    /// Inode number of the cgroup's directory; 0 once the cgroup is gone.
    pub cgroup_id: u64,
    /// Hook of the cgroup.
    pub attach_type: u32,
    padding_end: u32,
}

fn bpf<T: IntoBytes + Immutable>(command: i64, attributes: &T) -> io::Result<i64> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `attributes`; pointers
    // inside are kept alive by the callers.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Opens what is pinned at `path`.
pub fn open_pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let fd = bpf(
        BPF_OBJ_GET,
        &ObjGet {
            pathname: path.as_ptr() as u64,
            bpf_fd: 0,
            file_flags: 0,
        },
    )?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What the kernel tells of a link.
pub fn link_info(link: BorrowedFd<'_>) -> io::Result<CgroupLinkInfo> {
    let mut info = CgroupLinkInfo::default();
    let attributes = InfoByFd {
        bpf_fd: raw(link),
        info_len: size_of::<CgroupLinkInfo>() as u32,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &attributes)?;
    Ok(info)
}

/// Puts another program in place of a link's, in one step.
pub fn replace_program(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    bpf(
        BPF_LINK_UPDATE,
        &LinkUpdate {
            link_fd: raw(link),
            new_prog_fd: raw(program),
            flags: 0,
            old_prog_fd: 0,
        },
    )
    .map(|_| ())
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}
