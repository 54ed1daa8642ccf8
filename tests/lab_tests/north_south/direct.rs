//! Direct server return: the backend's node answers the client by itself.

use crate::scene::{Name, Scene, address};
use anyhow::{Context, Result, ensure};
use lab::{BACKEND_PORT, Dial, PodNetwork, Probe, SharedLab, Transport};
use std::net::{IpAddr, SocketAddr};

/// An endpoint on each node.
const EVERYWHERE: Name = Name::new("direct-everywhere", 60);
/// An endpoint on n2 only.
const ELSEWHERE: Name = Name::new("direct-elsewhere", 61);
/// Its mode changes.
const CHANGING: Name = Name::new("direct-changing", 62);
/// An endpoint on n2 only; TCP by DSR, UDP by SNAT.
const HYBRID: Name = Name::new("direct-hybrid", 63);

const MODE: &str = "fairlead.io/forwarding-mode";

/// Bytes that a tunnel adds.
const fn overhead(to: SocketAddr) -> u16 {
    if to.is_ipv4() { 60 } else { 80 }
}

static ROUTED: SharedLab<Scene> = SharedLab::new(|| direct(PodNetwork::Routed));
static BRIDGE: SharedLab<Scene> = SharedLab::new(|| direct(PodNetwork::Bridge));
static VXLAN: SharedLab<Scene> = SharedLab::new(|| direct(PodNetwork::Vxlan));
static POLICY: SharedLab<Scene> = SharedLab::new(|| direct(PodNetwork::Policy));

fn direct(network: PodNetwork) -> Result<Scene> {
    let scene = Scene::new(network)?;
    let all = [&scene.b1, &scene.b2, &scene.b3];
    for (name, mode, backends) in [
        (EVERYWHERE, "dsr", &all[..]),
        (ELSEWHERE, "dsr", &all[1..2]),
        (HYBRID, "hybrid", &all[1..2]),
    ] {
        scene.apply(&name.service().annotation(MODE, mode))?;
        name.lead_to(&scene, BACKEND_PORT, backends)?;
    }
    scene.settle()?;
    Ok(scene)
}

#[test]
fn every_backend_sees_the_client_on_every_network() {
    for lab in [&ROUTED, &BRIDGE, &VXLAN, &POLICY] {
        lab.story(|scene| {
            for to in EVERYWHERE.frontends(scene)? {
                for transport in Transport::BOTH {
                    let client = address(scene.c1(), to);
                    let mut seen = Vec::new();
                    for _ in 0..40 {
                        let outcome = scene.c1().reach(transport, &to.to_string())?;
                        let what = || format!("{} {to}", transport.as_str());
                        seen.push(outcome.pod().with_context(what)?.to_owned());
                        let peer = outcome.seen_peer()?.ip();
                        ensure!(peer == client, "{to}: a backend saw {peer}");
                    }
                    seen.sort();
                    seen.dedup();
                    ensure!(seen == ["b1", "b2", "b3"], "{to}: {seen:?}");
                }
            }
            Ok(())
        });
    }
}

#[test]
fn streams_of_any_length_pass_both_ways() {
    for lab in [&ROUTED, &VXLAN] {
        lab.story(|scene| {
            let host = scene.node("n1").host();
            let line = "x".repeat(300_000);
            for on in [false, true] {
                host.offloads("eth0", on)?;
                for client in [scene.c1(), &scene.c3] {
                    for to in ELSEWHERE.node_ports(scene)? {
                        let held = client.hold_tcp(&to.to_string())?;
                        let outcome = held.talk(&line)?;
                        let length = outcome.line()?.len();
                        ensure!(length > line.len(), "{to}: {length} bytes came back");
                    }
                }
            }
            Ok(())
        });
    }
}

#[test]
fn a_client_learns_what_fits_into_the_tunnel() {
    ROUTED.story(|scene| {
        for to in ELSEWHERE.node_ports(scene)? {
            let headers = if to.is_ipv4() { 28 } else { 48 };
            let most = 1500 - overhead(to);
            let probe = |size| scene.c1().probe(Probe::datagram(to, size));
            probe(most + 1 - headers)?.too_big(most.into(), &[to.ip()])?;
            probe(most - headers)?.came_back()?;
        }
        Ok(())
    });
}

#[test]
fn hybrid_is_direct_for_tcp_only() {
    ROUTED.story(|scene| {
        for to in HYBRID.frontends(scene)? {
            let client = address(scene.c1(), to);
            let peer = |transport| -> Result<IpAddr> {
                let outcome = scene.c1().reach(transport, &to.to_string())?;
                Ok(outcome.seen_peer()?.ip())
            };
            ensure!(peer(Transport::Tcp)? == client, "{to}");
            ensure!(scene.is_of_node(1, peer(Transport::Udp)?), "{to}");
        }
        Ok(())
    });
}

/// Routers may move a client's packets to another node at any time.
#[test]
fn connections_go_on_when_another_node_gets_their_packets() {
    ROUTED.story(|scene| {
        let c1 = scene.c1();
        for to in ["198.51.100.60", "2001:db8:100::60"] {
            let target = SocketAddr::new(to.parse()?, 80).to_string();
            let held = (0..20)
                .map(|_| c1.hold_tcp(&target))
                .collect::<Result<Vec<_>>>()?;
            for node in ["n3", "n2", "n1"] {
                c1.route(to, scene.node(node).host())?;
                for flow in &held {
                    let outcome = flow.talk("still there?")?;
                    outcome
                        .answered_by(&flow.pod()?)
                        .with_context(|| format!("{to} by {node}"))?;
                }
            }
        }
        Ok(())
    });
}

#[test]
fn open_connections_keep_their_way_when_the_mode_changes() {
    ROUTED.story(|scene| {
        CHANGING.lead_to(scene, BACKEND_PORT, &[&scene.b2])?;
        let mut held = Vec::new();
        for mode in ["snat", "dsr", "hybrid", "snat"] {
            scene.apply(&CHANGING.service().annotation(MODE, mode))?;
            scene.settle()?;
            for to in CHANGING.frontends(scene)? {
                let client = address(scene.c1(), to);
                let outcome = scene.c1().reach(Transport::Tcp, &to.to_string())?;
                let peer = outcome.seen_peer()?.ip();
                ensure!((peer == client) == (mode != "snat"), "{mode} {to}: {peer}");
                held.push(scene.c1().hold_tcp(&to.to_string())?);
            }
            for flow in &held {
                flow.talk("still there?")?.answered_by("b2").context(mode)?;
            }
        }
        Ok(())
    });
}

/// One port of it, towards two nodes at once.
#[test]
fn a_client_may_be_a_node() {
    ROUTED.story(|scene| {
        let n3 = scene.node("n3").host();
        let [to, to_v6] = ELSEWHERE.node_ports(scene)?;
        let n2 = scene.node("n2");
        for (from, first, second) in [
            (IpAddr::from(n3.v4()), to, IpAddr::from(n2.v4())),
            (n3.v6().into(), to_v6, n2.v6().into()),
        ] {
            for transport in Transport::BOTH {
                for to in [first, SocketAddr::new(second, first.port())] {
                    let dial = Dial {
                        from: Some(SocketAddr::new(from, 43_000)),
                        ..Dial::new(transport, to)
                    };
                    n3.dial(dial)?
                        .answered_by("b2")
                        .with_context(|| to.to_string())?;
                }
            }
        }
        Ok(())
    });
}
