//! The pod networks of the lab, what is around its nodes, and the agent on each
//! network for clients on its node.

use anyhow::{Context, Result, ensure};
use lab::{BACKEND_PORT, Cast, Lab, Peer, PodNetwork, Probe, Router, SharedLab, Transport, story};
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;

/// A port on which outside clients answer.
const OUTSIDE_PORT: u16 = 9000;
/// MTU of the link between the router and c3.
const ROUTER_MTU: u16 = 1400;

/// The usual cast, and c3 behind its router. Outside clients have routes to pods.
struct Scene {
    cast: Cast,
    network: PodNetwork,
    router: Router,
    c3: Peer,
}

impl Scene {
    fn new(network: PodNetwork) -> Result<Self> {
        let cast = Cast::with_network(network)?;
        let router = cast.router(ROUTER_MTU)?;
        let c1 = cast.client("c1").clone().serve(OUTSIDE_PORT)?;
        cast.open_pods_to(&c1)?;
        let c3 = router.client.clone().serve(OUTSIDE_PORT)?;
        Ok(Self {
            cast,
            network,
            router,
            c3,
        })
    }

    fn c1(&self) -> &Peer {
        self.cast.client("c1")
    }

    /// Whether n1 has this address.
    fn is_of_n1(&self, address: IpAddr) -> bool {
        let node = self.node("n1");
        let of_network = match self.network {
            PodNetwork::Routed | PodNetwork::Policy => None,
            PodNetwork::Bridge => Some(["10.244.1.1", "fd00:244:1::1"]),
            PodNetwork::Vxlan => Some(["10.244.1.0", "fd00:244:1::"]),
        };
        let of_network = of_network
            .iter()
            .flatten()
            .filter_map(|own| own.parse().ok());
        [IpAddr::from(node.v4()), IpAddr::from(node.v6())]
            .into_iter()
            .chain(of_network)
            .any(|own| own == address)
    }

    /// Who may object to a packet for c3 that is too big: the router, and for
    /// IPv6 also a node that has learnt of it.
    fn objectors(&self, to: IpAddr) -> Vec<IpAddr> {
        match to {
            IpAddr::V4(_) => vec![self.router.router.v4().into()],
            IpAddr::V6(_) => vec![self.router.router.v6().into(), self.node("n1").v6().into()],
        }
    }

    /// The largest packet that a pod of n1 gets to a pod of another node.
    fn pod_mtu(&self, to: IpAddr) -> u16 {
        match (self.network, to) {
            (PodNetwork::Vxlan, IpAddr::V4(_)) => 1450,
            (PodNetwork::Vxlan, IpAddr::V6(_)) => 1430,
            _ => 1500,
        }
    }
}

impl Deref for Scene {
    type Target = Cast;

    fn deref(&self) -> &Cast {
        &self.cast
    }
}

impl AsRef<Lab> for Scene {
    fn as_ref(&self) -> &Lab {
        self.cast.as_ref()
    }
}

fn addresses(peer: &Peer) -> [IpAddr; 2] {
    [peer.v4().into(), peer.v6().into()]
}

/// Every transport and family: the server answers, and the judge likes the
/// client's address that it saw.
fn each_way(client: &Peer, server: &Peer, port: u16, likes: impl Fn(IpAddr) -> bool) -> Result<()> {
    for address in addresses(server) {
        for transport in Transport::BOTH {
            let to = SocketAddr::new(address, port).to_string();
            let outcome = client.reach(transport, &to)?;
            outcome.answered_by(server.name())?;
            let seen = outcome.seen_peer()?.ip();
            ensure!(
                likes(seen),
                "{}: unexpected client: {:?}",
                to,
                outcome.line()?
            );
        }
    }
    Ok(())
}

/// Any of the peer's two addresses.
fn is(peer: &Peer) -> impl Fn(IpAddr) -> bool + '_ {
    move |address| addresses(peer).contains(&address)
}

/// Bytes of a datagram that makes an IP packet of this size.
fn payload(packet: u16, to: IpAddr) -> u16 {
    let headers = match to {
        IpAddr::V4(_) => 20 + 8,
        IpAddr::V6(_) => 40 + 8,
    };
    packet - headers
}

fn datagram(to: IpAddr, port: u16, packet: u16) -> Probe {
    Probe::datagram(SocketAddr::new(to, port), payload(packet, to))
}

fn pods_reach_pods_with_their_own_address(scene: &Scene) -> Result<()> {
    for server in [&scene.b1, &scene.b2] {
        each_way(&scene.client, server, BACKEND_PORT, is(&scene.client))?;
    }
    each_way(&scene.b2, &scene.b1, BACKEND_PORT, is(&scene.b2))
}

fn hosts_reach_pods_with_an_address_of_the_node(scene: &Scene) -> Result<()> {
    for server in [&scene.b1, &scene.b2] {
        each_way(scene.host(), server, BACKEND_PORT, |address| {
            scene.is_of_n1(address)
        })?;
    }
    Ok(())
}

fn pods_leave_the_cluster_as_their_network_wants(scene: &Scene) -> Result<()> {
    let pod = is(&scene.client);
    let node = is(scene.host());
    let (on_lan, beyond): (&dyn Fn(_) -> _, &dyn Fn(_) -> _) = match scene.network {
        PodNetwork::Routed => (&pod, &pod),
        PodNetwork::Bridge | PodNetwork::Vxlan => (&node, &node),
        // The LAN is part of the VPC.
        PodNetwork::Policy => (&pod, &node),
    };
    each_way(&scene.client, scene.c1(), OUTSIDE_PORT, on_lan)?;
    each_way(&scene.client, &scene.c3, OUTSIDE_PORT, beyond)
}

fn outside_clients_with_a_route_reach_pods(scene: &Scene) -> Result<()> {
    for client in [scene.c1(), &scene.c3] {
        for server in [&scene.b1, &scene.b2] {
            each_way(client, server, BACKEND_PORT, is(client))?;
        }
    }
    Ok(())
}

fn nodes_forward_what_is_not_of_pods_unless_docker_forbids_it(scene: &Scene) -> Result<()> {
    let c2 = scene.cast.client("c2");
    for to in addresses(&scene.c3) {
        c2.route(&to.to_string(), scene.host())?;
        let probe = Probe {
            timeout_ms: 300,
            ..Probe::ping(to)
        };
        let probed = c2.probe(probe)?;
        match scene.network {
            PodNetwork::Routed | PodNetwork::Policy => probed.came_back()?,
            PodNetwork::Bridge | PodNetwork::Vxlan => probed.lost()?,
        }
    }
    Ok(())
}

fn pings_are_answered(scene: &Scene) -> Result<()> {
    for server in [&scene.b1, &scene.b2, scene.c1(), &scene.c3] {
        for to in addresses(server) {
            for client in scene.insiders() {
                client.ping(to)?.came_back()?;
            }
        }
    }
    Ok(())
}

fn full_packets_pass_between_pods_and_larger_ones_do_not(scene: &Scene) -> Result<()> {
    for to in addresses(&scene.b2) {
        let mtu = scene.pod_mtu(to);
        scene
            .client
            .probe(datagram(to, BACKEND_PORT, mtu))?
            .came_back()?;
        let larger = scene.client.probe(datagram(to, BACKEND_PORT, mtu + 1))?;
        larger.failed_with("EMSGSIZE")?;
        if mtu < 1450 {
            // The pod's own device would have let it go.
            let said = larger.icmp()?.mtu;
            ensure!(said == u32::from(mtu), "MTU {said} instead of {mtu}");
        }
        let fragmented = Probe {
            dont_fragment: false,
            timeout_ms: 300,
            ..datagram(to, BACKEND_PORT, 4000)
        };
        // The server has the MTU of the path to learn, too.
        scene.eventually(|| scene.client.probe(fragmented)?.came_back())?;
    }
    Ok(())
}

fn the_router_objects_to_packets_that_are_too_big(scene: &Scene) -> Result<()> {
    for to in addresses(&scene.c3) {
        for client in scene.insiders() {
            client
                .probe(datagram(to, OUTSIDE_PORT, ROUTER_MTU))?
                .came_back()?;
            client
                .probe(datagram(to, OUTSIDE_PORT, ROUTER_MTU + 1))?
                .too_big(ROUTER_MTU.into(), &scene.objectors(to))?;
        }
    }
    Ok(())
}

fn packets_that_may_be_fragmented_pass_the_router(scene: &Scene) -> Result<()> {
    for to in addresses(&scene.c3) {
        let probe = |client: &Peer| {
            client.probe(Probe {
                dont_fragment: false,
                timeout_ms: 300,
                ..datagram(to, OUTSIDE_PORT, 1450)
            })
        };
        // IPv6 is fragmented where it comes from, once that knows the MTU. The
        // host is first: br_netfilter joins a pod's fragments for ip6tables, and
        // then it is the node that has to divide them again.
        for client in [scene.host(), &scene.client] {
            scene.eventually(|| probe(client)?.came_back())?;
        }
    }
    Ok(())
}

fn tcp_learns_the_mtu_of_the_router(scene: &Scene) -> Result<()> {
    let text = "0123456789".repeat(500);
    let talks = |client: &Peer, server: &Peer, port: u16| -> Result<()> {
        for address in addresses(server) {
            let held = client.hold_tcp(&SocketAddr::new(address, port).to_string())?;
            let answer = held.talk(&text)?;
            ensure!(answer.line()? == format!("{} {text}", server.name()));
        }
        Ok(())
    };
    talks(&scene.client, &scene.c3, OUTSIDE_PORT)?;
    talks(&scene.c3, &scene.b2, BACKEND_PORT)
}

fn insiders_reach_cluster_ips_and_are_seen_as_rule_20_says(scene: &Scene) -> Result<()> {
    let services = [
        ("near", &scene.b1, "10.96.31.1", "fd00:96::3101"),
        ("far", &scene.b2, "10.96.31.2", "fd00:96::3102"),
    ];
    for (name, backend, v4, v6) in services {
        scene.apply(&scene.service(name, v4).cluster_ip(v6))?;
        scene.apply(&scene.ready(name, &[backend]))?;
        let v6_name = format!("{name}-v6");
        scene.apply(&scene.slice(&v6_name, name).v6().ready_endpoints([backend]))?;
    }
    scene.settle()?;
    for (name, backend, v4, v6) in services {
        for vip in [v4.to_owned(), format!("[{v6}]")] {
            for (transport, port) in [(Transport::Tcp, 80), (Transport::Udp, 53)] {
                let sees = |client: &Peer| -> Result<IpAddr> {
                    let outcome = client.reach(transport, &format!("{vip}:{port}"))?;
                    outcome.answered_by(backend.name())?;
                    Ok(outcome.seen_peer()?.ip())
                };
                let pod = sees(&scene.client).context(name)?;
                ensure!(is(&scene.client)(pod), "{name}: {pod} is not the pod");
                let host = sees(scene.host()).context(name)?;
                ensure!(scene.is_of_n1(host), "{name}: {host} is not of n1");
            }
        }
    }
    Ok(())
}

macro_rules! on_each_network {
    ($stories:tt) => {
        on_each_network!(routed: Routed, $stories);
        on_each_network!(bridge: Bridge, $stories);
        on_each_network!(vxlan: Vxlan, $stories);
        on_each_network!(policy: Policy, $stories);
    };
    ($module:ident: $network:ident, [$($story:ident),* $(,)?]) => {
        mod $module {
            use super::{PodNetwork, Scene, SharedLab};

            static SCENE: SharedLab<Scene> =
                SharedLab::new(|| Scene::new(PodNetwork::$network));

            $(
                #[test]
                fn $story() {
                    SCENE.story(super::$story);
                }
            )*
        }
    };
}

on_each_network!([
    pods_reach_pods_with_their_own_address,
    hosts_reach_pods_with_an_address_of_the_node,
    pods_leave_the_cluster_as_their_network_wants,
    outside_clients_with_a_route_reach_pods,
    nodes_forward_what_is_not_of_pods_unless_docker_forbids_it,
    pings_are_answered,
    full_packets_pass_between_pods_and_larger_ones_do_not,
    the_router_objects_to_packets_that_are_too_big,
    packets_that_may_be_fragmented_pass_the_router,
    tcp_learns_the_mtu_of_the_router,
    insiders_reach_cluster_ips_and_are_seen_as_rule_20_says,
]);

#[test]
fn frontends_are_routed_through_the_node_of_choice() {
    story(
        || Lab::new(2),
        |lab| {
            let [n1, n2] = ["n1", "n2"].map(|name| lab.node(name));
            let mut servers = Vec::new();
            let vips = ["198.51.100.7", "198.51.100.8", "2001:db8:100::7"];
            for node in [n1, n2] {
                servers.push(node.process(node.name())?.serve(OUTSIDE_PORT)?);
                for vip in vips {
                    node.host().ip(&format!("addr add {vip} dev lo"))?;
                }
            }
            let c1 = lab.client("c1");
            let answers = |expected: [&str; 3]| -> Result<()> {
                for (vip, node) in vips.into_iter().zip(expected) {
                    let to = SocketAddr::new(vip.parse()?, OUTSIDE_PORT);
                    c1.tcp(&to.to_string())?.answered_by(node)?;
                }
                Ok(())
            };
            c1.route_frontends(n1.host())?;
            answers(["n1", "n1", "n1"])?;
            c1.route(vips[1], n2.host())?;
            answers(["n1", "n2", "n1"])?;
            c1.route_frontends(n2.host())?;
            c1.route(vips[1], n1.host())?;
            answers(["n2", "n1", "n2"])?;
            n2.host().ip(&format!("addr del {}/32 dev lo", vips[0]))?;
            c1.ping(vips[0].parse()?)?
                .came_back()
                .expect_err("nobody has it");
            Ok(())
        },
    );
}

#[test]
fn a_second_uplink_leads_to_a_lan_of_its_own() {
    story(
        || Lab::new(2),
        |lab| {
            let c4 = lab.second_lan(&["n1"])?.serve(OUTSIDE_PORT)?;
            let n1 = lab.node("n1");
            let server = n1.process("server")?.serve(OUTSIDE_PORT)?;
            let (v4, v6) = n1.second_uplink();
            for to in [IpAddr::from(v4), IpAddr::from(v6)] {
                let to = SocketAddr::new(to, OUTSIDE_PORT).to_string();
                c4.tcp(&to)?.answered_by(server.name())?;
            }
            each_way(n1.host(), &c4, OUTSIDE_PORT, |address| {
                [IpAddr::from(v4), IpAddr::from(v6)].contains(&address)
            })?;
            // n2 has no way there.
            let probe = Probe {
                timeout_ms: 300,
                ..Probe::ping(c4.v4().into())
            };
            lab.node("n2").host().probe(probe)?.lost()
        },
    );
}
