//! `fairlead status`

use super::{Inspect, Output, table};
use crate::attach::{
    DevicePin, MapSizes, MapSpec, PROGRAMS, link_path, pinned_devices, upgrade_is_under_way,
};
use crate::devices::obstacles;
use crate::flows::{Counts, FlowMaps};
use crate::observe::{drops, snapshot::addresses};
use crate::publish::bpf::BpfKernel;
use crate::publish::{AddressSet, Kernel, KernelError, NodeMaps};
use crate::sys;
use anyhow::{Context, Result};
use aya::maps::MapInfo;
use nix::net::if_::if_indextoname;
use proxy_common::Scope;
use serde::Serialize;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

/// State of a hook that has our program.
const IN_PLACE: &str = "in place";

#[derive(Serialize)]
struct Status {
    /// Whether an agent is making new maps, and the first complete lists are not there yet.
    upgrade_under_way: bool,
    hooks: Vec<Hook>,
    devices: Vec<Device>,
    /// Settings of this host that are in the way of packets.
    obstacles: Vec<String>,
    flows: Flows,
    forwarding: Forwarding,
    /// Whether connections of a kube-proxy may be under way, and so packets in
    /// mid-connection that no flow is known of pass to the stack.
    take_over: bool,
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
struct Device {
    device: String,
    index: u32,
    /// `uplink` or `return`.
    role: &'static str,
    /// What remote backends see there.
    v4: String,
    v6: String,
    mtu: u32,
    /// `in place`, or what is wrong.
    ingress: String,
    egress: String,
}

impl Device {
    fn is_served(&self) -> bool {
        [&self.ingress, &self.egress]
            .iter()
            .all(|it| *it == IN_PLACE)
    }
}

/// Flows by the map that they are in.
#[derive(Serialize)]
struct Flows {
    answered: usize,
    new: usize,
}

/// How packets of clients outside get to backends on other nodes.
#[derive(Serialize)]
struct Forwarding {
    /// Frontends of such clients that do it so.
    snat: usize,
    dsr: usize,
    /// UDP port by which Nodes hand each other packets; 0 if this one does not.
    dsr_port: u32,
    /// This Node's addresses for that.
    node: Vec<IpAddr>,
    /// Nodes that are known to have such an address, this one too.
    nodes: usize,
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
    let pins = DevicePin::all(pin_dir).context("listing the links")?;
    let devices: Vec<_> = pinned_devices(pin_dir)?
        .into_iter()
        .map(|(index, device)| (index, device_name(&pins, index), device))
        .collect();
    let flows = FlowMaps::open(pin_dir)?.counts()?;
    let status = Status {
        upgrade_under_way: upgrade_is_under_way(pin_dir),
        hooks: PROGRAMS
            .into_iter()
            .map(|hook| look_at_hook(pin_dir, hook))
            .collect(),
        obstacles: obstacles(
            devices
                .iter()
                .map(|(_, name, device)| (name.as_str(), device)),
        ),
        devices: devices
            .iter()
            .map(|(index, name, device)| look_at_device(&pins, *index, name, device))
            .collect(),
        flows: Flows {
            answered: flows[0].flows,
            new: flows[1].flows,
        },
        forwarding: forwarding(&kernel)?,
        take_over: kernel.device_settings()?.take_over != 0,
        maps: map_names(&kernel)
            .into_iter()
            .map(|name| look_at_map(pin_dir, name, &kernel, flows))
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
    let hooks = status.hooks.iter().filter(|hook| hook.program_id.is_none());
    let devices = status.devices.iter().filter(|it| !it.is_served());
    let broken: Vec<&str> = hooks
        .map(|hook| hook.hook)
        .chain(devices.map(|it| it.device.as_str()))
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
    let mut devices = table(&[
        "DEVICE",
        "ROLE",
        "SOURCE OF SNAT",
        "MTU",
        "INGRESS",
        "EGRESS",
    ]);
    for device in &status.devices {
        devices.add_row([
            device.device.clone(),
            device.role.to_owned(),
            format!("{} {}", device.v4, device.v6),
            device.mtu.to_string(),
            device.ingress.clone(),
            device.egress.clone(),
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
    let Flows { answered, new } = status.flows;
    println!("{hooks}\n\n{devices}\n\nFlows: {answered} answered, {new} not yet");
    println!("{}\n", status.forwarding.line());
    println!("{maps}\n\n{drops}");
    if status.take_over {
        println!(
            "\nTake-over: connections of a kube-proxy may be under way; what no flow is known of passes."
        );
    }
    for obstacle in &status.obstacles {
        println!("\n{obstacle}");
    }
    if status.upgrade_under_way {
        println!(
            "\nAn agent is making new maps; these are in force until its first complete publish."
        );
    }
}

fn forwarding(kernel: &BpfKernel) -> Result<Forwarding, KernelError> {
    let frontends = kernel.frontends()?;
    let of = |forwarding: proxy_common::Forwarding| {
        let outside = frontends
            .iter()
            .filter(|it| it.key.scope == Scope::External);
        outside.filter(|it| it.forwarding == forwarding).count()
    };
    let settings = kernel.device_settings()?;
    Ok(Forwarding {
        snat: of(proxy_common::Forwarding::Snat),
        dsr: of(proxy_common::Forwarding::Dsr),
        dsr_port: settings.dsr_port,
        node: addresses(&settings.node),
        nodes: kernel.nodes()?.len(),
    })
}

impl Forwarding {
    fn line(&self) -> String {
        let Self {
            snat,
            dsr,
            dsr_port,
            node,
            nodes,
        } = self;
        let node: Vec<String> = node.iter().map(ToString::to_string).collect();
        let way = match (dsr_port, node.as_slice()) {
            (0, _) => "this node hands nothing over (--dsr-port 0)".to_owned(),
            (_, []) => "this Node's address is not known".to_owned(),
            (port, own) => format!("UDP port {port}, from {}, {nodes} Nodes", own.join(" ")),
        };
        format!("Forwarding: {snat} frontends by snat, {dsr} by dsr; {way}")
    }
}

fn optional<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |it| it.to_string())
}

fn look_at_hook(pin_dir: &Path, hook: &'static str) -> Hook {
    let info =
        sys::open_pinned(&link_path(pin_dir, hook)).and_then(|link| sys::link_info(link.as_fd()));
    match info {
        Ok(info) if info.cgroup_id() != 0 => Hook {
            hook,
            state: IN_PLACE.to_owned(),
            program_id: Some(info.program_id),
            cgroup_id: Some(info.cgroup_id()),
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

/// By the kernel; by the pins if it is gone.
fn device_name(pins: &[DevicePin], index: u32) -> String {
    let name = if_indextoname(index).map(|it| it.to_string_lossy().into_owned());
    name.unwrap_or_else(|_| {
        let pin = pins.iter().find(|it| it.device == index);
        pin.map_or_else(|| index.to_string(), |it| it.name.clone())
    })
}

fn look_at_device(
    pins: &[DevicePin],
    index: u32,
    name: &str,
    device: &proxy_common::Device,
) -> Device {
    let hook = |hook| {
        let pin = pins.iter().find(|it| it.hook == hook && it.device == index);
        match pin.map(DevicePin::program_id) {
            Some(Ok(Some(_))) => IN_PLACE.to_owned(),
            Some(Ok(None)) => "its device is gone".to_owned(),
            Some(Err(error)) => error.to_string(),
            None => "no program".to_owned(),
        }
    };
    Device {
        device: name.to_owned(),
        index,
        role: role(device.role),
        v4: device.v4.to_ip().to_string(),
        v6: device.v6.to_ip().to_string(),
        mtu: device.mtu,
        ingress: hook("ingress"),
        egress: hook("egress"),
    }
}

fn role(role: u32) -> &'static str {
    if role & proxy_common::Device::UPLINK != 0 {
        "uplink"
    } else if role & proxy_common::Device::PODS != 0 {
        "pods"
    } else {
        "return"
    }
}

fn look_at_map(
    pin_dir: &Path,
    name: String,
    kernel: &BpfKernel,
    flows: [Counts; 2],
) -> Result<Map> {
    let info =
        MapInfo::from_pin(pin_dir.join(&name)).with_context(|| format!("opening map {name}"))?;
    let fd = info.fd().with_context(|| format!("opening map {name}"))?;
    let entries = match name.as_str() {
        "frontends" => Some(kernel.frontends()?.len()),
        "services" => Some(kernel.services()?.len()),
        "vips" => Some(kernel.addresses(AddressSet::Vips)?.len()),
        "external_addresses" => Some(kernel.addresses(AddressSet::External)?.len()),
        "node_addresses" => Some(kernel.addresses(AddressSet::NodeAddresses)?.len()),
        "backends" => Some(
            (1..kernel.backends_max())
                .filter(|&id| kernel.backend(id).service != 0)
                .count(),
        ),
        "nodes" => Some(kernel.nodes()?.len()),
        "node_ids" => Some(kernel.node_ids()?.len()),
        "local_backends" => Some(kernel.local_backends()?.len()),
        "devices" => Some(pinned_devices(pin_dir)?.len()),
        "flows" => Some(flows[0].elements),
        "flows_new" => Some(flows[1].elements),
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
