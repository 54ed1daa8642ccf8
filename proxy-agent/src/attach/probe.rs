//! A connect() of our own: proof that the hooks fire, and the way to learn the
//! cookie of the host's network namespace as programs see it.
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

/// Connects a UDP socket to loopback (no packet is sent) and stores the cookie
/// that the programs saw.
pub(super) fn host_netns_cookie(pin_dir: &Path) -> Result<u64> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("opening the probe socket")?;
    let probe = sys::socket_option(socket.as_fd(), libc::SO_COOKIE).context("reading SO_COOKIE")?;
    update_settings(pin_dir, |settings| {
        settings.probe_socket_cookie = probe;
        settings.probe_netns_cookie = 0;
    })?;
    let connected = socket.connect((Ipv4Addr::LOCALHOST, 1));
    let settings = update_settings(pin_dir, |settings| {
        if settings.probe_netns_cookie != 0 {
            settings.host_netns_cookie = settings.probe_netns_cookie;
        }
        settings.probe_socket_cookie = 0;
    })?;
    if settings.probe_netns_cookie == 0 {
        connected.context("connecting the probe socket")?;
        bail!(
            "they did not run for this process: its cgroup is not below that directory; \
             set --cgroup-root to the root of the host's cgroup v2 hierarchy"
        );
    }
    Ok(settings.host_netns_cookie)
}
