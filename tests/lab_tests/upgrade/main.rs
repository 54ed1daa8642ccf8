//! From one build or one set of sizes to another, without a gap (K82, invariant 6).

mod builds;
mod crashes;
mod world;

use anyhow::{Context, Result, ensure};
use lab::{Transport, other_fairlead, story};
use serde_json::Value;
use std::time::Duration;
use world::{
    NODE_PORT, SIZES, TCP, UDP, World, max_entries, pins, sizes_with, two_nodes, web, web_slice,
};

#[test]
fn maps_grow_and_shrink_under_load() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.start(&SIZES)?;
        let (loads, sockets) = (world.loads()?, world.sockets()?);
        let kept = sockets.unconnected.ask(UDP, "who")?.pod()?.to_owned();
        for (flag, value) in [
            ("--backends-max", "1024"),
            ("--backends-max", "64"),
            ("--frontends-max", "4096"),
            ("--frontends-max", "256"),
            ("--services-max", "128"),
            ("--affinity-max", "128"),
        ] {
            world.n1.terminate_agent()?;
            world.start(&sizes_with(flag, value))?;
            let map = flag.trim_start_matches("--").trim_end_matches("-max");
            let found = max_entries(world.n1, map)?;
            ensure!(found.to_string() == value, "{flag} {value}: {found}");
            sockets.go_on()?;
            // The very ids are the same, so this socket has no reason to move.
            sockets.unconnected.ask(UDP, "who")?.answered_by(&kept)?;
        }
        loads.none_failed().map(drop)
    });
}

#[test]
fn affinity_outlives_changes_of_size() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        lab.apply(
            &web("web", "10.96.13.1")
                .node_port(NODE_PORT)
                .affinity(10800),
        )?;
        world.start(&SIZES)?;
        let first = world.client.tcp(TCP)?.pod()?.to_owned();
        for (flag, value) in [("--affinity-max", "128"), ("--backends-max", "512")] {
            world.n1.kill_agent()?;
            world.start(&sizes_with(flag, value))?;
            world.client.many_tcp(TCP, 20)?.only_by(&[&first])?;
        }
        Ok(())
    });
}

#[test]
fn counters_outlive_changes_of_size() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.start(&SIZES)?;
        world.client.many_tcp(TCP, 30)?.none_failed()?;
        let opened = || -> Result<u64> {
            let ports: Value =
                serde_json::from_str(&world.n1.fairlead(&["backends", "-o", "json"])?)?;
            let ports = ports.as_array().context("a list")?;
            let port = ports.iter().find(|it| it["name"] == "default/web:http");
            let backends = port.context("no web:http")?["backends"].as_array();
            Ok(backends
                .context("no backends")?
                .iter()
                .filter_map(|it| it["opened"].as_u64())
                .sum())
        };
        ensure!(opened()? == 30, "{}", opened()?);
        world.n1.kill_agent()?;
        world.start(&sizes_with("--backends-max", "128"))?;
        ensure!(opened()? == 30, "{}", opened()?);
        Ok(())
    });
}

#[test]
fn open_connections_outlive_changes_of_size() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.start(&SIZES)?;
        let open = || -> Result<u64> {
            let ports: Value =
                serde_json::from_str(&world.n1.fairlead(&["backends", "-o", "json"])?)?;
            let ports = ports.as_array().context("a list")?.iter();
            let backends = ports.filter_map(|it| it["backends"].as_array()).flatten();
            Ok(backends.filter_map(|it| it["open"].as_u64()).sum())
        };
        let mut held = Vec::new();
        for sizes in ["128", "256", "64"] {
            for _ in 0..10 {
                held.push(world.client.hold_tcp(TCP)?);
            }
            // Connections come and go all the while, and some in between two hooks.
            let loads = world.loads()?;
            world.n1.terminate_agent()?;
            world.start(&sizes_with("--backends-max", sizes))?;
            loads.none_failed()?;
            lab.eventually(|| {
                ensure!(
                    open()? == held.len() as u64,
                    "{} of {}",
                    open()?,
                    held.len()
                );
                Ok(())
            })?;
        }
        drop(held);
        lab.eventually(|| {
            ensure!(open()? == 0, "{}", open()?);
            Ok(())
        })
    });
}

#[test]
fn another_layout_takes_over_and_gives_back_under_load() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.start(&SIZES)?;
        let (loads, sockets) = (world.loads()?, world.sockets()?);
        for round in 0..6 {
            world.n1.terminate_agent()?;
            let other = (round % 2 == 0).then(other_fairlead).transpose()?;
            world.n1.agent_program(other);
            world.start(&SIZES)?;
            sockets.go_on()?;
        }
        loads.none_failed().map(drop)
    });
}

#[test]
fn source_ranges_hold_through_changes_of_size_and_layout() {
    const TO: &str = "198.51.100.13:80";
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        let outside = world.n1.pod("outside")?;
        let range = format!("{}/32", world.client.v4());
        let service = web("ranges", "10.96.13.2").lb_ip("198.51.100.13");
        lab.apply(&service.source_ranges(&[range.as_str()]))?;
        let [b1, b2] = &world.backends;
        lab.apply(&web_slice("ranges").ready_endpoints([b1, b2]))?;
        world.start(&SIZES)?;
        world.client.tcp(TO)?.answered_by_one_of(&["b1", "b2"])?;
        let inside_load = world.client.load(Transport::Tcp, TO, 100)?;
        let outside_load = outside.load(Transport::Tcp, TO, 100)?;
        for (other, backends) in [(false, "128"), (true, "128"), (false, "64")] {
            world.n1.kill_agent()?;
            let other = other.then(other_fairlead).transpose()?;
            world.n1.agent_program(other);
            world.start(&sizes_with("--backends-max", backends))?;
        }
        inside_load.stop()?.none_failed()?;
        let refused = outside_load.stop()?;
        ensure!(
            refused.answers() == 0 && refused.failures() > 0,
            "{refused:?}"
        );
        Ok(())
    });
}

#[test]
fn a_foreign_layout_is_named_and_not_misread() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.n1.agent_program(Some(other_fairlead()?));
        world.start(&SIZES)?;
        for command in ["services", "backends", "status"] {
            let error = world.n1.fairlead(&[command]).err();
            let error = format!("{:#}", error.context("it printed a foreign layout")?);
            ensure!(error.contains("another build of Fairlead"), "{error}");
            ensure!(error.contains("layout version"), "{error}");
        }
        Ok(())
    });
}

#[test]
fn maps_that_somebody_removed_are_made_anew_beside_the_living_programs() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.start(&SIZES)?;
        let loads = world.loads()?;
        for map in ["frontends", "settings", "udp_flows"] {
            world.n1.kill_agent()?;
            std::fs::remove_file(world.n1.pins().join(map))?;
            world.start(&SIZES)?;
        }
        loads.none_failed().map(drop)
    });
}

#[test]
fn without_an_api_server_the_old_programs_go_on_and_the_agent_waits() {
    story(two_nodes, |lab| {
        let world = World::new(lab)?;
        world.start(&SIZES)?;
        let loads = world.loads()?;
        for program in [None, Some(other_fairlead()?)] {
            let foreign = program.is_some();
            world.n1.kill_agent()?;
            world.n1.agent_program(program);
            // Nobody listens there.
            let mut flags = sizes_with("--backends-max", "128");
            flags.extend([
                "--kubeconfig",
                "/nonexistent",
                "--master",
                "http://127.0.0.1:1",
            ]);
            let kubeconfig = lab.manifests_dir().with_file_name("kubeconfig");
            std::fs::write(&kubeconfig, KUBECONFIG)?;
            let kubeconfig = kubeconfig.to_str().context("a path of text")?.to_owned();
            let at = flags.iter().position(|it| *it == "/nonexistent");
            flags[at.context("the flag")?] = &kubeconfig;
            world.n1.agent_flags(flags);
            world.n1.start_agent()?;
            world.lab.within(Duration::from_secs(10), || {
                let ready = world.n1.pins().join("next/settings").exists();
                ensure!(ready, "no new maps yet: {:?}", pins(&world.n1.pins())?);
                let metrics = world.n1.metrics()?;
                ensure!(metrics.contains("fairlead_build"), "{metrics}");
                Ok(())
            })?;
            world.client.many_tcp(TCP, 50)?.only_by(&["b1", "b2"])?;
            let room = max_entries(world.n1, "backends")?;
            ensure!(room == 64, "the old maps are not in force: {room}");
            if !foreign {
                let status = world.n1.fairlead(&["status"])?;
                ensure!(status.contains("making new maps"), "{status}");
            }
        }
        world.n1.terminate_agent()?;
        world.is_tidy()?;
        world.n1.agent_program(None);
        world.start(&SIZES)?;
        loads.none_failed().map(drop)
    });
}

const KUBECONFIG: &str = "apiVersion: v1
kind: Config
current-context: lab
contexts: [{name: lab, context: {cluster: lab, user: lab}}]
clusters: [{name: lab, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: lab, user: {}}]
";
