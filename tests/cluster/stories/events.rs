//! Kubernetes Events on objects that are not used as written.

use crate::space::{bare, by_hand, selecting};
use crate::world::{World, story};
use anyhow::{Context, Result, ensure};
use control_plane::Kind;
use lab::manifests::service;
use lab::{BACKEND_PORT, SERVICE_CIDRS, Transport};
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::time::Duration;

/// Nodes wait for up to 20 s, so that they do not all tell at once.
const TOLD: Duration = Duration::from_secs(40);

/// Our Events about an object: the API server has some of its own, such as of a
/// ClusterIP that its repair loop sees too early.
fn about(world: &World, namespace: &str, kind: &str, name: &str) -> Result<Vec<Value>> {
    let mut events = world.api.list(Kind::Event, namespace)?;
    events.retain(|it| {
        it["reportingController"] == "fairlead.io/agent"
            && it["regarding"]["kind"] == kind
            && it["regarding"]["name"] == name
    });
    Ok(events)
}

/// How many Events all nodes together have created, and found to be there.
fn written(world: &World) -> Result<(u64, u64)> {
    let mut sums = (0, 0);
    for node in world.nodes() {
        let metrics = node.metrics()?;
        let count = |outcome: &str| -> Result<u64> {
            let name = format!("fairlead_events_total{{outcome=\"{outcome}\"}} ");
            let value = metrics.lines().find_map(|it| it.strip_prefix(&name));
            value.map_or(Ok(0), |it| Ok(it.parse()?))
        };
        sums = (sums.0 + count("created")?, sums.1 + count("exists")?);
    }
    Ok(sums)
}

#[test]
fn a_fault_that_all_nodes_meet_is_one_event_on_the_object() {
    story("events", |world, space| {
        let before = written(world)?;
        // An endpoint that is a ClusterIP, a frontend that another Service has, a
        // protocol that is not served, and weights that cannot be read.
        let created = space.create(&bare("a-web"))?;
        let address = created.v4(80)?;
        let address = address.trim_end_matches(":80");
        space.create(&by_hand("a-web").address(address).ready())?;
        let shared = |name: &str| {
            let service = service(name).port("http", 80, BACKEND_PORT);
            service.external_ips(&["203.0.113.77"])
        };
        space.create(&shared("b-first"))?;
        space.create(&shared("c-second"))?;
        let sctp = json!({
            "metadata": { "name": "d-sctp" },
            "spec": { "ports": [{ "name": "x", "port": 9, "protocol": "SCTP" }] },
        });
        world.api.create(Kind::Service, "events", &sctp)?;
        space.create(&bare("e-weights").annotation("fairlead.io/weights", "web"))?;
        let wanted = [
            ("Service", "e-weights", "InvalidWeights", "TARGET=WEIGHT"),
            ("EndpointSlice", "a-web", "UnusableEndpoint", address),
            ("Service", "c-second", "FrontendTaken", "events/b-first"),
            ("Service", "d-sctp", "UnsupportedProtocol", "SCTP"),
        ];
        for (kind, name, reason, part) in wanted {
            world.within(TOLD, &format!("an Event about {name}"), || {
                let events = about(world, "events", kind, name)?;
                let [event] = &events[..] else {
                    anyhow::bail!("{} Events about {name}: {events:?}", events.len());
                };
                ensure!(
                    event["reason"] == reason && event["type"] == "Warning",
                    "{event}"
                );
                let note = event["note"].as_str().context("no note")?;
                ensure!(note.contains(part), "{note}");
                ensure!(event["regarding"]["uid"].is_string(), "{event}");
                Ok(())
            })?;
        }
        let uid = &about(world, "events", "EndpointSlice", "a-web")?[0]["regarding"]["uid"];
        let slices = world.api.list(Kind::Slice, "events")?;
        ensure!(
            slices.iter().any(|it| it["metadata"]["uid"] == *uid),
            "{uid}"
        );
        // Each of three nodes has had its say about each of four faults.
        world.within(TOLD, "all nodes have told", || {
            let now = written(world)?;
            let (created, exist) = (now.0 - before.0, now.1 - before.1);
            ensure!(
                created == 4 && exist == 8,
                "{created} created, {exist} were there"
            );
            Ok(())
        })?;
        for (kind, name, ..) in wanted {
            let events = about(world, "events", kind, name)?;
            ensure!(events.len() == 1, "{events:?}");
        }
        ensure!(about(world, "events", "Service", "b-first")?.is_empty());
        Ok(())
    });
}

#[test]
fn a_map_that_is_full_is_told_on_the_service_that_finds_no_room() {
    story("full", |world, space| {
        let n3 = world.node("n3");
        n3.terminate_agent()?;
        let kubeconfig = world.plane.kubeconfig("fairlead");
        let kubeconfig = kubeconfig.to_str().context("a path of text")?;
        let flags = ["--kubeconfig", kubeconfig, "--service-cidrs", SERVICE_CIDRS];
        n3.agent_flags(flags.into_iter().chain(["--backends-max", "2"]));
        n3.start_agent()?;
        space.create(&selecting("web"))?;
        for (pod, at) in [("one", &world.b1), ("two", &world.b2), ("three", &world.b3)] {
            space.run(pod, "web", at)?;
        }
        let told = world.within(TOLD, "an Event about the full map", || {
            let events = about(world, "full", "Service", "web")?;
            let event = events.iter().find(|it| it["reason"] == "MapFull");
            let note = event.context("none yet")?["note"].to_string();
            ensure!(note.contains("--backends-max"), "{note}");
            Ok(())
        });
        n3.terminate_agent()?;
        world.agent_reads("n3", &[])?;
        n3.start_agent()?;
        told
    });
}

#[test]
fn a_health_check_port_that_is_taken_is_told_on_its_service() {
    story("taken", |world, space| {
        let daemon = world.node("n1").process("daemon")?;
        daemon.listen(Transport::Tcp, Ipv4Addr::UNSPECIFIED.into(), 32_761)?;
        let web = service("web")
            .port("http", 80, BACKEND_PORT)
            .lb_ip("198.51.100.177")
            .external_local()
            .field("healthCheckNodePort", json!(32_761));
        space.create(&web)?;
        world.within(TOLD, "an Event about the port", || {
            let events = about(world, "taken", "Service", "web")?;
            let event = events.first().context("none yet")?;
            ensure!(event["reason"] == "HealthCheckPortTaken", "{event}");
            let note = event["note"].as_str().context("no note")?;
            ensure!(note.contains("32761"), "{note}");
            ensure!(event["reportingInstance"] == "n1", "{event}");
            Ok(())
        })?;
        // Other nodes have the port, and this one as soon as it is free.
        let asked = |node: &str| -> Result<()> {
            let node = world.node(node);
            let answer = node.http_get(&format!("http://{}:32761/", node.v4()))?;
            ensure!(answer.status == 503, "{answer:?}");
            Ok(())
        };
        asked("n2")?;
        drop(daemon);
        world.within(TOLD, "the port is free", || asked("n1"))
    });
}
