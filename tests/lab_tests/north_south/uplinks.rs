//! Clients that reach a node by two uplinks, and answers that find their way back.

use crate::scene::{FAR, NEAR, Name, Scene, address};
use anyhow::{Context, Result};
use lab::{Dial, Held, IN_FORCE, Peer, PodNetwork, SharedLab, Transport};
use std::net::{IpAddr, SocketAddr};

/// c1 on the second LAN.
const C1: [&str; 2] = ["10.50.0.101", "2001:db8:50::101"];

/// n1, n2 and c1 are on both LANs.
static LAB: SharedLab<Scene> = SharedLab::new(|| {
    let scene = Scene::new(PodNetwork::Routed)?;
    scene.second_lan(&["n1", "n2"])?;
    let c1 = scene.c1();
    scene.switch().ip(&format!(
        "link add c1eth1 type veth peer name eth1 netns {}\nlink set c1eth1 master br1 up",
        c1.pid()
    ))?;
    let [v4, v6] = C1;
    c1.ip(&format!(
        "addr add {v4}/24 dev eth1\naddr add {v6}/64 dev eth1 nodad\nlink set eth1 up"
    ))?;
    // A host that is asked on the wrong LAN keeps silent, and tells nobody its addresses
    // there.
    for file in ["arp_ignore", "arp_announce"] {
        c1.sysctl(&format!("net/ipv4/conf/all/{file}"), "2")?;
    }
    Ok(scene)
});

/// LoadBalancer IPs.
fn frontends(scene: &Scene, service: Name) -> Result<Vec<SocketAddr>> {
    let all = service.frontends(scene)?;
    Ok(all[2..4].to_vec())
}

/// c1 sends what is for a frontend to n1, by the first LAN or by the second.
fn go_by(scene: &Scene, second: bool, to: SocketAddr) -> Result<()> {
    let n1 = scene.node("n1");
    let (v4, v6) = n1.second_uplink();
    let via: IpAddr = match (second, to) {
        (false, _) => address(n1.host(), to),
        (true, SocketAddr::V4(_)) => v4.into(),
        (true, SocketAddr::V6(_)) => v6.into(),
    };
    scene
        .c1()
        .ip(&format!("route replace {} via {via}", to.ip()))
}

/// From c1's address on the first LAN.
fn dial(c1: &Peer, transport: Transport, to: SocketAddr) -> Dial {
    Dial {
        from: Some(SocketAddr::new(address(c1, to), 0)),
        ..Dial::new(transport, to)
    }
}

#[test]
fn an_answer_leaves_as_routes_say_where_nothing_leads_back_by_the_device_of_its_request() {
    LAB.story(|scene| {
        let c1 = scene.c1();
        for (service, backend) in [(NEAR, "b1"), (FAR, "b2")] {
            for to in frontends(scene, service)? {
                go_by(scene, true, to)?;
                for transport in Transport::BOTH {
                    let seen = c1.dial(dial(c1, transport, to))?;
                    seen.answered_by(backend)?;
                }
            }
        }
        connections_outlive_an_uplink(scene)
    });
}

/// In one story with the other, which needs both.
fn connections_outlive_an_uplink(scene: &Scene) -> Result<()> {
    let c1 = scene.c1();
    let mut held: Vec<(Held, &str)> = Vec::new();
    let mut all = Vec::new();
    for (service, backend) in [(NEAR, "b1"), (FAR, "b2")] {
        for to in frontends(scene, service)? {
            go_by(scene, false, to)?;
            all.push(to);
            for transport in Transport::BOTH {
                held.push((c1.hold(dial(c1, transport, to))?, backend));
            }
        }
    }
    // Whoever announces routes notices, on both sides.
    let [v4, v6] = C1;
    let n1 = scene.node("n1").host();
    n1.ip(&format!(
        "link set eth0 down\n\
         addr replace {}/128 dev eth1 nodad\n\
         route replace 192.0.2.100 via {v4}\n\
         route replace 2001:db8:2::100 via {v6}\n\
         route replace 10.244.2.0/24 via 10.50.0.12\n\
         route replace fd00:244:2::/64 via 2001:db8:50::12",
        n1.v6()
    ))?;
    scene.node("n2").host().ip(&format!(
        "route replace {} via 10.50.0.11\nroute replace {} via 2001:db8:50::11",
        n1.v4(),
        n1.v6()
    ))?;
    for to in all {
        go_by(scene, true, to)?;
    }
    for (flow, backend) in &held {
        scene
            .within(IN_FORCE, || flow.talk("still there?")?.answered_by(backend))
            .context("by the other uplink")?;
    }
    Ok(())
}
