//! `fairlead status`

use super::{Inspect, Output, table};
use crate::attach::{MapSizes, MapSpec, PROGRAMS, link_path, upgrade_is_under_way};
use crate::observe::drops;
use crate::publish::bpf::BpfKernel;
use crate::publish::{AddressSet, Kernel};
use crate::sys;
use anyhow::{Context, Result};
use aya::maps::MapInfo;
use serde::Serialize;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

#[derive(Serialize)]
struct Status {
    /// Whether an agent is making new maps, and the first complete lists are not there yet.
    upgrade_under_way: bool,
    hooks: Vec<Hook>,
    maps: Vec<Map>,
    drops: Vec<Drop>,
}

#[derive(Serialize)]
struct Hook {
    hook: &'static str,
    /// `in place`, or what is wrong.
    state: String,
    program_id: Option<u32>,
    cgroup_id: Option<u64>,
}

#[derive(Serialize)]
struct Map {
    map: String,
    /// Elements in use; `None` where the kernel cannot tell.
    entries: Option<usize>,
    capacity: u32,
    /// What the kernel charges for it.
    memory_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Drop {
    reason: &'static str,
    count: u64,
    help: &'static str,
}

pub(super) fn run(inspect: &Inspect) -> Result<()> {
    let pin_dir = &inspect.pin_dir;
    let kernel =
        BpfKernel::open(pin_dir).context("reading the maps: does an agent pin them there?")?;
    let status = Status {
        upgrade_under_way: upgrade_is_under_way(pin_dir),
        hooks: PROGRAMS
            .into_iter()
            .map(|hook| look_at_hook(pin_dir, hook))
            .collect(),
        maps: map_names(&kernel)
            .into_iter()
            .map(|name| look_at_map(pin_dir, name, &kernel))
            .collect::<Result<_>>()?,
        drops: drops(pin_dir)?
            .into_iter()
            .map(|(reason, count)| Drop {
                reason: reason.as_str(),
                count,
                help: reason.help(),
            })
            .collect(),
    };
    match inspect.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&status)?),
        Output::Table => print_tables(&status),
    }
    let broken: Vec<&str> = status
        .hooks
        .iter()
        .filter(|hook| hook.program_id.is_none())
        .map(|hook| hook.hook)
        .collect();
    anyhow::ensure!(broken.is_empty(), "not in place: {}", broken.join(", "));
    Ok(())
}

fn print_tables(status: &Status) {
    let mut hooks = table(&["HOOK", "STATE", "PROGRAM"]);
    for hook in &status.hooks {
        hooks.add_row([
            hook.hook.to_owned(),
            hook.state.clone(),
            optional(hook.program_id),
        ]);
    }
    let mut maps = table(&["MAP", "ENTRIES", "CAPACITY", "MEMORY KiB"]);
    for map in &status.maps {
        let memory = map.memory_bytes.map(|bytes| bytes.div_ceil(1024));
        let capacity = if map.capacity == 0 {
            "per socket".to_owned()
        } else {
            map.capacity.to_string()
        };
        maps.add_row([
            map.map.clone(),
            optional(map.entries),
            capacity,
            optional(memory),
        ]);
    }
    let mut drops = table(&["REFUSED OR DROPPED", "COUNT", "MEANING"]);
    for drop in &status.drops {
        drops.add_row([
            drop.reason.to_owned(),
            drop.count.to_string(),
            drop.help.to_owned(),
        ]);
    }
    println!("{hooks}\n\n{maps}\n\n{drops}");
    if status.upgrade_under_way {
        println!(
            "\nAn agent is making new maps; these are in force until its first complete publish."
        );
    }
}

fn optional<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |it| it.to_string())
}

fn look_at_hook(pin_dir: &Path, hook: &'static str) -> Hook {
    let info =
        sys::open_pinned(&link_path(pin_dir, hook)).and_then(|link| sys::link_info(link.as_fd()));
    match info {
        Ok(info) if info.cgroup_id != 0 => Hook {
            hook,
            state: "in place".to_owned(),
            program_id: Some(info.program_id),
            cgroup_id: Some(info.cgroup_id),
        },
        Ok(_) => Hook {
            hook,
            state: "its cgroup is gone".to_owned(),
            program_id: None,
            cgroup_id: None,
        },
        Err(error) => Hook {
            hook,
            state: error.to_string(),
            program_id: None,
            cgroup_id: None,
        },
    }
}

/// The maps of the object, and the chunks that were added to `tables` since.
fn map_names(kernel: &BpfKernel) -> Vec<String> {
    let specs = MapSpec::all(&MapSizes::default());
    let chunks = (1..kernel.chunks()).map(|index| format!("tables_{index}"));
    specs
        .iter()
        .map(|spec| spec.name.to_owned())
        .chain(chunks)
        .collect()
}

fn look_at_map(pin_dir: &Path, name: String, kernel: &BpfKernel) -> Result<Map> {
    let info =
        MapInfo::from_pin(pin_dir.join(&name)).with_context(|| format!("opening map {name}"))?;
    let fd = info.fd().with_context(|| format!("opening map {name}"))?;
    let entries = match name.as_str() {
        "frontends" => Some(kernel.frontends()?.len()),
        "services" => Some(kernel.services()?.len()),
        "vips" => Some(kernel.addresses(AddressSet::Vips)?.len()),
        "node_addresses" => Some(kernel.addresses(AddressSet::NodeAddresses)?.len()),
        "backends" => Some(
            (1..kernel.backends_max())
                .filter(|&id| kernel.backend(id).service != 0)
                .count(),
        ),
        "tables" => Some(kernel.chunks() as usize),
        _ => None,
    };
    let memory_bytes = memory(fd.as_fd().as_raw_fd());
    Ok(Map {
        map: name,
        entries,
        capacity: info.max_entries(),
        memory_bytes,
    })
}

/// What the kernel charges for a map (`memlock` in its fdinfo).
fn memory(fd: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok())
}
