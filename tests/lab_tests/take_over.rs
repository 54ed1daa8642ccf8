//! Connections of a kube-proxy that was there before (semantics 37). Its rules are
//! stood for by ones of the same names.

use anyhow::{Context, Result, ensure};
use lab::manifests::{Service, service, slice};
use lab::{BACKEND_PORT, Held, Lab, Node, Peer, story, wire::Segment};
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// The agent looks every five seconds (proxy-agent/src/take_over).
const LOOK: Duration = Duration::from_secs(5);

/// An endpoint on n1, where c1's packets enter, and one on n2.
const SERVICES: [(&str, u16); 2] = [("near", 30_070), ("far", 30_071)];

/// A connection that is over is no longer tracked after a second.
const TIMEOUTS: [&str; 5] = ["fin_wait", "close_wait", "last_ack", "time_wait", "close"];

fn two_nodes() -> Result<Lab> {
    Lab::new(2)
}

fn one_node() -> Result<Lab> {
    Lab::new(1)
}

fn run(host: &Peer, program: &str, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments);
    let status = host.spawn(command)?.wait()?;
    ensure!(status.success(), "{program} {arguments:?}: {status}");
    Ok(())
}

fn status(node: &Node) -> Result<Value> {
    Ok(serde_json::from_str(
        &node.fairlead(&["status", "-o", "json"])?,
    )?)
}

fn goes_on(node: &Node, wanted: bool) -> Result<()> {
    let take_over = &status(node)?["take_over"];
    ensure!(*take_over == wanted, "take-over: {take_over}");
    Ok(())
}

/// Packets in mid-connection that were dropped.
fn dropped(node: &Node) -> Result<u64> {
    let status = status(node)?;
    let drops = status["drops"].as_array().context("no drops")?;
    let strays = drops.iter().find(|it| it["reason"] == "no_flow");
    strays
        .and_then(|it| it["count"].as_u64())
        .context("no count")
}

fn web(name: &str, node_port: u16) -> Service {
    let octet = node_port - 30_000;
    service(name)
        .cluster_ip(&format!("10.96.71.{octet}"))
        .cluster_ip(&format!("fd00:96::71:{octet}"))
        .port("http", 80, BACKEND_PORT)
        .node_port(node_port)
}

/// kube-proxy's nftables mode, in the parts that decide, for one family.
fn program_rules(n1: &Node, family: &str, backends: [SocketAddr; 2]) -> Result<()> {
    let address = if family == "ip" {
        n1.v4().to_string()
    } else {
        n1.v6().to_string()
    };
    let rules = SERVICES
        .iter()
        .zip(backends)
        .map(|((_, port), to)| format!("{family} daddr {address} tcp dport {port} dnat to {to};"));
    let rules = rules.collect::<String>();
    let table = format!(
        "table {family} kube-proxy {{
           chain services {{ {rules} }}
           chain nat-prerouting {{ type nat hook prerouting priority -100; jump services; }}
           chain nat-postrouting {{
             type nat hook postrouting priority 100; ct status dnat masquerade;
           }}
         }}"
    );
    run(n1.host(), "nft", &[&table])
}

/// Something else that uses connection tracking, as there is on most nodes. It ends with
/// the last rule that uses it, and what it had is no longer translated.
fn keep_tracking(host: &Peer) -> Result<()> {
    let chain = "type filter hook forward priority 0; ct state established accept;";
    run(
        host,
        "nft",
        &[&format!(
            "table inet cni {{ chain forward {{ {chain} }}; }}"
        )],
    )
}

/// The rules go. Base chains for translation stay: deleting the last one would end the
/// connections.
fn forget_rules(n1: &Node, family: &str) -> Result<()> {
    let table = format!("{family} kube-proxy");
    let all = format!("flush table {table}; delete chain {table} services");
    run(n1.host(), "nft", &[&all])
}

fn all_go_on(held: &[Held]) -> Result<()> {
    for connection in held {
        let outcome = connection.talk("still there?")?;
        outcome.answered_by(&connection.pod()?)?;
    }
    Ok(())
}

#[test]
fn its_connections_go_on_until_they_end() {
    story(two_nodes, |lab| {
        let (n1, n2, c1) = (lab.node("n1"), lab.node("n2"), lab.client("c1"));
        let b1 = n1.pod("b1")?.serve(BACKEND_PORT)?;
        let b2 = n2.pod("b2")?.serve(BACKEND_PORT)?;
        for ((name, port), backend) in SERVICES.into_iter().zip([&b1, &b2]) {
            lab.apply(&web(name, port))?;
            for family in [
                slice(&format!("{name}-4"), name),
                slice(&format!("{name}-6"), name).v6(),
            ] {
                lab.apply(&family.port("http", BACKEND_PORT).ready_endpoints([backend]))?;
            }
        }
        for state in TIMEOUTS {
            let setting = format!("net/netfilter/nf_conntrack_tcp_timeout_{state}");
            n1.host().sysctl(&setting, "1")?;
        }
        let v4 = [&b1, &b2].map(|it| SocketAddr::new(it.v4().into(), BACKEND_PORT));
        let v6 = [&b1, &b2].map(|it| SocketAddr::new(it.v6().into(), BACKEND_PORT));
        keep_tracking(n1.host())?;
        program_rules(n1, "ip", v4)?;
        program_rules(n1, "ip6", v6)?;
        let frontends: Vec<SocketAddr> = SERVICES
            .iter()
            .flat_map(|(_, port)| {
                [n1.v4().into(), n1.v6().into()].map(|ip| SocketAddr::new(ip, *port))
            })
            .collect();
        let client: [IpAddr; 2] = [c1.v4().into(), c1.v6().into()];
        let mut held = Vec::new();
        for to in &frontends {
            let connection = c1.hold_tcp(&to.to_string())?;
            let seen = connection.outcome.seen_peer()?;
            ensure!(!client.contains(&seen.ip()), "{seen}: by nobody");
            held.push(connection);
        }
        n1.start_agent()?;
        n1.wait_healthy()?;
        lab.settle()?;
        // A new one is Fairlead's: the backend on n1 sees the client.
        let new_ones_are_ours = || -> Result<()> {
            for (to, wanted) in frontends.iter().zip(client) {
                let seen = c1.tcp(&to.to_string())?.seen_peer()?;
                ensure!(seen.ip() == wanted, "by {seen}");
            }
            Ok(())
        };
        lab.eventually(new_ones_are_ours)?;
        all_go_on(&held).context("once Fairlead runs")?;
        lab.within(2 * LOOK, || goes_on(n1, true))?;
        let stray = |port: u16| {
            c1.send_reset(Segment {
                from: SocketAddr::new(c1.v4().into(), port),
                to: frontends[0],
                sequence: 1,
            })
        };
        stray(2000)?;
        for family in ["ip", "ip6"] {
            forget_rules(n1, family)?;
        }
        let start = Instant::now();
        while start.elapsed() < 2 * LOOK + LOOK / 2 {
            all_go_on(&held).context("without its rules")?;
            goes_on(n1, true)?;
            thread::sleep(LOOK / 10);
        }
        new_ones_are_ours()?;
        ensure!(
            dropped(n1)? == 0,
            "a packet that may be another's was dropped"
        );
        // Those that are left keep it up.
        held.truncate(1);
        lab.within(2 * LOOK, || all_go_on(&held))?;
        drop(held);
        lab.within(4 * LOOK, || goes_on(n1, false))?;
        stray(2001)?;
        lab.eventually(|| {
            let count = dropped(n1)?;
            ensure!(count == 1, "{count} strays dropped");
            Ok(())
        })?;
        new_ones_are_ours()
    });
}

#[test]
fn its_rules_are_found_in_every_mode() {
    story(one_node, |lab| {
        let n1 = lab.node("n1");
        let host = n1.host();
        n1.start_agent()?;
        n1.wait_healthy()?;
        lab.settle()?;
        lab.eventually(|| goes_on(n1, false))?;
        // Others translate, too.
        run(host, "nft", &["add table ip nat; add chain ip nat DOCKER"])?;
        run(host, "iptables-legacy", &["-t", "nat", "-N", "DOCKER"])?;
        let chain = "KUBE-SERVICES";
        let table = |family| {
            format!("add table {family} kube-proxy; add chain {family} kube-proxy services")
        };
        let (v4, v6) = (table("ip"), table("ip6"));
        for (program, there, gone) in [
            ("nft", vec![v4.as_str()], vec!["delete table ip kube-proxy"]),
            ("nft", vec![&v6], vec!["delete table ip6 kube-proxy"]),
            (
                "iptables-nft",
                vec!["-t", "nat", "-N", chain],
                vec!["-t", "nat", "-X", chain],
            ),
            (
                "ip6tables-legacy",
                vec!["-t", "nat", "-N", chain],
                vec!["-t", "nat", "-X", chain],
            ),
            (
                "ip",
                vec!["link", "add", "kube-ipvs0", "type", "bridge"],
                vec!["link", "del", "kube-ipvs0"],
            ),
        ] {
            run(host, program, &there)?;
            lab.within(3 * LOOK, || goes_on(n1, true))
                .with_context(|| format!("{program} {there:?}"))?;
            run(host, program, &gone)?;
            lab.within(3 * LOOK, || goes_on(n1, false))
                .with_context(|| format!("{program} {gone:?}"))?;
        }
        Ok(())
    });
}
