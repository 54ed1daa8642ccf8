//! The lab's address plan and the links between its namespaces.

use crate::spawn::{Netns, netns_path, spawn};
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

/// How pods are connected to their node and nodes to each other's pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodNetwork {
    /// A veth and a /32 and /128 route for each pod, a route to each other
    /// node for its pods (as Calico without encapsulation).
    #[default]
    Routed,
}

/// The address of the switch, the default gateway that forwards nothing.
pub const SWITCH_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The same for IPv6.
pub const SWITCH_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 1);

/// MAC address of every node's end of a pod link.
const GATEWAY_MAC: &str = "ee:ee:ee:ee:ee:ee";

/// The addresses of one member of the LAN.
pub(crate) fn lan_addresses(host: u8) -> (Ipv4Addr, Ipv6Addr) {
    // The last group reads like the IPv4 octet: .11 and ::11.
    let group = u16::from_str_radix(&host.to_string(), 16).unwrap_or_default();
    (
        Ipv4Addr::new(192, 0, 2, host),
        Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, group),
    )
}

/// The addresses of pod number `pod` of node number `node`.
pub(crate) fn pod_addresses(node: u8, pod: u8) -> (Ipv4Addr, Ipv6Addr) {
    (
        Ipv4Addr::new(10, 244, node, pod),
        Ipv6Addr::new(0xfd00, 0x244, u16::from(node), 0, 0, 0, 0, u16::from(pod)),
    )
}

/// Sysctls of every namespace, written before it has a device.
pub(crate) const SYSCTLS: &[(&str, &str)] = &[
    // An IPv6 address is usable at once.
    ("net/ipv6/conf/all/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/default/router_solicitations", "0"),
    // Servers take data in the SYN, for tests of MSG_FASTOPEN.
    ("net/ipv4/tcp_fastopen", "3"),
];

/// Sysctls of a node.
pub(crate) const NODE_SYSCTLS: &[(&str, &str)] = &[
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv6/conf/all/forwarding", "1"),
];

/// A member of the LAN: the port on the switch, and its namespace.
pub(crate) struct Member<'a> {
    /// Name of the switch's port.
    pub(crate) name: &'a str,
    /// Where its `eth0` goes.
    pub(crate) netns: &'a OwnedFd,
}

/// `ip` commands that make the switch and plug everybody in.
pub(crate) fn switch_commands(members: &[Member<'_>]) -> String {
    let mut out = format!(
        "link set lo up\n\
         link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
         link set br0 up\n\
         addr add {SWITCH_V4}/24 dev br0\n\
         addr add {SWITCH_V6}/64 dev br0 nodad\n"
    );
    out.extend(members.iter().map(plug_commands));
    out
}

/// `ip` commands on the switch that plug in one member.
pub(crate) fn plug_commands(Member { name, netns }: &Member<'_>) -> String {
    let netns = netns_path(netns);
    format!(
        "link add {name} type veth peer name eth0 netns {netns}\n\
         link set {name} master br0 up\n"
    )
}

/// `ip` commands for a member's side of the LAN.
pub(crate) fn member_commands(host: u8) -> String {
    let (v4, v6) = lan_addresses(host);
    format!(
        "link set lo up\n\
         link set eth0 up\n\
         addr add {v4}/24 dev eth0\n\
         addr add {v6}/64 dev eth0 nodad\n\
         route add default via {SWITCH_V4}\n\
         route add default via {SWITCH_V6}\n"
    )
}

/// `ip` commands on a node: routes to the pods of another one.
pub(crate) fn route_to_pods_of(node: u8) -> String {
    let (v4, v6) = lan_addresses(node_host(node));
    format!("route add 10.244.{node}.0/24 via {v4}\nroute add fd00:244:{node}::/64 via {v6}\n")
}

/// The last octet of a node's LAN address.
pub(crate) fn node_host(node: u8) -> u8 {
    10 + node
}

/// `ip` commands for the node's end of a pod's link.
pub(crate) fn pod_link_commands(device: &str, node: u8, pod: u8, netns: &OwnedFd) -> String {
    let (v4, v6) = pod_addresses(node, pod);
    let netns = netns_path(netns);
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
pub(crate) fn pod_commands(node: u8, pod: u8) -> String {
    let (v4, v6) = pod_addresses(node, pod);
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

/// A running `ip -batch`.
pub(crate) struct IpBatch {
    child: Child,
    commands: String,
}

impl IpBatch {
    /// Starts `ip` on `commands` in a namespace.
    pub(crate) fn start(netns: &OwnedFd, commands: String) -> Result<Self> {
        let mut command = Command::new("ip");
        command
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = spawn(command, Netns::Join(netns), None)?;
        let mut stdin = child.stdin.take().context("ip has no standard input")?;
        stdin
            .write_all(commands.as_bytes())
            .context("write to ip")?;
        Ok(Self { child, commands })
    }

    /// Waits until all commands are done.
    pub(crate) fn finish(self) -> Result<()> {
        let output = self.child.wait_with_output().context("wait for ip")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "ip: {stderr}in\n{}", self.commands);
        Ok(())
    }
}

/// Runs `ip` commands in a namespace, one a line.
pub(crate) fn ip(netns: &OwnedFd, commands: String) -> Result<()> {
    IpBatch::start(netns, commands)?.finish()
}
