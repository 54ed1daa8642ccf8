//! Ways in which a lab can be wrong, for `--break`.
//!
//! Most stand between the story and the API: the proxy is told something else
//! than the story means, as if it did not look at a field or missed an event.
//! What clients then see is what a proxy with that fault would show.

use crate::world::ZONES;
use control_plane::Kind;
use lab::Peer;
use serde_json::{Value, json};

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
    /// Backends see another address than the client's: the nodes masquerade.
    Masquerade,
    /// Every frontend refuses: the Services are not there at all.
    ServicesLost,
}

impl Fault {
    /// Whether it concerns all rows, so that this one must run alone.
    pub(crate) fn is_of_the_lab(self) -> bool {
        self == Self::Masquerade
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
            (_, Kind::Slice) => self.distort_endpoints(object),
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
            (Self::TypeIgnored, Kind::Service) => become_cluster_ip(object),
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
