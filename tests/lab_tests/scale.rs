//! Nodes with 50,000 Services and Services of 1,500 endpoints behave like small
//! ones, with the sizes that maps have by default.

use anyhow::{Context, Result, ensure};
use lab::manifests::{service, slice};
use lab::{Counts, Dial, IN_FORCE, Lab, Peer, Transport, story};
use serde_json::{Value, json};
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// Services of both families with a port each.
const SERVICES: u32 = 50_000;

/// Those that are tried.
const TRIED: [u32; 3] = [0, SERVICES / 2, SERVICES - 1];

/// An agent without optimisation takes a quarter of a minute, alone on a machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Endpoints of the large Service, a hundred in a slice.
const ENDPOINTS: u32 = 1_500;
const ENDPOINTS_PER_SLICE: u32 = 100;

/// Connections to it: with equal shares they miss one in `e` squared, 203 of 1,500,
/// and as good as never 300.
const CONNECTIONS: u32 = 2 * ENDPOINTS;
const MISSED_MAX: usize = 300;

fn v4(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 96, 1, 0).to_bits() + number)
}

fn v6(number: u32) -> Ipv6Addr {
    let first = Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x100);
    Ipv6Addr::from_bits(first.to_bits() + u128::from(number))
}

/// The objects of one of the many Services, whose endpoints are these pods: in
/// IPv6 of those that are tried.
fn objects(number: u32, pods: &[Peer; 2]) -> Vec<Value> {
    let name = format!("crowd-{number}");
    let [v4, v6] = [v4(number).to_string(), v6(number).to_string()];
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name, "namespace": "crowd" },
        "spec": {
            "clusterIP": v4,
            "clusterIPs": [v4, v6],
            "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }],
        },
    });
    let slice = |family: &str, addresses: [String; 2]| {
        let endpoints = addresses.into_iter().zip(pods);
        let endpoints = endpoints
            .map(|(address, pod)| json!({ "addresses": [address], "nodeName": pod.node_name() }));
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-{family}"),
                "namespace": "crowd",
                "labels": { "kubernetes.io/service-name": name },
            },
            "addressType": family,
            "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
            "endpoints": endpoints.collect::<Vec<_>>(),
        })
    };
    let mut objects = vec![
        service,
        slice("IPv4", pods.each_ref().map(|it| it.v4().to_string())),
    ];
    if TRIED.contains(&number) {
        let addresses = pods.each_ref().map(|it| it.v6().to_string());
        objects.push(slice("IPv6", addresses));
    }
    objects
}

#[test]
fn of_fifty_thousand_services_the_first_the_middle_and_the_last_are_served_on_both_paths() {
    story(
        || Lab::new(2),
        |lab| {
            let (n1, n2) = (lab.node("n1"), lab.node("n2"));
            let pods = [n1.pod("b1")?.serve(8080)?, n2.pod("b2")?.serve(8080)?];
            let names = pods.each_ref().map(Peer::name);
            let inside = n1.pod("inside")?;
            let outside = lab.client("c1");
            outside.route_frontends(n1.host())?;
            let mut text = String::new();
            for object in (0..SERVICES).flat_map(|number| objects(number, &pods)) {
                writeln!(text, "{object}")?;
            }
            // No agent reads it yet.
            std::fs::write(lab.manifests_dir().join("crowd.json"), text)?;
            n1.start_agent()?;
            lab.within(PATIENCE, || {
                inside
                    .tcp(&format!("{}:80", v4(SERVICES - 1)))?
                    .answered_by_one_of(&names)
            })?;
            n1.wait_healthy()?;
            for number in TRIED {
                for to in [format!("{}:80", v4(number)), format!("[{}]:80", v6(number))] {
                    for client in [&inside, n1.host(), outside] {
                        let counts = client.many_tcp(&to, 40)?;
                        both(&counts, &names)
                            .with_context(|| format!("{} to {to}", client.name()))?;
                    }
                }
            }
            // A change among them is in force as fast as in any other cluster.
            let other = service("crowd-0")
                .in_namespace("late")
                .cluster_ip("10.96.254.1");
            lab.apply(&other.port("http", 80, 8080))?;
            let slice = slice("late", "crowd-0")
                .in_namespace("late")
                .port("http", 8080);
            lab.apply(&slice.ready_endpoints(&pods))?;
            let mut dial = Dial::new(Transport::Tcp, "10.96.254.1:80".parse()?);
            dial.timeout_ms = 300;
            lab.within(IN_FORCE, || {
                inside.dial(dial.clone())?.answered_by_one_of(&names)
            })
        },
    );
}

fn both(counts: &Counts, names: &[&str]) -> Result<()> {
    counts.none_failed()?;
    for name in names {
        ensure!(counts.by(name) > 0, "{name} got nothing of {counts:?}");
    }
    Ok(())
}

/// Connections that each endpoint of the large Service got, by address.
fn opened(lab: &Lab) -> Result<Vec<(String, u64)>> {
    let ports = lab.node("n1").fairlead(&["backends", "-o", "json"])?;
    let ports: Value = serde_json::from_str(&ports)?;
    let ports = ports.as_array().context("no list")?;
    let large = ports.iter().find(|it| it["name"] == "default/large:http");
    let backends = large.context("no such Service")?["backends"].as_array();
    let of = |it: &Value| Some((it["address"].as_str()?.to_owned(), it["opened"].as_u64()?));
    Ok(backends
        .context("no backends")?
        .iter()
        .filter_map(of)
        .collect())
}

#[test]
fn a_service_of_1500_endpoints_spreads_over_all_of_them_on_both_paths() {
    story(
        || Lab::new(1),
        |lab| {
            let n1 = lab.node("n1");
            // One pod has all the addresses.
            let pod = n1.pod("many")?.serve(8080)?;
            pod.ip("route add local 10.240.0.0/16 dev lo\n")?;
            n1.host().ip(&format!(
                "route add 10.240.0.0/16 via {} dev pod2 onlink\n",
                pod.v4()
            ))?;
            let inside = n1.pod("inside")?;
            let outside = lab.client("c1");
            outside.route_frontends(n1.host())?;
            let large = service("large")
                .cluster_ip("10.96.40.1")
                .port("http", 80, 8080);
            lab.apply(&large.node_port(30400).lb_ip("198.51.100.40"))?;
            for part in 0..ENDPOINTS / ENDPOINTS_PER_SLICE {
                let mut slice = slice(&format!("large-{part}"), "large").port("http", 8080);
                for number in 0..ENDPOINTS_PER_SLICE {
                    let [.., high, low] = (1 + part * ENDPOINTS_PER_SLICE + number).to_be_bytes();
                    slice = slice
                        .address(&format!("10.240.{high}.{low}"))
                        .on("n1")
                        .ready();
                }
                lab.apply(&slice)?;
            }
            lab.start_agents()?;
            ensure!(
                opened(lab)?.len() == ENDPOINTS as usize,
                "endpoints are missing"
            );
            for (client, to) in [(&inside, "10.96.40.1:80"), (outside, "198.51.100.40:80")] {
                let before = opened(lab)?;
                client.many_tcp(to, CONNECTIONS)?.none_failed()?;
                let after = opened(lab)?;
                let missed = before
                    .iter()
                    .zip(&after)
                    .filter(|(before, after)| before == after);
                let missed = missed.count();
                ensure!(missed < MISSED_MAX, "{to}: {missed} endpoints got nothing");
                let got = before
                    .iter()
                    .zip(&after)
                    .map(|(before, after)| after.1 - before.1);
                let (total, most) = got.fold((0, 0), |(sum, most), it| (sum + it, it.max(most)));
                ensure!(total == u64::from(CONNECTIONS), "{to}: {total} counted");
                ensure!(most < 15, "{to}: one endpoint got {most}");
            }
            Ok(())
        },
    );
}
