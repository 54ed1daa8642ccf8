//! Network namespaces, found and entered.
//!
//! A namespace is found by the processes in it (/proc/PID/ns/net) or by its name
//! (/run/netns). To see pods' processes the agent shares the host's PID
//! namespace; to enter namespaces it needs CAP_SYS_ADMIN.

use crate::attach::observed_netns_cookie;
use crate::sys;
use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// include/uapi/asm-generic/socket.h, since Linux 5.14.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// Calls `visit` with the cookie of each namespace, inside of it, until it
/// breaks. One that cannot be entered is passed over. The calling thread is not
/// where it was afterwards: it must be one for this alone.
pub(super) fn enter_each(
    pin_dir: &Path,
    mut visit: impl FnMut(u64) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let mut seen = BTreeSet::new();
    for path in candidates() {
        // Processes end while we look.
        let Ok(file) = File::open(&path) else {
            continue;
        };
        let Ok(metadata) = file.metadata() else {
            continue;
        };
        if !seen.insert((metadata.dev(), metadata.ino())) {
            continue;
        }
        match enter(&file, pin_dir) {
            Ok(cookie) => {
                if visit(cookie)?.is_break() {
                    break;
                }
            }
            Err(error) => tracing::warn!("entering {}: {error:#}", path.display()),
        }
    }
    Ok(())
}

/// Enters a namespace; returns its cookie, as programs see it. As for
/// [`enter_each`], the thread must be one for this alone.
pub(super) fn enter(file: &File, pin_dir: &Path) -> Result<u64> {
    setns(file, CloneFlags::CLONE_NEWNET).context("setns (it takes CAP_SYS_ADMIN)")?;
    cookie(pin_dir)
}

/// The cookie of the calling thread's namespace, as programs see it.
pub(super) fn cookie(pin_dir: &Path) -> Result<u64> {
    // Not bound: the namespace may have no port left.
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket =
        socket(AddressFamily::Inet, SockType::Datagram, flags, None).context("opening a socket")?;
    match sys::socket_option(socket.as_fd(), SO_NETNS_COOKIE) {
        Ok(cookie) => Ok(cookie),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            observed_netns_cookie(pin_dir)?.context("the socket programs do not run for the agent")
        }
        Err(error) => Err(error).context("asking for its cookie"),
    }
}

/// Our own first, then named ones, then those of processes.
fn candidates() -> impl Iterator<Item = PathBuf> {
    let named = children("/run/netns");
    std::iter::once(PathBuf::from("/proc/self/ns/net"))
        .chain(named)
        .chain(processes().map(|path| path.join("ns/net")))
}

/// The directories of all processes that we see.
pub(super) fn processes() -> impl Iterator<Item = PathBuf> {
    let is_process = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.as_encoded_bytes());
        name.is_some_and(|name| name.first().is_some_and(u8::is_ascii_digit))
    };
    children("/proc").filter(is_process)
}

/// What is in a directory; nothing if there is none.
fn children(directory: &str) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}
