//! The programs on devices, and map `devices` that they read: hooks follow the
//! choice of devices.
//!
//! Each hook's link, or program where the kernel has no links, is pinned as
//! `links/<hook>_<index>_<name>`. A link is found by its index; the name is for
//! people, and follows when a device is renamed.

use super::{clsact, pins, settings};
use crate::crash;
use crate::devices::{Chosen, slow_path};
use crate::sys::{self, TcxHook};
use anyhow::{Context, Result};
use aya::maps::{Array, HashMap, MapData};
use proxy_common::{Device, DeviceSettings};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The hooks of a device: name of the program in the object, and of the pins.
pub const DEVICE_HOOKS: [(&str, TcxHook); 2] =
    [("ingress", TcxHook::Ingress), ("egress", TcxHook::Egress)];

/// Start of the names of pins that say which clsact qdiscs are ours.
const QDISC_MARK: &str = "clsact_";

/// What the programs that are in force know of devices, by index.
pub fn pinned_devices(pin_dir: &Path) -> Result<BTreeMap<u32, Device>> {
    let map = MapData::from_pin(pin_dir.join("devices")).context("opening map devices")?;
    let map: HashMap<_, u32, [u8; size_of::<Device>()]> =
        aya::maps::Map::HashMap(map).try_into()?;
    map.iter()
        .map(|element| {
            let (index, bytes) = element.context("reading map devices")?;
            Ok((index, zerocopy::transmute!(bytes)))
        })
        .collect()
}

/// The one owner of map `devices` and of the programs on devices.
pub struct DeviceHooks {
    pin_dir: PathBuf,
    /// In the order of [`DEVICE_HOOKS`].
    programs: Vec<Program>,
    map: HashMap<MapData, u32, [u8; size_of::<Device>()]>,
    /// Map `device_settings` beside it.
    settings: Array<MapData, [u8; size_of::<DeviceSettings>()]>,
    /// Not while other programs and maps are in force.
    in_force: bool,
    /// What was in place at the last look: what is missing then was taken away.
    placed: BTreeMap<u32, Device>,
    way: Way,
}

/// How programs get on devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Tcx,
    Clsact,
}

struct Program {
    name: &'static str,
    hook: TcxHook,
    fd: OwnedFd,
    id: u32,
}

/// What came of putting programs where they belong.
#[derive(Debug, Default)]
pub struct Applied {
    /// What failed, device by device.
    pub failures: Vec<anyhow::Error>,
    /// What somebody had taken away, or changed, since the last time.
    pub restored: Vec<String>,
}

/// A pin of a device's hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePin {
    /// `ingress` or `egress`.
    pub hook: &'static str,
    /// Index of the device.
    pub device: u32,
    /// Name of the device, with `_` for dots.
    pub name: String,
    path: PathBuf,
}

impl DevicePin {
    /// The pins of the hooks of all devices.
    pub fn all(pin_dir: &Path) -> io::Result<Vec<Self>> {
        let links = pins::links(pin_dir);
        let names = pins::maps(&links)?;
        Ok(names
            .iter()
            .filter_map(|name| Self::parse(&links, name))
            .collect())
    }

    /// Whether a file among the links is such a pin.
    pub(super) fn is_one(file: &str) -> bool {
        file.starts_with(QDISC_MARK) || Self::parse(Path::new(""), file).is_some()
    }

    fn parse(links: &Path, file: &str) -> Option<Self> {
        let mut parts = file.splitn(3, '_');
        let prefix = parts.next()?;
        Some(Self {
            hook: DEVICE_HOOKS.into_iter().find(|it| it.0 == prefix)?.0,
            device: parts.next()?.parse().ok()?,
            name: parts.next()?.to_owned(),
            path: links.join(file),
        })
    }

    fn new(pin_dir: &Path, hook: &'static str, device: u32, name: &str) -> Self {
        // Pins cannot have dots.
        let name = name.replace('.', "_");
        let path = pins::links(pin_dir).join(format!("{hook}_{device}_{name}"));
        Self {
            hook,
            device,
            name,
            path,
        }
    }

    /// Id of the program that runs there; `None` if the device is gone.
    pub fn program_id(&self) -> io::Result<Option<u32>> {
        let object = sys::open_pinned(&self.path)?;
        if sys::is_link(object.as_fd())? {
            let info = sys::link_info(object.as_fd())?;
            return Ok((info.device() == self.device).then_some(info.program_id));
        }
        let hook = DEVICE_HOOKS.into_iter().find(|it| it.0 == self.hook);
        let filter = hook.map_or(Ok(None), |(_, hook)| clsact::find(self.device, hook))?;
        Ok(filter.map(|it| it.program_id))
    }
}

impl DeviceHooks {
    /// Hooks for loaded programs whose maps are pinned in `directory`.
    pub(super) fn new(
        pin_dir: &Path,
        directory: &Path,
        programs: impl IntoIterator<Item = (&'static str, TcxHook, OwnedFd)>,
    ) -> Result<Self> {
        let map = MapData::from_pin(directory.join("devices")).context("opening map devices")?;
        let way = if sys::has_tcx() && !crash::without_tcx() {
            Way::Tcx
        } else {
            tracing::info!("this kernel has no TCX links (Linux 6.6): programs are clsact filters");
            Way::Clsact
        };
        let programs = programs.into_iter().map(|(name, hook, fd)| {
            let id = sys::program_id(fd.as_fd())?;
            Ok(Program { name, hook, fd, id })
        });
        Ok(Self {
            pin_dir: pin_dir.to_owned(),
            programs: programs
                .collect::<io::Result<_>>()
                .context("looking at the programs of devices")?,
            map: aya::maps::Map::HashMap(map).try_into()?,
            settings: settings::element(directory, "device_settings")?,
            in_force: false,
            placed: BTreeMap::new(),
            way,
        })
    }

    /// Puts the programs in place of another build's, wherever those are.
    pub(super) fn put_in_place(&mut self) -> Result<()> {
        for pin in DevicePin::all(&self.pin_dir).context("listing the links")? {
            for program in self.programs.iter().filter(|it| it.name == pin.hook) {
                self.replace(program, &pin)
                    .with_context(|| format!("replacing {} on {}", pin.hook, pin.name))?;
            }
        }
        self.in_force = true;
        Ok(())
    }

    /// Attaches to these devices and, unless more may come to light, to no other.
    /// Can be repeated at any time.
    pub fn apply(&mut self, wanted: &BTreeMap<u32, Chosen>, complete: bool) -> Result<Applied> {
        let Applied {
            mut failures,
            mut restored,
        } = Applied::default();
        failures.extend(self.follow_slow_path(!wanted.is_empty(), complete).err());
        let placed = std::mem::take(&mut self.placed);
        // Before its program runs, which asks for its own device.
        for (&index, chosen) in wanted {
            if self.write(index, &chosen.device)? && placed.get(&index) == Some(&chosen.device) {
                restored.push(format!("{} in map devices", chosen.name));
            }
        }
        if self.in_force {
            let pins = DevicePin::all(&self.pin_dir).context("listing the links")?;
            for (&index, chosen) in wanted {
                for program in &self.programs {
                    match self.attach(program, index, &chosen.name, &pins) {
                        Ok(true) if placed.contains_key(&index) => {
                            restored.push(format!("{} of {}", program.name, chosen.name));
                        }
                        Ok(_) => {}
                        Err(error) => failures.push(
                            error.context(format!("attaching {} to {}", program.name, chosen.name)),
                        ),
                    }
                }
            }
            let lost = pins.iter().filter(|it| !wanted.contains_key(&it.device));
            for pin in lost.filter(|_| complete) {
                self.remove(pin)?;
            }
        }
        if complete {
            let foreign = self.forget_others(wanted)?;
            let foreign = foreign.into_iter().filter(|it| !placed.contains_key(it));
            if !placed.is_empty() {
                restored.extend(foreign.map(|it| format!("device {it} in map devices")));
            }
        }
        if self.in_force && failures.is_empty() {
            let device = |(index, chosen): (&u32, &Chosen)| (*index, chosen.device);
            self.placed = wanted.iter().map(device).collect();
        }
        Ok(Applied { failures, restored })
    }

    /// The slow path is there as long as programs may need it, and they know it.
    fn follow_slow_path(&mut self, wanted: bool, complete: bool) -> Result<()> {
        if wanted {
            let outcome = slow_path::put_up().context("large packets that may be fragmented drop");
            let near_end = outcome.as_ref().map_or(0, |index| *index);
            return self.write_slow_path(near_end).and(outcome.map(drop));
        }
        if complete {
            self.write_slow_path(0)?;
            slow_path::remove()?;
        }
        Ok(())
    }

    fn write_slow_path(&mut self, index: u32) -> Result<()> {
        let bytes = self.settings.get(&0, 0);
        let bytes = bytes.context("reading map device_settings")?;
        let mut settings: DeviceSettings = zerocopy::transmute!(bytes);
        if settings.slow_path == index {
            return Ok(());
        }
        settings.slow_path = index;
        let bytes: [u8; size_of::<DeviceSettings>()] = zerocopy::transmute!(settings);
        crash::point();
        let written = self.settings.set(0, bytes, 0);
        written.context("writing map device_settings")
    }

    /// Whether the map had something else.
    fn write(&mut self, index: u32, device: &Device) -> Result<bool> {
        let bytes: [u8; size_of::<Device>()] = zerocopy::transmute!(*device);
        if self.map.get(&index, 0).is_ok_and(|it| it == bytes) {
            return Ok(false);
        }
        crash::point();
        let written = self.map.insert(index, bytes, 0);
        written.context("writing map devices").map(|()| true)
    }

    /// Returns the indices that the map has no more.
    fn forget_others(&mut self, wanted: &BTreeMap<u32, Chosen>) -> Result<Vec<u32>> {
        let present = self.map.keys().collect::<Result<BTreeSet<u32>, _>>();
        let mut gone: Vec<u32> = present
            .context("reading map devices")?
            .into_iter()
            .collect();
        gone.retain(|index| !wanted.contains_key(index));
        for index in &gone {
            crash::point();
            self.map.remove(index).context("writing map devices")?;
        }
        Ok(gone)
    }

    /// Our program is on this hook of the device, once, afterwards, unless the
    /// device goes meanwhile. Returns whether it was not there before.
    fn attach(
        &self,
        program: &Program,
        index: u32,
        name: &str,
        pins: &[DevicePin],
    ) -> Result<bool> {
        let pin = DevicePin::new(&self.pin_dir, program.name, index, name);
        let found = pins
            .iter()
            .find(|it| it.hook == program.name && it.device == index);
        if let Some(found) = found {
            if found.name != pin.name {
                rename(&found.path, &pin.path)?;
            }
            if self.replace(program, &pin)? {
                return Ok(false);
            }
        }
        let link = match self.way {
            Way::Tcx => attach_tcx(program, index),
            Way::Clsact => self.attach_filter(program, index),
        };
        let Some(pinned) = link? else {
            return Ok(false);
        };
        tracing::info!(
            hook = program.name,
            device = name,
            "the program is in place"
        );
        pins::replace_link(pinned.as_fd(), &self.pin_dir, &pin.path).map(|()| true)
    }

    /// Whether our program is on the hook of the pin now, in place of another build's.
    fn replace(&self, program: &Program, pin: &DevicePin) -> Result<bool> {
        match self.way {
            Way::Tcx => replace_link(program, pin),
            Way::Clsact => {
                let found = clsact::find(pin.device, program.hook).context("listing filters")?;
                let Some(found) = found else {
                    return Ok(false);
                };
                if found.program_id != program.id {
                    crash::point();
                    clsact::put(program.fd.as_fd(), pin.device, program.hook)
                        .context("replacing the filter")?;
                    pins::replace_link(program.fd.as_fd(), &self.pin_dir, &pin.path)?;
                }
                Ok(true)
            }
        }
    }

    /// What is pinned is the program, so that the device is known to have one.
    fn attach_filter(&self, program: &Program, index: u32) -> Result<Option<OwnedFd>> {
        crash::point();
        match clsact::add_qdisc(index) {
            Ok(true) => {
                let mark = qdisc_mark(&self.pin_dir, index);
                if !mark.exists() {
                    pins::replace_link(program.fd.as_fd(), &self.pin_dir, &mark)?;
                }
            }
            Ok(false) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            Err(error) => return Err(error).context("adding a clsact qdisc"),
        }
        crash::point();
        clsact::put(program.fd.as_fd(), index, program.hook).context("adding a filter")?;
        Ok(Some(program.fd.try_clone()?))
    }

    /// Takes the program off the hook of the pin.
    fn remove(&self, pin: &DevicePin) -> Result<()> {
        tracing::info!(hook = pin.hook, device = pin.name, "the program is removed");
        if self.way == Way::Clsact {
            for program in self.programs.iter().filter(|it| it.name == pin.hook) {
                crash::point();
                match clsact::remove(pin.device, program.hook) {
                    Err(error) if !clsact::is_gone(&error) => {
                        return Err(error).context("removing a filter");
                    }
                    _ => {}
                }
            }
            let mark = qdisc_mark(&self.pin_dir, pin.device);
            if mark.exists() && clsact::is_unused(pin.device).context("listing filters")? {
                crash::point();
                clsact::remove_qdisc(pin.device).context("removing the clsact qdisc")?;
                pins::remove(&mark)?;
            }
        }
        pins::remove(&pin.path)
    }
}

/// The pin that says that a device's clsact qdisc is ours.
fn qdisc_mark(pin_dir: &Path, device: u32) -> PathBuf {
    pins::links(pin_dir).join(format!("{QDISC_MARK}{device}"))
}

fn attach_tcx(program: &Program, index: u32) -> Result<Option<OwnedFd>> {
    crash::point();
    match sys::attach_tcx(program.fd.as_fd(), index, program.hook) {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        link => link.map(Some).context("bpf_link_create"),
    }
}

/// Whether the pinned link is on its device and has the program now.
fn replace_link(program: &Program, pin: &DevicePin) -> Result<bool> {
    let link = sys::open_pinned(&pin.path).context("opening the link")?;
    // What an earlier kernel's way has left is no link.
    if !sys::is_link(link.as_fd())? {
        return Ok(false);
    }
    let info = sys::link_info(link.as_fd()).context("asking for the link's device")?;
    if info.device() != pin.device {
        return Ok(false);
    }
    if info.program_id != program.id {
        crash::point();
        sys::replace_program(link.as_fd(), program.fd.as_fd()).context("bpf_link_update")?;
    }
    Ok(true)
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    crash::point();
    std::fs::rename(from, to)
        .with_context(|| format!("renaming {} to {}", from.display(), to.display()))
}
