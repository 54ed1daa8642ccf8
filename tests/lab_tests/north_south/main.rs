//! Clients outside of the cluster, on every pod network: packets that enter a
//! node by its uplink reach a backend anywhere, and the answers find their way back.

mod direct;
mod life;
mod paths;
mod scene;
mod strangers;
mod uplinks;

use anyhow::{Context, Result, ensure};
use lab::{PodNetwork, Probe, SharedLab, Transport};
use scene::{ALL, FAR, NEAR, NONE, Scene, address};

fn every_frontend_leads_to_every_backend(scene: &Scene) -> Result<()> {
    for to in ALL.frontends(scene)? {
        for transport in Transport::BOTH {
            let dial = lab::Dial::new(transport, to);
            scene
                .c1()
                .many(dial, 40)?
                .only_by(&["b1", "b2", "b3"])
                .with_context(|| format!("{} {to}", transport.as_str()))?;
        }
    }
    Ok(())
}

fn a_local_backend_sees_the_client(scene: &Scene) -> Result<()> {
    for to in NEAR.frontends(scene)? {
        for transport in Transport::BOTH {
            let outcome = scene.c1().reach(transport, &to.to_string())?;
            outcome.answered_by("b1")?;
            let seen = outcome.seen_peer()?.ip();
            let client = address(scene.c1(), to);
            ensure!(seen == client, "{to}: b1 saw {seen}, not {client}");
        }
    }
    Ok(())
}

fn a_remote_backend_sees_the_node(scene: &Scene) -> Result<()> {
    for to in FAR.frontends(scene)? {
        for transport in Transport::BOTH {
            let outcome = scene.c1().reach(transport, &to.to_string())?;
            outcome.answered_by("b2")?;
            let seen = outcome.seen_peer()?.ip();
            ensure!(
                scene.is_of_node(1, seen),
                "{to}: b2 saw {seen}, no address of n1"
            );
        }
    }
    Ok(())
}

fn a_service_of_nobody_refuses(scene: &Scene) -> Result<()> {
    for to in NONE.frontends(scene)? {
        for transport in Transport::BOTH {
            scene.c1().reach(transport, &to.to_string())?.refused()?;
        }
    }
    Ok(())
}

pub(crate) fn streams_of_any_length_pass_both_ways(scene: &Scene) -> Result<()> {
    let line = "x".repeat(300_000);
    // c3's link takes less than the others, which it does not say in its MSS.
    for client in [scene.c1(), &scene.c3] {
        for service in [NEAR, FAR] {
            for to in service.node_ports(scene)? {
                let held = client.hold_tcp(&to.to_string())?;
                let outcome = held.talk(&line)?;
                let length = outcome.line()?.len();
                ensure!(length > line.len(), "{to}: {length} bytes came back");
            }
        }
    }
    Ok(())
}

pub(crate) fn fragments_follow_the_first_one(scene: &Scene) -> Result<()> {
    // What pods, and the device between nodes, take of network `Vxlan`.
    for (service, mtu) in [(NEAR, 1450), (FAR, 1430)] {
        for to in service.node_ports(scene)? {
            let probe = Probe {
                dont_fragment: false,
                ..Probe::datagram(to, 4000)
            };
            let mut probed = scene.c1().probe(probe)?;
            // Nobody on the way fragments IPv6: first the client learns the size,
            // then the backend, whose answer is lost with that.
            for _ in 0..2 {
                if to.is_ipv6() && probed.came_back().is_err() {
                    if probed.icmp().is_ok() {
                        probed.too_big(mtu, &[to.ip()])?;
                    }
                    probed = scene.c1().probe(probe)?;
                }
            }
            probed.came_back()?;
        }
    }
    Ok(())
}

fn ping_is_none_of_our_business(scene: &Scene) -> Result<()> {
    for to in ALL.node_ports(scene)? {
        scene.c1().probe(Probe::ping(to.ip()))?.came_back()?;
    }
    Ok(())
}

macro_rules! on_each_network {
    ($($story:ident)*) => {
        on_network!(routed, PodNetwork::Routed, $($story)*);
        on_network!(bridge, PodNetwork::Bridge, $($story)*);
        on_network!(vxlan, PodNetwork::Vxlan, $($story)*);
        on_network!(policy, PodNetwork::Policy, $($story)*);
    };
}

macro_rules! on_network {
    ($module:ident, $network:expr, $($story:ident)*) => {
        mod $module {
            use super::*;

            pub(crate) static LAB: SharedLab<Scene> = SharedLab::new(|| Scene::new($network));

            $(
                #[test]
                fn $story() {
                    LAB.story(|scene| super::$story(scene));
                }
            )*
        }
    };
}

on_each_network! {
    every_frontend_leads_to_every_backend
    a_local_backend_sees_the_client
    a_remote_backend_sees_the_node
    a_service_of_nobody_refuses
    streams_of_any_length_pass_both_ways
    fragments_follow_the_first_one
    ping_is_none_of_our_business
}
