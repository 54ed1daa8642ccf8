//! The pod networks of the lab, what is around its nodes, and the agent on each
//! network for clients on its node.

mod around;
mod scene;
mod vpc;

use anyhow::{Context, Result, ensure};
use lab::{BACKEND_PORT, Peer, PodNetwork, Probe, SharedLab, Transport};
use scene::{OUTSIDE_PORT, ROUTER_MTU, Scene, addresses, datagram, each_way, is};
use std::net::{IpAddr, SocketAddr};

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
        let refused_by_node = larger.echo.icmp.map(|icmp| icmp.mtu);
        let expected = (mtu < scene.pod_device_mtu()).then_some(u32::from(mtu));
        ensure!(refused_by_node == expected, "{:?}", larger.echo);
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

fn packets_without_a_connection_are_dropped_by_calico_alone(scene: &Scene) -> Result<()> {
    // The node forgets connections at once and takes none up in the middle.
    let n3 = scene.node("n3").host();
    n3.sysctl("net/netfilter/nf_conntrack_tcp_timeout_established", "0")?;
    n3.sysctl("net/netfilter/nf_conntrack_tcp_loose", "0")?;
    for address in addresses(&scene.b3) {
        let to = SocketAddr::new(address, BACKEND_PORT).to_string();
        if scene.network == PodNetwork::Vxlan {
            let outcome = scene.try_briefly(scene.c1(), Transport::Tcp, &to)?;
            outcome.failed_with("TIMEOUT")?;
            ensure!(outcome.dialed.peer_name.is_some(), "it did not connect");
        } else {
            scene.c1().tcp(&to)?.answered_by("b3")?;
        }
    }
    n3.sysctl(
        "net/netfilter/nf_conntrack_tcp_timeout_established",
        "432000",
    )?;
    n3.sysctl("net/netfilter/nf_conntrack_tcp_loose", "1")
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

            pub(super) static SCENE: SharedLab<Scene> =
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
    packets_without_a_connection_are_dropped_by_calico_alone,
    insiders_reach_cluster_ips_and_are_seen_as_rule_20_says,
]);
