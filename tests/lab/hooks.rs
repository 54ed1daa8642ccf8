//! Programs on network devices: which there are, and foreign ones beside the agent's.

use crate::peer::Peer;
use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, setns};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use zerocopy::{FromBytes, Immutable, IntoBytes};

// include/uapi/linux/bpf.h
const BPF_PROG_LOAD: i64 = 5;
const BPF_OBJ_PIN: i64 = 6;
const BPF_PROG_GET_FD_BY_ID: i64 = 13;
const BPF_OBJ_GET_INFO_BY_FD: i64 = 15;
const BPF_PROG_QUERY: i64 = 16;
const BPF_LINK_CREATE: i64 = 28;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_F_BEFORE: u32 = 1 << 3;
const BPF_F_AFTER: u32 = 1 << 4;

/// Programs that a hook takes at most.
const PROGRAMS_MAX: usize = 64;

/// A hook of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceHook {
    /// Packets that come in.
    Ingress,
    /// Packets that leave.
    Egress,
}

impl DeviceHook {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    fn attach_type(self) -> u32 {
        match self {
            Self::Ingress => 46,
            Self::Egress => 47,
        }
    }
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable)]
struct Query {
    target_ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    count: u32,
    padding: u32,
    rest: [u64; 4],
}

#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
}

#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct Attach {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
    relative: u64,
    expected_revision: u64,
}

#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct ById {
    id: u32,
    next_id: u32,
}

#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct ByFd {
    fd: u32,
    info_len: u32,
    info: u64,
}

/// `struct bpf_prog_info` up to the name.
#[repr(C)]
#[derive(Default, FromBytes, IntoBytes, Immutable)]
struct Info {
    before: [u32; 16],
    name: [u8; 16],
}

#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct Pin {
    path: u64,
    fd: u32,
    flags: u32,
}

fn bpf<T: IntoBytes + Immutable>(command: i64, attributes: &T) -> io::Result<i64> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes (and writes those of a
    // query); the callers keep alive what they point at.
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

fn owned(fd: i64) -> Result<OwnedFd> {
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd)?) })
}

/// The TCX programs of a device in the order in which they run: ids and names.
pub fn device_programs(peer: &Peer, device: &str, hook: DeviceHook) -> Result<Vec<(u32, String)>> {
    let ids = in_netns(peer, || {
        let mut ids = [0_u32; PROGRAMS_MAX];
        let mut query = Query {
            target_ifindex: nix::net::if_::if_nametoindex(device)?,
            attach_type: hook.attach_type(),
            query_flags: 0,
            attach_flags: 0,
            prog_ids: ids.as_mut_ptr() as u64,
            count: PROGRAMS_MAX as u32,
            padding: 0,
            rest: [0; 4],
        };
        let attributes = std::ptr::from_mut(&mut query);
        // SAFETY: the kernel writes the count, and at most that many ids.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                BPF_PROG_QUERY,
                attributes,
                size_of::<Query>(),
            )
        };
        ensure!(
            result == 0,
            "query {device}: {}",
            io::Error::last_os_error()
        );
        Ok(ids[..query.count as usize].to_vec())
    })?;
    ids.into_iter().map(|id| Ok((id, name(id)?))).collect()
}

fn name(id: u32) -> Result<String> {
    let program = owned(bpf(BPF_PROG_GET_FD_BY_ID, &ById { id, next_id: 0 })?)?;
    let mut info = Info::default();
    let by_fd = ByFd {
        fd: program.as_raw_fd().cast_unsigned(),
        info_len: size_of::<Info>() as u32,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &by_fd)?;
    Ok(String::from_utf8_lossy(&info.name)
        .trim_end_matches('\0')
        .to_owned())
}

/// A program that is not the agent's and gives every packet the same verdict.
#[derive(Debug)]
pub struct Foreign {
    program: OwnedFd,
}

impl Foreign {
    /// Drops every packet that gets as far.
    pub fn dropping() -> Result<Self> {
        Self::new(2)
    }

    /// Leaves every packet to the next program.
    pub fn passing() -> Result<Self> {
        Self::new(-1)
    }

    /// `verdict` is of `enum tcx_action_base`, the same as TC_ACT_*.
    fn new(verdict: i32) -> Result<Self> {
        // r0 = verdict; exit
        let verdict = u64::from(verdict.cast_unsigned()) << 32;
        let instructions = [0xb7 | verdict, 0x95];
        let mut prog_name = [0; 16];
        prog_name[..7].copy_from_slice(b"foreign");
        let load = Load {
            prog_type: BPF_PROG_TYPE_SCHED_CLS,
            insn_cnt: 2,
            insns: instructions.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            log_level: 0,
            log_size: 0,
            log_buf: 0,
            kern_version: 0,
            prog_flags: 0,
            prog_name,
        };
        let program = owned(bpf(BPF_PROG_LOAD, &load).context("load a foreign program")?)?;
        Ok(Self { program })
    }

    /// Attaches it with a TCX link, before or after the ones there are. It ends with the result.
    pub fn attach(
        &self,
        peer: &Peer,
        device: &str,
        hook: DeviceHook,
        before: bool,
    ) -> Result<OwnedFd> {
        in_netns(peer, || {
            let attach = Attach {
                prog_fd: self.program.as_raw_fd().cast_unsigned(),
                target_ifindex: nix::net::if_::if_nametoindex(device)?,
                attach_type: hook.attach_type(),
                flags: if before { BPF_F_BEFORE } else { BPF_F_AFTER },
                relative: 0,
                expected_revision: 0,
            };
            owned(bpf(BPF_LINK_CREATE, &attach).context("attach a foreign program")?)
        })
    }

    /// Pins it, for `tc filter … bpf pinned`.
    pub fn pin(&self, path: &Path) -> Result<()> {
        let text = CString::new(path.as_os_str().as_bytes())?;
        let pin = Pin {
            path: text.as_ptr() as u64,
            fd: self.program.as_raw_fd().cast_unsigned(),
            flags: 0,
        };
        bpf(BPF_OBJ_PIN, &pin).context("pin a foreign program")?;
        Ok(())
    }
}

/// Does something in the namespace of a peer.
fn in_netns<T: Send>(peer: &Peer, job: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let netns = peer.netns().as_fd().try_clone_to_owned()?;
    // Entering a namespace is a thread's matter: this one ends with it.
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(netns, CloneFlags::CLONE_NEWNET).context("enter the namespace")?;
            job()
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
