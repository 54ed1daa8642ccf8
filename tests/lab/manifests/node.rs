//! v1 Node.

use super::{Manifest, ObjectId};
use serde_json::{Value, json};

/// Builder of a v1 Node.
#[derive(Clone, Debug)]
pub struct Node {
    name: String,
    labels: Value,
    addresses: Vec<Value>,
    taints: Vec<Value>,
    deletion_timestamp: Option<String>,
}

/// A Node with its hostname as only label.
pub fn node(name: &str) -> Node {
    Node {
        name: name.to_owned(),
        labels: json!({ "kubernetes.io/hostname": name }),
        addresses: vec![json!({ "type": "Hostname", "address": name })],
        taints: Vec::new(),
        deletion_timestamp: None,
    }
}

impl Node {
    /// A label.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels[key] = value.into();
        self
    }

    /// `topology.kubernetes.io/zone`.
    pub fn zone(self, zone: &str) -> Self {
        self.label("topology.kubernetes.io/zone", zone)
    }

    /// One more `InternalIP`.
    pub fn internal_ip(mut self, ip: &str) -> Self {
        self.addresses
            .push(json!({ "type": "InternalIP", "address": ip }));
        self
    }

    /// One more taint.
    pub fn taint(mut self, key: &str, effect: &str) -> Self {
        self.taints.push(json!({ "key": key, "effect": effect }));
        self
    }

    /// The Node is being deleted.
    pub fn deleted_at(mut self, timestamp: &str) -> Self {
        self.deletion_timestamp = Some(timestamp.to_owned());
        self
    }
}

impl Manifest for Node {
    fn id(&self) -> ObjectId {
        ObjectId {
            kind: "node",
            namespace: String::new(),
            name: self.name.clone(),
        }
    }

    fn to_json(&self) -> Value {
        let mut metadata = json!({
            "name": self.name, "uid": format!("uid-of-node-{}", self.name), "labels": self.labels,
        });
        if let Some(timestamp) = &self.deletion_timestamp {
            metadata["deletionTimestamp"] = timestamp.as_str().into();
        }
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": metadata,
            "spec": { "taints": self.taints },
            "status": { "addresses": self.addresses },
        })
    }
}
