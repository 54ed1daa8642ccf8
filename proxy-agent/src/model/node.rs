//! `v1/Node`.

use crate::model::{Interner, ObjectName, meta};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use std::net::IpAddr;
use std::sync::Arc;

/// Taint of a node that the cluster autoscaler is about to delete.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// What we keep of a Node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Its name, in no namespace.
    pub name: ObjectName,
    /// Label `topology.kubernetes.io/zone`, unless empty.
    pub zone: Option<Arc<str>>,
    /// `status.addresses` of type InternalIP.
    pub internal_ips: Box<[IpAddr]>,
    /// Whether load balancers should stop sending new traffic to it: it is
    /// being deleted, or the autoscaler has marked it for that (KEP-3836).
    pub leaving: bool,
}

/// What we read of a Node.
#[derive(Clone, Debug, Deserialize)]
pub struct RawNode {
    /// `metadata`.
    #[serde(deserialize_with = "meta::narrow")]
    pub metadata: ObjectMeta,
    spec: Option<RawSpec>,
    status: Option<RawStatus>,
}

#[derive(Clone, Debug, Deserialize)]
struct RawSpec {
    taints: Option<Vec<RawTaint>>,
}

#[derive(Clone, Debug, Deserialize)]
struct RawTaint {
    key: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct RawStatus {
    addresses: Option<Vec<RawAddress>>,
}

#[derive(Clone, Debug, Deserialize)]
struct RawAddress {
    #[serde(rename = "type")]
    kind: Option<String>,
    address: Option<String>,
}

meta::resource!(
    RawNode,
    k8s_openapi::api::core::v1::Node,
    k8s_openapi::ClusterResourceScope
);

impl RawNode {
    /// The Node's name; `None` if it has none.
    pub fn object_name(&self) -> Option<ObjectName> {
        meta::cluster_name(&self.metadata)
    }

    /// The Node as we keep it.
    pub fn convert(&self, name: ObjectName, interner: &mut Interner) -> Node {
        let addresses = self
            .status
            .iter()
            .filter_map(|status| status.addresses.as_ref())
            .flatten();
        Node {
            name,
            zone: meta::label(&self.metadata, "topology.kubernetes.io/zone")
                .map(|zone| interner.intern(zone)),
            internal_ips: addresses
                .filter(|it| it.kind.as_deref() == Some("InternalIP"))
                .filter_map(|it| it.address.as_ref()?.parse().ok())
                .collect(),
            leaving: self.metadata.deletion_timestamp.is_some() || self.is_marked_for_deletion(),
        }
    }

    fn is_marked_for_deletion(&self) -> bool {
        let taints = self.spec.iter().filter_map(|spec| spec.taints.as_ref());
        taints
            .flatten()
            .any(|taint| taint.key.as_deref() == Some(TO_BE_DELETED))
    }
}
