//! Pod network `Routed`, and pod links of its kind, which others use as well.

use super::{NodeSetup, PodLink, PodNetwork, PodSetup, Script};
use crate::spawn::netns_path;

/// MAC address of every node's end of a pod link.
const GATEWAY_MAC: &str = "ee:ee:ee:ee:ee:ee";

pub(super) fn node(others: impl Iterator<Item = u8>) -> NodeSetup {
    NodeSetup {
        sysctls: &[],
        scripts: vec![Script::ip(routes_to_pods_of(others))],
    }
}

/// `ip` commands: the LAN address of each other node is the gateway to its pods.
pub(super) fn routes_to_pods_of(others: impl Iterator<Item = u8>) -> String {
    others
        .map(|other| PodNetwork::Routed.route_to_pods_of(other, ""))
        .collect()
}

pub(super) fn pod(link: &PodLink<'_>) -> PodSetup {
    PodSetup {
        node: vec![Script::ip(node_side("pod", link))],
        pod: Script::ip(pod_side(link)),
    }
}

/// `ip` commands for the node's end: a route for each of the pod's addresses.
pub(super) fn node_side(prefix: &str, link: &PodLink<'_>) -> String {
    let (v4, v6) = link.addresses();
    let netns = netns_path(link.netns);
    let device = format!("{prefix}{}", link.pod);
    format!(
        "link add {device} address {GATEWAY_MAC} type veth peer name eth0 netns {netns}\n\
         link set {device} addrgenmode none up\n\
         addr add fe80::1/64 dev {device} nodad\n\
         route add {v4} dev {device}\n\
         route add {v6} dev {device}\n"
    )
}

/// `ip` commands for the pod's end: the gateway is on no subnet of the pod, and
/// its MAC address is known beforehand, so nobody has to answer for it.
pub(super) fn pod_side(link: &PodLink<'_>) -> String {
    let (v4, v6) = link.addresses();
    format!(
        "link set lo up\n\
         link set eth0 up\n\
         addr add {v4}/32 dev eth0\n\
         addr add {v6}/128 dev eth0 nodad\n\
         neigh add 169.254.1.1 dev eth0 lladdr {GATEWAY_MAC} nud permanent\n\
         route add 169.254.1.1 dev eth0 scope link\n\
         route add default via 169.254.1.1 dev eth0\n\
         neigh add fe80::1 dev eth0 lladdr {GATEWAY_MAC} nud permanent\n\
         route add default via fe80::1 dev eth0\n"
    )
}
