//! Where the rows are tried: three nodes with one kind of proxy, a real API
//! server, backends, outside clients.

use crate::fault::Fault;
use crate::proxy::Proxy;
use crate::row::Family;
use crate::troupe::Troupe;
use anyhow::{Context, Result, anyhow, bail, ensure};
use control_plane::{Api, ControlPlane, Kind, KubeProxy};
use lab::manifests::Manifest;
use lab::{BACKEND_PORT, Lab, Node, Peer, SERVICE_CIDRS, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Last octet of the host that is no node.
const OUTSIDE: u8 = 60;

/// How long the API server may take to start.
const START: Duration = Duration::from_secs(60);

/// How long a proxy may take to notice a change while many rows run. What is
/// tried is the outcome; the two seconds of the rules are the cluster tier's.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The nodes and the zones that they are in.
pub(crate) const ZONES: [(&str, &str); 3] = [("n1", "za"), ("n2", "zb"), ("n3", "zc")];

/// Ranges of frontends that are no node's addresses, all behind a node for an
/// outside client.
const ROUTED: [&str; 6] = [
    "198.51.100.0/24",
    "203.0.113.0/24",
    "10.96.0.0/16",
    "2001:db8:100::/64",
    "2001:db8:203::/64",
    "fd00:96::/112",
];

/// See the module.
pub(crate) struct World {
    lab: Lab,
    pub(crate) plane: ControlPlane,
    pub(crate) api: Api,
    pub(crate) proxy: Proxy,
    kube_proxies: Mutex<BTreeMap<String, KubeProxy>>,
    /// Backends on n1, n2 and n3.
    pub(crate) b1: Peer,
    pub(crate) b2: Peer,
    pub(crate) b3: Peer,
    /// Backends on n1 and n2 that no row asks for.
    pub(crate) strangers: Vec<Peer>,
    /// A host of the LAN that is no node; it knows the way to pods.
    pub(crate) outside: Peer,
    numbers: AtomicU32,
}

/// Addresses and ports that nobody else uses.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    number: u32,
}

impl World {
    /// Builds everything; returns when the proxies are healthy.
    pub(crate) fn new(proxy: Proxy) -> Result<Self> {
        let lab = Lab::new(3)?;
        let plane = ControlPlane::start(&lab)?;
        let api = Api::new(plane.host(), &plane.kubeconfig("admin"))?;
        let backend = |name, node| lab.node(node).pod(name)?.serve(BACKEND_PORT);
        let world = Self {
            b1: backend("b1", "n1")?,
            b2: backend("b2", "n2")?,
            b3: backend("b3", "n3")?,
            outside: lab.host("outside", OUTSIDE)?.serve(BACKEND_PORT)?,
            strangers: vec![backend("stranger-1", "n1")?, backend("stranger-2", "n2")?],
            lab,
            plane,
            api,
            proxy,
            kube_proxies: Mutex::default(),
            numbers: AtomicU32::new(0),
        };
        world
            .furnish()
            .map_err(|error| anyhow!("{error:#}\n{}{}", world.plane.logs(), world.logs()))?;
        Ok(world)
    }

    fn furnish(&self) -> Result<()> {
        // What is sent to a frontend and left alone ends up at the switch.
        self.lab.switch().clone().serve(80)?;
        let node = |number: usize| &self.lab.nodes()[number];
        for (client, node) in [("c1", node(0)), ("c2", node(1))] {
            self.route(self.lab.client(client), node)?;
        }
        self.wait_for_api()?;
        self.plane.grant(&self.api)?;
        for (node, zone) in ZONES {
            let object = self.lab.node_manifest(node).zone(zone).to_json();
            self.api.create(Kind::Node, "", &object)?;
        }
        for node in self.lab.nodes() {
            self.start_proxy(node.name())?;
        }
        for node in self.lab.nodes() {
            self.wait_healthy(node.name())?;
        }
        Ok(())
    }

    /// Routes an outside client's way to all frontends through a node.
    fn route(&self, client: &Peer, node: &lab::Node) -> Result<()> {
        let routes = ROUTED.map(|range| {
            let via = if range.contains(':') {
                node.v6().to_string()
            } else {
                node.v4().to_string()
            };
            format!("route replace {range} via {via}")
        });
        client.ip(&routes.join("\n"))
    }

    fn wait_for_api(&self) -> Result<()> {
        let probe = json!({
            "metadata": { "name": "probe" },
            "spec": { "ports": [{ "port": 1 }], "clusterIP": "10.96.0.9" },
        });
        eventually(START, || {
            if self.plane.api_server_gave_up() {
                return Ok(Err(anyhow!("the API server ended")));
            }
            self.api.create(Kind::Service, "default", &probe).map(Ok)
        })
        .flatten()
        .context("wait for the API server")?;
        self.api.delete(Kind::Service, "default", "probe", None)
    }

    /// Starts a node's proxy.
    pub(crate) fn start_proxy(&self, node: &str) -> Result<()> {
        self.start_proxy_with(node, &[], &json!({}))
    }

    /// The same with these flags if it is Fairlead, or with this configuration
    /// if it is kube-proxy.
    pub(crate) fn start_proxy_with(
        &self,
        node: &str,
        fairlead: &[&str],
        kube_proxy: &Value,
    ) -> Result<()> {
        let node = self.lab.node(node);
        match self.proxy.mode() {
            None => {
                let kubeconfig = self.plane.kubeconfig("fairlead");
                let kubeconfig = kubeconfig.to_str().context("a path of text")?;
                let mut flags = vec!["--kubeconfig", kubeconfig, "--service-cidrs", SERVICE_CIDRS];
                flags.extend(fairlead);
                node.agent_flags(flags);
                node.start_agent()
            }
            Some(mode) => {
                // Labels that the Node has by now may be lost on it: in server.go
                // the handler registers when their event may be over.
                self.label_zone(node.name(), None)?;
                let started = KubeProxy::start(&self.plane, node, mode, kube_proxy)?;
                self.kube_proxies().insert(node.name().to_owned(), started);
                Ok(())
            }
        }
    }

    /// SIGKILL to a node's proxy. What it programmed stays.
    pub(crate) fn kill_proxy(&self, node: &str) -> Result<()> {
        match self.proxy.mode() {
            None => self.lab.node(node).kill_agent(),
            Some(_) => {
                let killed = self.kube_proxies().remove(node);
                killed
                    .map(drop)
                    .with_context(|| format!("{node} has no kube-proxy"))
            }
        }
    }

    /// Whatever happens meanwhile, no proxy sees it before the end.
    pub(crate) fn while_asleep<T>(&self, meanwhile: impl FnOnce() -> Result<T>) -> Result<T> {
        self.signal_proxies(Signal::SIGSTOP)?;
        let outcome = meanwhile();
        self.signal_proxies(Signal::SIGCONT)?;
        outcome
    }

    fn signal_proxies(&self, signal: Signal) -> Result<()> {
        for node in self.lab.nodes() {
            let id = match self.proxy.mode() {
                None => node.agent_pid()?,
                Some(_) => self
                    .kube_proxies()
                    .get(node.name())
                    .with_context(|| format!("{} has no kube-proxy", node.name()))?
                    .pid(),
            };
            kill(Pid::from_raw(id.try_into()?), signal)
                .with_context(|| format!("{signal} to the proxy of {}", node.name()))?;
        }
        Ok(())
    }

    /// Whether a node's proxy runs.
    pub(crate) fn has_proxy(&self, node: &str) -> bool {
        match self.proxy.mode() {
            None => self.lab.node(node).has_agent(),
            Some(_) => self.kube_proxies().contains_key(node),
        }
    }

    /// Waits until a node's proxy says that it is healthy.
    pub(crate) fn wait_healthy(&self, node: &str) -> Result<()> {
        let node = self.lab.node(node);
        match self.proxy.mode() {
            None => node.wait_healthy(),
            Some(_) => {
                self.kube_proxies()
                    .get_mut(node.name())
                    .with_context(|| format!("{} has no kube-proxy", node.name()))?
                    .wait_healthy(node)?;
                let zone = ZONES.iter().find(|(of, _)| *of == node.name());
                self.label_zone(node.name(), zone.map(|it| it.1))
            }
        }
    }

    /// Changes a node's zone; `None` takes the label away.
    pub(crate) fn label_zone(&self, node: &str, zone: Option<&str>) -> Result<()> {
        let labels = json!({ "topology.kubernetes.io/zone": zone });
        let patch = json!({ "metadata": { "labels": labels } });
        self.api.patch(Kind::Node, "", node, &patch).map(drop)
    }

    fn kube_proxies(&self) -> MutexGuard<'_, BTreeMap<String, KubeProxy>> {
        self.kube_proxies
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The last lines of every proxy's log.
    pub(crate) fn logs(&self) -> String {
        if self.proxy == Proxy::Fairlead {
            return self.lab.logs();
        }
        let proxies = self.kube_proxies();
        let logs = proxies
            .iter()
            .map(|(node, proxy)| format!("--- kube-proxy of {node} ends ---\n{}\n", proxy.log()));
        logs.collect()
    }

    /// Addresses and ports for one more Service.
    pub(crate) fn numbers(&self) -> Numbers {
        Numbers {
            number: self.numbers.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    /// Returns when every running proxy has programmed what was written so far in
    /// a family; a proxy may follow each at its own pace.
    ///
    /// Black box: a marker Service with a slice of its own appears, and every
    /// node must reach it. Once is not enough, since it may be programmed ahead
    /// of others of its batch; a second one is in a later batch.
    pub(crate) fn settle(&self, troupe: &Troupe, space: &str, family: Family) -> Result<()> {
        for _ in 0..2 {
            let numbers = self.numbers();
            let name = format!("settle-{}", numbers.number);
            let to = self.mark(space, &name, &numbers.cluster_ip(family))?;
            for (host, node) in troupe.hosts().into_iter().zip(self.lab.nodes()) {
                if self.has_proxy(node.name()) {
                    eventually(PATIENCE, || {
                        let mut dial = lab::Dial::new(lab::Transport::Tcp, to.parse()?);
                        dial.timeout_ms = 300;
                        host.dial(dial)?.answered_by("b1")
                    })
                    .with_context(|| format!("wait until {} follows the API", node.name()))?;
                }
            }
            self.api.delete(Kind::Slice, space, &name, None)?;
            self.api.delete(Kind::Service, space, &name, None)?;
        }
        Ok(())
    }

    fn mark(&self, space: &str, name: &str, ip: &str) -> Result<String> {
        let service = lab::manifests::service(name)
            .in_namespace(space)
            .cluster_ip(ip)
            .port("m", 80, BACKEND_PORT);
        let slice = lab::manifests::slice(name, name).in_namespace(space);
        let slice = if ip.contains(':') { slice.v6() } else { slice };
        let slice = slice.port("m", BACKEND_PORT).ready_endpoints([&self.b1]);
        self.api.create(Kind::Service, space, &service.to_json())?;
        self.api.create(Kind::Slice, space, &slice.to_json())?;
        Ok(crate::stage::join(ip, 80))
    }
}

impl Numbers {
    /// ClusterIP.
    pub(crate) fn cluster_ip(&self, family: Family) -> String {
        // The API server hands out those of 10.96.0.x itself.
        let (high, low) = (self.number / 250 + 1, self.number % 250 + 1);
        match family {
            Family::V4 => format!("10.96.{high}.{low}"),
            Family::V6 => format!("fd00:96::{:x}", 0x1000 + self.number),
        }
    }

    /// LoadBalancer IP.
    pub(crate) fn lb_ip(&self, family: Family) -> String {
        match family {
            Family::V4 => format!("198.51.100.{}", self.number % 254 + 1),
            Family::V6 => format!("2001:db8:100::{:x}", self.number),
        }
    }

    /// externalIP.
    pub(crate) fn external_ip(&self, family: Family) -> String {
        match family {
            Family::V4 => format!("203.0.113.{}", self.number % 254 + 1),
            Family::V6 => format!("2001:db8:203::{:x}", self.number),
        }
    }

    /// NodePort.
    pub(crate) fn node_port(&self) -> u16 {
        // The range has 2768; rows take a few hundred.
        30_001 + (self.number % 1300) as u16
    }

    /// A port for a process of a node.
    pub(crate) fn host_port(&self) -> u16 {
        20_001 + (self.number % 1300) as u16
    }

    /// healthCheckNodePort.
    pub(crate) fn health_port(&self) -> u16 {
        31_400 + (self.number % 1300) as u16
    }
}

impl std::ops::Deref for World {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

/// The table of [`World::spoil`].
const SPOILT: &str = "inet wrong_lab";

impl World {
    /// Makes every node wrong in a way that concerns all rows.
    pub(crate) fn spoil(&self, fault: Fault) -> Result<()> {
        for (number, node) in (1..).zip(self.lab.nodes()) {
            let (v4, v6) = hiding_addresses(number);
            let chain = match fault {
                // Whoever talks to a backend, the node itself included, is hidden
                // behind one more address of the node, never its own choice.
                Fault::Masquerade => {
                    node.host().ip(&format!(
                        "addr replace {v4}/32 dev eth0\n\
                         addr replace {v6}/128 dev eth0 nodad preferred_lft 0"
                    ))?;
                    format!(
                        "type nat hook postrouting priority 90; \
                         meta nfproto ipv4 th dport {BACKEND_PORT} snat to {v4}; \
                         meta nfproto ipv6 th dport {BACKEND_PORT} snat to {v6};"
                    )
                }
                Fault::PingsLost => "type filter hook prerouting priority -310; \
                     icmp type echo-request drop; icmpv6 type echo-request drop;"
                    .to_owned(),
                other => bail!("{other:?} is no fault of the nodes"),
            };
            nft(
                node,
                &format!("table {SPOILT} {{ chain wrong {{ {chain} }}; }}"),
            )?;
        }
        Ok(())
    }

    /// Makes them right again.
    pub(crate) fn mend(&self, fault: Fault) -> Result<()> {
        for (number, node) in (1..).zip(self.lab.nodes()) {
            nft(node, &format!("delete table {SPOILT}"))?;
            if fault == Fault::Masquerade {
                let (v4, v6) = hiding_addresses(number);
                node.host().ip(&format!(
                    "addr delete {v4}/32 dev eth0\naddr delete {v6}/128 dev eth0"
                ))?;
            }
        }
        Ok(())
    }
}

/// Addresses that node number `number` has with [`Fault::Masquerade`].
fn hiding_addresses(number: u8) -> (String, String) {
    (
        format!("192.0.2.6{number}"),
        format!("2001:db8:2::6{number}"),
    )
}

fn nft(node: &Node, commands: &str) -> Result<()> {
    let mut nft = Command::new("nft");
    nft.arg(commands).stdin(Stdio::null());
    let output = node.host().spawn(nft)?.wait_with_output();
    let output = output.context("wait for nft")?;
    ensure!(output.status.success(), "nft on {} failed", node.name());
    Ok(())
}
