//! Flows live on, whatever happens to the agent, the endpoints and the policy.

use crate::routed;
use crate::scene::{FAR, Name, Scene, address};
use anyhow::{Context, Result, ensure};
use lab::{BACKEND_PORT, Dial, Held, IN_FORCE, Peer, PodNetwork, SharedLab, Transport};
use serde_json::Value;
use std::net::SocketAddr;

/// Its endpoints and its policy change.
const CHANGES: Name = Name::new("changes", 90);
/// Datagrams without answers go there.
const ONE_WAY: Name = Name::new("one-way", 91);
/// Its endpoint comes late.
const LATE: Name = Name::new("late", 92);

/// Its endpoint answers nothing.
const SILENT: Name = Name::new("silent", 93);

/// Where nobody answers.
const ONE_WAY_PORT: u16 = 9401;

/// Elements of map `flows_new`, two for each connection (proxy-common/src/limits.rs).
const FLOWS_NEW: u32 = 65_536;

/// Ports for SNAT towards each backend (proxy-agent/src/config/snat.rs).
const SNAT_PORTS: u32 = 28_976;

/// A flood keeps its ports for two seconds at most, and a SYN that found none is sent
/// again after a second and after three.
const PORTS_AGAIN_MS: u64 = 6_000;

/// Agents end and maps fill there.
static ROUGH: SharedLab<Scene> = SharedLab::new(|| Scene::new(PodNetwork::Routed));

fn hold(client: &Peer, to: SocketAddr, count: usize) -> Result<Vec<Held>> {
    (0..count)
        .map(|_| client.hold_tcp(&to.to_string()))
        .collect()
}

fn all_go_on(held: &[Held]) -> Result<()> {
    for flow in held {
        flow.talk("still there?")?.answered_by(&flow.pod()?)?;
    }
    Ok(())
}

#[test]
fn ten_starts_and_a_flood_are_not_noticed() {
    // K18, K62. One story: both need the node for themselves.
    ROUGH.story(|scene| {
        ten_starts(scene)?;
        flood(scene)
    });
}

fn ten_starts(scene: &Scene) -> Result<()> {
    let n1 = scene.node("n1");
    let mut held = Vec::new();
    let mut loads = Vec::new();
    for to in FAR.node_ports(scene)? {
        held.extend(hold(scene.c1(), to, 1)?);
        loads.push(scene.c2().load(Transport::Tcp, &to.to_string(), 20)?);
    }
    for round in 0..10 {
        if round % 2 == 0 {
            n1.kill_agent()?;
        } else {
            n1.terminate_agent()?;
        }
        all_go_on(&held).with_context(|| format!("without the agent, round {round}"))?;
        n1.start_agent()?;
        n1.wait_healthy()?;
        all_go_on(&held).with_context(|| format!("round {round}"))?;
    }
    scene.settle()?;
    for load in loads {
        let counts = load.stop()?;
        counts.only_by(&["b2"])?;
        ensure!(counts.answers() > 50, "only {} dials", counts.answers());
    }
    Ok(())
}

/// Connections survive SYNs ten times as many as map `flows_new` takes of them, to a
/// local backend that does not answer, and more than there are ports for SNAT to a
/// remote one that does; new ones are served soon afterwards.
fn flood(scene: &Scene) -> Result<()> {
    let sources = ["10.99.0.1", "2001:db8:99::1"];
    scene.apply(&SILENT.service())?;
    SILENT.lead_to_nobody(scene)?;
    scene.settle()?;
    let ports = FAR.node_ports(scene)?;
    let mut held = Vec::new();
    for to in ports {
        held.extend(hold(scene.c1(), to, 100)?);
    }
    for (to, from) in SILENT.node_ports(scene)?.into_iter().zip(sources) {
        scene.c2().flood(from.parse()?, to, FLOWS_NEW / 2 * 5)?;
    }
    for (to, from) in ports.into_iter().zip(sources) {
        scene.c2().flood(from.parse()?, to, SNAT_PORTS + 10_000)?;
        let status: Value =
            serde_json::from_str(&scene.node("n1").fairlead(&["status", "-o", "json"])?)?;
        let answered = status["flows"]["answered"].as_u64();
        ensure!(
            answered.is_some_and(|it| it < 1000),
            "{answered:?} flows that nothing evicts"
        );
        let drops = status["drops"].as_array().context("no drops")?;
        let is_exhausted = |it: &Value| it["reason"] == "snat_ports_exhausted" && it["count"] != 0;
        ensure!(drops.iter().any(is_exhausted), "it left ports: {drops:?}");
        let dial = Dial {
            timeout_ms: PORTS_AGAIN_MS,
            ..Dial::new(Transport::Tcp, to)
        };
        let new = scene.c1().many(dial, 20)?;
        new.only_by(&["b2"]).context("new connections")?;
    }
    all_go_on(&held).context("after the flood")
}

#[test]
fn established_connections_outlive_their_endpoint_and_the_policy() {
    // K62
    routed::LAB.story(|scene| {
        scene.apply(&CHANGES.service())?;
        CHANGES.lead_to(scene, BACKEND_PORT, &[&scene.b2, &scene.b3])?;
        scene.settle()?;
        let ports = CHANGES.node_ports(scene)?;
        let mut held = Vec::new();
        for to in ports {
            held.extend(hold(scene.c1(), to, 12)?);
        }
        let with_b2 = held.iter().filter(|it| it.pod().is_ok_and(|it| it == "b2"));
        ensure!(with_b2.count() > 0, "no connection to b2");
        let new_ones_go_to_b3 = || -> Result<()> {
            for to in ports {
                let counts = scene.c1().many(Dial::new(Transport::Tcp, to), 20)?;
                counts.only_by(&["b3"])?;
            }
            Ok(())
        };
        CHANGES.lead_to(scene, BACKEND_PORT, &[&scene.b3])?;
        scene.settle()?;
        new_ones_go_to_b3()?;
        all_go_on(&held).context("without the endpoint")?;
        for _ in 0..3 {
            scene.apply(&CHANGES.service().external_local())?;
            scene.settle()?;
            for to in ports {
                let to = to.to_string();
                let outcome = scene.try_briefly(scene.c1(), Transport::Tcp, &to)?;
                outcome.failed_with("TIMEOUT")?;
            }
            all_go_on(&held).context("policy Local")?;
            scene.apply(&CHANGES.service())?;
            scene.settle()?;
            new_ones_go_to_b3()?;
            all_go_on(&held).context("policy Cluster")?;
        }
        Ok(())
    });
}

#[test]
fn datagrams_without_answers_move_with_the_endpoint() {
    // K02
    routed::LAB.story(|scene| {
        let old = scene.node("n2").pod("one-way-old")?;
        let new = scene.node("n3").pod("one-way-new")?;
        for backend in [&old, &new] {
            backend.collect(ONE_WAY_PORT)?;
        }
        let senders = |at: &Peer| -> Result<usize> { Ok(at.received(ONE_WAY_PORT)?.len()) };
        let total = |at: &Peer| -> Result<u64> { Ok(at.received(ONE_WAY_PORT)?.values().sum()) };
        scene.apply(&ONE_WAY.service())?;
        ONE_WAY.lead_to(scene, ONE_WAY_PORT, &[&old])?;
        scene.settle()?;
        let frontends = ONE_WAY.frontends(scene)?;
        let mut loads = Vec::new();
        for &to in &frontends {
            let from = SocketAddr::new(address(scene.c1(), to), 0).to_string();
            loads.push(scene.c1().one_way(&from, &to.to_string(), 20)?);
        }
        let all_at = |backend: &Peer| -> Result<()> {
            let count = senders(backend)?;
            ensure!(count == frontends.len(), "{count} senders");
            Ok(())
        };
        scene.eventually(|| all_at(&old))?;
        ONE_WAY.lead_to(scene, ONE_WAY_PORT, &[&new])?;
        scene.within(IN_FORCE, || all_at(&new))?;
        let (stale, fresh) = (total(&old)?, total(&new)?);
        scene.eventually(|| {
            let now = total(&new)?;
            ensure!(now > fresh + 50, "{now} datagrams");
            Ok(())
        })?;
        let after = total(&old)?;
        ensure!(after == stale, "{} went on to the old one", after - stale);
        // Nobody for a while, then somebody again.
        ONE_WAY.lead_to(scene, ONE_WAY_PORT, &[])?;
        scene.settle()?;
        let before = total(&old)?;
        ONE_WAY.lead_to(scene, ONE_WAY_PORT, &[&old])?;
        scene.within(IN_FORCE, || {
            let now = total(&old)?;
            ensure!(now > before + 5, "{now} datagrams");
            Ok(())
        })
    });
}

#[test]
fn a_syn_that_came_before_the_endpoint_is_not_held_against_the_client() {
    // K64
    routed::LAB.story(|scene| {
        scene.apply(&LATE.service().external_local())?;
        LATE.lead_to(scene, BACKEND_PORT, &[&scene.b2])?;
        scene.settle()?;
        let mut waiting = Vec::new();
        for to in LATE.node_ports(scene)? {
            let dial = Dial {
                nonblocking: true,
                timeout_ms: 100,
                ..Dial::new(Transport::Tcp, to)
            };
            let held = scene.c1().hold(dial)?;
            held.outcome.failed_with("TIMEOUT")?;
            waiting.push((held, to));
        }
        LATE.lead_to(scene, BACKEND_PORT, &[&scene.b1])?;
        for (held, to) in waiting {
            held.redial(&to.to_string())?.answered_by("b1")?;
        }
        Ok(())
    });
}
