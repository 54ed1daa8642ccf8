//! What the maps say of Nodes, and how frontends forward. What packets do with it is
//! in the tests of the packet path.

use anyhow::{Context, Result, ensure};
use lab::manifests::{service, slice};
use lab::{Lab, Node, story};
use serde_json::Value;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

fn two_nodes() -> Result<Lab> {
    let lab = Lab::new(2)?;
    lab.agent_flags(["--forwarding-mode", "hybrid", "--dsr-port", "7089"]);
    Ok(lab)
}

fn shown(node: &Node, command: &str) -> Result<Value> {
    Ok(serde_json::from_str(
        &node.fairlead(&[command, "-o", "json"])?,
    )?)
}

/// The service ports of a node, by name and protocol.
fn port(node: &Node, name: &str) -> Result<Value> {
    let ports = shown(node, "services")?;
    let ports = ports.as_array().context("no list")?;
    let found = ports.iter().find(|it| it["name"] == name);
    Ok(found.with_context(|| format!("no {name}"))?.clone())
}

/// Address of each backend, and those of its Node.
fn backends(node: &Node, name: &str) -> Result<Vec<(String, Vec<String>)>> {
    let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
    let port = port(node, name)?;
    let backends = port["backends"].as_array().context("no list")?;
    let row = |it: &Value| {
        let node = it["node"].as_array().into_iter().flatten();
        (text(&it["address"]), node.map(text).collect())
    };
    Ok(backends.iter().map(row).collect())
}

/// How frontends for clients outside forward.
fn forwarding(node: &Node, name: &str) -> Result<Vec<String>> {
    let port = port(node, name)?;
    let frontends = port["frontends"].as_array().context("no list")?;
    let outside = frontends.iter().filter(|it| it["scope"] == "external");
    let mut ways: Vec<String> = outside.map(|it| it["forwarding"].to_string()).collect();
    ways.dedup();
    Ok(ways)
}

fn entries(node: &Node, map: &str) -> Result<u64> {
    let status = shown(node, "status")?;
    let maps = status["maps"].as_array().context("no list")?;
    let found = maps.iter().find(|it| it["map"] == map);
    let entries = found.and_then(|it| it["entries"].as_u64());
    entries.with_context(|| format!("no number of {map}"))
}

#[test]
fn backends_follow_the_nodes_that_come_go_and_move() {
    story(two_nodes, |lab| {
        let (n1, n2) = (lab.node("n1"), lab.node("n2"));
        lab.apply(
            &service("web")
                .cluster_ip("10.96.9.1")
                .port("http", 80, 8080),
        )?;
        let endpoints = slice("web", "web").port("http", 8080);
        let endpoints = endpoints
            .address("10.1.1.9")
            .on("n1")
            .address("10.1.2.9")
            .on("n2");
        lab.apply(&endpoints.address("10.9.9.9").on("nowhere"))?;
        lab.start_agents()?;
        let of = |node: &Node| vec![node.v4().to_string(), node.v6().to_string()];
        let expect = |third: &[&str], second: &[String]| {
            let third: Vec<String> = third.iter().map(|it| (*it).to_owned()).collect();
            let wanted = vec![
                ("10.1.1.9:8080".to_owned(), of(n1)),
                ("10.1.2.9:8080".to_owned(), second.to_vec()),
                ("10.9.9.9:8080".to_owned(), third),
            ];
            lab.within(SOON, || {
                let got = backends(n1, "default/web:http")?;
                ensure!(got == wanted, "{got:?}");
                Ok(())
            })
        };
        expect(&[], &of(n2))?;
        ensure!(entries(n1, "local_backends")? == 1 && entries(n2, "local_backends")? == 1);
        ensure!(entries(n1, "nodes")? == 2 && entries(n1, "node_ids")? == 4);
        let status = shown(n1, "status")?["forwarding"].clone();
        ensure!(
            status["dsr_port"] == 7089 && status["node"] == Value::from(of(n1)),
            "{status}"
        );
        let nowhere = lab::manifests::node("nowhere").internal_ip("192.0.2.99");
        lab.apply(&nowhere)?;
        expect(&["192.0.2.99"], &of(n2))?;
        lab.delete(&lab.node_manifest("n2"))?;
        expect(&["192.0.2.99"], &[])?;
        lab.apply(&lab::manifests::node("n2").internal_ip("192.0.2.98"))?;
        expect(&["192.0.2.99"], &["192.0.2.98".to_owned()])?;
        // What has moved leaves nothing behind.
        lab.within(SOON, || {
            let left = (entries(n1, "nodes")?, entries(n1, "node_ids")?);
            ensure!(left == (3, 4), "{left:?}");
            Ok(())
        })?;
        let before = n1.dump_map("nodes")?;
        n1.kill_agent()?;
        lab.delete(&nowhere)?;
        n1.start_agent()?;
        n1.wait_healthy()?;
        expect(&[], &["192.0.2.98".to_owned()])?;
        lab.within(SOON, || {
            ensure!(entries(n1, "nodes")? == 2, "{before:?}");
            Ok(())
        })
    });
}

#[test]
fn a_service_forwards_as_its_annotation_says_and_else_as_the_agent_was_told() {
    story(two_nodes, |lab| {
        let n1 = lab.node("n1");
        let web = || {
            let web = service("web")
                .cluster_ip("10.96.9.1")
                .port("http", 80, 8080);
            web.udp_port("dns", 53, 8080).external_ips(&["203.0.113.5"])
        };
        lab.apply(&web())?;
        lab.apply(
            &slice("web", "web")
                .port("http", 8080)
                .address("10.1.2.9")
                .on("n2"),
        )?;
        lab.start_agents()?;
        for (key, mode, tcp, udp) in [
            ("", "", "dsr", "snat"),
            ("service.cilium.io/forwarding-mode", "snat", "snat", "snat"),
            ("fairlead.io/forwarding-mode", "dsr", "dsr", "dsr"),
            ("fairlead.io/forwarding-mode", "odd", "dsr", "snat"),
        ] {
            lab.apply(&web().annotation(key, mode))?;
            lab.within(SOON, || {
                for (name, wanted) in [("default/web:http", tcp), ("default/web:dns", udp)] {
                    let got = forwarding(n1, name)?;
                    ensure!(
                        got == [format!("{wanted:?}")],
                        "{key} {mode}: {name} {got:?}"
                    );
                }
                Ok(())
            })?;
        }
        Ok(())
    });
}
