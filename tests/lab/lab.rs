//! The lab as a whole.

use crate::agent::{AgentSetup, tail};
use crate::manifests::{self, Manifest, ObjectId, service, slice};
use crate::network::{
    FORWARDING, LAN, Plug, PodNetwork, SWITCH_V4, SWITCH_V6, SYSCTLS, Subnet, ip, lan_commands,
    member_commands, node_host, plug_commands,
};
use crate::node::Node;
use crate::peer::{Identity, Peer};
use crate::reaper::{Reaper, Traces, remove_stale};
use crate::retry::eventually;
use crate::spawn::Netns;
use crate::wire::{Dial, Transport};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Last octets of the outside clients c1 and c2.
const CLIENTS: [u8; 2] = [100, 101];
/// ClusterIP of the Service by which the lab sees how far an agent has got.
const BARRIER_IP: &str = "10.96.255.250";
/// ClusterIP of the Service that shows when removals have got there.
const REMOVAL_IP: &str = "10.96.255.251";
/// Port on which the switch answers.
pub const SWITCH_PORT: u16 = 7;
/// How long `eventually` waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// A set of namespaces that plays nodes n1, n2, …, outside clients c1 and c2,
/// and the switch between them.
///
/// The switch is everybody's default gateway and forwards nothing: no packet
/// leaves the lab.
#[derive(Debug)]
pub struct Lab {
    pub(crate) network: PodNetwork,
    switch: Peer,
    nodes: Vec<Node>,
    clients: Vec<Peer>,
    traces: Traces,
    /// Serialises `settle`, whose Service has one port at a time.
    barrier: Mutex<()>,
    barriers: AtomicU32,
    /// Whether an object was removed since the last `settle`.
    removed: AtomicBool,
    files: AtomicU32,
    /// Last: it cleans up behind all the others.
    reaper: Reaper,
}

impl Lab {
    /// A lab of some nodes, with pod network `Routed`. No agent runs yet.
    pub fn new(nodes: u8) -> Result<Self> {
        Self::with_network(nodes, PodNetwork::default())
    }

    /// A lab with a pod network of choice.
    pub fn with_network(nodes: u8, network: PodNetwork) -> Result<Self> {
        ensure!(
            (1..=9).contains(&nodes),
            "a lab has 1 to 9 nodes, not {nodes}"
        );
        remove_stale()?;
        let traces = Traces::unique()?;
        let reaper = Reaper::start(&traces)?;
        for dir in [&traces.cgroup, &traces.pins, &traces.temp] {
            fs::create_dir(dir).with_context(|| format!("make {dir:?}"))?;
        }
        for dir in ["manifests", "writing", "logs"] {
            fs::create_dir(traces.temp.join(dir))?;
        }

        let outside = traces.cgroup.join("outside");
        let switch_identity = Identity {
            name: "switch".to_owned(),
            node: None,
            v4: SWITCH_V4,
            v6: SWITCH_V6,
        };
        let switch = start_member(switch_identity, outside.join("switch"), &[])?;
        let mut hosts = Vec::new();
        for number in 1..=nodes {
            let name = format!("n{number}");
            hosts.push(member(
                &name,
                Some(&name),
                node_host(number),
                traces.cgroup.join(&name).join("host"),
            )?);
        }
        let mut clients = Vec::new();
        for (name, host) in ["c1", "c2"].into_iter().zip(CLIENTS) {
            clients.push(member(name, None, host, outside.join(name))?);
        }
        connect(network, &switch, &hosts, &clients)?;
        let nodes = (1..=nodes)
            .zip(hosts)
            .map(|(number, host)| new_node(number, network, host, &traces))
            .collect();

        let lab = Self {
            network,
            switch: switch.serve(SWITCH_PORT)?,
            nodes,
            clients,
            traces,
            barrier: Mutex::new(()),
            barriers: AtomicU32::new(0),
            removed: AtomicBool::new(false),
            files: AtomicU32::new(0),
            reaper,
        };
        for node in &lab.nodes {
            lab.apply(&lab.node_manifest(node.name()))?;
        }
        lab.apply(&removal_marker())?;
        for name in ["barrier", "removals"] {
            let slice = slice(name, name).in_namespace("lab").port("b", SWITCH_PORT);
            lab.apply(&slice.address(&SWITCH_V4.to_string()).ready())?;
        }
        Ok(lab)
    }

    /// Unique on this machine: `fairlead-lab-<pid>-<number>`.
    pub fn name(&self) -> &str {
        &self.traces.name
    }

    /// The node of this name.
    ///
    /// # Panics
    /// If the lab has none: the test itself is wrong then.
    pub fn node(&self, name: &str) -> &Node {
        self.nodes
            .iter()
            .find(|node| node.name() == name)
            .unwrap_or_else(|| panic!("no node {name} in this lab"))
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// How many nodes it has.
    pub(crate) fn node_count(&self) -> u8 {
        // At most nine.
        self.nodes.len().try_into().unwrap_or(u8::MAX)
    }

    /// Everybody on the LAN from the start, but for the nodes.
    pub(crate) fn outsiders(&self) -> impl Iterator<Item = &Peer> {
        [&self.switch].into_iter().chain(&self.clients)
    }

    /// The cgroup of someone outside of the nodes.
    pub(crate) fn outside_cgroup(&self, name: &str) -> PathBuf {
        self.traces.cgroup.join("outside").join(name)
    }

    /// The outside client c1 or c2.
    ///
    /// # Panics
    /// If there is no such client.
    pub fn client(&self, name: &str) -> &Peer {
        self.clients
            .iter()
            .find(|client| client.name() == name)
            .unwrap_or_else(|| panic!("no client {name}"))
    }

    /// The switch: everybody's default gateway. It answers on [`SWITCH_PORT`],
    /// and whatever a node sends out untranslated ends up here.
    pub fn switch(&self) -> &Peer {
        &self.switch
    }

    /// The Node object that the lab wrote for a node; apply a changed one to edit it.
    pub fn node_manifest(&self, name: &str) -> manifests::Node {
        let node = self.node(name);
        manifests::node(name)
            .internal_ip(&node.v4().to_string())
            .internal_ip(&node.v6().to_string())
    }

    /// The directory that all agents of the lab read.
    pub fn manifests_dir(&self) -> PathBuf {
        self.traces.temp.join("manifests")
    }

    /// Writes an object, or replaces it.
    pub fn apply(&self, manifest: &impl Manifest) -> Result<()> {
        let text = serde_json::to_string_pretty(&manifest.to_json())?;
        self.write(&manifest.id().file_name(), &text)
    }

    /// Writes any text as a manifest file; the same `name` again replaces it.
    pub fn apply_yaml(&self, name: &str, text: &str) -> Result<()> {
        self.write(&format!("{name}.yaml"), text)
    }

    /// Removes what [`Self::apply_yaml`] wrote.
    pub fn delete_yaml(&self, name: &str) -> Result<()> {
        self.unlink(&format!("{name}.yaml"))
    }

    /// Removes an object.
    pub fn delete(&self, manifest: &impl Manifest) -> Result<()> {
        self.delete_id(&manifest.id())
    }

    /// Removes an object by name.
    pub fn delete_id(&self, id: &ObjectId) -> Result<()> {
        self.unlink(&id.file_name())
    }

    fn unlink(&self, file: &str) -> Result<()> {
        self.remove_file(file)?;
        // Only now: a `settle` in another thread must not take the mark of a
        // removal that is still to come.
        self.removed.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn remove_file(&self, file: &str) -> Result<()> {
        let path = self.manifests_dir().join(file);
        fs::remove_file(&path).with_context(|| format!("remove {path:?}"))
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        // Written elsewhere on the same file system, so that no reader ever
        // sees half a file or a name that goes away again.
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        let draft = self.traces.temp.join("writing").join(number.to_string());
        fs::write(&draft, text).with_context(|| format!("write {draft:?}"))?;
        let path = self.manifests_dir().join(file);
        fs::rename(&draft, &path).with_context(|| format!("rename to {path:?}"))
    }

    /// Flags for every agent's next start, besides those that the lab gives.
    pub fn agent_flags<'a>(&self, flags: impl IntoIterator<Item = &'a str> + Clone) {
        for node in &self.nodes {
            node.agent_flags(flags.clone());
        }
    }

    /// Starts an agent on every node; returns when all are healthy and have
    /// programmed what was applied so far.
    pub fn start_agents(&self) -> Result<()> {
        for node in &self.nodes {
            node.start_agent()?;
        }
        for node in &self.nodes {
            node.wait_healthy()?;
        }
        self.settle()
    }

    /// Returns when every running agent has programmed what was applied so far.
    pub fn settle(&self) -> Result<()> {
        let nodes: Vec<&Node> = self.nodes.iter().filter(|node| node.has_agent()).collect();
        self.settle_on(&nodes)
    }

    /// The same, on some nodes.
    ///
    /// Black box: a marker Service gets a new port, and every node must reach
    /// it. Once is not enough, since the marker may be published ahead of
    /// others of its batch; the second marker belongs to a later batch, which
    /// begins when the first has been published whole. An agent may let some
    /// time pass before it believes that a file is gone, so removals have a
    /// marker of their own, which is removed after them.
    pub fn settle_on(&self, nodes: &[&Node]) -> Result<()> {
        let _one_at_a_time = self.barrier.lock().unwrap_or_else(PoisonError::into_inner);
        if self.removed.swap(false, Ordering::Relaxed) {
            let marker = removal_marker();
            self.remove_file(&marker.id().file_name())?;
            let gone = brief_dial(&format!("{REMOVAL_IP}:{SWITCH_PORT}"))?;
            for node in nodes {
                eventually(Duration::from_secs(10), || {
                    node.host().dial(gone.clone())?.unanswered()
                })
                .with_context(|| format!("wait until {} has seen all removals", node.name()))?;
            }
            self.apply(&marker)?;
            if nodes.len() < self.nodes.len() {
                // The others may not have seen it yet.
                self.removed.store(true, Ordering::Relaxed);
            }
        }
        for _ in 0..2 {
            let number = self.barriers.fetch_add(1, Ordering::Relaxed);
            let port = 1024 + u16::try_from(number % 60_000)?;
            self.apply(
                &marker("barrier")
                    .cluster_ip(BARRIER_IP)
                    .port("b", port, SWITCH_PORT),
            )?;
            let dial = brief_dial(&format!("{BARRIER_IP}:{port}"))?;
            for node in nodes {
                eventually(Duration::from_secs(10), || {
                    node.host().dial(dial.clone())?.answered_by("switch")
                })
                .with_context(|| format!("wait until {} has seen all manifests", node.name()))?;
            }
        }
        Ok(())
    }

    /// Tries a condition until it holds, for at most five seconds.
    pub fn eventually<T>(&self, condition: impl FnMut() -> Result<T>) -> Result<T> {
        eventually(PATIENCE, condition)
    }

    /// Tries a condition until it holds or the time is over.
    pub fn within<T>(&self, deadline: Duration, condition: impl FnMut() -> Result<T>) -> Result<T> {
        eventually(deadline, condition)
    }

    /// The last lines that each agent logged.
    pub fn logs(&self) -> String {
        let sections = self
            .nodes
            .iter()
            .map(|node| (node.name(), tail(&node.log(), 40)));
        sections
            .filter(|(_, log)| !log.is_empty())
            .map(|(name, log)| format!("--- log of {name} ends ---\n{log}\n"))
            .collect()
    }

    /// Ends and removes everything, and says if that failed. `Drop` does the same silently.
    pub fn close(mut self) -> Result<()> {
        self.reaper.reap()
    }

    /// What must not exist once the lab is gone.
    pub fn traces(&self) -> [&Path; 3] {
        [&self.traces.cgroup, &self.traces.pins, &self.traces.temp]
    }
}

impl AsRef<Self> for Lab {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(error) = self.reaper.reap() {
            eprintln!("{}: {error:#}", self.traces.name);
        }
    }
}

/// A Service of the lab itself; the switch is its endpoint.
fn marker(name: &str) -> manifests::Service {
    service(name).in_namespace("lab")
}

fn removal_marker() -> manifests::Service {
    marker("removals")
        .cluster_ip(REMOVAL_IP)
        .port("b", SWITCH_PORT, SWITCH_PORT)
}

fn brief_dial(to: &str) -> Result<Dial> {
    let mut dial = Dial::new(Transport::Tcp, to.parse()?);
    dial.timeout_ms = 300;
    Ok(dial)
}

/// Someone with an address of the LAN, who is not plugged in yet.
pub(crate) fn member(name: &str, node: Option<&str>, host: u8, cgroup: PathBuf) -> Result<Peer> {
    let identity = identity(name, node, LAN, host);
    let sysctls = if node.is_some() { FORWARDING } else { &[] };
    start_member(identity, cgroup, sysctls)
}

/// Someone with addresses of a subnet.
pub(crate) fn identity(name: &str, node: Option<&str>, subnet: Subnet, host: u8) -> Identity {
    let (v4, v6) = subnet.addresses(host);
    Identity {
        name: name.to_owned(),
        node: node.map(str::to_owned),
        v4,
        v6,
    }
}

/// Starts the worker of a new namespace that has no link yet.
pub(crate) fn start_member(
    identity: Identity,
    cgroup: PathBuf,
    sysctls: &[(&str, &str)],
) -> Result<Peer> {
    let peer = Peer::start(identity, Netns::New, cgroup)?;
    for (path, value) in SYSCTLS.iter().chain(sysctls) {
        peer.sysctl(path, value)?;
    }
    Ok(peer)
}

/// Plugs everybody into the switch and gives them addresses, routes and rules.
fn connect(network: PodNetwork, switch: &Peer, hosts: &[Peer], clients: &[Peer]) -> Result<()> {
    let count = hosts.len().try_into().context("at most nine nodes")?;
    let mut commands = "link set lo up\n".to_owned() + &lan_commands("br0", LAN);
    for peer in hosts.iter().chain(clients) {
        let devices = match peer.node_name() {
            Some(_) => network.lan_devices(),
            None => &["eth0"],
        };
        for (number, &device) in devices.iter().enumerate() {
            let suffix = if number == 0 { "" } else { device };
            let plug = Plug {
                port: format!("{}{suffix}", peer.name()),
                device,
                netns: peer.netns_fd(),
            };
            commands += &plug_commands("br0", &plug);
        }
    }
    // The switch answers pods, too.
    commands += &network.routes_to_pods(count);
    ip(switch.netns_fd(), commands)?;
    // All at once: most of the time is starting programs.
    std::thread::scope(|scope| {
        let nodes = (1..)
            .zip(hosts)
            .map(|(number, host)| scope.spawn(move || set_up_node(network, number, count, host)));
        let clients = clients.iter().map(|client| {
            scope.spawn(|| ip(client.netns_fd(), member_commands(client.v4().octets()[3])))
        });
        let running: Vec<_> = nodes.chain(clients).collect();
        running.into_iter().try_for_each(|one| {
            one.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

fn set_up_node(network: PodNetwork, number: u8, count: u8, host: &Peer) -> Result<()> {
    ip(host.netns_fd(), member_commands(node_host(number)))?;
    let setup = network.node(number, count);
    for (path, value) in setup.sysctls {
        host.sysctl(path, value)?;
    }
    let mut scripts = setup.scripts.iter();
    scripts
        .try_for_each(|script| script.run(host.netns_fd()))
        .with_context(|| format!("make {network:?} on {}", host.name()))
}

fn new_node(number: u8, network: PodNetwork, host: Peer, traces: &Traces) -> Node {
    let name = host.name().to_owned();
    let setup = AgentSetup {
        manifests: traces.temp.join("manifests"),
        cgroup_root: traces.cgroup.join(&name),
        pins: traces.pins.join(&name),
        log: traces.temp.join("logs").join(&name),
        extra_flags: Vec::new(),
        program: None,
        environment: Vec::new(),
        node: name,
    };
    Node::new(number, network, host, setup)
}
