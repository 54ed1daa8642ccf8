//! Fairlead in fifteen seconds: three nodes, an agent on each, real traffic.
//!
//! `cargo xtask demo` builds what it needs and runs it. It needs no control
//! plane, and leaves nothing behind. It fails if what it shows is not right.

mod chart;

use anyhow::{Context, Result, ensure};
use lab::manifests::{Service, Slice, service, slice};
use lab::{Counts, Lab, Peer, Transport};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

const V4: &str = "10.96.0.20";
const V6: &str = "fd00:96::20";
/// Connections of each kind in the first act.
const CONNECTIONS: u32 = 2000;
/// Connections per second while the service is scaled.
const RATE: u32 = 1500;

fn main() -> Result<()> {
    let start = Instant::now();
    println!("\n Fairlead: Services without kube-proxy, netfilter and packets in between\n");
    let lab = Lab::new(3)?;
    let outcome = play(&lab, start);
    if outcome.is_err() {
        eprintln!("{}", lab.logs());
    }
    outcome?;
    let name = lab.name().to_owned();
    let traces = lab.traces().map(Path::to_path_buf);
    lab.close()?;
    for path in traces {
        ensure!(!path.exists(), "{path:?} was left behind");
    }
    println!(
        "\n Done in {:.1} s; {name} is gone without a trace.\n",
        start.elapsed().as_secs_f32()
    );
    Ok(())
}

fn play(lab: &Lab, start: Instant) -> Result<()> {
    let shop = open_shop(lab, start)?;
    let client = lab.node("n1").pod("client")?;
    show_agents(lab)?;
    show_traffic(&client, &shop[..3])?;
    show_scaling(lab, &client, &shop)?;
    show_map(lab)
}

fn heading(number: u8, text: &str) {
    println!("\n {number}. {text}\n");
}

/// Six pods, of which three are endpoints at first.
fn open_shop(lab: &Lab, start: Instant) -> Result<Vec<Peer>> {
    let mut shop = Vec::new();
    for number in 1..=6 {
        let node = lab.node(["n1", "n2", "n3"][(number - 1) % 3]);
        shop.push(node.pod(&format!("shop-{number}"))?.serve(8080)?);
    }
    heading(
        1,
        "Three nodes on one kernel, each a network namespace and a cgroup of its own",
    );
    for node in lab.nodes() {
        let pods = shop
            .iter()
            .filter(|pod| pod.node_name() == Some(node.name()));
        let pods: Vec<String> = pods
            .map(|pod| format!("{} {}", pod.name(), pod.v4()))
            .collect();
        println!(
            "     {}  {}  {:<15} pods: {}",
            node.name(),
            node.v4(),
            node.v6(),
            pods.join(", ")
        );
    }
    println!("     up after {:.1} s", start.elapsed().as_secs_f32());
    scale(lab, &shop[..3])?;
    Ok(shop)
}

fn shop_service() -> Service {
    service("shop")
        .cluster_ip(V4)
        .cluster_ip(V6)
        .port("http", 80, 8080)
        .udp_port("quotes", 53, 8080)
}

/// Makes these pods the endpoints of the Service.
fn scale(lab: &Lab, pods: &[Peer]) -> Result<()> {
    let with_ports = |slice: Slice| {
        slice
            .port("http", 8080)
            .udp_port("quotes", 8080)
            .ready_endpoints(pods)
    };
    lab.apply(&shop_service())?;
    lab.apply(&with_ports(slice("shop-v4", "shop")))?;
    lab.apply(&with_ports(slice("shop-v6", "shop").v6()))
}

fn show_agents(lab: &Lab) -> Result<()> {
    heading(
        2,
        "An agent on each node; its input is a directory of Kubernetes manifests",
    );
    let start = Instant::now();
    lab.start_agents()?;
    println!("     {}", lab.manifests_dir().display());
    println!(
        "     Service default/shop   http {V4}:80, [{V6}]:80 (TCP)   quotes {V4}:53, [{V6}]:53 (UDP)"
    );
    println!(
        "     all three programmed after {} ms",
        start.elapsed().as_millis()
    );
    Ok(())
}

fn names(pods: &[Peer]) -> Vec<&str> {
    pods.iter().map(Peer::name).collect()
}

fn nodes_of(pods: &[Peer]) -> BTreeMap<String, String> {
    pods.iter()
        .map(|pod| {
            (
                pod.name().to_owned(),
                pod.node_name().unwrap_or_default().to_owned(),
            )
        })
        .collect()
}

/// Every frontend of the Service, from a pod on n1.
fn show_traffic(client: &Peer, endpoints: &[Peer]) -> Result<()> {
    heading(
        3,
        &format!("{CONNECTIONS} connections through each ClusterIP, from a pod on n1"),
    );
    let frontends = [
        (Transport::Tcp, format!("{V4}:80")),
        (Transport::Tcp, format!("[{V6}]:80")),
        (Transport::Udp, format!("{V4}:53")),
        (Transport::Udp, format!("[{V6}]:53")),
    ];
    for (transport, to) in frontends {
        let counts = match transport {
            Transport::Tcp => client.many_tcp(&to, CONNECTIONS)?,
            Transport::Udp => client.many_udp(&to, CONNECTIONS)?,
        };
        println!("   {} {to}   {}", transport.as_str(), rate(&counts));
        chart::print(&counts, &nodes_of(endpoints));
        counts
            .only_by(&names(endpoints))
            .with_context(|| to.clone())?;
        counts.even_within(0.25).with_context(|| to.clone())?;
        let outcome = client.reach(transport, &to)?;
        outcome.peer_name_is(&to)?;
    }
    let outcome = client.tcp(&format!("{V4}:80"))?;
    println!("   A backend says: {}", outcome.line()?);
    println!("   The client's getpeername says {V4}:80; no packet ever carried that address.");
    Ok(())
}

fn rate(counts: &Counts) -> String {
    let per_second = counts.answers() * 1000 / counts.elapsed_ms.max(1);
    format!(
        "{} answered, {} failed, {per_second} per second",
        counts.answers(),
        counts.failures()
    )
}

/// From three endpoints to six and down to two, under load.
fn show_scaling(lab: &Lab, client: &Peer, shop: &[Peer]) -> Result<()> {
    heading(
        4,
        &format!("The Service is scaled while about {RATE} connections per second run"),
    );
    let all = nodes_of(shop);
    // A connection to an endpoint that goes away in the last act.
    let held = lab.eventually(|| {
        let held = client.hold_tcp(&format!("{V4}:80"))?;
        held.outcome.answered_by("shop-1")?;
        Ok(held)
    })?;
    let loads = [
        client.load(Transport::Tcp, &format!("{V4}:80"), RATE)?,
        lab.node("n2")
            .host()
            .load(Transport::Udp, &format!("{V4}:53"), 200)?,
    ];
    let act = |title: &str, endpoints: &[Peer]| -> Result<()> {
        let start = Instant::now();
        scale(lab, endpoints)?;
        lab.settle()?;
        let settled_ms = start.elapsed().as_millis();
        let earlier = loads[0].so_far()?;
        let enough = u64::from(RATE);
        let counts = lab.within(Duration::from_secs(20), || {
            let counts = loads[0].so_far()?.since(&earlier);
            ensure!(
                counts.answers() >= enough,
                "only {} connections",
                counts.answers()
            );
            Ok(counts)
        })?;
        println!("   {title}   {}", rate(&counts));
        chart::print(&counts, &all);
        println!("     in force on three nodes {settled_ms} ms after the manifest was written");
        counts
            .only_by(&names(endpoints))
            .with_context(|| title.to_owned())
    };
    act("before, 3 endpoints", &shop[..3])?;
    act("scaled up to 6     ", shop)?;
    act("scaled down to 2   ", &shop[1..3])?;
    let [tcp, udp] = loads;
    let (tcp, udp) = (tcp.stop()?, udp.stop()?);
    println!(
        "   During all of it: {} TCP connections, {} failed; {} UDP exchanges from n2, {} failed",
        tcp.answers(),
        tcp.failures(),
        udp.answers(),
        udp.failures()
    );
    tcp.none_failed().context("TCP while scaling")?;
    udp.none_failed().context("UDP while scaling")?;
    held.talk("still here")?.answered_by("shop-1")?;
    println!("   shop-1 is no endpoint any more, but a connection that it had before goes on.");
    Ok(())
}

/// The frontend as it stands in the kernel.
fn show_map(lab: &Lab) -> Result<()> {
    let n1 = lab.node("n1");
    heading(
        5,
        "A frontend in the kernel, as `bpftool map dump` prints it",
    );
    println!(
        "     # bpftool map dump pinned {}/frontends",
        n1.pins().display()
    );
    let dump = n1.dump_map("frontends")?;
    let wanted = ["[0,0,0,0,0,0,0,0,0,0,255,255,10,96,0,20]", "\"port\":80,"];
    let element = dump
        .split("},{\n")
        .find(|element| {
            let packed: String = element.chars().filter(|c| !c.is_whitespace()).collect();
            wanted.iter().all(|part| packed.contains(part))
        })
        .with_context(|| format!("no frontend {V4}:80 in {dump}"))?;
    for line in element
        .lines()
        .map(|line| line.trim_start_matches(['[', '{']))
        .filter(|line| !line.trim().is_empty())
    {
        println!("     {line}");
    }
    Ok(())
}
