//! Pod network `Bridge`: the CNI plugin `bridge` with flannel's settings
//! (`isDefaultGateway`, `hairpinMode`) and its `host-gw` routes.

use super::{Family, NodeSetup, PodLink, PodSetup, Script, flannel, routed};
use crate::network::pod_addresses;
use crate::spawn::netns_path;

/// Last octet of the bridge, the pods' gateway.
const GATEWAY: u8 = 1;

pub(super) fn node(node: u8, others: impl Iterator<Item = u8>) -> NodeSetup {
    let (v4, v6) = pod_addresses(node, GATEWAY);
    // Without a MAC address of its own it would change its as pods come.
    let bridge = format!(
        "link add cni0 address 0a:58:0a:f4:0{node}:01 type bridge\n\
         link set cni0 up\n\
         addr add {v4}/24 dev cni0\n\
         addr add {v6}/64 dev cni0 nodad\n"
    );
    let rules = Family::BOTH.map(|family| {
        let text = flannel::nat(family, node) + &flannel::filter(family, "");
        Script::rules(family, text)
    });
    let mut scripts = vec![Script::ip(bridge + &routed::routes_to_pods_of(others))];
    scripts.extend(rules);
    NodeSetup {
        // Kubernetes asks for them: else a packet from pod to pod would pass
        // without its Service's rules.
        sysctls: &[
            ("net/bridge/bridge-nf-call-iptables", "1"),
            ("net/bridge/bridge-nf-call-ip6tables", "1"),
        ],
        scripts,
    }
}

pub(super) fn pod(link: &PodLink<'_>) -> PodSetup {
    let (v4, v6) = link.addresses();
    let (gateway_v4, gateway_v6) = pod_addresses(link.node, GATEWAY);
    let device = format!("veth{}", link.pod);
    let netns = netns_path(link.netns);
    PodSetup {
        node: vec![Script::ip(format!(
            "link add {device} type veth peer name eth0 netns {netns}\n\
             link set {device} master cni0 up\n\
             link set {device} type bridge_slave hairpin on\n"
        ))],
        pod: Script::ip(format!(
            "link set lo up\n\
             link set eth0 up\n\
             addr add {v4}/24 dev eth0\n\
             addr add {v6}/64 dev eth0 nodad\n\
             route add default via {gateway_v4}\n\
             route add default via {gateway_v6}\n"
        )),
    }
}
