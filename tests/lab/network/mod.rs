//! The links between the lab's namespaces, and what each pod network makes of a node.
//!
//! A pod network is text for `ip`, `bridge` and `iptables-restore`: what the
//! CNI that it is named for leaves behind on a node, in its own words.

mod bridge;
mod flannel;
mod plan;
mod policy;
mod routed;
mod script;
mod vxlan;

pub(crate) use plan::{
    BEHIND_ROUTER, Family, LAN, SECOND_LAN, SWITCH_HOST, Subnet, node_host, pod_addresses,
};
pub use plan::{FRONTENDS, SWITCH_V4, SWITCH_V6};
pub(crate) use script::{Script, await_links, ip};

use crate::spawn::netns_path;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

/// How pods are connected to their node and nodes to each other's pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodNetwork {
    /// As Calico without encapsulation and without policy: a veth and a /32 and
    /// /128 route for each pod, a route to each other node for its pods. No
    /// iptables rules.
    #[default]
    Routed,
    /// As flannel's `host-gw` on nodes with Docker: pods are on a bridge `cni0`
    /// in hairpin mode, whose packets pass iptables; the same routes between
    /// nodes; masquerade for what leaves the pods' addresses; forwarding is
    /// denied but for pods.
    Bridge,
    /// As Canal, which is flannel's VXLAN with Calico's pod links and rules: a
    /// VXLAN device for each family, smaller MTU, masquerade as with `Bridge`,
    /// and packets without a connection of their own are dropped.
    Vxlan,
    /// As the Amazon VPC CNI: pods use a second device of the node by routing
    /// rules for each pod; marks on connections send other answers back by the
    /// first one; SNAT for what leaves the VPC, which is the LAN and the pods.
    Policy,
}

/// What a pod network makes of a node, once that is on the LAN.
#[derive(Debug, Default)]
pub(crate) struct NodeSetup {
    /// Below `/proc/sys`, before the scripts.
    pub(crate) sysctls: &'static [(&'static str, &'static str)],
    /// In the node's namespace, in this order.
    pub(crate) scripts: Vec<Script>,
}

/// What a pod network makes of a new pod.
#[derive(Debug)]
pub(crate) struct PodSetup {
    /// In the node's namespace, first.
    pub(crate) node: Vec<Script>,
    /// In the pod's.
    pub(crate) pod: Script,
}

/// A pod, as a network sees it.
#[derive(Clone, Copy)]
pub(crate) struct PodLink<'a> {
    /// Number of the node.
    pub(crate) node: u8,
    /// Number of the pod on its node.
    pub(crate) pod: u8,
    /// Where its `eth0` goes.
    pub(crate) netns: &'a OwnedFd,
}

impl PodLink<'_> {
    fn addresses(&self) -> (Ipv4Addr, Ipv6Addr) {
        pod_addresses(self.node, self.pod)
    }
}

impl PodNetwork {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Routed, Self::Bridge, Self::Vxlan, Self::Policy];

    /// The devices by which a node is on the LAN.
    pub(crate) fn lan_devices(self) -> &'static [&'static str] {
        match self {
            Self::Routed | Self::Bridge | Self::Vxlan => &["eth0"],
            Self::Policy => &["eth0", policy::DEVICE],
        }
    }

    /// What it makes of node number `node` in a lab of `nodes`.
    pub(crate) fn node(self, node: u8, nodes: u8) -> NodeSetup {
        let others = (1..=nodes).filter(|&other| other != node);
        match self {
            Self::Routed => routed::node(others),
            Self::Bridge => bridge::node(node, others),
            Self::Vxlan => vxlan::node(node, others),
            Self::Policy => policy::node(node, others),
        }
    }

    /// What it makes of a new pod.
    pub(crate) fn pod(self, link: &PodLink<'_>) -> PodSetup {
        match self {
            Self::Routed => routed::pod(link),
            Self::Bridge => bridge::pod(link),
            Self::Vxlan => vxlan::pod(link),
            Self::Policy => policy::pod(link),
        }
    }

    /// Where the LAN sends what is for the pods of a node.
    fn pods_gateway(self, node: u8) -> (Ipv4Addr, Ipv6Addr) {
        match self {
            Self::Routed | Self::Bridge | Self::Vxlan => LAN.addresses(node_host(node)),
            Self::Policy => LAN.addresses(policy::device_host(node)),
        }
    }

    /// `ip` commands of a member of the LAN that is no node: routes to the pods
    /// of all nodes.
    pub(crate) fn routes_to_pods(self, nodes: u8) -> String {
        (1..=nodes)
            .map(|node| self.route_to_pods_of(node, ""))
            .collect()
    }

    /// `ip` commands: routes to the pods of one node, with further words.
    fn route_to_pods_of(self, node: u8, more: &str) -> String {
        let route = |family: Family| {
            let pods = family.pods_of(node);
            let gateway = family.of(self.pods_gateway(node));
            format!("route replace {pods} via {gateway}{more}\n")
        };
        Family::BOTH.map(route).concat()
    }

    /// `ip` commands of a node: routes to a subnet behind a member of the LAN.
    pub(crate) fn routes_behind(self, subnet: Subnet, host: u8) -> String {
        let mut out = routes_behind(subnet, host);
        if self == Self::Policy {
            out.extend(out.clone().lines().map(policy::for_pods));
        }
        out
    }
}

/// `ip` commands: routes to a subnet behind a member of the LAN.
pub(crate) fn routes_behind(subnet: Subnet, host: u8) -> String {
    let route = |family: Family| {
        let cidr = subnet.cidr(family);
        let gateway = family.of(LAN.addresses(host));
        format!("route replace {cidr} via {gateway}\n")
    };
    Family::BOTH.map(route).concat()
}

/// Sysctls of every namespace, written before it has a device.
pub(crate) const SYSCTLS: &[(&str, &str)] = &[
    // An IPv6 address is usable at once.
    ("net/ipv6/conf/all/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/default/router_solicitations", "0"),
    // Packets go where routes say, whatever the next host thinks of it.
    ("net/ipv4/conf/all/accept_redirects", "0"),
    ("net/ipv4/conf/default/accept_redirects", "0"),
    ("net/ipv6/conf/all/accept_redirects", "0"),
    ("net/ipv6/conf/default/accept_redirects", "0"),
    // Servers take data in the SYN, for tests of MSG_FASTOPEN.
    ("net/ipv4/tcp_fastopen", "3"),
    // Root may open ICMP sockets that number their own packets, for pings.
    ("net/ipv4/ping_group_range", "0 0"),
];

/// Sysctls of whoever forwards: nodes, the router.
pub(crate) const FORWARDING: &[(&str, &str)] = &[
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv6/conf/all/forwarding", "1"),
    // Tests are refused more often than the kernel would tell one client.
    ("net/ipv4/icmp_ratelimit", "0"),
    ("net/ipv6/icmp/ratelimit", "0"),
];

/// A cable from the switch to a member of one of its LANs.
pub(crate) struct Plug<'a> {
    /// Name of the switch's port.
    pub(crate) port: String,
    /// The member's device.
    pub(crate) device: &'a str,
    /// The member's namespace.
    pub(crate) netns: &'a OwnedFd,
}

/// MAC address of the switch on each of its LANs.
const SWITCH_MAC: &str = "0e:00:00:00:00:01";

/// `ip` commands that make the switch's side of a LAN.
pub(crate) fn lan_commands(bridge: &str, subnet: Subnet) -> String {
    let join = subnet.join(bridge, SWITCH_HOST);
    // Without a MAC address of its own it would change its as members come.
    format!(
        "link add {bridge} address {SWITCH_MAC} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
         {join}"
    )
}

/// `ip` commands on the switch that plug in one member.
pub(crate) fn plug_commands(bridge: &str, plug: &Plug<'_>) -> String {
    let Plug {
        port,
        device,
        netns,
    } = plug;
    let netns = netns_path(netns);
    format!(
        "link add {port} type veth peer name {device} netns {netns}\n\
         link set {port} master {bridge} up\n"
    )
}

/// `ip` commands for a member's side of the LAN.
pub(crate) fn member_commands(host: u8) -> String {
    let join = LAN.join("eth0", host);
    let routes = LAN.default_routes(SWITCH_HOST);
    format!("link set lo up\n{join}{routes}")
}
