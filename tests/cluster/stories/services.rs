//! Services with Pods: the real controller makes the slices.

use crate::space::{bare, by_hand, join, selecting};
use crate::world::{brief, story};
use anyhow::{Context, Result, ensure};
use lab::manifests::service;
use lab::{Node, Transport};
use serde_json::json;

#[test]
fn a_dual_stack_service_is_reached_in_both_families_and_by_both_transports() {
    story("dual", |world, space| {
        let created = space.create(&selecting("web"))?;
        world.soon("a Service without Pods refuses", || {
            world.tcp(&created.v4(80)?)?.refused()
        })?;
        space.run("web-1", "web", &world.b1)?;
        world.soon("first connect after a Pod became ready", || {
            world.tcp(&created.v4(80)?)?.answered_by("b1")
        })?;
        space.run("web-2", "web", &world.b2)?;
        for (transport, port) in [(Transport::Tcp, 80), (Transport::Udp, 53)] {
            for to in [created.v4(port)?, created.v6(port)?] {
                let what = format!("both Pods answer {} {to}", transport.as_str());
                world.soon(&what, || {
                    let dial = brief(transport, &to)?;
                    world.client.many(dial, 30)?.only_by(&["b1", "b2"])
                })?;
            }
        }
        Ok(())
    });
}

#[test]
fn scaling_up_and_down_is_followed() {
    story("scale", |world, space| {
        let to = space.create(&selecting("web"))?.v4(80)?;
        space.run("web-1", "web", &world.b1)?;
        world.soon_only("one Pod", &to, &["b1"])?;
        space.run("web-2", "web", &world.b2)?;
        space.run("web-3", "web", &world.b3)?;
        world.soon_only("scaled up to three", &to, &["b1", "b2", "b3"])?;
        space.remove("web-1")?;
        world.soon_only("scaled down to two", &to, &["b2", "b3"])?;
        space.remove("web-2")?;
        space.remove("web-3")?;
        world.soon("scaled down to none", || world.tcp(&to)?.refused())?;
        space.run("web-4", "web", &world.b1)?;
        world.soon_only("scaled up from none", &to, &["b1"])
    });
}

#[test]
fn a_pod_that_is_not_ready_gets_no_connection_until_it_is_again() {
    story("readiness", |world, space| {
        let to = space.create(&selecting("web"))?.v4(80)?;
        space.run("web-1", "web", &world.b1)?;
        space.run("web-2", "web", &world.b2)?;
        world.soon_only("two ready Pods", &to, &["b1", "b2"])?;
        let held = loop {
            let held = world.client.hold_tcp(&to)?;
            if held.pod()? == "b1" {
                break held;
            }
        };
        space.ready("web-1", false)?;
        world.soon_only("not ready", &to, &["b2"])?;
        held.talk("still here?")?.answered_by("b1")?;
        space.ready("web-2", false)?;
        world.soon("none ready", || world.tcp(&to)?.refused())?;
        space.ready("web-1", true)?;
        world.soon_only("ready again", &to, &["b1"])
    });
}

#[test]
fn a_service_gives_weights_to_its_pods_by_name() {
    const WEIGHTS: &str = "fairlead.io/weights";
    story("weights", |world, space| {
        let service = selecting("web").annotation(WEIGHTS, "web-canary-*=0");
        let to = space.create(&service)?.v4(80)?;
        space.run("web-canary-1", "web", &world.b1)?;
        world.soon_only("nobody has any weight", &to, &["b1"])?;
        space.run("web-2", "web", &world.b2)?;
        space.run("web-3", "web", &world.b3)?;
        world.soon_only("the canary has no weight", &to, &["b2", "b3"])?;
        let patch = json!({ "metadata": { "annotations": { WEIGHTS: "web-canary-*=1,*=0" } } });
        space.patch_service("web", patch)?;
        world.soon_only("the canary has it all", &to, &["b1"])?;
        let patch = json!({ "metadata": { "annotations": { WEIGHTS: null } } });
        space.patch_service("web", patch)?;
        world.soon_only("no weights", &to, &["b1", "b2", "b3"])
    });
}

#[test]
fn a_terminating_pod_serves_as_long_as_it_is_the_only_one() {
    story("terminating", |world, space| {
        let to = space.create(&selecting("web"))?.v4(80)?;
        space.run("web-1", "web", &world.b1)?;
        world.soon_only("one Pod", &to, &["b1"])?;
        space.terminate("web-1")?;
        space.wait_for_endpoints("web", |endpoint| {
            endpoint["conditions"]["terminating"] == true
                && endpoint["conditions"]["ready"] == false
        })?;
        world.client.many_tcp(&to, 50)?.only_by(&["b1"])?;
        space.run("web-2", "web", &world.b2)?;
        world.soon_only("a ready Pod beside a terminating one", &to, &["b2"])?;
        space.terminate("web-2")?;
        world.soon_only("two terminating Pods", &to, &["b1", "b2"])?;
        space.remove("web-1")?;
        world.soon_only("one of two terminating Pods went", &to, &["b2"])?;
        space.remove("web-2")?;
        world.soon("the last terminating Pod went", || {
            world.tcp(&to)?.refused()
        })
    });
}

#[test]
fn a_deleted_service_leaves_nothing_behind() {
    story("deleted", |world, space| {
        let created = space.create(&selecting("web").of_type("NodePort"))?;
        space.run("web-1", "web", &world.b1)?;
        let node_port = join(
            &world.node("n1").v4().to_string(),
            created.node_port("http")?,
        );
        let everywhere = [created.v4(80)?, created.v6(80)?, node_port];
        for to in &everywhere {
            world.soon_only("there", to, &["b1"])?;
        }
        let mine = format!("{}/web", space.name());
        let known = || world.node("n1").dump_map("services");
        ensure!(known()?.contains(&mine), "{}", known()?);
        space.delete_service("web")?;
        for to in &everywhere {
            world.soon_gone("the Service was deleted", to)?;
        }
        world.soon("no entry is left", || {
            let services = known()?;
            ensure!(!services.contains(&mine), "{services}");
            Ok(())
        })
    });
}

#[test]
fn headless_and_external_name_services_are_not_ours() {
    story("not-ours", |world, space| {
        let headless = bare("headless")
            .field("clusterIP", "None".into())
            .field("selector", json!({ "app": "web" }));
        space.create(&headless)?;
        let named = service("named").of_type("ExternalName");
        space.create(&named.field("externalName", "example.test".into()))?;
        let to = space.create(&selecting("web"))?.v4(80)?;
        space.run("web-1", "web", &world.b1)?;
        space.wait_for_endpoints("headless", |_| true)?;
        world.soon_only("the Service beside them", &to, &["b1"])?;
        let services = world.node("n1").dump_map("services")?;
        ensure!(services.contains("not-ours/web:http"), "{services}");
        for foreign in ["not-ours/headless", "not-ours/named"] {
            ensure!(!services.contains(foreign), "{foreign} in {services}");
        }
        // What changes into one that is ours becomes ours, and back.
        let external = |kind: &str| match kind {
            "ClusterIP" => json!({ "spec": {
                "type": kind, "externalName": null, "selector": { "app": "web" },
                "ports": [{ "name": "http", "port": 80, "targetPort": lab::BACKEND_PORT }],
            } }),
            _ => json!({ "spec": {
                "type": kind, "externalName": "example.test", "clusterIP": null, "clusterIPs": null,
            } }),
        };
        let to = space
            .patch_service("named", external("ClusterIP"))?
            .v4(80)?;
        world.soon_only("ExternalName became ClusterIP", &to, &["b1"])?;
        space.patch_service("named", external("ExternalName"))?;
        world.soon_gone("ClusterIP became ExternalName", &to)
    });
}

#[test]
fn the_label_of_another_proxy_takes_a_service_away_and_its_removal_brings_it_back() {
    // K36
    story("labelled", |world, space| {
        let label = |value: serde_json::Value| json!({ "metadata": { "labels": { "service.kubernetes.io/service-proxy-name": value } } });
        let born = selecting("born").label("service.kubernetes.io/service-proxy-name", "another");
        let born = space.create(&born)?.v4(80)?;
        let web = space.create(&selecting("web"))?.v4(80)?;
        space.run("web-1", "web", &world.b1)?;
        space.run("born-1", "born", &world.b2)?;
        world.soon_only("without the label", &web, &["b1"])?;
        for _ in 0..2 {
            space.patch_service("web", label("another".into()))?;
            world.soon_gone("labelled", &web)?;
            space.patch_service("web", label(serde_json::Value::Null))?;
            world.soon_only("label removed", &web, &["b1"])?;
        }
        world.tcp(&born)?.unanswered()?;
        space.patch_service("born", label(serde_json::Value::Null))?;
        world.soon_only("label of birth removed", &born, &["b2"])
    });
}

#[test]
fn a_node_port_that_the_api_server_chose_comes_and_goes_with_the_type() {
    story("node-port", |world, space| {
        let cluster_ip = space.create(&selecting("web"))?.v4(80)?;
        space.run("web-2", "web", &world.b2)?;
        world.soon_only("ClusterIP", &cluster_ip, &["b2"])?;
        let created = space.patch_service("web", json!({ "spec": { "type": "NodePort" } }))?;
        let n1 = world.node("n1");
        for (transport, port) in [(Transport::Tcp, "http"), (Transport::Udp, "dns")] {
            for ip in [n1.v4().to_string(), n1.v6().to_string()] {
                let to = join(&ip, created.node_port(port)?);
                for from in [&world.client, n1.host()] {
                    let what = format!("{} NodePort {to}", transport.as_str());
                    world.soon(&what, || {
                        world.dial(from, transport, &to)?.answered_by("b2")
                    })?;
                }
            }
        }
        let node_port = join(&n1.v4().to_string(), created.node_port("http")?);
        space.patch_service("web", json!({ "spec": { "type": "ClusterIP" } }))?;
        world.soon_gone("NodePort is gone", &node_port)?;
        world.client.many_tcp(&cluster_ip, 20)?.only_by(&["b2"])
    });
}

#[test]
fn the_status_of_a_load_balancer_is_followed() {
    story("load-balancer", |world, space| {
        let created = space.create(&selecting("web").of_type("LoadBalancer"))?;
        space.run("web-2", "web", &world.b2)?;
        world.soon_only("ClusterIP", &created.v4(80)?, &["b2"])?;
        let (first, second) = ("198.51.100.40:80", "198.51.100.41:80");
        world.tcp(first)?.unanswered()?;
        space.ingress("web", json!([{ "ip": "198.51.100.40" }]))?;
        world.soon_only("LB IP without ipMode", first, &["b2"])?;
        space.ingress("web", json!([{ "ip": "198.51.100.40", "ipMode": "Proxy" }]))?;
        world.soon_gone("ipMode Proxy", first)?;
        space.ingress("web", json!([{ "ip": "198.51.100.41", "ipMode": "VIP" }]))?;
        world.soon_only("another LB IP with ipMode VIP", second, &["b2"])?;
        space.ingress("web", json!([]))?;
        world.soon_gone("no LB IP any more", second)?;
        world
            .client
            .many_tcp(&created.v4(80)?, 20)?
            .only_by(&["b2"])
    });
}

#[test]
fn internal_traffic_policy_local_keeps_to_the_node() {
    story("internal-local", |world, space| {
        let to = space.create(&selecting("web").internal_local())?.v4(80)?;
        space.run("web-2", "web", &world.b2)?;
        let on_n2 = world.node("n2").host();
        world.soon("from the Pod's node", || {
            world.dial(on_n2, Transport::Tcp, &to)?.answered_by("b2")
        })?;
        world.tcp(&to)?.unanswered()?;
        space.run("web-1", "web", &world.b1)?;
        world.soon_only("a Pod on the client's node", &to, &["b1"])?;
        space.patch_service(
            "web",
            json!({ "spec": { "internalTrafficPolicy": "Cluster" } }),
        )?;
        world.soon_only("policy Cluster", &to, &["b1", "b2"])
    });
}

#[test]
fn identifiers_that_are_reused_at_once_lead_to_their_new_owner() {
    // K32: all of it in one burst, while the agent sees nothing.
    story("reused", |world, space| {
        let owner = |name: &str| {
            service(name)
                .cluster_ip("10.96.50.1")
                .port("http", 80, lab::BACKEND_PORT)
                .node_port(30110)
        };
        space.create(&owner("old"))?;
        space.create(&by_hand("old").ready_endpoints([&world.b1]))?;
        let balancer = |name: &str| bare(name).of_type("LoadBalancer");
        for (name, port, backend) in [("left", 8010, &world.b1), ("right", 8020, &world.b2)] {
            space.create(&balancer(name))?;
            space.patch_service(name, only_port(port))?;
            space.ingress(name, json!([{ "ip": "198.51.100.11" }]))?;
            space.create(&by_hand(name).ready_endpoints([backend]))?;
        }
        let external = |ips: &[&str]| json!({ "spec": { "externalIPs": ips } });
        space.patch_service("left", external(&["203.0.113.6"]))?;
        let same_before = space
            .create(&bare("same").cluster_ip("10.96.50.2"))?
            .v4(80)?;
        space.create(&by_hand("same").ready_endpoints([&world.b1]))?;
        let node_port = join(&world.node("n1").v4().to_string(), 30110);
        let before = [
            ("10.96.50.1:80", "b1"),
            (node_port.as_str(), "b1"),
            ("198.51.100.11:8010", "b1"),
            ("198.51.100.11:8020", "b2"),
            ("203.0.113.6:8010", "b1"),
            (same_before.as_str(), "b1"),
        ];
        for (to, pod) in before {
            world.soon_only("before", to, &[pod])?;
        }

        world.node("n1").pause_agent()?;
        space.delete_service("old")?;
        space.create(&owner("new"))?;
        space.create(&by_hand("new").ready_endpoints([&world.b3]))?;
        // The API server lets two Services share an LB IP and a port.
        space.patch_service("left", only_port(8020))?;
        space.patch_service("right", only_port(8010))?;
        space.patch_service("left", external(&[]))?;
        space.patch_service("right", external(&["203.0.113.6"]))?;
        space.delete_service("same")?;
        let same_after = space.create(&bare("same"))?.v4(80)?;
        world.node("n1").resume_agent()?;

        let after = [
            ("10.96.50.1:80", "b3"),
            (node_port.as_str(), "b3"),
            ("198.51.100.11:8020", "b1"),
            ("198.51.100.11:8010", "b2"),
            ("203.0.113.6:8010", "b2"),
            (same_after.as_str(), "b1"),
        ];
        for (to, pod) in after {
            world.soon_only(&format!("after the burst, {to}"), to, &[pod])?;
        }
        world.tcp(&same_before)?.unanswered()
    });
}

/// A patch of a Service to one TCP port.
fn only_port(port: u16) -> serde_json::Value {
    json!({ "spec": { "ports": [{ "name": "http", "port": port, "targetPort": lab::BACKEND_PORT }] } })
}

#[test]
fn nodes_agree_on_tables_that_the_cluster_seeds() {
    // What an agent takes that may not read the cluster's UID.
    const KNOWN_TO_ALL: &str = "2903503322";
    story("maglev", |world, space| {
        let created = space.create(&selecting("web").of_type("NodePort"))?;
        for (name, pod) in [
            ("web-1", &world.b1),
            ("web-2", &world.b2),
            ("web-3", &world.b3),
        ] {
            space.run(name, "web", pod)?;
        }
        world.soon_only("three Pods", &created.v4(80)?, &["b1", "b2", "b3"])?;
        let tables = |node: &Node| node.fairlead(&["tables", "maglev/web:http"]);
        world.soon("the same tables on every node", || {
            let first = tables(&world.nodes()[0])?;
            let has = |text: &str| first.contains(text);
            ensure!(has("maglev") && has("2039") && has("IPv6"), "{first}");
            for node in world.nodes() {
                let other = tables(node)?;
                ensure!(other == first, "{}: {other}{first}", node.name());
            }
            Ok(())
        })?;
        let seed = |node: &Node| -> Result<String> {
            let dump = node.dump_map("device_settings")?;
            let line = dump.lines().find(|line| line.contains("\"seed\""));
            Ok(line.context("no seed")?.to_owned())
        };
        let first = seed(&world.nodes()[0])?;
        ensure!(
            !first.contains(KNOWN_TO_ALL) && !first.contains("\"seed\": 0,"),
            "{first}"
        );
        for node in world.nodes() {
            let other = seed(node)?;
            ensure!(other == first, "{}: {other}{first}", node.name());
        }
        Ok(())
    });
}
