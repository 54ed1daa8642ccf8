//! From pinned maps that do not fit this build to new ones, without a gap.
//!
//! A complete set of maps is made beside the old one, and programs are loaded
//! against it. The old programs and maps serve until the first complete lists are
//! published into the new ones; then each hook changes over in one step, and the
//! pins follow ([`pins`](super::pins) has the stages).
//!
//! What stays: with the same layout version everything (ids and generations are
//! copied, maps of what sockets and clients have are shared); with another one
//! what sockets know of their own translation.

use super::layout::Pinned;
use super::{AttachOptions, DeviceHooks, MapSpec, Programs, SocketHooks, pins, settings};
use crate::publish::bpf::BpfKernel;
use crate::publish::migrate;
use crate::sys;
use anyhow::{Context, Result};
use aya::maps::{HashMap, MapData, MapInfo};
use proxy_common::{Affinity, AffinityKey};
use std::fs::File;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Programs and maps that wait to take the place of those in force.
pub struct Upgrade {
    programs: Programs,
    options: AttachOptions,
    /// The maps in force, if their ids mean the same in the new ones.
    old: Option<BpfKernel>,
}

/// Makes the new maps and loads the programs, and leaves the hooks as they are.
pub(super) fn prepare(
    options: &AttachOptions,
    cgroup: File,
    pinned: &Pinned,
    differences: &[String],
) -> Result<(BpfKernel, DeviceHooks, Upgrade)> {
    tracing::info!(
        pins = %options.pin_dir.display(),
        differences = differences.join("; "),
        "the pinned maps do not fit; new ones are made beside them, and the old programs serve until those are complete"
    );
    let next = pins::next(&options.pin_dir);
    make(options, cgroup, pinned, &next).inspect_err(|_| discard(&options.pin_dir))
}

fn make(
    options: &AttachOptions,
    cgroup: File,
    pinned: &Pinned,
    next: &Path,
) -> Result<(BpfKernel, DeviceHooks, Upgrade)> {
    std::fs::create_dir(next).with_context(|| format!("creating {}", next.display()))?;
    let specs = MapSpec::all(&options.sizes);
    for spec in specs.iter().filter(|spec| pinned.keeps(spec)) {
        share(&options.pin_dir, next, spec.name)
            .with_context(|| format!("keeping map {}", spec.name))?;
    }
    let (programs, devices) = Programs::load(options, &specs, next, cgroup)?;
    tell_cookie(options, pinned, next)?;
    let mut kernel = BpfKernel::open(next)?;
    let old = old_content(&options.pin_dir, pinned);
    let base = migrate::fresh_generation();
    match &old {
        Some(old) => {
            let migrated = migrate::copy(old, &mut kernel, base).context("copying the maps")?;
            tracing::info!(?migrated, "the old maps' content is in the new ones");
        }
        None => migrate::set_generations(&mut kernel, base),
    }
    let upgrade = Upgrade {
        programs,
        options: options.clone(),
        old,
    };
    Ok((kernel, devices, upgrade))
}

/// Gives up a set that is not in use, and the memory that it takes.
fn discard(pin_dir: &Path) {
    if let Err(error) = pins::discard(&pins::next(pin_dir)) {
        tracing::warn!("maps that nobody uses stay until the next start: {error:#}");
    }
}

/// Pins a map of the old set in the new one, too.
fn share(pin_dir: &Path, next: &Path, name: &str) -> std::io::Result<()> {
    let map = sys::open_pinned(&pin_dir.join(name))?;
    sys::pin(map.as_fd(), &next.join(name))
}

/// The old maps, if they are all there and this build understands them.
fn old_content(pin_dir: &Path, pinned: &Pinned) -> Option<BpfKernel> {
    if !pinned.ids_are_ours() {
        return None;
    }
    BpfKernel::open(pin_dir)
        .inspect_err(
            |error| tracing::warn!(%error, "the old maps cannot be read; the new ones start empty"),
        )
        .ok()
}

/// The programs must know the host's namespace from their first run on, and the
/// probe works only afterwards: ask the kernel (Linux 5.14), or the old maps.
fn tell_cookie(options: &AttachOptions, pinned: &Pinned, next: &Path) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("opening a socket")?;
    let cookie = match sys::socket_option(socket.as_fd(), libc::SO_NETNS_COOKIE) {
        Ok(cookie) => cookie,
        Err(_) if pinned.layout.is_some() => {
            settings::read(&options.pin_dir).map_or(0, |it| it.host_netns_cookie)
        }
        Err(_) => 0,
    };
    settings::update_settings(next, |settings| settings.host_netns_cookie = cookie)?;
    Ok(())
}

impl Upgrade {
    /// Where the new maps are pinned until [`Self::finish`].
    pub fn maps(&self) -> PathBuf {
        pins::next(&self.options.pin_dir)
    }

    /// Changes over to the new programs and maps, whose content is complete.
    pub fn finish(
        mut self,
        kernel: &mut BpfKernel,
        devices: &mut DeviceHooks,
    ) -> Result<SocketHooks> {
        let pin_dir = &self.options.pin_dir;
        if let Some(old) = &self.old {
            kernel.copy_stats(old).context("taking over the counters")?;
            let next = pins::next(pin_dir);
            if let Err(error) = copy_affinity(pin_dir, &next) {
                tracing::warn!(
                    "clients with session affinity may change their backend once: {error:#}"
                );
            }
        }
        pins::make_ready(pin_dir)?;
        let sockets = self.programs.put_in_place(&self.options, devices)?;
        if let Some(old) = &self.old {
            kernel.take_over_open(old);
        }
        kernel.moved_to(pin_dir);
        Ok(sockets)
    }

    /// The agent ends before the new maps are complete: the old ones stay.
    pub fn abandon(self) {
        discard(&self.options.pin_dir);
    }
}

/// Copies the clients' backends, where the new set has not kept the map itself.
fn copy_affinity(pin_dir: &Path, next: &Path) -> Result<()> {
    type Clients = HashMap<MapData, [u8; size_of::<AffinityKey>()], [u8; size_of::<Affinity>()]>;
    let open = |directory: &Path| -> Result<(MapInfo, Clients)> {
        let map = MapData::from_pin(directory.join("affinity")).context("opening map affinity")?;
        let info = map.info().context("looking at map affinity")?;
        Ok((info, aya::maps::Map::LruHashMap(map).try_into()?))
    };
    let ((old_info, old), (new_info, mut new)) = (open(pin_dir)?, open(next)?);
    if old_info.id() == new_info.id() {
        return Ok(());
    }
    // Programs go on changing the old map, and an iteration over a map that
    // changes may begin anew.
    let bound = 2 * old_info.max_entries() as usize;
    for client in old.iter().take(bound) {
        let (key, value) = client.context("reading map affinity")?;
        new.insert(key, value, 0).context("writing map affinity")?;
    }
    Ok(())
}
