//! Pod network `Policy`: the Amazon VPC CNI, with all pods on a second device
//! (ENI) of their node.
//!
//! There the fabric brings packets for a pod to the ENI that has its address;
//! here the LAN has routes. The real one uses the first ENI alone for IPv6;
//! here IPv6 does as IPv4 does.

use super::{
    Family, LAN, NodeSetup, PodLink, PodNetwork, PodSetup, SWITCH_HOST, Script, node_host, routed,
};

/// The second device.
pub(super) const DEVICE: &str = "eth1";
/// Routing table of the second device.
const TABLE: u8 = 2;

/// Last octet of the second device's addresses.
pub(super) fn device_host(node: u8) -> u8 {
    30 + node
}

/// An `ip route` command for the main table, as one for what pods send.
pub(super) fn for_pods(command: &str) -> String {
    format!("{command} dev {DEVICE} table {TABLE}\n")
}

pub(super) fn node(node: u8, others: impl Iterator<Item = u8>) -> NodeSetup {
    let (v4, v6) = LAN.addresses(device_host(node));
    // Without a route to the LAN in the main table: the host itself uses eth0.
    let mut ip = format!(
        "link set {DEVICE} up\n\
         addr add {v4}/24 dev {DEVICE} noprefixroute\n\
         addr add {v6}/64 dev {DEVICE} nodad noprefixroute\n"
    );
    for family in Family::BOTH {
        let lan = LAN.cidr(family);
        ip += &for_pods(&format!("route add {lan}"));
    }
    for route in LAN.default_routes(SWITCH_HOST).lines() {
        ip += &for_pods(route);
    }
    for other in others {
        let more = format!(" dev {DEVICE} table {TABLE}");
        ip += &PodNetwork::Policy.route_to_pods_of(other, "");
        ip += &PodNetwork::Policy.route_to_pods_of(other, &more);
    }
    let mut scripts = vec![Script::ip(ip)];
    for family in Family::BOTH {
        let marked = "rule add fwmark 0x80/0x80 lookup main priority 1024\n";
        scripts.push(Script::ip_of(family, marked));
        scripts.push(rules(family, node));
    }
    NodeSetup {
        sysctls: &[
            // What comes by eth0 for a pod would be answered by the other device
            // if there were no marks: only loose filtering lets it in.
            ("net/ipv4/conf/eth0/rp_filter", "2"),
            // Pods' links are strict, the default of Amazon Linux 2. So is the
            // second device there, but the fabric answers for its addresses; a
            // strict device on a LAN would not answer ARP.
            ("net/ipv4/conf/eth1/rp_filter", "2"),
            ("net/ipv4/conf/default/rp_filter", "1"),
            // The fabric knows which device has which address, a LAN asks both.
            ("net/ipv4/conf/all/arp_ignore", "1"),
            ("net/ipv4/conf/all/arp_announce", "2"),
        ],
        scripts,
    }
}

/// What comes by eth0 for the node is marked, and so is what pods send out of
/// the VPC; the mark is given back to what pods answer, and leads to eth0.
fn rules(family: Family, node: u8) -> Script {
    let lan = LAN.cidr(family);
    let pods = family.all_pods();
    let address = family.of(LAN.addresses(node_host(node)));
    Script::rules(
        family,
        format!(
            "*mangle\n\
             -A PREROUTING -i eth0 -m addrtype --dst-type LOCAL --limit-iface-in \
             -j CONNMARK --set-mark 0x80/0x80\n\
             -A PREROUTING -i eni+ -j CONNMARK --restore-mark --mask 0x80\n\
             COMMIT\n\
             *nat\n\
             :AWS-CONNMARK-CHAIN-0 - [0:0]\n\
             :AWS-SNAT-CHAIN-0 - [0:0]\n\
             -A PREROUTING -i eni+ -m conntrack --ctstate NEW -j AWS-CONNMARK-CHAIN-0\n\
             -A PREROUTING -j CONNMARK --restore-mark --mask 0x80\n\
             -A AWS-CONNMARK-CHAIN-0 -d {lan} -j RETURN\n\
             -A AWS-CONNMARK-CHAIN-0 -d {pods} -j RETURN\n\
             -A AWS-CONNMARK-CHAIN-0 -j CONNMARK --set-mark 0x80/0x80\n\
             -A POSTROUTING -j AWS-SNAT-CHAIN-0\n\
             -A AWS-SNAT-CHAIN-0 -d {lan} -j RETURN\n\
             -A AWS-SNAT-CHAIN-0 -d {pods} -j RETURN\n\
             -A AWS-SNAT-CHAIN-0 ! -o vlan+ -m addrtype ! --dst-type LOCAL \
             -j SNAT --to-source {address} --random-fully\n\
             COMMIT\n"
        ),
    )
}

pub(super) fn pod(link: &PodLink<'_>) -> PodSetup {
    let mut node = vec![Script::ip(routed::node_side("eni", link))];
    for family in Family::BOTH {
        let address = family.of(link.addresses());
        let rules = format!(
            "rule add to {address} lookup main priority 512\n\
             rule add from {address} lookup {TABLE} priority 1536\n"
        );
        node.push(Script::ip_of(family, rules));
    }
    PodSetup {
        node,
        pod: Script::ip(routed::pod_side(link)),
    }
}
