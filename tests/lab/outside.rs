//! What a lab may have around its nodes besides c1 and c2: more hosts on the
//! LAN, a router, a second LAN.

use crate::lab::{Lab, identity, member, start_member};
use crate::network::{
    BEHIND_ROUTER, FORWARDING, Plug, PodNetwork, SECOND_LAN, SWITCH_HOST, Subnet, ip, lan_commands,
    member_commands, node_host, plug_commands, routes_behind,
};
use crate::peer::Peer;
use crate::spawn::netns_path;
use anyhow::{Result, ensure};

/// Last octet of the router, on the LAN and behind it.
const ROUTER: u8 = 90;
/// Last octet of an outside client that is on another subnet than the LAN.
const FAR_CLIENT: u8 = 100;

/// A router on the LAN and the outside client c3 behind it. Both end with this.
#[derive(Debug)]
pub struct Router {
    /// The router. It sends what is for frontends wherever its routes say
    /// ([`Peer::route_frontends`]).
    pub router: Peer,
    /// c3, an outside client on a link of smaller MTU. It says in TCP that it
    /// takes segments of the usual size, so that the router has to object.
    pub client: Peer,
}

impl Lab {
    /// One more host of the LAN, outside of the cluster, with this last octet.
    /// It has routes to the pods.
    pub fn host(&self, name: &str, octet: u8) -> Result<Peer> {
        let host = member(name, None, octet, self.outside_cgroup(name))?;
        self.plug(name, "br0", "eth0", &host)?;
        self.route_to_pods(&host, &member_commands(octet))?;
        Ok(host)
    }

    /// Gives an outside client of the LAN routes to the pods.
    pub fn open_pods_to(&self, client: &Peer) -> Result<()> {
        self.route_to_pods(client, "")
    }

    fn route_to_pods(&self, host: &Peer, before: &str) -> Result<()> {
        let routes = self.network.routes_to_pods(self.node_count());
        ip(host.netns_fd(), before.to_owned() + &routes)
    }

    /// Plugs a member into a bridge of the switch.
    fn plug(&self, port: &str, bridge: &str, device: &str, peer: &Peer) -> Result<()> {
        let plug = Plug {
            port: port.to_owned(),
            device,
            netns: peer.netns_fd(),
        };
        ip(self.switch().netns_fd(), plug_commands(bridge, &plug))
    }

    /// A router at 192.0.2.90 with c3 behind it, at 10.60.0.100, on a link of
    /// this MTU. Everybody on the LAN gets a route. A lab has one at most.
    pub fn router(&self, mtu: u16) -> Result<Router> {
        let router = self.host("router", ROUTER)?;
        for (path, value) in FORWARDING {
            router.sysctl(path, value)?;
        }
        let client = self.far_client("c3", BEHIND_ROUTER)?;
        let netns = netns_path(client.netns_fd());
        let join = BEHIND_ROUTER.join("c3", ROUTER);
        ip(
            router.netns_fd(),
            format!(
                "link add c3 mtu {mtu} type veth peer name eth0 mtu {mtu} netns {netns}\n{join}"
            ),
        )?;
        let (v4, v6) = BEHIND_ROUTER.addresses(ROUTER);
        let join = BEHIND_ROUTER.join("eth0", FAR_CLIENT);
        // As if its own link had 1500 and only the next one were smaller.
        ip(
            client.netns_fd(),
            format!(
                "link set lo up\n\
                 {join}\
                 route add default via {v4} advmss 1460\n\
                 route add default via {v6} advmss 1440\n"
            ),
        )?;
        for node in self.nodes() {
            let routes = self.network.routes_behind(BEHIND_ROUTER, ROUTER);
            ip(node.host().netns_fd(), routes)?;
        }
        for outsider in self.outsiders() {
            ip(outsider.netns_fd(), routes_behind(BEHIND_ROUTER, ROUTER))?;
        }
        Ok(Router { router, client })
    }

    /// A second LAN, 10.50.0.0/24 and 2001:db8:50::/64, on which these nodes
    /// get an uplink `eth1`, and its outside client c4 at 10.50.0.100, which
    /// this returns. A lab has one at most.
    pub fn second_lan(&self, nodes: &[&str]) -> Result<Peer> {
        ensure!(
            self.network != PodNetwork::Policy,
            "nodes of this network have an eth1 already"
        );
        ip(self.switch().netns_fd(), lan_commands("br1", SECOND_LAN))?;
        for name in nodes {
            let node = self.node(name);
            self.plug(&format!("{name}eth1"), "br1", "eth1", node.host())?;
            let join = SECOND_LAN.join("eth1", node_host(node.number()));
            ip(node.host().netns_fd(), join)?;
        }
        let client = self.far_client("c4", SECOND_LAN)?;
        self.plug("c4", "br1", "eth0", &client)?;
        let join = SECOND_LAN.join("eth0", FAR_CLIENT);
        let routes = SECOND_LAN.default_routes(SWITCH_HOST);
        ip(client.netns_fd(), format!("link set lo up\n{join}{routes}"))?;
        Ok(client)
    }

    fn far_client(&self, name: &str, subnet: Subnet) -> Result<Peer> {
        let identity = identity(name, None, subnet, FAR_CLIENT);
        start_member(identity, self.outside_cgroup(name), &[])
    }
}
