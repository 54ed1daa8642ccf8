//! The cluster that is measured: one node, its agent, two pods, and as many
//! Services around them as a row asks for.

use anyhow::{Context, Result, ensure};
use lab::manifests::{service, slice};
use lab::{Lab, Node, Peer, eventually};
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::exchange::PORT;
use crate::worker::Worker;

/// The Service that is measured; its endpoint is the server pod.
const MEASURED: Measured = Measured {
    name: "measured",
    octet: 10,
};
/// The same on kube-proxy's node.
const OTHER: Measured = Measured {
    name: "other",
    octet: 12,
};
/// Objects of one manifest file. Few, so that what parsing leaves in the
/// agent's heap is small beside the objects.
const SERVICES_PER_FILE: usize = 250;
/// More endpoints than the API's controllers put into one slice.
const ENDPOINTS_PER_SLICE: usize = 100;

/// Services that are only there. UDP, since connect() of UDP needs nobody who
/// answers: their endpoints do not exist.
#[derive(Clone, Debug)]
pub(crate) struct Crowd {
    /// Number of endpoints of each Service.
    pub(crate) sizes: Vec<usize>,
}

impl Crowd {
    /// `services` of `endpoints` each.
    pub(crate) fn even(services: usize, endpoints: usize) -> Self {
        Self {
            sizes: vec![endpoints; services],
        }
    }

    pub(crate) fn endpoints(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// Where the Services are.
    pub(crate) fn frontends(&self) -> impl Iterator<Item = SocketAddr> {
        (0..self.sizes.len()).map(|number| SocketAddr::new(cluster_ip(number), 80))
    }

    /// The first endpoint of each Service.
    pub(crate) fn first_endpoints(&self) -> impl Iterator<Item = SocketAddr> {
        self.sizes.iter().scan(0, |start, size| {
            let address = endpoint_ip(*start);
            *start += size;
            Some(SocketAddr::new(address, PORT))
        })
    }

    /// Writes them into a directory of manifests; the number of bytes.
    fn write(&self, lab: &Lab) -> Result<usize> {
        let mut bytes = 0;
        let mut endpoint = 0;
        let numbered: Vec<(usize, usize)> = self.sizes.iter().copied().enumerate().collect();
        for (file, services) in numbered.chunks(SERVICES_PER_FILE).enumerate() {
            let mut text = String::new();
            for &(number, size) in services {
                document(&mut text, &crowd_service(number))?;
                let mut left = size;
                for part in 0..size.div_ceil(ENDPOINTS_PER_SLICE) {
                    let here = left.min(ENDPOINTS_PER_SLICE);
                    document(&mut text, &crowd_slice(number, part, endpoint, here))?;
                    endpoint += here;
                    left -= here;
                }
            }
            bytes += text.len();
            put(lab, &format!("crowd-{file:04}.json"), &text)?;
        }
        Ok(bytes)
    }
}

fn document(text: &mut String, value: &Value) -> Result<()> {
    Ok(writeln!(text, "{value}")?)
}

fn cluster_ip(number: usize) -> IpAddr {
    let [.., high, low] = (number as u32).to_be_bytes();
    // 10.96.0.0/24 is the measured Service's, 10.96.255.0/24 the lab's.
    Ipv4Addr::new(10, 96, high + 1, low).into()
}

fn endpoint_ip(number: usize) -> IpAddr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 128, 0, 0).to_bits() + number as u32).into()
}

fn crowd_service(number: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": format!("crowd-{number}"),
            "namespace": "crowd",
            "uid": format!("00000000-0000-4000-8000-{number:012}"),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": cluster_ip(number),
            "clusterIPs": [cluster_ip(number)],
            "ipFamilies": ["IPv4"],
            "ports": [{ "name": "dns", "port": 80, "targetPort": PORT, "protocol": "UDP" }],
        },
    })
}

fn crowd_slice(number: usize, part: usize, first: usize, count: usize) -> Value {
    let endpoints: Vec<Value> = (first..first + count)
        .map(|endpoint| {
            json!({
                "addresses": [endpoint_ip(endpoint)],
                "conditions": { "ready": true, "serving": true, "terminating": false },
                "nodeName": format!("n{}", 2 + endpoint % 100),
                "zone": format!("zone-{}", endpoint % 3),
            })
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("crowd-{number}-{part}"),
            "namespace": "crowd",
            "labels": { "kubernetes.io/service-name": format!("crowd-{number}") },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "dns", "port": PORT, "protocol": "UDP" }],
        "endpoints": endpoints,
    })
}

/// Writes beside the directory, then renames into it: the agent never sees half.
fn put(lab: &Lab, file: &str, text: &str) -> Result<()> {
    let draft = draft(lab);
    fs::write(&draft, text).with_context(|| format!("write {draft:?}"))?;
    fs::rename(&draft, lab.manifests_dir().join(file)).with_context(|| format!("write {file}"))
}

/// A file that no agent reads, on the file system of the manifests.
pub(crate) fn draft(lab: &Lab) -> PathBuf {
    let [_, _, temp] = lab.traces();
    temp.join("bench-draft")
}

/// A Service that is measured.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) name: &'static str,
    /// Last octet of its ClusterIPs.
    pub(crate) octet: u8,
}

impl Measured {
    /// Its frontends, IPv4 and IPv6.
    fn cluster_ips(self) -> Result<[SocketAddr; 2]> {
        let octet = self.octet;
        let [v4, v6] = [format!("10.96.0.{octet}"), format!("fd00:96::{octet}")];
        Ok([
            SocketAddr::new(v4.parse()?, 80),
            SocketAddr::new(v6.parse()?, 80),
        ])
    }

    /// Writes it with its only endpoint, on a NodePort too if there is one.
    pub(crate) fn apply(self, lab: &Lab, server: &Peer, node_port: Option<u16>) -> Result<()> {
        let Self { name, .. } = self;
        let [v4, v6] = self.cluster_ips()?.map(|it| it.ip().to_string());
        let mut measured = service(name).cluster_ip(&v4).cluster_ip(&v6);
        measured = measured.port("tcp", 80, PORT);
        if let Some(port) = node_port {
            measured = measured.node_port(port);
        }
        measured = measured.udp_port("udp", 80, PORT);
        if let Some(port) = node_port {
            measured = measured.node_port(port);
        }
        lab.apply(&measured)?;
        let slices = [
            slice(&format!("{name}-v4"), name),
            slice(&format!("{name}-v6"), name).v6(),
        ];
        for slice in slices {
            let slice = slice.port("tcp", PORT).udp_port("udp", PORT);
            lab.apply(&slice.ready_endpoints([server]))?;
        }
        Ok(())
    }
}

/// Where the pod answers, IPv4 and IPv6.
pub(crate) fn endpoints(server: &Peer) -> [SocketAddr; 2] {
    [server.v4().into(), server.v6().into()].map(|ip: IpAddr| SocketAddr::new(ip, PORT))
}

/// A node with an agent, and two pods with a worker between them. Another node
/// beside it has the same for kube-proxy, if it is wanted.
pub(crate) struct Scenery {
    pub(crate) lab: Lab,
    _pods: Vec<[Peer; 2]>,
    pub(crate) worker: Worker,
    /// Where Fairlead serves.
    pub(crate) served: PathBuf,
    /// Where it does not.
    pub(crate) outside: PathBuf,
    /// The measured Service, IPv4 and IPv6.
    pub(crate) service: [SocketAddr; 2],
    /// The one on kube-proxy's node.
    pub(crate) other_service: [SocketAddr; 2],
    /// The measured Service's only endpoint.
    pub(crate) endpoint: [SocketAddr; 2],
}

impl Scenery {
    /// Builds it, with the measured Services alone. No kube-proxy runs yet.
    pub(crate) fn new(flags: &[&str], beside_kube_proxy: bool) -> Result<Self> {
        let nodes = if beside_kube_proxy { 2 } else { 1 };
        let lab = Lab::new(nodes)?;
        let mut pods = Vec::new();
        for (node, measured) in lab.nodes().iter().zip([MEASURED, OTHER]) {
            let pod = |role: &str| node.pod(&format!("{role}-{}", node.name()));
            let pair = [pod("client")?, pod("server")?];
            for peer in &pair {
                peer.sysctl("net/ipv6/bindv6only", "1")?;
            }
            measured.apply(&lab, &pair[1], None)?;
            pods.push(pair);
        }
        let outside = lab.traces()[0].join("outside/bench");
        let ends: Vec<[&Peer; 2]> = pods.iter().map(|pair| pair.each_ref()).collect();
        let worker = Worker::start(&ends, &outside)?;
        start_agent(&lab, flags)?;
        Ok(Self {
            served: lab.node("n1").cgroup().join("pods/client-n1"),
            outside,
            service: MEASURED.cluster_ips()?,
            other_service: OTHER.cluster_ips()?,
            endpoint: endpoints(&pods[0][1]),
            _pods: pods,
            worker,
            lab,
        })
    }

    /// Adds Services to the running agent.
    pub(crate) fn add(&self, crowd: &Crowd) -> Result<()> {
        add(&self.lab, crowd)
    }
}

/// Starts the agent of n1, and waits until it serves.
pub(crate) fn start_agent(lab: &Lab, flags: &[&str]) -> Result<()> {
    let node = lab.node("n1");
    let cidrs = ["--service-cidrs", lab::SERVICE_CIDRS];
    node.agent_flags(cidrs.into_iter().chain(flags.iter().copied()));
    node.start_agent()?;
    node.wait_healthy()?;
    lab.settle()
}

/// Adds Services to the running agent of n1.
pub(crate) fn add(lab: &Lab, crowd: &Crowd) -> Result<()> {
    crowd.write(lab)?;
    let node = lab.node("n1");
    eventually(Duration::from_secs(120), || {
        let entries = metric(node, "fairlead_map_entries{map=\"backends\"}")?;
        ensure!(
            entries >= crowd.endpoints() as f64,
            "map backends has {entries} elements"
        );
        Ok(())
    })?;
    lab.settle()
}

/// A node whose agent does not run yet, with these Services to find.
pub(crate) fn listed(crowd: &Crowd) -> Result<(Lab, usize)> {
    let lab = Lab::new(1)?;
    let bytes = crowd.write(&lab)?;
    Ok((lab, bytes))
}

/// One figure of the agent's `/metrics`, by its name with labels.
pub(crate) fn metric(node: &Node, name: &str) -> Result<f64> {
    let text = node.metrics()?;
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        .with_context(|| format!("the agent has no metric {name}"))
}

/// Forgets the maps, so that the next agent programs all of them anew.
pub(crate) fn unpin(pins: &Path) -> Result<()> {
    match fs::remove_dir_all(pins) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {pins:?}"))
        }
        _ => Ok(()),
    }
}
