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

/// The ClusterIPs of the Service that is measured; its endpoint is the server pod.
const MEASURED: [&str; 2] = ["10.96.0.10:80", "[fd00:96::10]:80"];
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

/// A node with an agent, and two pods with a worker between them.
pub(crate) struct Scenery {
    pub(crate) lab: Lab,
    _client: Peer,
    _server: Peer,
    pub(crate) worker: Worker,
    /// Where Fairlead serves.
    pub(crate) served: PathBuf,
    /// Where it does not.
    pub(crate) outside: PathBuf,
    /// The measured Service, IPv4 and IPv6.
    pub(crate) service: [SocketAddr; 2],
    /// Its only endpoint.
    pub(crate) endpoint: [SocketAddr; 2],
}

impl Scenery {
    /// Builds it, with the measured Service alone.
    pub(crate) fn new(flags: &[&str]) -> Result<Self> {
        let lab = Lab::new(1)?;
        let node = lab.node("n1");
        let (client, server) = (node.pod("client")?, node.pod("server")?);
        for peer in [&client, &server] {
            peer.sysctl("net/ipv6/bindv6only", "1")?;
        }
        let outside = lab.traces()[0].join("outside/bench");
        let worker = Worker::start(&client, &server, &outside)?;
        let measured = service("measured")
            .cluster_ip("10.96.0.10")
            .cluster_ip("fd00:96::10")
            .port("tcp", 80, PORT)
            .udp_port("udp", 80, PORT);
        lab.apply(&measured)?;
        for (name, v6) in [("measured-v4", false), ("measured-v6", true)] {
            let slice = slice(name, "measured");
            let slice = if v6 { slice.v6() } else { slice };
            let slice = slice.port("tcp", PORT).udp_port("udp", PORT);
            lab.apply(&slice.ready_endpoints([&server]))?;
        }
        let cidrs = ["--service-cidrs", lab::SERVICE_CIDRS];
        lab.agent_flags(cidrs.into_iter().chain(flags.iter().copied()));
        lab.start_agents()?;
        let [v4, v6] = MEASURED;
        Ok(Self {
            served: node.cgroup().join("pods/client"),
            outside,
            service: [v4.parse()?, v6.parse()?],
            endpoint: [
                SocketAddr::new(server.v4().into(), PORT),
                SocketAddr::new(server.v6().into(), PORT),
            ],
            _client: client,
            _server: server,
            worker,
            lab,
        })
    }

    /// Adds Services to the running agent.
    pub(crate) fn add(&self, crowd: &Crowd) -> Result<()> {
        crowd.write(&self.lab)?;
        let node = self.lab.node("n1");
        eventually(Duration::from_secs(120), || {
            let entries = metric(node, "fairlead_map_entries{map=\"backends\"}")?;
            ensure!(
                entries >= crowd.endpoints() as f64,
                "map backends has {entries} elements"
            );
            Ok(())
        })?;
        self.lab.settle()
    }
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
