//! Tables: a network in a few words, and the devices chosen from it.

use super::{DeviceNames, Link, LinkKind, LocalAddress, Network, Reach, Route, Selection, select};
use crate::pattern::matches;
use proxy_common::{Address, Device};
use std::net::IpAddr;

use LinkKind::{Bridge, Internal, Other, Pair, Tunnel};
use Reach::{Default as Everywhere, Gateway, Host, Subnet};

const ETH0: u32 = 2;

/// The Node's InternalIPs.
const NODE: [&str; 2] = ["192.0.2.11", "2001:db8::11"];

impl Network {
    /// Loopback, and `eth0` with the Node's addresses and the default routes.
    fn usual() -> Self {
        Self::default()
            .link(1, "lo", Internal)
            .address(1, "127.0.0.1/8")
            .link(ETH0, "eth0", Other)
            .address(ETH0, "192.0.2.11/24")
            .address(ETH0, "2001:db8::11/64")
            .route(ETH0, Everywhere)
            .route(ETH0, Subnet)
    }

    fn link(mut self, index: u32, name: &str, kind: LinkKind) -> Self {
        let link = Link {
            name: name.to_owned(),
            kind,
            header_bytes: Some(14),
            link_type: "Ether".to_owned(),
            controller: None,
            mtu: 1500,
        };
        self.links.insert(index, link);
        self
    }

    fn change(mut self, index: u32, change: impl FnOnce(&mut Link)) -> Self {
        change(self.links.get_mut(&index).unwrap());
        self
    }

    fn port_of(self, index: u32, controller: u32) -> Self {
        self.change(index, |link| link.controller = Some(controller))
    }

    fn address(mut self, device: u32, cidr: &str) -> Self {
        let (ip, prefix_length) = cidr.split_once('/').unwrap();
        self.addresses.push(LocalAddress {
            device,
            ip: ip.parse().unwrap(),
            prefix_length: prefix_length.parse().unwrap(),
            preferred: !ip.starts_with("fe80") && !ip.starts_with("127."),
        });
        self
    }

    /// The last address is secondary, deprecated or temporary.
    fn unpreferred(mut self) -> Self {
        self.addresses.last_mut().unwrap().preferred = false;
        self
    }

    fn route(mut self, device: u32, reach: Reach) -> Self {
        let source = None;
        self.routes.insert(Route {
            device,
            reach,
            source,
            is_main_v6: false,
        });
        self
    }

    fn route_from(mut self, device: u32, reach: Reach, source: &str) -> Self {
        let source = Some(source.parse().unwrap());
        self.routes.insert(Route {
            device,
            reach,
            source,
            is_main_v6: false,
        });
        self
    }

    fn choose(&self, names: &DeviceNames) -> Selection {
        select(self, &NODE.map(|ip| ip.parse::<IpAddr>().unwrap()), names)
    }

    /// Such as `eth0 uplink, flannel.1 return`.
    fn roles(&self, names: &DeviceNames) -> String {
        let role = |role| match role {
            Device::UPLINK => "uplink",
            Device::RETURN => "return",
            Device::PODS => "pods",
            _ => "?",
        };
        let selection = self.choose(names);
        let devices = selection.devices.values();
        let texts = devices.map(|it| format!("{} {}", it.name, role(it.device.role)));
        texts.collect::<Vec<_>>().join(", ")
    }

    fn sources(&self, device: u32) -> [String; 2] {
        let selection = self.choose(&DeviceNames::default());
        let device = selection.devices[&device].device;
        [device.v4.to_ip().to_string(), device.v6.to_ip().to_string()]
    }
}

#[test]
fn devices_are_found_by_routes_and_addresses() {
    let usual = Network::usual;
    let pod = |index, name: &str| usual().link(index, name, Pair).route(index, Host);
    for (what, network, wanted) in [
        ("one uplink", usual(), "eth0 uplink"),
        ("a pod's veth", pod(5, "cali1"), "eth0 uplink"),
        (
            "a second uplink in another table",
            usual().link(3, "eth1", Other).route(3, Everywhere),
            "eth0 uplink, eth1 uplink",
        ),
        (
            "the Node's address elsewhere than the default route",
            Network::default()
                .link(2, "eth0", Other)
                .address(2, "192.0.2.11/24")
                .link(3, "ppp0", Other)
                .route(3, Everywhere),
            "eth0 uplink, ppp0 uplink",
        ),
        (
            "the Node's address on dummy or loopback",
            usual()
                .link(3, "dummy0", Internal)
                .address(3, "192.0.2.11/32"),
            "eth0 uplink",
        ),
        (
            "overlay and second LAN",
            usual()
                .link(3, "eth1", Other)
                .route(3, Subnet)
                .address(3, "10.50.0.11/24")
                .link(4, "flannel.1", Tunnel)
                .route(4, Gateway)
                .link(5, "tunl0", Tunnel)
                .route(5, Host)
                .link(6, "vxlan7", Tunnel)
                .route(6, Subnet)
                .address(6, "10.70.0.11/24"),
            "eth0 uplink, eth1 uplink, flannel.1 return, tunl0 return, vxlan7 return",
        ),
        (
            "a second LAN of a nested node",
            usual()
                .link(3, "eth1", Pair)
                .route(3, Subnet)
                .address(3, "2001:db8:50::11/64"),
            "eth0 uplink, eth1 uplink",
        ),
        (
            "a subnet without an address there",
            usual().link(3, "eth1", Other).route(3, Subnet),
            "eth0 uplink, eth1 return",
        ),
        (
            "addresses of a pod's veth, of VIPs and link-local ones",
            usual()
                .link(3, "cali1", Pair)
                .route(3, Host)
                .address(3, "169.254.1.1/32")
                .address(3, "fe80::1/64")
                .link(4, "eth1", Other)
                .address(4, "198.51.100.7/32"),
            "eth0 uplink",
        ),
        (
            "bridges of pods and of nobody",
            usual()
                .link(3, "cni0", Bridge)
                .route(3, Subnet)
                .address(3, "10.244.1.1/24")
                .link(4, "veth1", Pair)
                .port_of(4, 3)
                .link(5, "docker0", Bridge)
                .route(5, Subnet)
                .address(5, "172.17.0.1/16"),
            "eth0 uplink",
        ),
        (
            "a bridge with a way out",
            usual()
                .link(3, "br1", Bridge)
                .route(3, Subnet)
                .address(3, "10.50.0.11/24")
                .link(4, "eth1", Other)
                .port_of(4, 3),
            "eth0 uplink, br1 uplink",
        ),
        (
            "a bridge with a gateway behind it",
            usual().link(3, "br1", Bridge).route(3, Gateway),
            "eth0 uplink, br1 return",
        ),
        (
            "the default route of a bridge and a bond",
            Network::default()
                .link(2, "eth0", Other)
                .port_of(2, 3)
                .link(3, "br0", Bridge)
                .route(3, Everywhere)
                .link(4, "eth1", Other)
                .port_of(4, 5)
                .link(5, "bond0", Other)
                .route(5, Everywhere),
            "br0 uplink, bond0 uplink",
        ),
        (
            "members of a VRF",
            usual()
                .link(3, "vrf1", Internal)
                .route(3, Everywhere)
                .link(4, "eth1", Other)
                .port_of(4, 3)
                .route(4, Everywhere),
            "eth0 uplink, eth1 uplink",
        ),
        (
            "a link without addresses or routes",
            usual().link(3, "eth1", Other),
            "eth0 uplink",
        ),
    ] {
        assert_eq!(network.roles(&DeviceNames::default()), wanted, "{what}");
    }
}

#[test]
fn devices_of_our_own_are_forgotten_with_their_addresses_and_routes() {
    let mut network = Network::usual()
        .link(7, "fairlead1", Pair)
        .address(7, "192.0.0.8/32")
        .route(7, Subnet);
    network.forget(&["fairlead0", "fairlead1"]);
    assert_eq!(network, Network::usual());
}

#[test]
fn named_uplinks_are_all_uplinks_and_the_others_return_devices() {
    let network = Network::usual()
        .link(3, "eth1", Other)
        .route(3, Subnet)
        .link(4, "veth1", Pair)
        .route(4, Host);
    for (given, wanted) in [
        ("eth0", "eth0 uplink, eth1 return"),
        ("eth1", "eth0 return, eth1 uplink"),
        ("eth*", "eth0 uplink, eth1 uplink"),
        ("eth1,veth*", "eth0 return, eth1 uplink, veth1 uplink"),
        ("*", "eth0 uplink, eth1 uplink, veth1 uplink"),
        ("wlan0", "eth0 return, eth1 return"),
        ("none", ""),
    ] {
        let list = given.split(',').map(str::to_owned).collect();
        let names = DeviceNames::parse(Some(list), vec![]).unwrap();
        assert_eq!(network.roles(&names), wanted, "{given}");
    }
    for wrong in ["", "eth0 eth1", "a/b", "longer-than-any-device"] {
        assert!(DeviceNames::parse(Some(vec![wrong.to_owned()]), vec![]).is_err());
    }
}

#[test]
fn devices_of_pods_are_named_and_may_be_ports_of_a_bridge() {
    let network = Network::usual()
        .link(3, "cni0", Bridge)
        .route(3, Subnet)
        .link(4, "veth1", Pair)
        .port_of(4, 3)
        .link(5, "docker0", Bridge)
        .route(5, Subnet);
    for (uplinks, pods, wanted) in [
        (None, "veth*", "eth0 uplink, veth1 pods"),
        (None, "docker0", "eth0 uplink, docker0 pods"),
        (None, "eth0", "eth0 pods"),
        (Some("none"), "veth*", "veth1 pods"),
        (Some("none"), "tap*", ""),
    ] {
        let list = uplinks.map(|it| vec![it.to_owned()]);
        let names = DeviceNames::parse(list, vec![pods.to_owned()]).unwrap();
        assert_eq!(network.roles(&names), wanted, "{uplinks:?} {pods}");
    }
    assert!(DeviceNames::parse(None, vec!["a/b".to_owned()]).is_err());
}

#[test]
fn patterns_stand_for_whole_names() {
    for (pattern, name, wanted) in [
        ("eth0", "eth0", true),
        ("eth0", "eth01", false),
        ("eth*", "eth", true),
        ("eth*", "veth0", false),
        ("*.100", "eth0.100", true),
        ("*.100", "eth0.1000", false),
        ("e*0.*", "eth0.7", true),
        ("**", "x", true),
    ] {
        assert_eq!(matches(pattern, name), wanted, "{pattern} {name}");
    }
}

#[test]
fn what_cannot_be_served_is_skipped_and_said() {
    let network = Network::usual()
        .change(ETH0, |link| {
            link.header_bytes = None;
            link.link_type = "Infiniband".to_owned();
        })
        .link(3, "eth1", Other)
        .port_of(3, 4)
        .link(4, "bond0", Other)
        .link(5, "can0", Other)
        .change(5, |link| link.header_bytes = None);
    let names = DeviceNames::parse(Some(vec!["eth*".to_owned()]), vec![]).unwrap();
    let selection = network.choose(&names);
    assert!(selection.devices.is_empty());
    assert_eq!(
        selection.skipped.into_iter().collect::<Vec<_>>(),
        [
            "eth0 has link type Infiniband, which is not served",
            "eth1 is a port of bond0, which counts instead",
        ]
    );
}

#[test]
fn a_device_without_link_header_and_its_mtu() {
    let network = Network::usual().change(ETH0, |link| {
        link.header_bytes = Some(0);
        link.mtu = 1280;
    });
    let device = network.choose(&DeviceNames::default()).devices[&ETH0].device;
    assert_eq!((device.header_bytes, device.mtu), (0, 1280));
}

#[test]
fn the_source_is_the_address_that_the_kernel_would_take() {
    let bare = || {
        Network::default()
            .link(ETH0, "eth0", Other)
            .route(ETH0, Everywhere)
    };
    for (what, network, wanted) in [
        ("the Node's", Network::usual(), NODE),
        (
            "the Node's, not the first",
            bare()
                .address(ETH0, "10.0.0.1/8")
                .address(ETH0, "192.0.2.11/24")
                .address(ETH0, "fe80::1/64"),
            ["192.0.2.11", "::"],
        ),
        (
            "no VIP before it",
            bare()
                .address(ETH0, "198.51.100.7/32")
                .address(ETH0, "10.0.0.1/8")
                .address(ETH0, "2001:db8:1::7/128")
                .address(ETH0, "2001:db8:1::1/64"),
            ["10.0.0.1", "2001:db8:1::1"],
        ),
        (
            "a lone address without a subnet",
            bare().address(ETH0, "10.0.0.1/32"),
            ["10.0.0.1", "::"],
        ),
        (
            "none that is secondary, deprecated or temporary",
            bare()
                .address(ETH0, "10.0.0.2/8")
                .unpreferred()
                .address(ETH0, "10.0.0.1/8"),
            ["10.0.0.1", "::"],
        ),
        (
            "what the route asks for",
            bare()
                .address(ETH0, "10.0.0.1/8")
                .address(ETH0, "10.0.0.2/8")
                .route_from(ETH0, Everywhere, "10.0.0.2"),
            ["10.0.0.2", "::"],
        ),
        (
            "what the route asks for, from another device",
            bare()
                .address(ETH0, "169.254.7.1/30")
                .link(3, "dummy0", Internal)
                .address(3, "192.0.2.11/32")
                .route_from(ETH0, Everywhere, "192.0.2.11"),
            ["192.0.2.11", "::"],
        ),
        (
            "the Node's for an unnumbered device",
            bare()
                .link(3, "docker0", Bridge)
                .address(3, "172.17.0.1/16")
                .link(4, "eth1", Other)
                .address(4, "192.0.2.11/24"),
            ["192.0.2.11", "::"],
        ),
        ("none at all", bare(), ["0.0.0.0", "::"]),
    ] {
        assert_eq!(network.sources(ETH0), wanted, "{what}");
    }
    let none = bare().choose(&DeviceNames::default()).devices[&ETH0].device;
    assert_eq!((none.v4, none.v6), (Address::ANY_V4, Address::ANY_V6));
}
