//! Ways in which a lab can be wrong, for `--break`.
//!
//! Most stand between the story and the API: the proxy is told something else
//! than the story means, as if it did not look at a field or missed an event.
//! What clients then see is what a proxy with that fault would show.

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
    /// Every endpoint is ready.
    ConditionsIgnored,
    /// No endpoint has hints.
    HintsIgnored,
    /// Traffic policies are `Cluster`.
    PoliciesIgnored,
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
            (Self::EndpointsLost, Kind::Slice) => object["endpoints"] = json!([]),
            (Self::StrangerOn(node), Kind::Slice) => {
                let there = strangers.iter().filter(|it| it.node_name() == Some(node));
                there.for_each(|stranger| add(stranger, object));
            }
            (Self::ConditionsIgnored, Kind::Slice) => {
                each_endpoint(object, |endpoint| endpoint["conditions"] = json!({}));
            }
            (Self::HintsIgnored, Kind::Slice) => {
                each_endpoint(object, |endpoint| endpoint["hints"] = Value::Null);
            }
            (Self::PoliciesIgnored, Kind::Service) => {
                for policy in ["internalTrafficPolicy", "externalTrafficPolicy"] {
                    remove(&mut object["spec"], policy);
                }
                // It exists with the external policy Local only.
                remove(&mut object["spec"], "healthCheckNodePort");
            }
            (Self::FieldIgnored(field), Kind::Service) => remove(&mut object["spec"], field),
            (Self::LabelIgnored(label), Kind::Service | Kind::Slice) => {
                remove(&mut object["metadata"]["labels"], label);
            }
            (Self::StatusIgnored, Kind::Service) => remove(object, "status"),
            (Self::TypeIgnored, Kind::Service) => become_cluster_ip(object),
            _ => {}
        }
    }
}

fn each_endpoint(slice: &mut Value, change: impl FnMut(&mut Value)) {
    if let Some(endpoints) = slice["endpoints"].as_array_mut() {
        endpoints.iter_mut().for_each(change);
    }
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
    if let Some(endpoints) = slice["endpoints"].as_array_mut() {
        endpoints.push(json!({
            "addresses": [address],
            "nodeName": stranger.node_name(),
            "conditions": { "ready": true },
        }));
    }
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
