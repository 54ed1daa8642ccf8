//! Pod network `Vxlan`: Canal. flannel carries packets between nodes, Calico
//! links the pods and filters what they send and get.

use super::{Family, LAN, NodeSetup, PodLink, PodSetup, Script, flannel, node_host, routed};
use crate::network::pod_addresses;

/// What flannel gives to pods: 1500 less what VXLAN takes over IPv4. The device
/// for IPv6 has 1430, which pods learn from their node.
const POD_MTU: u16 = 1450;

/// flannel's device of a family.
fn device(family: Family) -> &'static str {
    match family {
        Family::V4 => "flannel.1",
        Family::V6 => "flannel-v6.1",
    }
}

/// MAC address of a node's device: all nodes know all of them.
fn mac(family: Family, node: u8) -> String {
    let of_family = match family {
        Family::V4 => 4,
        Family::V6 => 6,
    };
    format!("0e:00:00:00:0{of_family}:0{node}")
}

pub(super) fn node(node: u8, others: impl Iterator<Item = u8>) -> NodeSetup {
    let mut ip = Family::BOTH.map(|family| own_device(family, node)).concat();
    let mut fdb = String::new();
    for other in others {
        for family in Family::BOTH {
            let device = device(family);
            let mac = mac(family, other);
            let pods = family.pods_of(other);
            let via = family.of(pod_addresses(other, 0));
            let tunnel_end = family.of(LAN.addresses(node_host(other)));
            ip += &format!(
                "neigh add {via} lladdr {mac} dev {device} nud permanent\n\
                 route add {pods} via {via} dev {device} onlink\n"
            );
            fdb += &format!("fdb append {mac} dev {device} dst {tunnel_end} self permanent\n");
        }
    }
    let mut scripts = vec![Script::ip(ip), Script::bridge(fdb)];
    scripts.extend(Family::BOTH.map(|family| rules(family, node)));
    NodeSetup {
        sysctls: &[],
        scripts,
    }
}

/// The device's address is the first of the node's pod subnet, and the source
/// of what the host itself sends to pods elsewhere.
fn own_device(family: Family, node: u8) -> String {
    let device = device(family);
    let mac = mac(family, node);
    let tunnel_end = family.of(LAN.addresses(node_host(node)));
    let address = family.of(pod_addresses(node, 0));
    let (length, more) = match family {
        Family::V4 => (32, ""),
        Family::V6 => (128, " nodad"),
    };
    format!(
        "link add {device} address {mac} type vxlan id 1 local {tunnel_end} dev eth0 \
         dstport 8472 nolearning\n\
         link set {device} up\n\
         addr add {address}/{length} dev {device}{more}\n"
    )
}

/// Calico comes first: what has no connection of its own is dropped, and so is
/// what a pod sends with another's address.
fn rules(family: Family, node: u8) -> Script {
    let calico = ":cali-FORWARD - [0:0]\n\
         -A INPUT -i cali+ -m conntrack --ctstate INVALID -j DROP\n\
         -A FORWARD -j cali-FORWARD\n\
         -A cali-FORWARD -i cali+ -m conntrack --ctstate INVALID -j DROP\n\
         -A cali-FORWARD -o cali+ -m conntrack --ctstate INVALID -j DROP\n\
         -A cali-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n";
    let raw = "*raw\n\
         -A PREROUTING -i cali+ -m rpfilter --invert --validmark -j DROP\n\
         COMMIT\n";
    let text = flannel::nat(family, node) + &flannel::filter(family, calico) + raw;
    Script::rules(family, text)
}

pub(super) fn pod(link: &PodLink<'_>) -> PodSetup {
    let mtu = |device: &str| format!("link set {device} mtu {POD_MTU}\n");
    let node = routed::node_side("cali", link) + &mtu(&format!("cali{}", link.pod));
    PodSetup {
        node: vec![Script::ip(node)],
        pod: Script::ip(mtu("eth0") + &routed::pod_side(link)),
    }
}
