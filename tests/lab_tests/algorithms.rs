//! Algorithms and weights (docs/annotations.md), for clients on the node and outside.

use anyhow::{Context, Result, ensure};
use lab::manifests::{Service, Slice};
use lab::wire::Counts;
use lab::{Cast, Dial, Held, Peer, SharedLab, Transport};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

static CAST: SharedLab<Cast> = SharedLab::new(Cast::new);

const ALGORITHM: &str = "fairlead.io/algorithm";
const WEIGHTS: &str = "fairlead.io/weights";

/// Connections that show a share.
const MANY: u32 = 2_000;

/// The Service and its slice; the endpoints are Pods b1, b2 and b3.
fn web(cast: &Cast, name: &str, octet: u8) -> (Service, Slice) {
    let service = cast
        .service(name, &format!("10.96.26.{octet}"))
        .node_port(30_900 + u16::from(octet))
        .lb_ip(&format!("198.51.100.{}", 180 + octet));
    let slice = [&cast.b1, &cast.b2, &cast.b3]
        .into_iter()
        .fold(cast.slice(name, name), |slice, pod| {
            slice.endpoint(pod).ready().pod(pod.name())
        });
    (service, slice)
}

/// Everybody whose connections a Service with this octet translates: who connects,
/// and to where. A pod is served at its socket, c1 on n1's uplink.
fn clients(cast: &Cast, octet: u8) -> Result<[(&Peer, String); 2]> {
    let vip = format!("198.51.100.{}", 180 + octet);
    let outside = cast.client("c1");
    outside.route(&vip, cast.node("n1").host())?;
    Ok([
        (&cast.client, format!("10.96.26.{octet}:80")),
        (outside, format!("{vip}:80")),
    ])
}

/// Each pod's share is that of its weight. By Hoeffding's inequality a right share
/// of N picks is off by more than t with a chance of 2 exp(-2 t² N): with t as here
/// in one of a thousand million runs.
fn shares_are(counts: &Counts, weights: &[(&str, u32)]) -> Result<()> {
    counts.none_failed()?;
    let n = counts.answers() as f64;
    let off_max = ((2e9 * weights.len() as f64).ln() / (2.0 * n)).sqrt();
    let sum: u32 = weights.iter().map(|(_, weight)| weight).sum();
    for (pod, weight) in weights {
        let wanted = f64::from(*weight) / f64::from(sum);
        let share = counts.by(pod) as f64 / n;
        ensure!(
            (share - wanted).abs() <= off_max,
            "{pod} has {share:.3}, not {wanted:.3} ± {off_max:.3}: {counts:?}"
        );
        ensure!(*weight > 0 || counts.by(pod) == 0, "{pod}: {counts:?}");
    }
    Ok(())
}

/// What `fairlead COMMAND -o json` prints on n1.
fn shown(cast: &Cast, command: &[&str]) -> Result<Vec<Value>> {
    let text = cast
        .node("n1")
        .fairlead(&[command, &["-o", "json"]].concat())?;
    serde_json::from_str(&text).with_context(|| text)
}

#[test]
fn weights_are_shares_at_sockets_and_on_uplinks() {
    CAST.story(|cast| {
        let (service, slice) = web(cast, "weighted", 1);
        for (number, (of_service, of_slice, weights)) in [
            ("b1=6,b2=3", "", [("b1", 6), ("b2", 3), ("b3", 1)]),
            ("b*=10", "b3=80", [("b1", 1), ("b2", 1), ("b3", 8)]),
            ("", "", [("b1", 1), ("b2", 1), ("b3", 1)]),
        ]
        .into_iter()
        .enumerate()
        {
            for algorithm in ["maglev", "random"] {
                let service = service.clone().annotation(ALGORITHM, algorithm);
                cast.apply(&service.annotation(WEIGHTS, of_service))?;
                cast.apply(&slice.clone().annotation(WEIGHTS, of_slice))?;
                cast.settle()?;
                for (client, to) in clients(cast, 1)? {
                    shares_are(&client.many_tcp(&to, MANY)?, &weights).with_context(|| {
                        format!("{number}, {algorithm}, {} to {to}", client.name())
                    })?;
                }
            }
        }
        Ok(())
    });
}

#[test]
fn weight_0_gets_nothing_new_and_keeps_what_it_has() {
    CAST.story(|cast| {
        let (service, slice) = web(cast, "drained", 2);
        cast.apply(&service)?;
        cast.apply(&slice)?;
        cast.settle()?;
        let mut held = Vec::new();
        for (client, to) in clients(cast, 2)? {
            // One of each backend is enough to have one of b1.
            for _ in 0..60 {
                held.push(client.hold_tcp(&to)?);
            }
        }
        cast.apply(&service.clone().annotation(WEIGHTS, "b1=0"))?;
        cast.settle()?;
        for (client, to) in clients(cast, 2)? {
            shares_are(
                &client.many_tcp(&to, MANY)?,
                &[("b1", 0), ("b2", 1), ("b3", 1)],
            )?;
        }
        let mut of_b1 = 0;
        for connection in &held {
            let pod = connection.pod()?;
            connection.talk("still there")?.answered_by(&pod)?;
            of_b1 += usize::from(pod == "b1");
        }
        ensure!(of_b1 > 1, "{of_b1} connections to b1");
        // An outage is never what a weight asks for.
        cast.apply(&service.annotation(WEIGHTS, "*=0"))?;
        cast.settle()?;
        for (client, to) in clients(cast, 2)? {
            shares_are(
                &client.many_tcp(&to, MANY)?,
                &[("b1", 1), ("b2", 1), ("b3", 1)],
            )?;
        }
        Ok(())
    });
}

#[test]
fn an_affinity_client_leaves_a_backend_of_weight_0() {
    CAST.story(|cast| {
        let (service, slice) = web(cast, "sticky", 3);
        let service = service.affinity(600);
        cast.apply(&service)?;
        cast.apply(&slice)?;
        cast.settle()?;
        for (client, to) in clients(cast, 3)? {
            cast.apply(&service)?;
            cast.settle()?;
            let pod = client.tcp(&to)?.pod()?.to_owned();
            client.many_tcp(&to, 50)?.only_by(&[&pod])?;
            cast.apply(&service.clone().annotation(WEIGHTS, &format!("{pod}=0")))?;
            cast.settle()?;
            let counts = client.many_tcp(&to, 50)?;
            counts.none_failed()?;
            ensure!(counts.by(&pod) == 0, "{pod}: {counts:?}");
        }
        Ok(())
    });
}

#[test]
fn random_is_not_alike_on_every_node_and_maglev_is() {
    CAST.story(|cast| {
        let (service, slice) = web(cast, "alike", 4);
        cast.apply(&slice)?;
        let client = cast.client("c1");
        let to: SocketAddr = "198.51.100.184:80".parse()?;
        for (round, (algorithm, form, alike)) in
            (0..).zip([("maglev", "maglev", true), ("random", "list", false)])
        {
            cast.apply(&service.clone().annotation(ALGORITHM, algorithm))?;
            cast.settle()?;
            let tables = shown(cast, &["tables", "default/alike:http"])?;
            ensure!(
                tables.iter().any(|it| it["form"] == form)
                    && tables.iter().all(|it| it["algorithm"] == algorithm),
                "{tables:?}"
            );
            let picks = |node: &str| -> Result<Vec<String>> {
                client.route("198.51.100.184", cast.node(node).host())?;
                let pick = |port: u16| {
                    let dial = Dial {
                        from: Some(SocketAddr::new(client.v4().into(), port)),
                        ..Dial::new(Transport::Tcp, to)
                    };
                    Ok(client.dial(dial)?.pod()?.to_owned())
                };
                (0..60)
                    .map(|port| pick(20_000 + 100 * round + port))
                    .collect()
            };
            let (one, other) = (picks("n1")?, picks("n2")?);
            ensure!((one == other) == alike, "{algorithm}: {one:?} {other:?}");
        }
        Ok(())
    });
}

/// Rejected objects of a kind, by reason, that n1 has counted.
fn rejected(cast: &Cast, reason: &str) -> Result<u64> {
    let metrics = cast.node("n1").metrics()?;
    let line = metrics.lines().find(|line| {
        line.starts_with("fairlead_rejected_objects_total{")
            && line.contains(&format!("\"{reason}\""))
    });
    let value = line.and_then(|it| it.split(' ').next_back());
    value.map_or(Ok(0), |it| Ok(it.parse()?))
}

#[test]
fn what_cannot_be_read_counts_for_nothing_and_harms_nobody_else() {
    CAST.story(|cast| {
        let (service, slice) = web(cast, "misspelt", 5);
        let (other, other_slice) = web(cast, "well-spelt", 6);
        cast.apply(&other.annotation(WEIGHTS, "b1=9"))?;
        cast.apply(&other_slice)?;
        let before = (
            rejected(cast, "InvalidWeights")?,
            rejected(cast, "UnknownValue")?,
        );
        let service = service.annotation(ALGORITHM, "fastest");
        cast.apply(&service.annotation(WEIGHTS, "b1=9,b2=many"))?;
        cast.apply(&slice.annotation(WEIGHTS, "b1"))?;
        cast.settle()?;
        let even = [("b1", 1), ("b2", 1), ("b3", 1)];
        for (client, to) in clients(cast, 5)? {
            shares_are(&client.many_tcp(&to, MANY)?, &even)?;
        }
        for (client, to) in clients(cast, 6)? {
            let weights = [("b1", 9), ("b2", 1), ("b3", 1)];
            shares_are(&client.many_tcp(&to, MANY)?, &weights)?;
        }
        let after = (
            rejected(cast, "InvalidWeights")?,
            rejected(cast, "UnknownValue")?,
        );
        ensure!(
            after.0 >= before.0 + 2 && after.1 > before.1,
            "{before:?} {after:?}"
        );
        let log = fs::read_to_string(cast.node("n1").log())?;
        for part in [
            "default/misspelt",
            "fastest",
            "b2=many",
            "has a weight that is no number",
            "is no TARGET=WEIGHT",
        ] {
            ensure!(log.contains(part), "{part:?} is not in the log");
        }
        Ok(())
    });
}

#[test]
fn the_commands_show_algorithm_and_weights() {
    CAST.story(|cast| {
        let (service, slice) = web(cast, "shown", 7);
        cast.apply(&service.annotation(WEIGHTS, "b1=6,b2=3"))?;
        cast.apply(&slice)?;
        cast.settle()?;
        let without = format!("{}:8080", cast.b1.v4());
        let tables = shown(
            cast,
            &["tables", "default/shown:http", "--without", &without],
        )?;
        for (form, size, slots) in [("list", 10, [6, 3, 1]), ("maglev", 2_039, [0; 3])] {
            let table = tables.iter().find(|it| it["form"] == form);
            let table = table.with_context(|| format!("{tables:?}"))?;
            ensure!(table["size"] == size, "{table}");
            for (number, pod) in [&cast.b1, &cast.b2, &cast.b3].into_iter().enumerate() {
                let address = format!("{}:8080", pod.v4());
                let shares = table["backends"].as_array().context("no backends")?;
                let share = shares.iter().find(|it| it["address"] == address.as_str());
                let share = share.with_context(|| format!("{table}"))?;
                ensure!(share["weight"] == [6, 3, 1][number], "{share}");
                ensure!(
                    form == "maglev" || share["slots"] == slots[number],
                    "{share}"
                );
            }
        }
        let services = cast.node("n1").fairlead(&["services"])?;
        let line = services
            .lines()
            .find(|it| it.contains("default/shown:http"));
        let line = line.context("no line")?;
        ensure!(line.contains("maglev"), "{line}");
        let backends = shown(cast, &["backends"])?;
        let port = backends
            .iter()
            .find(|it| it["name"] == "default/shown:http");
        let port = port.context("no such port")?;
        let heaviest = port["backends"].as_array().context("no backends")?;
        ensure!(heaviest.iter().any(|it| it["weight"] == 6), "{port}");
        Ok(())
    });
}

/// How many connections n1 knows to be open to each endpoint of a Service.
fn open(cast: &Cast, name: &str) -> Result<BTreeMap<String, u64>> {
    let ports = shown(cast, &["backends"])?;
    let name = format!("default/{name}:http");
    let port = ports.iter().find(|it| it["name"] == name.as_str());
    let backends = port.with_context(|| format!("no {name}"))?["backends"].as_array();
    let of = |backend: &Value| -> Option<(String, u64)> {
        let address: SocketAddr = backend["address"].as_str()?.parse().ok()?;
        let pods = [&cast.b1, &cast.b2, &cast.b3];
        let pod = pods.into_iter().find(|it| it.v4() == address.ip())?;
        Some((pod.name().to_owned(), backend["open"].as_u64()?))
    };
    Ok(backends.into_iter().flatten().filter_map(of).collect())
}

/// How many of the connections each pod has.
fn by_pod(held: &[Held]) -> Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for connection in held {
        *counts.entry(connection.pod()?).or_default() += 1;
    }
    Ok(counts)
}

fn hold(client: &Peer, to: &str, count: usize) -> Result<Vec<Held>> {
    (0..count).map(|_| client.hold_tcp(to)).collect()
}

/// Walks through the flows are five seconds apart.
const WALKED: Duration = Duration::from_secs(15);

#[test]
fn least_connections_fills_up_who_has_fewest() {
    CAST.story(|cast| {
        let (service, _) = web(cast, "least", 8);
        cast.apply(&service.annotation(ALGORITHM, "least-connections"))?;
        cast.apply(&cast.ready("least", &[&cast.b1, &cast.b2]))?;
        cast.settle()?;
        for (client, to) in clients(cast, 8)? {
            let about = |got: Option<&u64>, wanted: u64| {
                // A walk that begins just then may miss a flow or two until the next.
                let off_max = if client.name() == "c1" { 3 } else { 0 };
                got.copied().unwrap_or_default().abs_diff(wanted) <= off_max
            };
            let held = hold(client, &to, 40)?;
            let counts = by_pod(&held)?;
            ensure!(
                about(counts.get("b1"), 20) && about(counts.get("b2"), 20),
                "{}: {counts:?}",
                client.name()
            );
            // Those of b1 end, and the next ones take their place.
            let (of_b1, rest): (Vec<_>, Vec<_>) = held
                .into_iter()
                .partition(|it| it.pod().is_ok_and(|pod| pod == "b1"));
            let ended = of_b1.len();
            drop(of_b1);
            cast.within(WALKED, || {
                let open = open(cast, "least")?;
                ensure!(
                    open["b1"] == 0 && open["b2"] == rest.len() as u64,
                    "{open:?}"
                );
                Ok(())
            })
            .with_context(|| client.name().to_owned())?;
            let next = hold(client, &to, ended)?;
            let counts = by_pod(&next)?;
            ensure!(
                about(counts.get("b1"), ended as u64),
                "{}: {counts:?}",
                client.name()
            );
            drop((rest, next));
            cast.within(WALKED, || {
                let open = open(cast, "least")?;
                ensure!(open.values().all(|it| *it == 0), "{open:?}");
                Ok(())
            })?;
        }
        Ok(())
    });
}

#[test]
fn least_connections_are_per_weight() {
    CAST.story(|cast| {
        let (service, slice) = web(cast, "least-weighted", 9);
        let service = service.annotation(ALGORITHM, "least-connections");
        cast.apply(&slice)?;
        for (client, to) in clients(cast, 9)? {
            cast.apply(&service.clone().annotation(WEIGHTS, "b3=0"))?;
            cast.settle()?;
            let even = hold(client, &to, 40)?;
            // Who may have three times as many gets them all, until it has.
            cast.apply(&service.clone().annotation(WEIGHTS, "b1=3,b3=0"))?;
            cast.settle()?;
            let more = hold(client, &to, 40)?;
            let counts = [by_pod(&even)?, by_pod(&more)?];
            let is_about = |counts: &BTreeMap<String, u64>, wanted: [u64; 3]| {
                let got = ["b1", "b2", "b3"].map(|pod| counts.get(pod).copied());
                let mut pairs = got.into_iter().zip(wanted);
                pairs.all(|(got, wanted)| got.unwrap_or_default().abs_diff(wanted) <= 3)
            };
            ensure!(
                is_about(&counts[0], [20, 20, 0]) && is_about(&counts[1], [40, 0, 0]),
                "{}: {counts:?}",
                client.name()
            );
            drop((even, more));
            cast.within(WALKED, || {
                let open = open(cast, "least-weighted")?;
                ensure!(open.values().all(|it| *it == 0), "{open:?}");
                Ok(())
            })?;
        }
        Ok(())
    });
}

#[test]
fn what_never_came_to_be_and_datagrams_are_not_open_connections() {
    CAST.story(|cast| {
        let (service, slice) = web(cast, "never", 10);
        cast.apply(&service)?;
        let nobody = slice.field(
            "ports",
            serde_json::json!([
                { "name": "http", "port": 8999, "protocol": "TCP" },
                { "name": "dns", "port": 8080, "protocol": "UDP" },
            ]),
        );
        cast.apply(&nobody)?;
        cast.settle()?;
        let client = &cast.client;
        for _ in 0..20 {
            client.tcp("10.96.26.10:80")?.refused()?;
        }
        let datagrams = client.hold_udp("10.96.26.10:53")?;
        let open = open(cast, "never")?;
        ensure!(
            open.len() == 3 && open.values().all(|it| *it == 0),
            "{open:?}"
        );
        drop(datagrams);
        Ok(())
    });
}
