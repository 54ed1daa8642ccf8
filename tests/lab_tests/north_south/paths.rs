//! Neighbours, filters, offloads, and more than one way into the cluster.

use crate::scene::{ALL, FAR, NEAR, Name, Scene};
use crate::{fragments_follow_the_first_one, routed, streams_of_any_length_pass_both_ways, vxlan};
use anyhow::{Context, Result, ensure};
use lab::{BACKEND_PORT, Dial, PodNetwork, SharedLab, Transport};
use std::net::{IpAddr, SocketAddr};

/// Reached by two nodes.
const SAME: Name = Name::new("same", 95);

/// The way to b2 changes there, for all who go to it.
static REROUTED: SharedLab<Scene> = SharedLab::new(|| Scene::new(PodNetwork::Routed));

#[test]
fn the_first_packet_gets_through_when_no_neighbour_is_known() {
    // K56
    routed::LAB.story(|scene| {
        for service in [NEAR, FAR] {
            for to in service.frontends(scene)? {
                for transport in Transport::BOTH {
                    for node in ["n1", "n2"] {
                        scene.node(node).host().ip("neigh flush all")?;
                    }
                    scene.c1().reach(transport, &to.to_string())?.pod()?;
                }
            }
        }
        Ok(())
    });
}

#[test]
fn strict_filters_lose_nothing_on_an_overlay_nor_on_the_slow_path() {
    // K52: loose and strict, for all devices.
    vxlan::LAB.story(|scene| {
        let host = scene.node("n1").host();
        let filter = |value| -> Result<()> {
            for device in ["all", "eth0", "flannel.1"] {
                host.sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), value)?;
            }
            Ok(())
        };
        for value in ["2", "1"] {
            filter(value)?;
            for to in ALL.frontends(scene)? {
                for transport in Transport::BOTH {
                    let counts = scene.c1().many(Dial::new(transport, to), 20)?;
                    counts.none_failed().context("rp_filter")?;
                }
            }
            fragments_follow_the_first_one(scene).context("large datagrams")?;
        }
        filter("0")
    });
}

#[test]
fn streams_pass_with_offloads_and_without() {
    routed::LAB.story(|scene| {
        let host = scene.node("n1").host();
        for on in [false, true] {
            host.offloads("eth0", on)?;
            streams_of_any_length_pass_both_ways(scene)
                .with_context(|| format!("offloads {on}"))?;
        }
        Ok(())
    });
}

#[test]
fn the_same_connection_gets_the_same_backend_by_every_node() {
    routed::LAB.story(|scene| {
        let c1 = scene.c1();
        let backends = [&scene.b1, &scene.b2, &scene.b3];
        scene.apply(&SAME.service())?;
        SAME.lead_to(scene, BACKEND_PORT, &backends)?;
        scene.settle()?;
        for (to, from) in [
            ("198.51.100.95", IpAddr::from(c1.v4())),
            ("2001:db8:100::95", c1.v6().into()),
        ] {
            let picks = |by: &str| -> Result<Vec<String>> {
                c1.route(to, scene.node(by).host())?;
                let pick = |port| {
                    let dial = Dial {
                        from: Some(SocketAddr::new(from, port)),
                        ..Dial::new(Transport::Tcp, SocketAddr::new(to.parse()?, 80))
                    };
                    Ok(c1.dial(dial)?.pod()?.to_owned())
                };
                (42_000..42_030).map(pick).collect()
            };
            let by_n1 = picks("n1")?;
            for backend in backends {
                let name = backend.name();
                ensure!(by_n1.iter().any(|it| it == name), "never {name}");
            }
            for node in ["n2", "n3"] {
                let others = picks(node)?;
                ensure!(others == by_n1, "{by_n1:?} by n1, {others:?} by {node}");
            }
        }
        Ok(())
    });
}

#[test]
fn a_second_uplink_serves_and_answers() {
    // Semantics 38.
    routed::LAB.story(|scene| {
        let c4 = scene.second_lan(&["n1"])?;
        let n1 = scene.node("n1");
        let (v4, v6) = n1.second_uplink();
        for to in lab::FRONTENDS {
            let via = if to.contains(':') {
                v6.to_string()
            } else {
                v4.to_string()
            };
            c4.ip(&format!("route replace {to} via {via}"))?;
        }
        for (service, backend) in [(NEAR, "b1"), (FAR, "b2")] {
            let mut frontends = service.frontends(scene)?;
            frontends[0].set_ip(v4.into());
            frontends[1].set_ip(v6.into());
            for to in frontends {
                for transport in Transport::BOTH {
                    scene.within(lab::IN_FORCE, || {
                        c4.reach(transport, &to.to_string())?.answered_by(backend)
                    })?;
                }
            }
        }
        Ok(())
    });
}

#[test]
fn a_flow_notices_that_the_route_to_its_backend_has_changed() {
    // Semantics 38.
    REROUTED.story(|scene| {
        let (c1, n1, n3) = (scene.c1(), scene.node("n1"), scene.node("n3").host());
        let ways = [
            (scene.b2.v4().to_string(), IpAddr::from(c1.v4())),
            (scene.b2.v6().to_string(), c1.v6().into()),
        ];
        for ((backend, from), to) in ways.into_iter().zip(FAR.node_ports(scene)?) {
            let again = || {
                c1.dial(Dial {
                    from: Some(SocketAddr::new(from, 42_100)),
                    timeout_ms: 200,
                    ..Dial::new(Transport::Udp, to)
                })
            };
            again()?.answered_by("b2")?;
            // n3 leads nowhere: who goes there shows that it does.
            n3.ip(&format!("route add blackhole {backend}"))?;
            n1.host().route(&backend, n3)?;
            scene
                .within(lab::IN_FORCE, || again()?.unanswered())
                .context("the new way")?;
            n1.host().ip(&format!("route del {backend}"))?;
            scene
                .within(lab::IN_FORCE, || again()?.answered_by("b2"))
                .context("the old way")?;
            n3.ip(&format!("route del blackhole {backend}"))?;
        }
        Ok(())
    });
}
