//! The data path without the agent, and agents that come back (semantics 34, invariant 6).

use anyhow::{Context, Result, ensure};
use lab::manifests::{service, slice};
use lab::{Lab, Peer, SERVICE_CIDRS, Transport, story};
use serde_json::Value;

/// Two nodes, agents only started by the stories.
fn two_nodes() -> Result<Lab> {
    let lab = Lab::new(2)?;
    lab.agent_flags(["--service-cidrs", SERVICE_CIDRS]);
    Ok(lab)
}

/// A backend on each node and a client on n1.
fn pods(lab: &Lab) -> Result<[Peer; 3]> {
    Ok([
        lab.node("n1").pod("b1")?.serve(8080)?,
        lab.node("n2").pod("b2")?.serve(8080)?,
        lab.node("n1").pod("client")?,
    ])
}

fn web(name: &str, ip: &str) -> lab::manifests::Service {
    service(name)
        .cluster_ip(ip)
        .port("http", 80, 8080)
        .udp_port("dns", 53, 8080)
}

fn web_slice(name: &str) -> lab::manifests::Slice {
    slice(name, name).port("http", 8080).udp_port("dns", 8080)
}

/// Programs attached below the node's cgroup, as `bpftool cgroup tree` lists them.
fn attached(lab: &Lab) -> Result<usize> {
    let node = lab.node("n1");
    let cgroup = node.cgroup();
    let tree = node.bpftool(&[
        "-j",
        "cgroup",
        "tree",
        cgroup.to_str().context("a path of text")?,
    ])?;
    let tree: Value = serde_json::from_str(&tree)?;
    let cgroups = tree.as_array().context("bpftool prints a list")?;
    Ok(cgroups
        .iter()
        .filter_map(|cgroup| cgroup["programs"].as_array())
        .map(Vec::len)
        .sum())
}

#[test]
fn a_killed_agent_is_missed_by_nobody_and_its_successor_neither_doubles_nor_gaps() {
    // K18, and K80 across restarts
    story(two_nodes, |lab| {
        let [b1, b2, client] = pods(lab)?;
        lab.apply(&web("web", "10.96.9.1"))?;
        lab.apply(&web_slice("web").ready_endpoints([&b1, &b2]))?;
        lab.start_agents()?;
        let n1 = lab.node("n1");
        let programs = attached(lab)?;
        ensure!(programs > 0, "no program is attached to {:?}", n1.cgroup());
        let held = client.hold_tcp("10.96.9.1:80")?;
        let held_udp = client.hold_udp("10.96.9.1:53")?;
        let socket = client.udp_socket("0.0.0.0:0")?;
        let kept = socket.ask("10.96.9.1:53", "hello")?.pod()?.to_owned();
        let tcp = n1.host().load(Transport::Tcp, "10.96.9.1:80", 200)?;
        let udp = n1
            .process("udp-load")?
            .load(Transport::Udp, "10.96.9.1:53", 200)?;
        for round in 0..20 {
            if round % 2 == 0 {
                n1.kill_agent()?;
            } else {
                n1.terminate_agent()?;
            }
            client
                .many_tcp("10.96.9.1:80", 40)?
                .only_by(&["b1", "b2"])?;
            n1.start_agent()?;
            n1.wait_healthy()?;
            lab.settle()?;
            ensure!(
                attached(lab)? == programs,
                "{} programs instead of {programs}",
                attached(lab)?
            );
        }
        tcp.stop()?.only_by(&["b1", "b2"])?;
        udp.stop()?.only_by(&["b1", "b2"])?;
        held.talk("on")?.answered_by(&held.pod()?)?;
        held.peer_name_is("10.96.9.1:80")?;
        held_udp.talk("on")?.answered_by(&held_udp.pod()?)?;
        held_udp.peer_name_is("10.96.9.1:53")?;
        let answer = socket.ask("10.96.9.1:53", "again")?;
        answer.answered_by(&kept)?;
        answer.came_from("10.96.9.1:53")
    });
}

#[test]
fn what_changed_while_the_agent_was_away_is_made_up_for() {
    story(two_nodes, |lab| {
        let [b1, b2, client] = pods(lab)?;
        let (gone, stays) = (web("gone", "10.96.9.2"), web("stays", "10.96.9.3"));
        lab.apply(&gone)?;
        lab.apply(&web_slice("gone").ready_endpoints([&b1]))?;
        lab.apply(&stays)?;
        lab.apply(&web_slice("stays").ready_endpoints([&b1]))?;
        lab.start_agents()?;
        client.tcp("10.96.9.2:80")?.answered_by("b1")?;
        lab.node("n1").kill_agent()?;
        lab.delete(&gone)?;
        lab.apply(&web_slice("stays").ready_endpoints([&b2]))?;
        lab.apply(&web("comes", "10.96.9.4"))?;
        lab.apply(&web_slice("comes").ready_endpoints([&b2]))?;
        lab.node("n1").start_agent()?;
        lab.node("n1").wait_healthy()?;
        lab.settle()?;

        client.tcp("10.96.9.2:80")?.unanswered()?;
        client.many_tcp("10.96.9.3:80", 20)?.only_by(&["b2"])?;
        client.many_tcp("10.96.9.4:80", 20)?.only_by(&["b2"])?;
        Ok(())
    });
}

#[test]
fn connected_sockets_notice_what_happened_while_the_agent_was_away() {
    story(two_nodes, |lab| {
        let [b1, b2, client] = pods(lab)?;
        lab.apply(&web("away", "10.96.9.9"))?;
        lab.apply(&web_slice("away").ready_endpoints([&b1]))?;
        lab.start_agents()?;
        let udp = client.hold_udp("10.96.9.9:53")?;
        udp.outcome.answered_by("b1")?;
        lab.node("n1").kill_agent()?;
        lab.apply(&web_slice("away").ready_endpoints([&b2]))?;
        lab.node("n1").start_agent()?;
        lab.node("n1").wait_healthy()?;
        lab.settle()?;
        lab.eventually(|| udp.talk("are you there")?.unanswered())
    });
}

#[test]
fn affinity_outlives_the_agent() {
    story(two_nodes, |lab| {
        let [b1, b2, client] = pods(lab)?;
        lab.apply(&web("sticky", "10.96.9.5").affinity(10800))?;
        lab.apply(&web_slice("sticky").ready_endpoints([&b1, &b2]))?;
        lab.start_agents()?;
        let first = client.tcp("10.96.9.5:80")?.pod()?.to_owned();
        for _ in 0..3 {
            lab.node("n1").kill_agent()?;
            client.many_tcp("10.96.9.5:80", 20)?.only_by(&[&first])?;
            lab.node("n1").start_agent()?;
            lab.node("n1").wait_healthy()?;
            lab.settle()?;
            client.many_tcp("10.96.9.5:80", 20)?.only_by(&[&first])?;
        }
        Ok(())
    });
}

#[test]
fn sockets_that_are_older_than_the_agent_are_left_alone() {
    story(two_nodes, |lab| {
        let [b1, b2, client] = pods(lab)?;
        let direct = format!("{}:8080", b2.v4());
        let tcp = client.hold_tcp(&direct)?;
        let udp = client.hold_udp(&direct)?;
        let socket = client.udp_socket("0.0.0.0:0")?;
        socket.ask(&direct, "before")?.came_from(&direct)?;
        lab.apply(&web("web", "10.96.9.6"))?;
        lab.apply(&web_slice("web").ready_endpoints([&b1]))?;
        lab.start_agents()?;
        tcp.talk("after")?.answered_by("b2")?;
        tcp.peer_name_is(&direct)?;
        udp.talk("after")?.answered_by("b2")?;
        udp.peer_name_is(&direct)?;
        socket.ask(&direct, "after")?.came_from(&direct)
    });
}

#[test]
fn maps_read_as_a_service_proxy_and_not_as_bytes() {
    story(two_nodes, |lab| {
        let [b1, _b2, _client] = pods(lab)?;
        lab.apply(&web("legible", "10.96.9.7"))?;
        lab.apply(&web_slice("legible").ready_endpoints([&b1]))?;
        lab.start_agents()?;
        let n1 = lab.node("n1");
        let frontends = n1.dump_map("frontends")?;
        let without_blanks: String = frontends.chars().filter(|c| !c.is_whitespace()).collect();
        ensure!(
            without_blanks.contains("[0,0,0,0,0,0,0,0,0,0,255,255,10,96,9,7]"),
            "{frontends}"
        );
        ensure!(without_blanks.contains("\"port\":80,"), "{frontends}");
        ensure!(
            n1.dump_map("services")?.contains("default/legible:http"),
            "{}",
            n1.dump_map("services")?
        );
        Ok(())
    });
}

#[test]
fn healthz_follows_the_node_and_livez_does_not() {
    // semantics 32
    story(two_nodes, |lab| {
        lab.start_agents()?;
        let n1 = lab.node("n1");
        let get = |path: &str| n1.http_get(&format!("http://{}{path}", lab::HEALTHZ));
        let healthy = get("/healthz")?;
        ensure!(healthy.status == 200, "{healthy:?}");
        let body: Value = serde_json::from_str(&healthy.body)?;
        for field in ["lastUpdated", "currentTime", "nodeEligible"] {
            ensure!(!body[field].is_null(), "no {field} in {body}");
        }
        ensure!(body["nodeEligible"] == true, "{body}");
        let leaving = lab
            .node_manifest("n1")
            .taint("ToBeDeletedByClusterAutoscaler", "NoSchedule");
        let deleted = lab.node_manifest("n1").deleted_at("2026-08-01T00:00:00Z");
        for node in [leaving, deleted] {
            lab.apply(&node)?;
            lab.eventually(|| {
                let answer = get("/healthz")?;
                ensure!(answer.status == 503, "{answer:?}");
                Ok(())
            })?;
            ensure!(get("/livez")?.status == 200, "{:?}", get("/livez")?);
            lab.apply(&lab.node_manifest("n1"))?;
            lab.eventually(|| {
                let answer = get("/healthz")?;
                ensure!(answer.status == 200, "{answer:?}");
                Ok(())
            })?;
        }
        // The Node is gone: nobody may count on this node any more.
        lab.delete(&lab.node_manifest("n1"))?;
        lab.eventually(|| {
            let answer = get("/healthz")?;
            ensure!(answer.status == 503, "{answer:?}");
            Ok(())
        })?;
        ensure!(get("/livez")?.status == 200, "{:?}", get("/livez")?);
        Ok(())
    });
}

#[test]
fn metrics_keep_the_names_that_dashboards_know() {
    // semantics 33
    story(two_nodes, |lab| {
        let [b1, _b2, client] = pods(lab)?;
        lab.apply(&web("measured", "10.96.9.8"))?;
        lab.apply(&web_slice("measured").ready_endpoints([&b1]))?;
        lab.start_agents()?;
        client.many_tcp("10.96.9.8:80", 5)?.none_failed()?;
        let metrics = lab.node("n1").metrics()?;
        for name in [
            "kubeproxy_sync_proxy_rules_",
            "kubeproxy_network_programming_duration_seconds",
            "fairlead_",
        ] {
            ensure!(metrics.contains(name), "no {name} in\n{metrics}");
        }
        Ok(())
    });
}
