//! Proxies and API servers that go and come back: rules 34 and 35.

use crate::check::{holds, judged};
use crate::fault::Fault;
use crate::row::Row;
use crate::stage::{Stage, then_restore};
use anyhow::Result;
use control_plane::Kind;
use lab::manifests::{Manifest, slice};
use lab::{Peer, Transport};
use serde_json::json;

pub(super) fn rows() -> Vec<Row> {
    let mut rows = proxy_restarts();
    rows.extend(api_server());
    rows
}

fn proxy_restarts() -> Vec<Row> {
    vec![
        Row::new(
            34,
            "traffic-flows-while-the-proxy-is-away",
            "established and new connections work while the node's proxy is killed and comes \
             back, and no single one fails",
            "kubernetes e2e \"should work after restarting kube-proxy\"",
            Fault::RulesGoWithProxy,
            flows_while_away,
        )
        .cases(&["K18"])
        .once()
        .alone(),
        Row::new(
            34,
            "changes-while-the-proxy-is-away-are-caught-up",
            "what was changed, emptied, added and deleted while the node's proxy was away is in \
             force after its start, and goes on to be followed",
            "kubernetes e2e \"should work after restarting kube-proxy\"; API concepts: list, then watch",
            Fault::ChangesLost,
            changes_while_away,
        )
        .cases(&["K18"])
        .once()
        .alone(),
        Row::new(
            34,
            "deletions-while-the-proxy-is-away-are-caught-up",
            "a Service that was deleted while the node's proxy was away is gone after its start",
            "kubernetes e2e \"should work after restarting kube-proxy\"; API concepts: list, then watch",
            Fault::DeletionsLost,
            deletions_while_away,
        )
        .once()
        .alone(),
        Row::new(
            34,
            "a-rebooted-node-serves-again",
            "a node whose kernel has forgotten everything serves again when its proxy starts",
            "API concepts: list, then watch",
            Fault::ServicesLost,
            rebooted,
        )
        .cases(&["K82"])
        .once()
        .alone(),
    ]
}

fn api_server() -> Vec<Row> {
    vec![
        Row::new(
            34,
            "traffic-flows-while-the-api-server-is-away",
            "established and new connections work while the API server is away, and changes are \
             followed when it is back",
            "API concepts: list, then watch",
            Fault::ChangesLost,
            api_server_away,
        )
        .cases(&["K70"])
        .once()
        .alone(),
        Row::new(
            34,
            "expired-watch-is-caught-up",
            "what changed behind a watch that the API server answers with 410 Gone is caught up, \
             deletions included",
            "API concepts: 410 Gone, list anew",
            Fault::DeletionsLost,
            expired_watch,
        )
        .once()
        .alone(),
        Row::new(
            35,
            "proxy-starts-while-kubernetes-service-is-dead",
            "a proxy starts and follows changes while no endpoint of default/kubernetes answers, \
             and the Service works when its endpoints do",
            "kubernetes pkg/proxy: an explicit API server address in the kubeconfig",
            Fault::ChangesLost,
            kubernetes_service_is_dead,
        )
        .cases(&["K70"])
        .once()
        .alone(),
        Row::new(
            35,
            "proxy-waits-for-its-node",
            "a proxy that starts before its Node exists serves when it does",
            "kubernetes pkg/proxy/node.go: waits for the Node",
            Fault::ServicesLost,
            waits_for_its_node,
        )
        .cases(&["K70"])
        .once()
        .alone(),
    ]
}

/// Runs with n1's proxy killed, and starts it again whatever comes of it.
pub(super) fn without_proxy(s: &Stage<'_>, story: impl FnOnce() -> Result<()>) -> Result<()> {
    s.kill_proxy("n1")?;
    then_restore(story, || s.start_proxy_with("n1", &[]))
}

/// Clients on n1: a pod and a host process.
pub(super) fn clients<'s>(s: &'s Stage<'_>) -> [&'s Peer; 2] {
    [&s.pod1, &s.host1]
}

fn flows_while_away(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1, &s.world.b2]))?;
    let to = s.cluster_ip();
    let held = s.hold(&s.pod1, Transport::Tcp, &to)?;
    let backend = judged(held.pod())?;
    let load = s.host1.load(Transport::Tcp, &to, 20)?;
    for _ in 0..3 {
        without_proxy(s, || {
            judged(held.talk("anybody?")?.answered_by(&backend))?;
            for transport in Transport::BOTH {
                s.only(&s.pod1, transport, &to, &["b1", "b2"])?;
            }
            Ok(())
        })?;
        judged(held.talk("anybody?")?.answered_by(&backend))?;
    }
    judged(load.stop()?.only_by(&["b1", "b2"]))
}

/// A Service with b1, and its ClusterIP.
pub(super) fn served(s: &Stage<'_>, name: &str) -> Result<String> {
    let numbers = s.world.numbers();
    s.apply(&s.service_at(name, &numbers))?;
    s.apply(&s.ready(name, &[&s.world.b1]))?;
    Ok(s.cluster_ip_of(&numbers))
}

fn changes_while_away(s: &Stage<'_>) -> Result<()> {
    let changed = served(s, "changed")?;
    let emptied = served(s, "emptied")?;
    let mut added = String::new();
    for to in [&changed, &emptied] {
        s.only(&s.pod1, Transport::Tcp, to, &["b1"])?;
    }
    without_proxy(s, || {
        s.apply(&s.ready("changed", &[&s.world.b2]))?;
        s.apply(&s.slice("emptied"))?;
        added = served(s, "added")?;
        Ok(())
    })?;
    for client in clients(s) {
        for transport in Transport::BOTH {
            s.only(client, transport, &changed, &["b2"])?;
            s.unanswered(client, transport, &emptied)?;
            s.only(client, transport, &added, &["b1"])?;
        }
    }
    s.apply(&s.ready("changed", &[&s.world.b3]))?;
    s.only(&s.pod1, Transport::Tcp, &changed, &["b3"])
}

fn deletions_while_away(s: &Stage<'_>) -> Result<()> {
    let service = s.node_port_service("goes");
    s.apply(&service)?;
    s.apply(&s.ready("goes", &[&s.world.b1]))?;
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b1"])?;
    without_proxy(s, || s.delete(&service))?;
    for client in clients(s) {
        for to in [s.cluster_ip(), s.node_port("n1")] {
            s.unanswered(client, Transport::Tcp, &to)?;
        }
    }
    Ok(())
}

fn rebooted(s: &Stage<'_>) -> Result<()> {
    s.apply(&s.node_port_service("web"))?;
    s.apply(&s.ready("web", &[&s.world.b1]))?;
    without_proxy(s, || s.world.forget_programmed("n1"))?;
    for client in clients(s) {
        for transport in Transport::BOTH {
            s.only(client, transport, &s.cluster_ip(), &["b1"])?;
            s.only(client, transport, &s.node_port("n1"), &["b1"])?;
        }
    }
    Ok(())
}

/// The API server is started, whatever comes of the story.
fn without_api_server(s: &Stage<'_>, story: impl FnOnce() -> Result<()>) -> Result<()> {
    s.settle()?;
    s.world.plane.kill_api_server()?;
    then_restore(story, || s.world.start_api_server())
}

/// The story is n1's: the others need not take their time between tries.
fn catch_up(s: &Stage<'_>) -> Result<()> {
    for node in ["n2", "n3"] {
        s.world.kill_proxy(node)?;
        s.start_proxy_with(node, &[])?;
    }
    s.catch_up()
}

fn api_server_away(s: &Stage<'_>) -> Result<()> {
    let to = served(s, "web")?;
    let held = s.hold(&s.pod1, Transport::Tcp, &to)?;
    judged(held.outcome.answered_by("b1"))?;
    without_api_server(s, || {
        judged(held.talk("anybody?")?.answered_by("b1"))?;
        for client in clients(s) {
            s.only(client, Transport::Tcp, &to, &["b1"])?;
        }
        Ok(())
    })?;
    catch_up(s)?;
    s.apply(&s.ready("web", &[&s.world.b2]))?;
    s.only(&s.pod1, Transport::Tcp, &to, &["b2"])?;
    judged(held.talk("anybody?")?.answered_by("b1"))
}

fn expired_watch(s: &Stage<'_>) -> Result<()> {
    let service = s.service("goes");
    s.apply(&service)?;
    s.apply(&s.ready("goes", &[&s.world.b1]))?;
    s.only(&s.pod1, Transport::Tcp, &s.cluster_ip(), &["b1"])?;
    let changed = served(s, "changed")?;
    s.only(&s.pod1, Transport::Tcp, &changed, &["b1"])?;
    // The proxy must not learn of it by its old connection, nor may the API
    // server remember it.
    s.world.pause_proxy("n1")?;
    then_restore(
        || {
            without_api_server(s, || Ok(()))?;
            s.delete(&service)?;
            s.apply(&s.ready("changed", &[&s.world.b2]))?;
            s.world.plane.forget_history()?;
            s.world.plane.kill_api_server()?;
            s.world.start_api_server()
        },
        || s.world.resume_proxy("n1"),
    )?;
    catch_up(s)?;
    s.only(&s.pod1, Transport::Tcp, &changed, &["b2"])?;
    s.unanswered(&s.pod1, Transport::Tcp, &s.cluster_ip())
}

fn kubernetes_service_is_dead(s: &Stage<'_>) -> Result<()> {
    let endpoint = |address: &str| {
        slice("kubernetes", "kubernetes")
            .raw_port(json!({ "name": "https", "port": 6443, "protocol": "TCP" }))
            .address(address)
            .ready()
            .to_json()
    };
    let api = &s.world.api;
    // Nobody has this address.
    api.create(Kind::Slice, "default", &endpoint("192.0.2.29"))?;
    then_restore(
        || {
            let to = served(s, "web")?;
            without_proxy(s, || Ok(()))?;
            s.apply(&s.ready("web", &[&s.world.b2]))?;
            for client in clients(s) {
                s.only(client, Transport::Tcp, &to, &["b2"])?;
            }
            api.replace(Kind::Slice, "default", &endpoint("192.0.2.21"))?;
            s.soon("the API server by its Service", || {
                // It says nothing before the client does: what it accepts is enough.
                let outcome = s.dial(&s.pod1, Transport::Tcp, "10.96.0.1:443")?;
                let failure = outcome.dialed.failure.as_ref();
                holds(failure.is_some_and(|it| it.call == "recv"), || {
                    format!("no connection to 10.96.0.1:443: {failure:?}")
                })
            })
        },
        || api.delete(Kind::Slice, "default", "kubernetes", None),
    )
}

fn waits_for_its_node(s: &Stage<'_>) -> Result<()> {
    let to = served(s, "web")?;
    s.kill_proxy("n1")?;
    then_restore(
        || {
            s.world.delete_node("n1")?;
            s.world.start_proxy("n1")?;
            s.world.wait_until_it_asks("n1")?;
            s.world.create_node("n1")?;
            s.catch_up()?;
            s.only(&s.pod1, Transport::Tcp, &to, &["b1"])
        },
        || {
            s.world.kill_proxy("n1")?;
            s.start_proxy_with("n1", &[])
        },
    )
}
