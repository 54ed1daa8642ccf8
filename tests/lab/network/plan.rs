//! The lab's address plan.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IP family. Everything in the lab exists in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// Both.
    pub(crate) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// This family's half of a pair of addresses.
    pub(crate) fn of(self, (v4, v6): (Ipv4Addr, Ipv6Addr)) -> IpAddr {
        match self {
            Self::V4 => v4.into(),
            Self::V6 => v6.into(),
        }
    }

    /// Pods of all nodes, as a CIDR.
    pub(crate) fn all_pods(self) -> &'static str {
        match self {
            Self::V4 => "10.244.0.0/16",
            Self::V6 => "fd00:244::/32",
        }
    }

    /// Pods of one node, as a CIDR.
    pub(crate) fn pods_of(self, node: u8) -> String {
        let first = self.of(pod_addresses(node, 0));
        format!("{first}/{}", self.subnet_length())
    }

    /// How long the prefixes of the lab's subnets are.
    pub(crate) fn subnet_length(self) -> u8 {
        match self {
            Self::V4 => 24,
            Self::V6 => 64,
        }
    }

    /// All multicast addresses, as a CIDR.
    pub(crate) fn multicast(self) -> &'static str {
        match self {
            Self::V4 => "224.0.0.0/4",
            Self::V6 => "ff00::/8",
        }
    }
}

/// A subnet outside of the pods: the same last octet in both families.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subnet {
    v4: [u8; 3],
    /// Third group, after 2001:db8.
    v6: u16,
}

/// Where nodes, outside clients and the switch are.
pub(crate) const LAN: Subnet = Subnet {
    v4: [192, 0, 2],
    v6: 2,
};
/// Where second uplinks lead.
pub(crate) const SECOND_LAN: Subnet = Subnet {
    v4: [10, 50, 0],
    v6: 0x50,
};
/// Behind the router.
pub(crate) const BEHIND_ROUTER: Subnet = Subnet {
    v4: [10, 60, 0],
    v6: 0x60,
};

impl Subnet {
    /// The addresses of one member.
    pub(crate) fn addresses(self, host: u8) -> (Ipv4Addr, Ipv6Addr) {
        // The last group reads like the IPv4 octet: .11 and ::11.
        let group = u16::from_str_radix(&host.to_string(), 16).unwrap_or_default();
        let [a, b, c] = self.v4;
        (
            Ipv4Addr::new(a, b, c, host),
            Ipv6Addr::new(0x2001, 0xdb8, self.v6, 0, 0, 0, 0, group),
        )
    }

    /// The whole of it, as a CIDR.
    pub(crate) fn cidr(self, family: Family) -> String {
        format!(
            "{}/{}",
            family.of(self.addresses(0)),
            family.subnet_length()
        )
    }

    /// `ip` commands that bring a device up with the addresses of one member.
    pub(crate) fn join(self, device: impl fmt::Display, host: u8) -> String {
        let (v4, v6) = self.addresses(host);
        format!(
            "link set {device} up\n\
             addr add {v4}/24 dev {device}\n\
             addr add {v6}/64 dev {device} nodad\n"
        )
    }

    /// `ip` commands for default routes through one member.
    pub(crate) fn default_routes(self, host: u8) -> String {
        let (v4, v6) = self.addresses(host);
        format!("route add default via {v4}\nroute add default via {v6}\n")
    }
}

/// Last octet of the switch in each subnet that it is in.
pub(crate) const SWITCH_HOST: u8 = 1;
/// The address of the switch, the default gateway that forwards nothing.
pub const SWITCH_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, SWITCH_HOST);
/// The same for IPv6.
pub const SWITCH_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, SWITCH_HOST as u16);

/// What outside clients reach through a node of their choice: LoadBalancer IPs,
/// externalIPs and ClusterIPs.
pub const FRONTENDS: [&str; 5] = [
    "198.51.100.0/24",
    "2001:db8:100::/64",
    "203.0.113.0/24",
    "10.96.0.0/16",
    "fd00:96::/112",
];

/// The last octet of a node's address in each subnet that it is in.
pub(crate) fn node_host(node: u8) -> u8 {
    10 + node
}

/// The addresses of pod number `pod` of node number `node`.
pub(crate) fn pod_addresses(node: u8, pod: u8) -> (Ipv4Addr, Ipv6Addr) {
    (
        Ipv4Addr::new(10, 244, node, pod),
        Ipv6Addr::new(0xfd00, 0x244, u16::from(node), 0, 0, 0, 0, u16::from(pod)),
    )
}
