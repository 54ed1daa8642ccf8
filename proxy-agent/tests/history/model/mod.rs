//! The plain model: what semantics.md says, from the objects' JSON, by naive loops.
//!
//! It shares no code with the agent but the types of the questions and answers.
//! Numbers in brackets are rules of semantics.md.

mod endpoints;
mod fields;
mod nodes;

use crate::steps::{Kind, Objects};
use endpoints::Sets;
use fields::{Range, addresses, is_v4, label, list, port_number, protocol, text, usable};
use proxy_common::{DropReason, Protocol};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

/// The node on which the agent runs.
pub(crate) const OUR_NODE: &str = "n1";

/// The name of our proxy [1].
pub(crate) const OUR_PROXY: &str = "fairlead";

/// A ClusterIP of which somebody else serves port 53 [36].
pub(crate) const LEFT_ALONE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 4));

/// Where a client stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Client {
    /// A process of the host.
    Host,
    /// A pod of this node.
    Pod,
    /// Another machine, whose packets come in by an uplink.
    Outside,
}

impl Client {
    pub(crate) const ALL: [Self; 3] = [Self::Host, Self::Pod, Self::Outside];
}

/// The address that a client has; of one it is unknown.
pub(crate) fn client_address(client: Client, v4: bool) -> Option<IpAddr> {
    match (client, v4) {
        (Client::Host, true) => Some(Ipv4Addr::new(192, 168, 7, 1).into()),
        (Client::Host, false) => Some(Ipv6Addr::new(0xfd00, 7, 0, 0, 0, 0, 0, 1).into()),
        (Client::Pod, true) => Some(Ipv4Addr::new(10, 1, 0, 9).into()),
        (Client::Pod, false) => None,
        // The node's own address may be in a range that has this one, and not.
        (Client::Outside, true) => Some(Ipv4Addr::new(192, 168, 7, 2).into()),
        (Client::Outside, false) => Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9).into()),
    }
}

/// Address and port of an endpoint.
pub(crate) type Endpoint = (IpAddr, u16);

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Probe {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) protocol: Protocol,
    pub(crate) client: Client,
}

/// What becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    NotOurs,
    /// Why, and by which service port; "" if by none.
    Refused(DropReason, String),
    /// The service port, and every endpoint that chance may pick.
    Forwarded(String, Vec<Endpoint>),
}

/// A frontend's service port and what stands behind it.
#[derive(Debug)]
pub(crate) struct Front {
    /// `namespace/name:port`.
    pub(crate) owner: String,
    local: Policy,
    pub(crate) affinity: bool,
    /// Whether the Nodes of its endpoints answer clients outside by themselves.
    pub(crate) dsr: bool,
    /// Ranges that clients must be in, if any are asked for.
    ranges: Option<Vec<Range>>,
    pub(crate) sets: Rc<Sets>,
}

/// Whether only the endpoints of this node are for clients here, and for those outside.
#[derive(Clone, Copy, Debug)]
struct Policy {
    here: bool,
    outside: bool,
}

/// The least of two claims wins: the older, then the lesser name, then the
/// lesser port name.
type Rank = (i64, String, String, String);

type Claims = BTreeMap<(IpAddr, u16, Protocol), BTreeMap<Rank, Front>>;

/// What this node shall do.
#[derive(Debug, Default)]
pub(crate) struct Model {
    exact: Claims,
    /// NodePorts, under the unspecified address of their family.
    node_ports: Claims,
    pub(crate) vips: BTreeSet<IpAddr>,
    pub(crate) node_addresses: BTreeSet<IpAddr>,
    /// Endpoints that flows may stay with, of each service port and protocol.
    pub(crate) serving: BTreeMap<(String, Protocol), BTreeSet<Endpoint>>,
    /// Those on this node.
    pub(crate) here: BTreeSet<(String, Protocol, Endpoint)>,
    /// The addresses of each Node by which others reach it.
    pub(crate) nodes: BTreeMap<String, Vec<IpAddr>>,
}

impl Model {
    /// The model of what the agent knows.
    pub(crate) fn of(known: &Objects, node_addresses: &BTreeSet<IpAddr>) -> Self {
        let mut model = Self {
            node_addresses: node_addresses.clone(),
            ..Self::default()
        };
        let of_kind = |kind: Kind| known.iter().filter(move |(key, _)| key.0 == kind);
        let mut zone = None;
        for ((_, _, name), node) in of_kind(Kind::Node) {
            model.nodes.insert(name.clone(), nodes::addresses(node));
            if name == OUR_NODE {
                zone = label(node, "topology.kubernetes.io/zone").filter(|it| !it.is_empty());
            }
        }
        let mut cluster_ips = BTreeSet::new();
        for (_, service) in of_kind(Kind::Service) {
            cluster_ips.extend(cluster_ips_of(service));
        }
        for ((_, namespace, name), service) in of_kind(Kind::Service) {
            let mut slices = Vec::new();
            for ((_, slice_namespace, _), slice) in of_kind(Kind::EndpointSlice) {
                if slice_namespace == namespace
                    && label(slice, "kubernetes.io/service-name") == Some(name)
                    && !is_headless_by_label(slice)
                {
                    slices.push(slice);
                }
            }
            let surroundings = Surroundings {
                service,
                slices,
                zone,
                cluster_ips: &cluster_ips,
            };
            model.add(namespace, name, service, &surroundings);
        }
        model
    }

    fn add(&mut self, namespace: &str, name: &str, service: &Value, around: &Surroundings<'_>) {
        if !is_ours(service) {
            return;
        }
        let spec = &service["spec"];
        let families = families(service);
        let kind = service_type(service);
        let sites = sites(service, &families);
        let external_local = text(&spec["externalTrafficPolicy"]) == Some("Local");
        for site in sites.iter().filter(|it| it.is_cluster_ip) {
            self.vips.extend((site.ip != LEFT_ALONE).then_some(site.ip));
        }
        let affinity = text(&spec["sessionAffinity"]) == Some("ClientIP");
        for port in ports(service) {
            let owner = format!("{namespace}/{name}:{}", port.name);
            let sets = Rc::new(Sets::of(around, &port.name, port.protocol));
            let serving = self
                .serving
                .entry((owner.clone(), port.protocol))
                .or_default();
            serving.extend(sets.serving());
            let here = sets.here().map(|it| (owner.clone(), port.protocol, it));
            self.here.extend(here);
            let names = (namespace.to_owned(), name.to_owned(), port.name.clone());
            let rank = (created_s(service), names.0, names.1, names.2);
            let front = |local, ranges| Front {
                ranges,
                owner: owner.clone(),
                local,
                affinity,
                dsr: nodes::is_dsr(service, port.protocol),
                sets: sets.clone(),
            };
            let mut seen = BTreeSet::new();
            for site in &sites {
                let left_alone = site.ip == LEFT_ALONE && port.port == 53;
                // An address that several fields have counts as the first of them.
                if seen.insert(site.ip) && !left_alone {
                    let key = (site.ip, port.port, port.protocol);
                    let front = front(site.local, site.ranges.clone());
                    claim(&mut self.exact, key, &rank, front);
                }
            }
            if port.node_port != 0 && (kind == "NodePort" || kind == "LoadBalancer") {
                for v4 in &families {
                    let key = (wildcard(*v4), port.node_port, port.protocol);
                    let local = Policy {
                        here: external_local,
                        outside: external_local,
                    };
                    claim(&mut self.node_ports, key, &rank, front(local, None));
                }
            }
        }
    }

    /// The frontend of a probe, if a service port owns it.
    pub(crate) fn front(&self, probe: &Probe) -> Option<&Front> {
        self.claimants(probe).next()
    }

    /// Every service port that asks for it; the first one owns it.
    pub(crate) fn claimants(&self, probe: &Probe) -> impl Iterator<Item = &Front> {
        let exact = self.exact.get(&(probe.address, probe.port, probe.protocol));
        let found = exact.or_else(|| {
            let any = wildcard(is_v4(probe.address));
            (self.serves_node_ports(probe) && !self.vips.contains(&probe.address))
                .then(|| self.node_ports.get(&(any, probe.port, probe.protocol)))?
        });
        found.into_iter().flatten().map(|(_, front)| front)
    }

    /// Whether some service port owns just this address and port.
    pub(crate) fn is_exact(&self, probe: &Probe) -> bool {
        self.exact
            .contains_key(&(probe.address, probe.port, probe.protocol))
    }

    /// [8]: addresses of this node; loopback, and the unspecified address that the
    /// kernel takes for it, for processes of the host only.
    fn serves_node_ports(&self, probe: &Probe) -> bool {
        if probe.address.is_loopback() || probe.address.is_unspecified() {
            probe.client == Client::Host
        } else {
            self.node_addresses.contains(&probe.address)
        }
    }

    /// How many frontends, service ports and backends there are to publish.
    pub(crate) fn demand(&self) -> [usize; 3] {
        [
            // For clients here and for those outside.
            2 * (self.exact.len() + self.node_ports.len()),
            self.serving.len(),
            self.serving.values().map(BTreeSet::len).sum(),
        ]
    }

    /// What becomes of a probe.
    pub(crate) fn outcome(&self, probe: &Probe) -> Outcome {
        if let Some(front) = self.front(probe) {
            return self.through(front, probe);
        }
        self.unclaimed(probe)
    }

    /// What becomes of a probe at a frontend [22].
    pub(crate) fn through(&self, front: &Front, probe: &Probe) -> Outcome {
        let v4 = is_v4(probe.address);
        let refused = |reason| Outcome::Refused(reason, front.owner.clone());
        let Some(ranges) = &front.ranges else {
            return front.outcome(probe);
        };
        let is_in = |ip: &IpAddr| ranges.iter().any(|range| range.contains(*ip));
        if probe.client == Client::Host && self.node_addresses.iter().any(is_in) {
            return front.outcome(probe);
        }
        match client_address(probe.client, v4) {
            None => refused(DropReason::SourceUnknown),
            Some(client) if is_in(&client) => front.outcome(probe),
            Some(_) => refused(DropReason::SourceNotAllowed),
        }
    }

    /// What becomes of a probe that no service port owns.
    pub(crate) fn unclaimed(&self, probe: &Probe) -> Outcome {
        if self.vips.contains(&probe.address) {
            return Outcome::Refused(DropReason::PortNotInService, String::new());
        }
        if self.serves_node_ports(probe) {
            return Outcome::NotOurs;
        }
        let set_aside = match probe.address {
            _ if probe.address == LEFT_ALONE => false,
            IpAddr::V4(v4) => v4.octets()[..3] == [10, 96, 0],
            IpAddr::V6(v6) => v6.segments()[..7] == [0xfd00, 0x96, 0, 0, 0, 0, 0],
        };
        if set_aside {
            return Outcome::Refused(DropReason::UnassignedAddress, String::new());
        }
        Outcome::NotOurs
    }
}

impl Front {
    /// [18]: "no endpoint anywhere" and "none on this node" differ in reason.
    fn outcome(&self, probe: &Probe) -> Outcome {
        let half = self.sets.half(is_v4(probe.address));
        let local = match probe.client {
            Client::Host | Client::Pod => self.local.here,
            Client::Outside => self.local.outside,
        };
        let set = if local { &half.local } else { &half.cluster };
        if !set.is_empty() {
            return Outcome::Forwarded(self.owner.clone(), set.clone());
        }
        let reason = if local && !half.cluster.is_empty() {
            DropReason::NoLocalEndpoint
        } else {
            DropReason::NoEndpoint
        };
        Outcome::Refused(reason, self.owner.clone())
    }
}

/// An address of a Service.
struct Site {
    ip: IpAddr,
    is_cluster_ip: bool,
    local: Policy,
    ranges: Option<Vec<Range>>,
}

/// [7, 9, 10, 16, 17, 23]: the external policy binds no client here but at
/// NodePorts; the internal one binds everybody, and at the ClusterIP only.
fn sites(service: &Value, families: &BTreeSet<bool>) -> Vec<Site> {
    let spec = &service["spec"];
    let has_family = |ip: &IpAddr| families.contains(&is_v4(*ip)) && usable(*ip);
    let is_local = |policy: &str| text(&spec[policy]) == Some("Local");
    let site = |ip| Site {
        ip,
        is_cluster_ip: false,
        local: Policy {
            here: false,
            outside: is_local("externalTrafficPolicy"),
        },
        ranges: None,
    };
    let mut sites = Vec::new();
    for ip in cluster_ips_of(service).into_iter().filter(has_family) {
        sites.push(Site {
            is_cluster_ip: true,
            local: Policy {
                here: is_local("internalTrafficPolicy"),
                outside: is_local("internalTrafficPolicy"),
            },
            ..site(ip)
        });
    }
    if service_type(service) == "LoadBalancer" {
        for ip in ingress_ips(service).into_iter().filter(has_family) {
            let ranges = fields::ranges(service, is_v4(ip));
            sites.push(Site { ranges, ..site(ip) });
        }
    }
    let external = addresses(&spec["externalIPs"]).into_iter();
    sites.extend(external.filter(has_family).map(site));
    sites
}

/// What a Service's endpoints depend on.
struct Surroundings<'a> {
    service: &'a Value,
    slices: Vec<&'a Value>,
    zone: Option<&'a str>,
    cluster_ips: &'a BTreeSet<IpAddr>,
}

struct Port {
    name: String,
    protocol: Protocol,
    port: u16,
    node_port: u16,
}

fn claim(claims: &mut Claims, key: (IpAddr, u16, Protocol), rank: &Rank, front: Front) {
    claims.entry(key).or_default().insert(rank.clone(), front);
}

fn wildcard(v4: bool) -> IpAddr {
    if v4 {
        IpAddr::from([0, 0, 0, 0])
    } else {
        IpAddr::from([0_u16; 8])
    }
}

fn is_headless_by_label(object: &Value) -> bool {
    label(object, "service.kubernetes.io/headless").is_some()
}

fn service_type(service: &Value) -> &str {
    match text(&service["spec"]["type"]) {
        Some(known @ ("NodePort" | "LoadBalancer" | "ExternalName")) => known,
        _ => "ClusterIP",
    }
}

/// [1]
fn is_ours(service: &Value) -> bool {
    let by_us = label(service, "service.kubernetes.io/service-proxy-name")
        .is_none_or(|name| name == OUR_PROXY);
    let headless = cluster_ip_texts(service).contains(&"None") || is_headless_by_label(service);
    by_us && !headless && service_type(service) != "ExternalName"
}

fn cluster_ip_texts(service: &Value) -> Vec<&str> {
    let spec = &service["spec"];
    let all: Vec<&str> = list(&spec["clusterIPs"]).filter_map(text).collect();
    if all.is_empty() {
        return text(&spec["clusterIP"]).into_iter().collect();
    }
    all
}

fn cluster_ips_of(service: &Value) -> Vec<IpAddr> {
    let texts = cluster_ip_texts(service);
    if texts.contains(&"None") || service_type(service) == "ExternalName" {
        return Vec::new();
    }
    texts.into_iter().filter_map(fields::address).collect()
}

/// The families that a Service has [6]: true is IPv4. Both, if nothing tells.
fn families(service: &Value) -> BTreeSet<bool> {
    let mut families: BTreeSet<bool> = cluster_ips_of(service).into_iter().map(is_v4).collect();
    for name in list(&service["spec"]["ipFamilies"]).filter_map(text) {
        match name {
            "IPv4" => families.insert(true),
            "IPv6" => families.insert(false),
            _ => false,
        };
    }
    if families.is_empty() {
        return BTreeSet::from([true, false]);
    }
    families
}

/// [9]
fn ingress_ips(service: &Value) -> Vec<IpAddr> {
    list(&service["status"]["loadBalancer"]["ingress"])
        .filter(|it| text(&it["ipMode"]).is_none_or(|mode| mode == "VIP"))
        .filter_map(|it| fields::address(text(&it["ip"])?))
        .collect()
}

/// The ports [2]; the first usable one of each name.
fn ports(service: &Value) -> Vec<Port> {
    let mut ports: Vec<Port> = Vec::new();
    for raw in list(&service["spec"]["ports"]) {
        let name = text(&raw["name"]).unwrap_or_default().to_owned();
        let (Some(port), Some(protocol)) = (port_number(&raw["port"]), protocol(raw)) else {
            continue;
        };
        if !name.contains('\0') && ports.iter().all(|it| it.name != name) {
            let node_port = port_number(&raw["nodePort"]).unwrap_or(0);
            ports.push(Port {
                name,
                protocol,
                port,
                node_port,
            });
        }
    }
    ports
}

/// Seconds of `creationTimestamp`, as the generator writes it; none is youngest.
fn created_s(service: &Value) -> i64 {
    let stamp = text(&service["metadata"]["creationTimestamp"]).unwrap_or_default();
    let second = stamp
        .strip_prefix("2026-01-01T00:00:")
        .and_then(|it| it.strip_suffix('Z'));
    second.and_then(|it| it.parse().ok()).unwrap_or(i64::MAX)
}
