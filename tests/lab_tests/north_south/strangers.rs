//! Packets that belong to nobody, or to somebody else.

use crate::routed;
use crate::scene::{FAR, NEAR, address};
use anyhow::ensure;
use lab::wire::Segment;
use lab::{BACKEND_PORT, Dial, Transport};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Where c1 answers connections of hosts.
const HOST_PORT: u16 = 7070;

/// Far outside of any window.
const OFF: u32 = 1 << 30;

#[test]
fn resets_outside_of_the_window_end_nothing() {
    // K66
    routed::LAB.story(|scene| {
        for (service, backend) in [(NEAR, &scene.b1), (FAR, &scene.b2)] {
            for to in service.node_ports(scene)? {
                let held = scene.c1().hold_tcp(&to.to_string())?;
                let client = held.names()?.local.map_err(anyhow::Error::msg)?;
                let sequences = held.sequences()?;
                for round in 0..3 {
                    scene.c1().send_reset(Segment {
                        from: client,
                        to,
                        sequence: sequences.next_sent.wrapping_add(OFF),
                    })?;
                    backend.send_reset(Segment {
                        from: held.outcome.seen_local()?,
                        to: held.outcome.seen_peer()?,
                        sequence: sequences.next_expected.wrapping_add(OFF),
                    })?;
                    let outcome = held.talk(&format!("round {round}"))?;
                    outcome.answered_by(backend.name())?;
                }
            }
        }
        Ok(())
    });
}

#[test]
fn sockets_of_the_host_keep_a_port_that_a_node_port_has() {
    routed::LAB.story(|scene| {
        let n1 = scene.node("n1");
        let ours = scene.c1().beside("c1-server")?.serve(HOST_PORT)?;
        for service in [NEAR, FAR] {
            for like in service.node_ports(scene)? {
                let to = SocketAddr::new(address(&ours, like), HOST_PORT);
                for transport in Transport::BOTH {
                    let held = n1.host().hold(Dial {
                        from: Some(like),
                        ..Dial::new(transport, to)
                    })?;
                    held.outcome.answered_by("c1-server")?;
                    ensure!(held.outcome.seen_peer()? == like, "another port");
                    for _ in 0..3 {
                        held.talk("again")?.answered_by("c1-server")?;
                    }
                    // The NodePort is served meanwhile.
                    scene.c2().reach(transport, &like.to_string())?.pod()?;
                }
            }
        }
        Ok(())
    });
}

#[test]
fn clients_with_the_same_source_port_get_different_ones() {
    const CLIENTS: u8 = 20;
    routed::LAB.story(|scene| {
        let to = FAR.node_ports(scene)?;
        let mut held = Vec::new();
        let mut seen = BTreeSet::new();
        for number in 0..CLIENTS {
            let octet = 120 + number;
            let addresses = [format!("192.0.2.{octet}"), format!("2001:db8:2::{octet}")];
            let [v4, v6] = &addresses;
            scene.c1().ip(&format!(
                "addr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad"
            ))?;
            for (from, to) in addresses.iter().zip(to) {
                for transport in Transport::BOTH {
                    let flow = scene.c1().hold(Dial {
                        from: Some(SocketAddr::new(from.parse()?, 41_000)),
                        ..Dial::new(transport, to)
                    })?;
                    flow.outcome.answered_by("b2")?;
                    let source = flow.outcome.seen_peer()?;
                    ensure!(
                        seen.insert((source, transport.as_str())),
                        "{source} is two clients'"
                    );
                    held.push(flow);
                }
            }
        }
        for flow in &held {
            flow.talk("mine")?.answered_by("b2")?;
        }
        drop(held);
        for octet in 120..120 + CLIENTS {
            scene.c1().ip(&format!(
                "addr del 192.0.2.{octet}/24 dev eth0\naddr del 2001:db8:2::{octet}/64 dev eth0"
            ))?;
        }
        Ok(())
    });
}

#[test]
fn a_client_may_go_straight_to_a_backend_from_the_port_of_an_earlier_connection() {
    routed::LAB.story(|scene| {
        let client = scene.c1();
        scene.cast.open_pods_to(client)?;
        for to in NEAR.node_ports(scene)? {
            let pod = SocketAddr::new(address(&scene.b1, to), BACKEND_PORT);
            for transport in Transport::BOTH {
                let from = SocketAddr::new(address(client, to), 45_678);
                for to in [to, pod, to, pod] {
                    let dial = Dial {
                        from: Some(from),
                        ..Dial::new(transport, to)
                    };
                    client.dial(dial)?.answered_by("b1")?;
                }
            }
        }
        Ok(())
    });
}
