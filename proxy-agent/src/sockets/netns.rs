//! Network namespaces by the cookie that BPF programs know them by.
//!
//! A namespace is found by the processes in it (/proc/PID/ns/net) or by its name
//! (/run/netns). To see pods' processes the agent shares the host's PID
//! namespace; to enter namespaces it needs CAP_SYS_ADMIN.

use super::Sockets;
use crate::sys;
use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// include/uapi/asm-generic/socket.h, since Linux 5.14.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// Calls `visit` inside each namespace that `wanted` names. The calling thread
/// is not what it was afterwards and must end.
pub(super) fn enter_each(
    mut wanted: BTreeMap<u64, Sockets>,
    mut visit: impl FnMut(Sockets) -> Result<()>,
) -> Result<()> {
    let mut seen = BTreeSet::new();
    for path in candidates() {
        if wanted.is_empty() {
            break;
        }
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
        setns(&file, CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("entering {} (this takes CAP_SYS_ADMIN)", path.display()))?;
        match cookie() {
            Ok(cookie) => {
                if let Some(sockets) = wanted.remove(&cookie) {
                    visit(sockets)?;
                }
            }
            // Before 5.14 nothing tells which one this is; cookies of sockets
            // are unique on the machine, so trying all of them is safe.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                visit(
                    wanted
                        .values()
                        .flatten()
                        .map(|(cookie, socket)| (*cookie, *socket))
                        .collect(),
                )?;
            }
            Err(error) => return Err(error).context("asking for the namespace's cookie"),
        }
    }
    Ok(())
}

/// Our own first, then named ones, then those of processes.
fn candidates() -> impl Iterator<Item = PathBuf> {
    let named = children("/run/netns");
    let processes = children("/proc")
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.as_encoded_bytes()[0].is_ascii_digit())
        })
        .map(|path| path.join("ns/net"));
    std::iter::once(PathBuf::from("/proc/self/ns/net"))
        .chain(named)
        .chain(processes)
}

/// What is in a directory; nothing if there is none.
fn children(directory: &str) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
}

/// Cookie of the calling thread's namespace.
fn cookie() -> io::Result<u64> {
    let socket = UdpSocket::bind("[::]:0").or_else(|_| UdpSocket::bind("0.0.0.0:0"))?;
    sys::socket_option(socket.as_fd(), SO_NETNS_COOKIE)
}
