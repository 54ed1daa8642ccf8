//! Where the rows are tried: three nodes with one kind of proxy, a real API
//! server, backends, outside clients.

mod proxies;
mod wrong;

use crate::proxy::Proxy;
use crate::row::Family;
use crate::troupe::Troupe;
use anyhow::{Context, Result, anyhow, ensure};
use control_plane::{Api, ControlPlane, Kind, KubeProxy};
use lab::manifests::Manifest;
use lab::{BACKEND_PORT, Lab, Peer, Router, eventually};
use serde_json::json;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Last octet of the host that is no node.
const OUTSIDE: u8 = 60;

/// Numbers of marker Services; the largest still gives a ClusterIP of both families.
const FIRST_MARKER: u32 = 20_000;
const LAST_MARKER: u32 = 60_000;

/// How long the API server may take to start.
const START: Duration = Duration::from_secs(60);

/// How long a proxy may take to notice a change while many rows run. What is
/// tried is the outcome; the two seconds of the rules are the cluster tier's.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The nodes and the zones that they are in.
pub(crate) const ZONES: [(&str, &str); 3] = [("n1", "za"), ("n2", "zb"), ("n3", "zc")];
/// What links take that are to be small; IPv6 needs 1280.
pub(crate) const SMALL_MTU: u16 = 1400;

/// A kernel sends a peer one ICMP error a second: rows would take each other's.
const WITHOUT_ICMP_LIMITS: [(&str, &str); 2] = [
    ("net/ipv4/icmp_ratemask", "0"),
    ("net/ipv6/icmp/ratelimit", "0"),
];

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
    markers: AtomicU32,
    router: Mutex<Option<Router>>,
    /// Outside client of a second LAN.
    c4: Mutex<Option<Peer>>,
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
            markers: AtomicU32::new(0),
            router: Mutex::default(),
            c4: Mutex::default(),
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
        let hosts = self.lab.nodes().iter().map(lab::Node::host);
        for peer in hosts.chain([&self.b1, &self.b2, &self.b3]) {
            for (path, value) in WITHOUT_ICMP_LIMITS {
                peer.sysctl(path, value)?;
            }
        }
        self.wait_for_api()?;
        self.plane.grant(&self.api)?;
        for node in self.lab.nodes() {
            self.create_node(node.name())?;
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

    /// Writes a Node, each in a zone of its own.
    pub(crate) fn create_node(&self, name: &str) -> Result<()> {
        let zone = ZONES.iter().find(|(node, _)| *node == name);
        let (_, zone) = zone.with_context(|| format!("{name} has no zone"))?;
        let object = self.lab.node_manifest(name).zone(zone).to_json();
        self.api.create(Kind::Node, "", &object).map(drop)
    }

    /// Deletes a Node, whatever holds it.
    pub(crate) fn delete_node(&self, name: &str) -> Result<()> {
        let finalizers = json!({ "metadata": { "finalizers": null } });
        // With the last finalizer a Node that is being deleted goes.
        self.api.delete(Kind::Node, "", name, None)?;
        match self.api.patch(Kind::Node, "", name, &finalizers) {
            Ok(_) => Ok(()),
            Err(error) if format!("{error:#}").contains("NotFound") => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Starts the API server again; returns when it takes what clients write.
    pub(crate) fn start_api_server(&self) -> Result<()> {
        self.plane.start_api_server()?;
        self.wait_for_api()
    }

    /// c3, an outside client behind a router, whose link takes no more than
    /// [`SMALL_MTU`]; its way to frontends is n1.
    pub(crate) fn c3(&self) -> Result<Peer> {
        let mut router = self.router.lock().unwrap_or_else(PoisonError::into_inner);
        if router.is_none() {
            let new = self.lab.router(SMALL_MTU)?;
            new.router.route_frontends(self.lab.node("n1").host())?;
            *router = Some(new);
        }
        let client = router.as_ref().map(|it| it.client.clone());
        client.context("there is a router")
    }

    /// c4, an outside client on a LAN on which n1 and n2 have a second uplink.
    /// Whoever asks for it runs alone.
    pub(crate) fn c4(&self) -> Result<Peer> {
        let mut c4 = self.c4.lock().unwrap_or_else(PoisonError::into_inner);
        if c4.is_none() {
            *c4 = Some(self.lab.second_lan(&["n1", "n2"])?);
        }
        c4.clone().context("there is a second LAN")
    }

    /// A new backend on a node, to which the node's own link takes no more than
    /// [`SMALL_MTU`] if asked.
    pub(crate) fn new_backend(&self, node: &str, small: bool) -> Result<Peer> {
        let node = self.lab.node(node);
        let name = format!("backend-{}", self.numbers().number);
        let backend = node.pod(&name)?.serve(BACKEND_PORT)?;
        if small {
            let route = output(
                node.host(),
                "ip",
                &["route", "get", &backend.v4().to_string()],
            )?;
            let device = route
                .split(" dev ")
                .nth(1)
                .and_then(|it| it.split(' ').next());
            let device = device.with_context(|| format!("no device in {route:?}"))?;
            node.host()
                .ip(&format!("link set {device} mtu {SMALL_MTU}"))?;
        }
        Ok(backend)
    }

    /// Addresses and ports for one more Service.
    pub(crate) fn numbers(&self) -> Numbers {
        Numbers {
            number: self.numbers.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    /// The same for a marker Service, of which there are many: they have a range of
    /// ClusterIPs of their own, so that those of rows last longer.
    fn marker_numbers(&self) -> Numbers {
        let number = self.markers.fetch_add(1, Ordering::Relaxed);
        Numbers {
            number: FIRST_MARKER + number % (LAST_MARKER - FIRST_MARKER),
        }
    }

    /// Returns when every running proxy has programmed what was written so far in
    /// a family; a proxy may follow each at its own pace.
    ///
    /// Black box: a marker Service with a slice of its own appears, and every
    /// node must reach it. Once is not enough, since it may be programmed ahead
    /// of others of its batch; a second one is in a later batch.
    pub(crate) fn settle(&self, troupe: &Troupe, space: &str, family: Family) -> Result<()> {
        self.settle_within(PATIENCE, troupe, space, family)
    }

    /// The same with a time of its own.
    pub(crate) fn settle_within(
        &self,
        time: Duration,
        troupe: &Troupe,
        space: &str,
        family: Family,
    ) -> Result<()> {
        for _ in 0..2 {
            let numbers = self.marker_numbers();
            let name = format!("settle-{}", numbers.number);
            let to = self.mark(space, &name, &numbers.cluster_ip(family))?;
            for (host, node) in troupe.hosts().into_iter().zip(self.lab.nodes()) {
                if self.has_proxy(node.name()) {
                    eventually(time, || {
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
        22_000 + (self.number % 1300) as u16
    }

    /// Source port of a client, the first of ten.
    pub(crate) fn source_port(&self) -> u16 {
        10_000 + 10 * (self.number % 1000) as u16
    }

    /// Port of a backend besides the one that everybody shares.
    pub(crate) fn backend_port(&self) -> u16 {
        20_000 + (self.number % 2000) as u16
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

/// Runs a program in the namespace of a peer.
pub(crate) fn run(beside: &Peer, program: &str, arguments: &[&str]) -> Result<()> {
    output(beside, program, arguments).map(drop)
}

/// The same, and what it prints.
fn output(beside: &Peer, program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let what = format!("{program} {arguments:?} beside {}", beside.name());
    let output = beside.spawn(command)?.wait_with_output();
    let output = output.with_context(|| format!("wait for {what}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{what}: {}: {errors}",
        output.status
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
