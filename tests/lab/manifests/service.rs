//! v1 Service.

use super::{Manifest, ObjectId};
use crate::wire::Transport;
use serde_json::{Value, json};

/// Builder of a v1 Service. Cloning one and changing it is how tests edit it.
#[derive(Clone, Debug)]
pub struct Service {
    namespace: String,
    name: String,
    uid: String,
    labels: Value,
    annotations: Value,
    cluster_ips: Vec<String>,
    ports: Vec<Value>,
    ingress: Vec<Value>,
    fields: Value,
}

/// A Service in namespace `default`, of type ClusterIP, with no port.
pub fn service(name: &str) -> Service {
    Service {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
        labels: json!({}),
        annotations: json!({}),
        cluster_ips: Vec::new(),
        ports: Vec::new(),
        ingress: Vec::new(),
        fields: json!({ "type": "ClusterIP" }),
    }
}

impl Service {
    /// Another namespace than `default`.
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.to_owned();
        self
    }

    /// Another `metadata.uid`: deleted and created anew.
    pub fn uid(mut self, uid: &str) -> Self {
        self.uid = uid.to_owned();
        self
    }

    /// A label.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels[key] = value.into();
        self
    }

    /// An annotation.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations[key] = value.into();
        self
    }

    /// One more of `spec.clusterIPs`; the first is also `spec.clusterIP`.
    pub fn cluster_ip(mut self, ip: &str) -> Self {
        self.cluster_ips.push(ip.to_owned());
        self
    }

    /// One more TCP port.
    pub fn port(self, name: &str, port: u16, target: u16) -> Self {
        self.port_of(Transport::Tcp, name, port, target)
    }

    /// One more UDP port.
    pub fn udp_port(self, name: &str, port: u16, target: u16) -> Self {
        self.port_of(Transport::Udp, name, port, target)
    }

    /// One more port.
    pub fn port_of(mut self, transport: Transport, name: &str, port: u16, target: u16) -> Self {
        self.ports.push(json!({
            "name": name, "port": port, "targetPort": target, "protocol": transport.as_str(),
        }));
        self
    }

    /// `nodePort` of the port added last; makes a ClusterIP Service a NodePort one.
    pub fn node_port(mut self, node_port: u16) -> Self {
        if let Some(port) = self.ports.last_mut() {
            port["nodePort"] = node_port.into();
        }
        if self.fields["type"] == "ClusterIP" {
            self.fields["type"] = "NodePort".into();
        }
        self
    }

    /// `spec.type`.
    pub fn of_type(self, kind: &str) -> Self {
        self.field("type", kind.into())
    }

    /// One more LoadBalancer IP without `ipMode`; makes the Service a LoadBalancer.
    pub fn lb_ip(self, ip: &str) -> Self {
        self.ingress(json!({ "ip": ip }))
    }

    /// One more LoadBalancer IP with `ipMode` `VIP` or `Proxy`.
    pub fn lb_ip_mode(self, ip: &str, mode: &str) -> Self {
        self.ingress(json!({ "ip": ip, "ipMode": mode }))
    }

    /// One more entry of `status.loadBalancer.ingress`.
    pub fn ingress(mut self, entry: Value) -> Self {
        self.ingress.push(entry);
        self.of_type("LoadBalancer")
    }

    /// `status.loadBalancer.ingress` is empty again.
    pub fn without_ingress(mut self) -> Self {
        self.ingress.clear();
        self
    }

    /// `spec.externalIPs`.
    pub fn external_ips(self, ips: &[&str]) -> Self {
        self.field("externalIPs", json!(ips))
    }

    /// `internalTrafficPolicy: Local`.
    pub fn internal_local(self) -> Self {
        self.field("internalTrafficPolicy", "Local".into())
    }

    /// `externalTrafficPolicy: Local`.
    pub fn external_local(self) -> Self {
        self.field("externalTrafficPolicy", "Local".into())
    }

    /// `sessionAffinity: ClientIP`.
    pub fn affinity(self, timeout_s: u32) -> Self {
        self.field("sessionAffinity", "ClientIP".into()).field(
            "sessionAffinityConfig",
            json!({ "clientIP": { "timeoutSeconds": timeout_s } }),
        )
    }

    /// `loadBalancerSourceRanges`.
    pub fn source_ranges(self, ranges: &[&str]) -> Self {
        self.field("loadBalancerSourceRanges", json!(ranges))
    }

    /// Any field of `spec`; null removes it.
    pub fn field(mut self, name: &str, value: Value) -> Self {
        self.fields[name] = value;
        self
    }
}

impl Manifest for Service {
    fn id(&self) -> ObjectId {
        ObjectId {
            kind: "service",
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    fn to_json(&self) -> Value {
        let mut spec = self.fields.clone();
        if let Some(first) = self.cluster_ips.first() {
            spec["clusterIP"] = first.as_str().into();
            spec["clusterIPs"] = json!(self.cluster_ips);
            let families: Vec<&str> = self
                .cluster_ips
                .iter()
                .map(|ip| if ip.contains(':') { "IPv6" } else { "IPv4" })
                .collect();
            spec["ipFamilies"] = json!(families);
            spec["ipFamilyPolicy"] = if families.len() > 1 {
                "RequireDualStack"
            } else {
                "SingleStack"
            }
            .into();
        }
        spec["ports"] = json!(self.ports);
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "namespace": self.namespace, "name": self.name, "uid": self.uid,
                "labels": self.labels, "annotations": self.annotations,
            },
            "spec": spec,
            "status": { "loadBalancer": { "ingress": self.ingress } },
        })
    }
}
