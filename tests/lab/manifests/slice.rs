//! discovery.k8s.io/v1 EndpointSlice.

use super::{Manifest, ObjectId};
use crate::peer::Peer;
use crate::wire::Transport;
use serde_json::{Value, json};

/// Builder of an EndpointSlice. What is said of an endpoint concerns the one
/// that was added last.
#[derive(Clone, Debug)]
pub struct Slice {
    namespace: String,
    name: String,
    labels: Value,
    annotations: Value,
    v6: bool,
    ports: Vec<Value>,
    endpoints: Vec<Value>,
    fields: Value,
}

/// A slice of IPv4 endpoints, in namespace `default`, of the Service `service`.
pub fn slice(name: &str, service: &str) -> Slice {
    Slice {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        labels: json!({ "kubernetes.io/service-name": service }),
        annotations: json!({}),
        v6: false,
        ports: Vec::new(),
        endpoints: Vec::new(),
        fields: json!({}),
    }
}

impl Slice {
    /// Another namespace than `default`.
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.to_owned();
        self
    }

    /// A label; null removes one.
    pub fn label(mut self, key: &str, value: Value) -> Self {
        self.labels[key] = value;
        self
    }

    /// An annotation.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations[key] = value.into();
        self
    }

    /// Endpoints are IPv6: call this first.
    pub fn v6(mut self) -> Self {
        self.v6 = true;
        self
    }

    /// One more TCP port.
    pub fn port(self, name: &str, port: u16) -> Self {
        self.raw_port(json!({ "name": name, "port": port, "protocol": Transport::Tcp.as_str() }))
    }

    /// One more UDP port.
    pub fn udp_port(self, name: &str, port: u16) -> Self {
        self.raw_port(json!({ "name": name, "port": port, "protocol": Transport::Udp.as_str() }))
    }

    /// One more entry of `ports`.
    pub fn raw_port(mut self, port: Value) -> Self {
        self.ports.push(port);
        self
    }

    /// One more endpoint, all conditions nil (`-` of the cases): a pod or a
    /// host process of the lab, on its node.
    pub fn endpoint(self, peer: &Peer) -> Self {
        let address = if self.v6 {
            peer.v6().to_string()
        } else {
            peer.v4().to_string()
        };
        let endpoint = self.address(&address);
        match peer.node_name() {
            Some(node) => endpoint.on(node),
            None => endpoint,
        }
    }

    /// One more endpoint at an address, on no node, all conditions nil.
    pub fn address(self, address: &str) -> Self {
        self.raw_endpoint(json!({ "addresses": [address], "conditions": {} }))
    }

    /// One more entry of `endpoints`.
    pub fn raw_endpoint(mut self, endpoint: Value) -> Self {
        self.endpoints.push(endpoint);
        self
    }

    /// Endpoints that are all ready.
    pub fn ready_endpoints<'a>(self, peers: impl IntoIterator<Item = &'a Peer>) -> Self {
        peers
            .into_iter()
            .fold(self, |slice, peer| slice.endpoint(peer).ready())
    }

    /// `nodeName`.
    pub fn on(self, node: &str) -> Self {
        self.set("nodeName", node.into())
    }

    /// No `nodeName`.
    pub fn without_node(self) -> Self {
        self.set("nodeName", Value::Null)
    }

    /// R: ready and serving.
    pub fn ready(self) -> Self {
        self.set(
            "conditions",
            json!({ "ready": true, "serving": true, "terminating": false }),
        )
    }

    /// T: not ready, serving, terminating.
    pub fn terminating(self) -> Self {
        self.set(
            "conditions",
            json!({ "ready": false, "serving": true, "terminating": true }),
        )
    }

    /// D: not ready, not serving, terminating.
    pub fn dead(self) -> Self {
        self.set(
            "conditions",
            json!({ "ready": false, "serving": false, "terminating": true }),
        )
    }

    /// N: not ready, not serving.
    pub fn not_ready(self) -> Self {
        self.set(
            "conditions",
            json!({ "ready": false, "serving": false, "terminating": false }),
        )
    }

    /// `hints.forZones`.
    pub fn for_zones(self, zones: &[&str]) -> Self {
        let zones: Vec<Value> = zones.iter().map(|zone| json!({ "name": zone })).collect();
        self.set("hints", json!({ "forZones": zones }))
    }

    /// `hints.forNodes`.
    pub fn for_nodes(self, nodes: &[&str]) -> Self {
        let nodes: Vec<Value> = nodes.iter().map(|node| json!({ "name": node })).collect();
        self.set("hints", json!({ "forNodes": nodes }))
    }

    /// `hints` of both kinds.
    pub fn for_zones_and_nodes(self, zones: &[&str], nodes: &[&str]) -> Self {
        let named = |names: &[&str]| {
            names
                .iter()
                .map(|name| json!({ "name": name }))
                .collect::<Vec<Value>>()
        };
        self.set(
            "hints",
            json!({ "forZones": named(zones), "forNodes": named(nodes) }),
        )
    }

    /// `targetRef` to a Pod.
    pub fn pod(self, name: &str) -> Self {
        self.set("targetRef", json!({ "kind": "Pod", "name": name }))
    }

    /// Any field of the endpoint added last.
    pub fn set(mut self, name: &str, value: Value) -> Self {
        if let Some(endpoint) = self.endpoints.last_mut() {
            endpoint[name] = value;
        }
        self
    }

    /// Any field of the object itself, over what the builder would write.
    pub fn field(mut self, name: &str, value: Value) -> Self {
        self.fields[name] = value;
        self
    }
}

impl Manifest for Slice {
    fn id(&self) -> ObjectId {
        ObjectId {
            kind: "endpointslice",
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    fn to_json(&self) -> Value {
        let mut object = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": self.namespace, "name": self.name,
                "labels": without_nulls(&self.labels), "annotations": self.annotations,
            },
            "addressType": if self.v6 { "IPv6" } else { "IPv4" },
            "ports": self.ports,
            "endpoints": self.endpoints,
        });
        if let Some(fields) = self.fields.as_object() {
            for (name, value) in fields {
                object[name] = value.clone();
            }
        }
        object
    }
}

/// A label cannot be null in the API: null stands for "no such label" here.
fn without_nulls(labels: &Value) -> Value {
    let entries = labels.as_object().into_iter().flatten();
    entries
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}
