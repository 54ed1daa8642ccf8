//! What the kernel leaves to a device.

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::os::fd::AsRawFd;

/// Commands of linux/ethtool.h, in the order in which they can be switched on:
/// segments need checksums.
const COMMANDS: [(&str, u32); 4] = [
    ("ETHTOOL_STXCSUM", 0x17),
    ("ETHTOOL_SSG", 0x19),
    ("ETHTOOL_STSO", 0x1f),
    ("ETHTOOL_SGSO", 0x24),
];

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Switches checksums and segments on or off.
pub(crate) fn switch(device: &str, on: bool) -> Result<()> {
    let fd = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let mut commands = COMMANDS;
    if !on {
        commands.reverse();
    }
    for (name, command) in commands {
        let mut value = Value {
            command,
            data: on.into(),
        };
        // SAFETY: all zeros are a valid value of this structure of C.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        ensure!(device.len() < request.ifr_name.len(), "no name: {device}");
        for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        // SAFETY: the request, and the value that it points to, outlive the call.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
        Errno::result(result).with_context(|| format!("{name} {on} of {device}"))?;
    }
    Ok(())
}
