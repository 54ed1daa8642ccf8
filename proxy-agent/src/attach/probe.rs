//! A connect() of our own: proof that the hooks fire, and the way to learn the
//! cookie of a network namespace as programs see it.
//!
//! The host is the agent's own namespace, never the kernel's first one: on
//! nested nodes and in labs they differ. SO_NETNS_COOKIE would tell the cookie
//! only from Linux 5.14 on, and would not show that the cgroup is right.

use super::settings::update_settings;
use crate::sys;
use anyhow::{Context, Result, bail};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Stores the cookie of the agent's namespace as the host's.
pub(super) fn find_host(pin_dir: &Path) -> Result<u64> {
    let Some(cookie) = observed_netns_cookie(pin_dir)? else {
        bail!(
            "they did not run for this process: its cgroup is not below that directory; \
             set --cgroup-root to the root of the host's cgroup v2 hierarchy"
        );
    };
    update_settings(pin_dir, |settings| settings.host_netns_cookie = cookie)?;
    Ok(cookie)
}

/// The cookie of the calling thread's namespace, if the programs run for it:
/// connects a UDP socket to loopback, which sends no packet. One thread at a time:
/// there is one question and one answer.
pub fn observed_netns_cookie(pin_dir: &Path) -> Result<Option<u64>> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("opening the probe socket")?;
    let probe = sys::socket_option(socket.as_fd(), libc::SO_COOKIE).context("reading SO_COOKIE")?;
    update_settings(pin_dir, |settings| {
        settings.probe_socket_cookie = probe;
        settings.probe_netns_cookie = 0;
    })?;
    // The programs run before the kernel looks for a route, so it does not
    // matter whether there is one.
    let _ = socket.connect((Ipv4Addr::LOCALHOST, 1));
    let settings = update_settings(pin_dir, |settings| settings.probe_socket_cookie = 0)?;
    Ok(Some(settings.probe_netns_cookie).filter(|&cookie| cookie != 0))
}
