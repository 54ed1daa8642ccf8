//! The program that refuses datagrams to backends that are gone, for kernels that
//! cannot end the sockets which send them. Every packet of the node passes its
//! hook, so it is there only while there are such sockets.

use super::{AttachOptions, MapSpec, instance, link_path, links, load, open_cgroup, pins, program};
use anyhow::{Context, Result};
use std::path::Path;

/// Name in the object, and of the pin.
const GUARD: &str = "udp_egress";

/// Whether the program is on its hook.
pub fn guard_is_up(pin_dir: &Path) -> bool {
    link_path(pin_dir, GUARD).exists()
}

/// Puts the program on its hook. It stays there without the agent; the next
/// start takes it away, or its first look at the sockets puts it up anew.
pub fn put_up_guard(options: &AttachOptions) -> Result<()> {
    let pin_dir = &options.pin_dir;
    let specs = MapSpec::all(&options.sizes);
    let cgroup = open_cgroup(&options.cgroup_root)?;
    let mut object = load(&specs, pin_dir, instance())?;
    let guard = program(&mut object, GUARD)?;
    links::load(guard).with_context(|| format!("loading {GUARD}"))?;
    let pin = link_path(pin_dir, GUARD);
    let link = links::put_in_place(guard, &cgroup, &pin)
        .with_context(|| format!("attaching {GUARD} to {}", options.cgroup_root.display()))?;
    if let Some(link) = link {
        links::pin_link(link, pin_dir, &pin)?;
    }
    Ok(())
}

/// Takes the program off its hook.
pub fn take_down_guard(pin_dir: &Path) -> Result<()> {
    pins::remove(&link_path(pin_dir, GUARD))
}
