//! Which devices the packet path uses, in which role. Pure.

use super::network::{Link, LinkKind, LocalAddress, Network, Reach, Route};
use super::pattern::{DeviceNames, UplinkNames};
use crate::pattern::matches;
use proxy_common::{Address, Device};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// A device of the packet path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Its name at the moment.
    pub name: String,
    /// What the programs know of it.
    pub device: Device,
}

/// The devices of the packet path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// By index.
    pub devices: BTreeMap<u32, Chosen>,
    /// Devices that would be among them, and why they are not.
    pub skipped: BTreeSet<String>,
}

/// Chooses uplinks and return devices (semantics 38). `node` are the Node's
/// InternalIPs.
///
/// An uplink is named by the operator, or has a default route of any table, or
/// one of the Node's addresses, or an address in a subnet of its own: clients may
/// be there, although the Node does not tell that address. A return device is any
/// other one by which a remote backend could be reached: with a route through a
/// gateway or to a subnet. Neither is a bridge with nothing but pods behind it.
///
/// A device of pods is named by the operator, and that goes before all else: also a
/// port of a bridge, whose packets pass it whichever way they go.
pub fn select(network: &Network, node: &[IpAddr], names: &DeviceNames) -> Selection {
    let mut selection = Selection::default();
    if names.uplinks == UplinkNames::None && names.pods.is_empty() {
        return selection;
    }
    for (&index, link) in &network.links {
        let Some(role) = role(network, index, link, node, names) else {
            continue;
        };
        let name = &link.name;
        if let Some(upper) = network.upper(link)
            && role != Device::PODS
        {
            let reason = format!("{name} is a port of {}, which counts instead", upper.name);
            selection.skipped.insert(reason);
            continue;
        }
        let Some(header_bytes) = link.header_bytes else {
            let reason = format!(
                "{name} has link type {}, which is not served",
                link.link_type
            );
            selection.skipped.insert(reason);
            continue;
        };
        let source = |v4| source(network, index, node, v4);
        let device = Device {
            role,
            header_bytes,
            mtu: link.mtu,
            default_v6: network
                .routes_by(index)
                .any(|it| it.reach == Reach::Default && it.is_main_v6)
                .into(),
            v4: source(true).map_or(Address::ANY_V4, Address::from),
            v6: source(false).map_or(Address::ANY_V6, Address::from),
        };
        let name = name.clone();
        selection.devices.insert(index, Chosen { name, device });
    }
    selection
}

fn role(
    network: &Network,
    index: u32,
    link: &Link,
    node: &[IpAddr],
    names: &DeviceNames,
) -> Option<u32> {
    if link.kind == LinkKind::Internal {
        return None;
    }
    if names.pods.iter().any(|it| matches(it, &link.name)) {
        return Some(Device::PODS);
    }
    let is_uplink = match &names.uplinks {
        UplinkNames::Found => {
            let own = || network.addresses.iter().filter(|it| it.device == index);
            network
                .routes_by(index)
                .any(|it| it.reach == Reach::Default)
                || own().any(|it| node.contains(&it.ip))
                || leads_to_neighbours(network, index, link) && own().any(is_in_subnet)
        }
        UplinkNames::Patterns(patterns) => patterns.iter().any(|it| matches(it, &link.name)),
        UplinkNames::None => return None,
    };
    if is_uplink {
        Some(Device::UPLINK)
    } else {
        leads_to_nodes(network, index, link).then_some(Device::RETURN)
    }
}

fn is_in_subnet(address: &LocalAddress) -> bool {
    let whole = if address.ip.is_ipv4() { 32 } else { 128 };
    address.preferred && address.prefix_length < whole
}

/// Whether hosts that are no nodes may be neighbours there. Behind a tunnel are
/// nodes, and pods behind their bridge.
fn leads_to_neighbours(network: &Network, index: u32, link: &Link) -> bool {
    link.kind != LinkKind::Tunnel
        && !is_local_bridge(network, index, link)
        && network.upper(link).is_none()
}

fn is_local_bridge(network: &Network, index: u32, link: &Link) -> bool {
    let mut ports = network.ports_of(index);
    link.kind == LinkKind::Bridge && ports.all(|it| it.kind == LinkKind::Pair)
}

/// Whether routes by the device may lead to other nodes' pods. A port of another
/// device has none of its own.
fn leads_to_nodes(network: &Network, index: u32, link: &Link) -> bool {
    let is_local_bridge = is_local_bridge(network, index, link);
    network.upper(link).is_none()
        && network.routes_by(index).any(|route| match route.reach {
            Reach::Default | Reach::Gateway => true,
            Reach::Subnet => !is_local_bridge,
            // A pod, as most CNIs connect it.
            Reach::Host => !is_local_bridge && link.kind != LinkKind::Pair,
        })
}

/// The address that packets leaving by a device get for SNAT: the Node's if the
/// device has it, else what its routes ask for, else its first one of a subnet (a
/// lone /32 or /128 may be a VIP), else its first one. An unnumbered device
/// borrows from others, as the kernel does.
fn source(network: &Network, device: u32, node: &[IpAddr], v4: bool) -> Option<IpAddr> {
    // The kernel itself names the source of a subnet's route.
    let far = |it: &&Route| matches!(it.reach, Reach::Default | Reach::Gateway);
    let far = network.routes_by(device).filter(far);
    let asked: Vec<IpAddr> = far.filter_map(|it| it.source).collect();
    let rank = |it: &&LocalAddress| {
        let is_host = it.prefix_length == if v4 { 32 } else { 128 };
        let own = it.device == device;
        (
            // Another device's address only if this one has none, or routes say so.
            !(own || asked.contains(&it.ip)),
            !node.contains(&it.ip),
            !asked.contains(&it.ip),
            is_host,
        )
    };
    let usable = network.addresses.iter();
    usable
        .filter(|it| it.preferred && it.ip.is_ipv4() == v4)
        .min_by_key(rank)
        .map(|it| it.ip)
}
