//! What is on the hooks, for those who compare it with what should be there.
//! Changes nothing.

use super::{DEVICE_HOOKS, DevicePin, PROGRAMS, attach_type, clsact, link_path, pins};
use crate::sys::{self, TcxHook};
use anyhow::{Context, Result};
use aya::maps::{MapInfo, loaded_maps};
use aya::programs::{ProgramInfo, loaded_programs};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What is on a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookState {
    /// `connect4`, or `ingress`.
    pub hook: &'static str,
    /// Index of the device; `None` for a hook of the cgroup.
    pub device: Option<u32>,
    /// The program of what is pinned for it, or what is wrong with that; `None`
    /// if nothing is.
    pub pinned: Option<Result<u32, String>>,
    /// Programs there that work on the pinned maps, in the order in which they run.
    pub ours: Vec<u32>,
}

/// What is on each hook of the cgroup, and of these devices and of those that
/// something is pinned for.
pub fn look_at_hooks(
    pin_dir: &Path,
    cgroup_root: &Path,
    devices: impl IntoIterator<Item = u32>,
) -> Result<Vec<HookState>> {
    let mut states = look_at_cgroup(pin_dir, cgroup_root)?;
    let pins = DevicePin::all(pin_dir).context("listing the links")?;
    let mut indices: BTreeSet<u32> = devices.into_iter().collect();
    indices.extend(pins.iter().map(|it| it.device));
    for index in indices {
        for (name, hook) in DEVICE_HOOKS {
            states.push(HookState {
                hook: name,
                device: Some(index),
                pinned: pins
                    .iter()
                    .find(|it| it.device == index && it.hook == name)
                    .map(pinned_program),
                ours: programs_on(index, hook)
                    .with_context(|| format!("listing {name} of device {index}"))?,
            });
        }
    }
    let found = states.iter().flat_map(|it| &it.ours).copied().collect();
    let ours = ours(pin_dir, &found)?;
    for state in &mut states {
        state.ours.retain(|id| ours.contains(id));
    }
    Ok(states)
}

fn look_at_cgroup(pin_dir: &Path, cgroup_root: &Path) -> Result<Vec<HookState>> {
    let cgroup =
        File::open(cgroup_root).with_context(|| format!("opening {}", cgroup_root.display()))?;
    let cgroup_id = cgroup.metadata().context("looking at the cgroup")?.ino();
    let look = |hook| -> Result<HookState> {
        let attach_type = attach_type(hook).context("it is no hook of a cgroup")?;
        Ok(HookState {
            hook,
            device: None,
            pinned: pinned_on_cgroup(&link_path(pin_dir, hook), cgroup_id).transpose(),
            ours: sys::cgroup_programs(cgroup.as_fd(), attach_type)?,
        })
    };
    let look = |hook| look(hook).with_context(|| format!("looking at {hook}"));
    PROGRAMS.into_iter().map(look).collect()
}

fn pinned_on_cgroup(pin: &Path, cgroup_id: u64) -> Result<Option<u32>, String> {
    let link = match sys::open_pinned(pin) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        link => link.map_err(|error| error.to_string())?,
    };
    let info = sys::link_info(link.as_fd()).map_err(|error| error.to_string())?;
    match info.cgroup_id() {
        0 => Err("a link that was detached".to_owned()),
        found if found == cgroup_id => Ok(Some(info.program_id)),
        other => Err(format!("a link to cgroup {other}, not {cgroup_id}")),
    }
}

fn pinned_program(pin: &DevicePin) -> Result<u32, String> {
    match pin.program_id() {
        Ok(Some(id)) => Ok(id),
        Ok(None) => Err("a link or filter that is gone".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Of links and of filters.
fn programs_on(device: u32, hook: TcxHook) -> io::Result<Vec<u32>> {
    let linked = match sys::tcx_programs(device, hook) {
        // Before Linux 6.6; or the device is gone.
        Err(error) if clsact::is_gone(&error) => Vec::new(),
        linked => linked?,
    };
    Ok([linked, clsact::programs(device, hook)?].concat())
}

/// Those of the programs that have one of the pinned maps, and no other of the
/// same name.
fn ours(pin_dir: &Path, programs: &BTreeSet<u32>) -> Result<BTreeSet<u32>> {
    let mut pinned = BTreeMap::new();
    for name in pins::maps(pin_dir).context("listing the maps")? {
        if let Ok(info) = MapInfo::from_pin(pin_dir.join(&name)) {
            pinned.insert(name, info.id());
        }
    }
    // What goes while it is listed is nobody's.
    let name = |info: MapInfo| Some((info.id(), info.name_as_str()?.to_owned()));
    let names: BTreeMap<u32, String> = loaded_maps().flatten().filter_map(name).collect();
    let is_ours = |program: &ProgramInfo| {
        let maps = program.map_ids().ok().flatten().unwrap_or_default();
        let name = |id: &u32| names.get(id).filter(|name| pinned.contains_key(*name));
        let known: Vec<_> = maps.iter().filter_map(|id| Some((id, name(id)?))).collect();
        !known.is_empty() && known.iter().all(|(id, name)| pinned.get(*name) == Some(id))
    };
    let found = loaded_programs().flatten();
    let found = found.filter(|it| programs.contains(&it.id()) && is_ours(it));
    Ok(found.map(|it| it.id()).collect())
}
