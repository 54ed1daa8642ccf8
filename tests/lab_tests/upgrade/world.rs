//! What the stories share: a node under load, and what must be so afterwards.

use anyhow::{Context, Result, ensure};
use lab::manifests::{service, slice};
use lab::{Held, Lab, Load, Node, Peer, SERVICE_CIDRS, Transport};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

pub(crate) const TCP: &str = "10.96.13.1:80";
pub(crate) const UDP: &str = "10.96.13.1:53";

pub(crate) const NODE_PORT: u16 = 30130;

/// Programs of one agent, and so of one node.
pub(crate) const HOOKS: usize = 10;

/// Small maps, so that a step of a publish is a large part of it.
pub(crate) const SIZES: [&str; 8] = [
    "--service-cidrs",
    SERVICE_CIDRS,
    "--backends-max",
    "64",
    "--services-max",
    "64",
    "--frontends-max",
    "256",
];

/// A node whose agent the stories start, with Service `web` in front of two pods.
pub(crate) struct World<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) n1: &'a Node,
    pub(crate) backends: [Peer; 2],
    pub(crate) client: Peer,
}

/// Connections at 100 a second and more each, from host processes and a pod: to
/// the ClusterIP by both protocols, and to the NodePort on the node's address and
/// on loopback, which only the host's processes reach.
pub(crate) struct Loads([Load; 5]);

/// Sockets that were opened before the upgrade.
pub(crate) struct Sockets {
    pub(crate) tcp: Held,
    pub(crate) udp: Held,
    pub(crate) unconnected: Held,
}

pub(crate) fn two_nodes() -> Result<Lab> {
    Lab::new(2)
}

pub(crate) fn web(name: &str, ip: &str) -> lab::manifests::Service {
    service(name)
        .cluster_ip(ip)
        .udp_port("dns", 53, 8080)
        .port("http", 80, 8080)
}

pub(crate) fn web_slice(name: &str) -> lab::manifests::Slice {
    slice(name, name).port("http", 8080).udp_port("dns", 8080)
}

impl<'a> World<'a> {
    pub(crate) fn new(lab: &'a Lab) -> Result<Self> {
        let n1 = lab.node("n1");
        let backends = [
            n1.pod("b1")?.serve(8080)?,
            lab.node("n2").pod("b2")?.serve(8080)?,
        ];
        lab.apply(&web("web", "10.96.13.1").node_port(NODE_PORT))?;
        let [b1, b2] = &backends;
        lab.apply(&web_slice("web").ready_endpoints([b1, b2]))?;
        Ok(Self {
            lab,
            n1,
            client: n1.pod("client")?,
            backends,
        })
    }

    /// Starts an agent with these flags and waits until it is in force.
    pub(crate) fn start(&self, flags: &[&str]) -> Result<()> {
        self.n1.agent_flags(flags.iter().copied());
        self.n1.start_agent()?;
        self.arrived()
    }

    /// The agent has published, and what it found or built is in place.
    pub(crate) fn arrived(&self) -> Result<()> {
        self.n1.wait_healthy()?;
        self.lab.settle_on(&[self.n1])?;
        self.is_tidy()
    }

    pub(crate) fn loads(&self) -> Result<Loads> {
        let another = self.n1.process("load")?;
        let own = format!("{}:{NODE_PORT}", self.n1.v4());
        let loopback = format!("127.0.0.1:{NODE_PORT}");
        Ok(Loads([
            another.load(Transport::Tcp, &own, 100)?,
            another.load(Transport::Tcp, &loopback, 100)?,
            self.n1.host().load(Transport::Tcp, TCP, 150)?,
            self.client.load(Transport::Tcp, TCP, 150)?,
            another.load(Transport::Udp, UDP, 150)?,
        ]))
    }

    pub(crate) fn sockets(&self) -> Result<Sockets> {
        let unconnected = self.client.udp_socket("0.0.0.0:0")?;
        unconnected.ask(UDP, "hello")?.came_from(UDP)?;
        Ok(Sockets {
            tcp: self.client.hold_tcp(TCP)?,
            udp: self.client.hold_udp(UDP)?,
            unconnected,
        })
    }

    /// One program per hook, no pin but those of one set of maps, and no other
    /// map of ours in the kernel.
    pub(crate) fn is_tidy(&self) -> Result<()> {
        let cgroup = self.n1.cgroup();
        let cgroup = cgroup.to_str().context("a path of text")?;
        let programs = self.n1.bpftool(&["-j", "cgroup", "show", cgroup])?;
        let programs: Value = serde_json::from_str(&programs)?;
        let programs = programs.as_array().context("bpftool prints a list")?;
        let hooks: BTreeSet<&str> = programs
            .iter()
            .filter_map(|program| program["attach_type"].as_str())
            .collect();
        ensure!(
            programs.len() == HOOKS && hooks.len() == HOOKS,
            "{} programs on {hooks:?}",
            programs.len()
        );
        let pins = pins(&self.n1.pins())?;
        let unexpected = ["next", "ready", "moving", "next_link"];
        ensure!(
            !unexpected.iter().any(|name| pins.contains(*name)),
            "left over: {pins:?}"
        );
        Ok(())
    }
}

pub(crate) fn pins(dir: &Path) -> Result<BTreeSet<String>> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("read {dir:?}"))?;
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

impl Loads {
    pub(crate) fn none_failed(self) -> Result<u64> {
        let mut answers = 0;
        let names = [
            "NodePort",
            "loopback",
            "TCP of the host",
            "TCP of a pod",
            "UDP",
        ];
        for (load, name) in self.0.into_iter().zip(names) {
            let counts = load.stop()?;
            counts.none_failed().context(name)?;
            answers += counts.answers();
        }
        Ok(answers)
    }
}

impl Sockets {
    /// The connections go on, and applications see what they saw before.
    pub(crate) fn go_on(&self) -> Result<()> {
        self.tcp.talk("on")?.answered_by(&self.tcp.pod()?)?;
        self.tcp.peer_name_is(TCP)?;
        self.udp.talk("on")?.answered_by(&self.udp.pod()?)?;
        self.udp.peer_name_is(UDP)?;
        self.unconnected.ask(UDP, "again")?.came_from(UDP)
    }
}

/// `--flag value` instead of the one in [`SIZES`].
pub(crate) fn sizes_with(flag: &'static str, value: &'static str) -> Vec<&'static str> {
    let mut flags: Vec<&str> = SIZES.to_vec();
    match flags.iter().position(|it| *it == flag) {
        Some(at) => flags[at + 1] = value,
        None => flags.extend([flag, value]),
    }
    flags
}

/// Room in a map, as the kernel has it.
pub(crate) fn max_entries(node: &Node, map: &str) -> Result<u64> {
    let pin = node.pins().join(map);
    let pin = pin.to_str().context("a path of text")?;
    let shown: Value = serde_json::from_str(&node.bpftool(&["-j", "map", "show", "pinned", pin])?)?;
    shown["max_entries"].as_u64().context("no max_entries")
}
