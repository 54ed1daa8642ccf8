//! What the kernel has: links, addresses and where routes lead.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The network namespace as far as the choice of devices needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Devices by index.
    pub links: BTreeMap<u32, Link>,
    /// Addresses in the kernel's order, which is that of preference within a device.
    pub addresses: Vec<LocalAddress>,
    /// Where routes lead: many routes make few of these.
    pub routes: BTreeSet<Route>,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Such as `eth0`.
    pub name: String,
    /// Which part it plays.
    pub kind: LinkKind,
    /// Bytes before the IP header; `None` of a link type that programs cannot read.
    pub header_bytes: Option<u32>,
    /// The link type, for people.
    pub link_type: String,
    /// Index of the bridge, bond, team or VRF that it belongs to.
    pub controller: Option<u32>,
    /// Largest IP packet in bytes.
    pub mtu: u32,
}

/// Kinds of devices that differ in where they lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Leads nowhere: loopback, dummy, or a VRF, whose members have the traffic.
    Internal,
    /// An end of a pair, or a device whose other side is a process: mostly a pod
    /// or a virtual machine, but an uplink in nested nodes.
    Pair,
    /// A bridge leads where its ports lead.
    Bridge,
    /// An overlay's: leads to other nodes.
    Tunnel,
    /// Hardware, VLAN, bond and so on.
    Other,
}

/// An address of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// Index of the device.
    pub device: u32,
    /// The address.
    pub ip: IpAddr,
    /// Length of its subnet's prefix.
    pub prefix_length: u8,
    /// Whether it may be the source of new connections: global, and neither
    /// secondary, temporary, deprecated, tentative nor a duplicate.
    pub preferred: bool,
}

/// What a route tells of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// Index of the device.
    pub device: u32,
    /// How far it leads.
    pub reach: Reach,
    /// The source address that it asks for.
    pub source: Option<IpAddr>,
    /// Whether it is one of the main table for IPv6.
    pub is_main_v6: bool,
}

/// How far a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Everywhere.
    Default,
    /// Beyond a gateway.
    Gateway,
    /// To the neighbours in a subnet.
    Subnet,
    /// To one neighbour.
    Host,
}

impl Network {
    /// Forgets devices of these names.
    pub fn forget(&mut self, names: &[&str]) {
        self.links
            .retain(|_, link| !names.contains(&link.name.as_str()));
        let links = &self.links;
        self.addresses.retain(|it| links.contains_key(&it.device));
        self.routes.retain(|it| links.contains_key(&it.device));
    }

    /// Every address of this node, once and in order.
    pub fn ips(&self) -> Vec<IpAddr> {
        let ips: BTreeSet<IpAddr> = self.addresses.iter().map(|it| it.ip).collect();
        ips.into_iter().collect()
    }

    /// The routes by a device.
    pub fn routes_by(&self, device: u32) -> impl Iterator<Item = &Route> {
        self.routes.iter().filter(move |it| it.device == device)
    }

    /// Whether a device is a port of another one, which has its traffic. Members
    /// of a VRF keep theirs.
    pub fn upper(&self, link: &Link) -> Option<&Link> {
        let upper = self.links.get(&link.controller?)?;
        (upper.kind != LinkKind::Internal).then_some(upper)
    }

    /// The ports of a bridge.
    pub fn ports_of(&self, bridge: u32) -> impl Iterator<Item = &Link> {
        let links = self.links.values();
        links.filter(move |it| it.controller == Some(bridge))
    }
}
