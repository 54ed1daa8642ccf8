//! Looking into the agent's pinned map `frontends`, fast enough to time it.

use anyhow::{Context, Result};
use proxy_common::{Frontend, FrontendKey, Protocol, Scope};
use std::ffi::CString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use zerocopy::{IntoBytes, TryFromBytes};

// enum bpf_cmd, include/uapi/linux/bpf.h
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_OBJ_GET: libc::c_long = 7;

/// `union bpf_attr` of BPF_OBJ_GET.
#[repr(C)]
struct ObjGet {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// `union bpf_attr` of BPF_MAP_LOOKUP_ELEM.
#[repr(C)]
struct Lookup {
    map_fd: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The pinned map `frontends`.
pub(crate) struct Frontends(OwnedFd);

impl Frontends {
    /// Opens the one that lies in `pins`.
    pub(crate) fn open(pins: &Path) -> Result<Self> {
        let path = pins.join("frontends");
        let text = CString::new(path.as_os_str().as_encoded_bytes())?;
        let attr = ObjGet {
            pathname: text.as_ptr() as u64,
            bpf_fd: 0,
            file_flags: 0,
        };
        let fd = bpf(BPF_OBJ_GET, &attr).with_context(|| format!("open {path:?}"))?;
        // SAFETY: a descriptor that nobody else has.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The TCP frontend at this address.
    pub(crate) fn tcp(&self, at: SocketAddr) -> Result<Frontend> {
        let key = FrontendKey {
            address: at.ip().into(),
            port: at.port(),
            protocol: Protocol::Tcp,
            scope: Scope::Internal,
        };
        let mut value = [0_u8; size_of::<Frontend>()];
        let attr = Lookup {
            map_fd: self.0.as_raw_fd().try_into()?,
            _pad: 0,
            key: key.as_bytes().as_ptr() as u64,
            value: value.as_mut_ptr() as u64,
            flags: 0,
        };
        bpf(BPF_MAP_LOOKUP_ELEM, &attr).with_context(|| format!("look up {at}"))?;
        Frontend::try_read_from_bytes(&value)
            .ok()
            .context("map frontends has another layout")
    }
}

fn bpf<T>(command: libc::c_long, attr: &T) -> io::Result<i32> {
    // SAFETY: the attributes' pointers are valid for the call, and the buffers
    // are as large as the map's keys and values.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr, size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(result).map_err(io::Error::other)
}
