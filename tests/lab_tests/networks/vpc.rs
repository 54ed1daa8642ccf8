//! Which device of a node in a VPC sends what.

use crate::policy::SCENE;
use crate::scene::{OUTSIDE_PORT, Scene, addresses};
use anyhow::{Context, Result, ensure};
use lab::{BACKEND_PORT, Peer};
use std::net::SocketAddr;
use std::process::Command;

/// A NodePort for `b3` on its node n3.
const NODE_PORT: u16 = 30080;
/// Enough that what the agent sends does not matter.
const EXCHANGES: u32 = 300;

#[test]
fn pods_of_a_vpc_use_the_second_device_but_for_answers_to_the_first() {
    SCENE.story(|scene| {
        let node = scene.node("n3").host();
        let to = |peer, port| addresses(peer).map(|address| SocketAddr::new(address, port));
        for backend in to(&scene.b3, BACKEND_PORT) {
            sends_by("eth1", "eth0", scene, scene.c1(), backend)?;
            translate_as_kube_proxy(node, backend)?;
        }
        for node_port in to(node, NODE_PORT) {
            sends_by("eth0", "eth1", scene, scene.c1(), node_port)?;
        }
        for outside in to(&scene.c3, OUTSIDE_PORT) {
            sends_by("eth0", "eth1", scene, &scene.b3, outside)?;
        }
        Ok(())
    });
}

/// Of two devices of n3, one sends all packets of the client's exchanges.
fn sends_by(used: &str, unused: &str, scene: &Scene, client: &Peer, to: SocketAddr) -> Result<()> {
    let node = scene.node("n3").host();
    // Fails soon, where hundreds of time-outs would not.
    client.udp(&to.to_string())?.line()?;
    let before = (packets_sent(node, used)?, packets_sent(node, unused)?);
    client.many_udp(&to.to_string(), EXCHANGES)?.none_failed()?;
    let by_used = packets_sent(node, used)? - before.0;
    let by_unused = packets_sent(node, unused)? - before.1;
    ensure!(
        by_used >= EXCHANGES.into() && by_unused < EXCHANGES.into(),
        "{by_used} packets by {used}, {by_unused} by {unused}"
    );
    Ok(())
}

/// A NodePort that is translated before routing.
fn translate_as_kube_proxy(node: &Peer, backend: SocketAddr) -> Result<()> {
    let mut iptables = Command::new(match backend {
        SocketAddr::V4(_) => "iptables-legacy",
        SocketAddr::V6(_) => "ip6tables-legacy",
    });
    let port = NODE_PORT.to_string();
    iptables
        .args("--wait --table nat --append PREROUTING --protocol udp --dport".split(' '))
        .args([&port, "--jump", "DNAT", "--to-destination"])
        .arg(backend.to_string());
    let status = node.spawn(iptables)?.wait()?;
    ensure!(status.success(), "iptables: {status}");
    Ok(())
}

/// Packets that a device of a namespace has sent so far.
fn packets_sent(peer: &Peer, device: &str) -> Result<u64> {
    let table = std::fs::read_to_string(format!("/proc/{}/net/dev", peer.pid()))?;
    let prefix = format!("{device}:");
    let mut lines = table.lines();
    let line = lines.find_map(|line| line.trim().strip_prefix(&prefix));
    let line = line.with_context(|| format!("no {device} in {table}"))?;
    // Eight columns of what was received, then bytes and packets sent.
    let packets = line.split_whitespace().nth(9).context("a short line")?;
    Ok(packets.parse()?)
}
