//! Nodes, and how packets get to backends on others.

use super::fields::{address, is_v4, list, text, usable};
use super::{Endpoint, Front, Model};
use proxy_common::Protocol;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What the agent was told by option.
const OPTION: &str = "hybrid";

/// The first address of each family that another Node can reach.
pub(super) fn addresses(node: &Value) -> Vec<IpAddr> {
    let internal = list(&node["status"]["addresses"])
        .filter(|it| text(&it["type"]) == Some("InternalIP"))
        .filter_map(|it| address(text(&it["address"])?))
        .filter(|ip| usable(*ip));
    let internal: Vec<IpAddr> = internal.collect();
    let first = |v4| internal.iter().copied().find(|ip| is_v4(*ip) == v4);
    first(true).into_iter().chain(first(false)).collect()
}

/// Ours wins over Cilium's; one that nobody knows is none, and so is the other then.
pub(super) fn is_dsr(service: &Value, protocol: Protocol) -> bool {
    let annotations = &service["metadata"]["annotations"];
    let ours = text(&annotations["fairlead.io/forwarding-mode"]);
    let asked = ours.or_else(|| text(&annotations["service.cilium.io/forwarding-mode"]));
    let mode = asked.filter(|it| ["snat", "dsr", "hybrid"].contains(it));
    match mode.unwrap_or(OPTION) {
        "dsr" => true,
        "hybrid" => protocol == Protocol::Tcp,
        _ => false,
    }
}

impl Model {
    /// The addresses of the Node of each endpoint, none if it is not known.
    pub(crate) fn nodes_of(
        &self,
        front: &Front,
        endpoints: &[Endpoint],
    ) -> BTreeMap<Endpoint, Vec<IpAddr>> {
        let addresses = |endpoint: &Endpoint| {
            let node = front.sets.node_of(endpoint);
            node.and_then(|it| self.nodes.get(it).cloned())
                .unwrap_or_default()
        };
        endpoints.iter().map(|it| (*it, addresses(it))).collect()
    }
}
