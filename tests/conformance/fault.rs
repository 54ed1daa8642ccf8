//! Ways in which a lab can be wrong, for `--break`.
//!
//! Most stand between the story and the API: the proxy is told something else
//! than the story means, as if it did not look at a field or missed an event.
//! What clients then see is what a proxy with that fault would show.

use crate::world::ZONES;
use control_plane::Kind;
use lab::{BACKEND_PORT, Peer, SWITCH_PORT};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// One way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Slices come without endpoints.
    EndpointsLost,
    /// Every slice has one more ready endpoint, on this node.
    StrangerOn(&'static str),
    /// Slices come with their first endpoint only.
    FirstEndpointOnly,
    /// Every endpoint is on this node.
    EveryEndpointOn(&'static str),
    /// Every endpoint is ready.
    ConditionsIgnored,
    /// Endpoints that terminate are not there.
    TerminatingLost,
    /// No endpoint has hints.
    HintsIgnored,
    /// No endpoint has hints for nodes.
    NodeHintsIgnored,
    /// Of an endpoint's hints for zones only the first is read.
    FirstHintOnly,
    /// An endpoint without hints has one for the zone of its node.
    HintsGuessed,
    /// Hints for the first of these zones are for the second.
    HintsRenamed(&'static str, &'static str),
    /// Traffic policies are `Cluster`.
    PoliciesIgnored,
    /// Each traffic policy is taken for the other.
    PoliciesSwapped,
    /// externalIPs are taken for LoadBalancer IPs.
    ExternalIpsAreLbIps,
    /// `loadBalancerSourceRanges` hold no client, in either family.
    RangesOfNobody,
    /// `sessionAffinity` is `None`.
    AffinityIgnored,
    /// This field of a Service's spec is not read.
    FieldIgnored(&'static str),
    /// This label of Services and slices is not read.
    LabelIgnored(&'static str),
    /// `status.loadBalancer` is not read.
    StatusIgnored,
    /// Every Service is of type ClusterIP.
    TypeIgnored,
    /// An object stays as it was created, for ever.
    ChangesLost,
    /// Deleted objects stay.
    DeletionsLost,
    /// Every frontend refuses: the Services are not there at all.
    ServicesLost,
    /// Backends see another address than the client's: the nodes masquerade.
    Masquerade,
    /// Nodes lose echo requests.
    PingsLost,
    /// A condition of an endpoint that is absent means false.
    AbsentMeansFalse,
    /// Every address of an endpoint is an endpoint.
    MoreAddressesUsed,
    /// The ports of slices are not read: all of them serve `http` and `udp`.
    SlicePortsIgnored,
    /// A slice belongs to the Service that owns it.
    OwnersJoin,
    /// Objects of all namespaces are one another's neighbours.
    NamespacesIgnored,
    /// Of the slices of a Service only the first one counts.
    OnlyFirstSlice,
    /// A slice that comes before its Service is lost.
    EarlySlicesLost,
    /// What comes after a deletion is lost, as if the deletion came last.
    SuccessorsLost,
    /// Only the first port of a Service is served.
    OnlyFirstPort,
    /// Ports are told apart by their number alone, so the first one has it.
    ProtocolsIgnored,
    /// Every Service owns [`SWITCH_PORT`] as well.
    MorePorts,
    /// Only the first IP family of a Service is served.
    OnlyFirstFamily,
    /// `ipMode` of a LoadBalancer IP is not read.
    IpModeIgnored,
    /// A proxy's options are not read.
    OptionsIgnored,
    /// Backends see everybody at one port.
    OneSourcePort,
    /// Nodes let no ICMP error pass.
    IcmpLost,
    /// Nodes change a byte in whatever is large.
    BytesChanged,
    /// Nodes give UDP datagrams a checksum that is not theirs.
    ChecksumsBroken,
    /// Connections and connected UDP sockets end with every change of an object.
    ConnectionsCut,
    /// Annotations of Services and slices are not read.
    AnnotationsIgnored,
    /// Stray resets have the right sequence number.
    ResetsFit,
    /// A redirection in a pod's namespace does nothing.
    RedirectionLost,
    /// A proxy's own flags are not read.
    FlagsIgnored,
    /// What a proxy programmed goes when the proxy does.
    RulesGoWithProxy,
}

/// What a row has written.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Objects that are there, as the story means it.
    written: HashSet<String>,
    /// Objects that the API was not told of, for [`Fault::overlooks`].
    overlooked: HashSet<String>,
    /// The first slice of each Service.
    first_slices: HashMap<String, String>,
    deleted: bool,
}

impl History {
    /// Notes that an object is written; whether it was there before.
    pub(crate) fn write(&mut self, object: &str) -> bool {
        !self.written.insert(object.to_owned())
    }

    /// Notes that an object is deleted.
    pub(crate) fn delete(&mut self, object: &str) {
        self.written.remove(object);
        self.deleted = true;
    }

    /// Whether the API was not told of an object.
    pub(crate) fn is_overlooked(&self, object: &str) -> bool {
        self.overlooked.contains(object)
    }
}

impl Fault {
    /// Whether it is a fault of the nodes and concerns all rows, so that this one
    /// must run alone.
    pub(crate) fn is_of_the_lab(self) -> bool {
        self.rules().is_some()
            || matches!(
                self,
                Self::Masquerade | Self::OneSourcePort | Self::ConnectionsCut
            )
    }

    /// What it adds to the firewall of every node: a chain of nftables.
    pub(crate) fn rules(self) -> Option<String> {
        let last = "type filter hook postrouting priority 200;";
        let chain = match self {
            Self::IcmpLost => format!(
                "{last} icmp type destination-unreachable drop; \
                 icmpv6 type {{ destination-unreachable, packet-too-big }} drop;"
            ),
            // Far enough from the start to be behind all headers.
            Self::BytesChanged => {
                format!("{last} th dport {BACKEND_PORT} meta length > 1000 @th,800,8 set 0x58;")
            }
            Self::ChecksumsBroken => format!("{last} udp dport {BACKEND_PORT} @th,48,16 set 0x1;"),
            Self::PingsLost => "type filter hook prerouting priority -310; \
                 icmp type echo-request drop; icmpv6 type echo-request drop;"
                .to_owned(),
            _ => return None,
        };
        Some(chain)
    }

    /// Whether an object is not written because of what was written before it.
    pub(crate) fn overlooks(self, kind: Kind, object: &Value, history: &mut History) -> bool {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let service = object["metadata"]["labels"]["kubernetes.io/service-name"].as_str();
        let overlooked = match (self, kind, service) {
            (Self::SuccessorsLost, ..) => history.deleted,
            (Self::EarlySlicesLost, Kind::Slice, Some(service)) => {
                let file = format!("service_default_{service}.json");
                !history.written.contains(&file)
            }
            (Self::OnlyFirstSlice, Kind::Slice, Some(service)) => {
                let first = history.first_slices.entry(service.to_owned());
                first.or_insert_with(|| name.to_owned()) != name
            }
            _ => false,
        };
        if overlooked {
            let kind = if kind == Kind::Slice {
                "endpointslice"
            } else {
                "service"
            };
            history
                .overlooked
                .insert(format!("{kind}_default_{name}.json"));
        }
        overlooked
    }

    /// Whether an object is not written at all.
    pub(crate) fn swallows(self, kind: Kind, is_change: bool, is_deletion: bool) -> bool {
        match self {
            Self::ServicesLost => kind == Kind::Service,
            Self::ChangesLost => is_change || is_deletion,
            Self::DeletionsLost => is_deletion,
            _ => false,
        }
    }

    /// What the API is told instead.
    pub(crate) fn distort(self, kind: Kind, object: &mut Value, strangers: &[Peer]) {
        match (self, kind) {
            (Self::LabelIgnored(label), Kind::Service | Kind::Slice) => {
                remove(&mut object["metadata"]["labels"], label);
            }
            (Self::EndpointsLost, Kind::Slice) => object["endpoints"] = json!([]),
            (Self::FirstEndpointOnly, Kind::Slice) => endpoints(object).truncate(1),
            (Self::TerminatingLost, Kind::Slice) => {
                endpoints(object).retain(|it| it["conditions"]["terminating"] != true);
            }
            (Self::StrangerOn(node), Kind::Slice) => {
                let there = strangers.iter().filter(|it| it.node_name() == Some(node));
                there.for_each(|stranger| add(stranger, object));
            }
            (Self::AnnotationsIgnored, Kind::Service | Kind::Slice) => {
                remove(&mut object["metadata"], "annotations");
            }
            (Self::PoliciesIgnored, Kind::Service) => {
                for policy in ["internalTrafficPolicy", "externalTrafficPolicy"] {
                    remove(&mut object["spec"], policy);
                }
                // It exists with the external policy Local only.
                remove(&mut object["spec"], "healthCheckNodePort");
            }
            (Self::PoliciesSwapped, Kind::Service) => swap_policies(object),
            (Self::ExternalIpsAreLbIps, Kind::Service) => become_lb_ips(object),
            (Self::RangesOfNobody, Kind::Service) => {
                object["spec"]["loadBalancerSourceRanges"] = json!(NOBODY);
            }
            (Self::AffinityIgnored, Kind::Service) => {
                for field in ["sessionAffinity", "sessionAffinityConfig"] {
                    remove(&mut object["spec"], field);
                }
            }
            (Self::FieldIgnored(field), Kind::Service) => remove(&mut object["spec"], field),
            (Self::StatusIgnored, Kind::Service) => remove(object, "status"),
            (Self::AbsentMeansFalse, Kind::Slice) => {
                endpoints(object).iter_mut().for_each(fill_conditions);
            }
            (Self::MoreAddressesUsed, Kind::Slice) => split_addresses(object),
            (Self::SlicePortsIgnored, Kind::Slice) => {
                object["ports"] = json!([
                    { "name": "http", "port": BACKEND_PORT, "protocol": "TCP" },
                    { "name": "udp", "port": BACKEND_PORT, "protocol": "UDP" },
                ]);
            }
            (Self::OwnersJoin, Kind::Slice) => {
                let owner = object["metadata"]["ownerReferences"][0]["name"].clone();
                if owner.is_string() {
                    object["metadata"]["labels"]["kubernetes.io/service-name"] = owner;
                }
            }
            (Self::OnlyFirstPort, Kind::Service) => truncate(&mut object["spec"]["ports"]),
            (Self::ProtocolsIgnored, Kind::Service) => one_port_per_number(object),
            (Self::MorePorts, Kind::Service) => add_ports(object),
            (Self::MorePorts, Kind::Slice) => add_slice_ports(object),
            (Self::OnlyFirstFamily, Kind::Service) => {
                truncate(&mut object["spec"]["clusterIPs"]);
                truncate(&mut object["spec"]["ipFamilies"]);
                object["spec"]["ipFamilyPolicy"] = "SingleStack".into();
            }
            (Self::IpModeIgnored, Kind::Service) => {
                let ingress = object["status"]["loadBalancer"]["ingress"].as_array_mut();
                ingress
                    .into_iter()
                    .flatten()
                    .for_each(|it| remove(it, "ipMode"));
            }
            (Self::TypeIgnored, Kind::Service) => become_cluster_ip(object),
            (_, Kind::Slice) => self.distort_endpoints(object),
            _ => {}
        }
    }

    fn distort_endpoints(self, slice: &mut Value) {
        for endpoint in endpoints(slice) {
            let hints = &mut endpoint["hints"];
            match self {
                Self::EveryEndpointOn(node) => endpoint["nodeName"] = node.into(),
                Self::ConditionsIgnored => endpoint["conditions"] = json!({}),
                Self::HintsIgnored => *hints = Value::Null,
                Self::NodeHintsIgnored => remove(hints, "forNodes"),
                Self::FirstHintOnly => zones(hints).truncate(1),
                Self::HintsGuessed if hints.is_null() => {
                    let node = endpoint["nodeName"].as_str().unwrap_or_default();
                    let zone = ZONES.iter().find(|(of, _)| *of == node);
                    endpoint["hints"] = json!({ "forZones": [{ "name": zone.map(|it| it.1) }] });
                }
                Self::HintsRenamed(from, to) => {
                    for zone in zones(hints).iter_mut().filter(|it| it["name"] == from) {
                        zone["name"] = to.into();
                    }
                }
                _ => {}
            }
        }
    }
}

/// Ranges of addresses that no client has.
const NOBODY: [&str; 2] = ["192.0.2.254/32", "2001:db8:2::fffe/128"];

fn endpoints(slice: &mut Value) -> &mut Vec<Value> {
    list(&mut slice["endpoints"])
}

fn zones(hints: &mut Value) -> &mut Vec<Value> {
    list(&mut hints["forZones"])
}

/// A list, which an absent one becomes.
fn list(value: &mut Value) -> &mut Vec<Value> {
    if !value.is_array() {
        *value = json!([]);
    }
    match value {
        Value::Array(list) => list,
        _ => unreachable!("it was made one"),
    }
}

fn swap_policies(service: &mut Value) {
    let spec = &mut service["spec"];
    let internal = spec["internalTrafficPolicy"].take();
    let external = spec["externalTrafficPolicy"].take();
    spec["internalTrafficPolicy"] = external;
    spec["externalTrafficPolicy"] = internal;
    for policy in ["internalTrafficPolicy", "externalTrafficPolicy"] {
        if spec[policy].is_null() {
            remove(spec, policy);
        }
    }
    // It exists with the external policy Local only.
    remove(spec, "healthCheckNodePort");
}

fn become_lb_ips(service: &mut Value) {
    let ips = list(&mut service["spec"]["externalIPs"]).clone();
    remove(&mut service["spec"], "externalIPs");
    let ingress = list(&mut service["status"]["loadBalancer"]["ingress"]);
    ingress.extend(ips.into_iter().map(|ip| json!({ "ip": ip })));
}

fn remove(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove(field);
    }
}

fn truncate(list: &mut Value) {
    if let Some(list) = list.as_array_mut() {
        list.truncate(1);
    }
}

fn fill_conditions(endpoint: &mut Value) {
    for condition in ["ready", "serving", "terminating"] {
        let value = &mut endpoint["conditions"][condition];
        if value.is_null() {
            *value = false.into();
        }
    }
}

fn split_addresses(slice: &mut Value) {
    let Some(endpoints) = slice["endpoints"].as_array_mut() else {
        return;
    };
    let each = endpoints.iter().flat_map(|endpoint| {
        let addresses = endpoint["addresses"].as_array().into_iter().flatten();
        addresses.map(|address| {
            let mut alone = endpoint.clone();
            alone["addresses"] = json!([address]);
            alone
        })
    });
    *endpoints = each.collect();
}

fn one_port_per_number(service: &mut Value) {
    let mut numbers = HashSet::new();
    if let Some(ports) = service["spec"]["ports"].as_array_mut() {
        ports.retain(|port| numbers.insert(port["port"].clone()));
    }
}

/// Names and protocols of the ports of [`Fault::MorePorts`].
const MORE_PORTS: [(&str, &str); 2] = [("more", "TCP"), ("more-udp", "UDP")];

fn add_ports(service: &mut Value) {
    let spec = &mut service["spec"];
    if spec["type"] == "LoadBalancer" {
        // A NodePort that the API server chooses may be another row's.
        spec["allocateLoadBalancerNodePorts"] = false.into();
    }
    for (name, protocol) in MORE_PORTS {
        if let Some(ports) = spec["ports"].as_array_mut() {
            ports.push(json!({ "name": name, "port": SWITCH_PORT, "protocol": protocol }));
        }
    }
}

fn add_slice_ports(slice: &mut Value) {
    for (name, protocol) in MORE_PORTS {
        if let Some(ports) = slice["ports"].as_array_mut() {
            ports.push(json!({ "name": name, "port": BACKEND_PORT, "protocol": protocol }));
        }
    }
}

fn add(stranger: &Peer, slice: &mut Value) {
    let address = if slice["addressType"] == "IPv6" {
        stranger.v6().to_string()
    } else {
        stranger.v4().to_string()
    };
    endpoints(slice).push(json!({
        "addresses": [address],
        "nodeName": stranger.node_name(),
        "conditions": { "ready": true },
    }));
}

fn become_cluster_ip(service: &mut Value) {
    let spec = &mut service["spec"];
    spec["type"] = "ClusterIP".into();
    for field in [
        "externalTrafficPolicy",
        "healthCheckNodePort",
        "allocateLoadBalancerNodePorts",
        "loadBalancerSourceRanges",
        "loadBalancerClass",
        "loadBalancerIP",
    ] {
        remove(spec, field);
    }
    for port in spec["ports"].as_array_mut().into_iter().flatten() {
        remove(port, "nodePort");
    }
    remove(service, "status");
}
