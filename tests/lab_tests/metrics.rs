//! Metrics by service port and endpoint (semantics 18, 33; case K76).

use anyhow::{Context, Result, ensure};
use lab::{Lab, Peer, manifests, story};
use std::collections::BTreeSet;

fn lab() -> Result<Lab> {
    Lab::new(1)
}

fn web(name: &str, vip: &str) -> manifests::Service {
    manifests::service(name)
        .cluster_ip(vip)
        .port("http", 80, 8080)
        .udp_port("dns", 53, 8080)
}

fn slice(service: &str, pods: &[&Peer]) -> manifests::Slice {
    manifests::slice(service, service)
        .port("http", 8080)
        .udp_port("dns", 8080)
        .ready_endpoints(pods.iter().copied())
}

/// Sum of the series of a metric whose labels contain all of `labels`.
fn sum(metrics: &str, name: &str, labels: &[&str]) -> Result<u64> {
    let series = metrics
        .lines()
        .filter(|line| line.starts_with(name) && labels.iter().all(|label| line.contains(label)));
    series
        .map(|line| {
            let value = line.rsplit(' ').next().unwrap_or_default();
            value.parse::<u64>().with_context(|| format!("in {line}"))
        })
        .sum()
}

#[test]
fn connections_are_counted_by_service_port_and_endpoint() {
    story(lab, |lab| {
        let n1 = lab.node("n1");
        let (b1, b2) = (n1.pod("b1")?.serve(8080)?, n1.pod("b2")?.serve(8080)?);
        let silent = n1.pod("silent")?;
        let client = n1.pod("client")?;
        lab.apply(&web("web", "10.96.20.1"))?;
        lab.apply(&slice("web", &[&b1, &b2]))?;
        lab.apply(&web("closed", "10.96.20.2"))?;
        lab.apply(&slice("closed", &[&silent]))?;
        lab.apply(&web("empty", "10.96.20.3"))?;
        lab.start_agents()?;
        client.many_tcp("10.96.20.1:80", 40)?.none_failed()?;
        client.many_udp("10.96.20.1:53", 10)?.none_failed()?;
        for _ in 0..3 {
            client.tcp("10.96.20.2:80")?.refused()?;
            client.tcp("10.96.20.3:80")?.refused()?;
        }
        let metrics = n1.metrics()?;
        let opened = |labels: &[&str]| sum(&metrics, "fairlead_connections_opened_total", labels);
        let failed = |labels: &[&str]| sum(&metrics, "fairlead_connections_failed_total", labels);
        let tcp = ["service=\"web\"", "port=\"http\"", "protocol=\"TCP\""];
        ensure!(opened(&tcp)? == 40, "{metrics}");
        for pod in [&b1, &b2] {
            let endpoint = format!("endpoint=\"{}:8080\"", pod.v4());
            let count = opened(&[tcp[0], tcp[1], &endpoint])?;
            ensure!((5..=35).contains(&count), "{endpoint}: {count} of 40");
        }
        ensure!(
            opened(&["service=\"web\"", "port=\"dns\""])? == 10,
            "{metrics}"
        );
        ensure!(failed(&["service=\"web\""])? == 0, "{metrics}");
        ensure!(
            failed(&["service=\"closed\"", "port=\"http\""])? == 3,
            "{metrics}"
        );
        let refused = sum(
            &metrics,
            "fairlead_connections_refused_total",
            &[
                "service=\"empty\"",
                "port=\"http\"",
                "reason=\"no_endpoint\"",
            ],
        )?;
        ensure!(refused == 3, "{metrics}");
        Ok(())
    });
}

#[test]
fn a_reused_endpoint_inherits_nothing_and_a_gone_one_leaves_no_series() {
    story(lab, |lab| {
        let n1 = lab.node("n1");
        let (b1, b2) = (n1.pod("b1")?.serve(8080)?, n1.pod("b2")?.serve(8080)?);
        let client = n1.pod("client")?;
        let service = web("old", "10.96.20.4");
        lab.apply(&service)?;
        lab.apply(&slice("old", &[&b1]))?;
        lab.start_agents()?;
        client.many_tcp("10.96.20.4:80", 20)?.none_failed()?;
        // Twenty rollouts between two endpoints reuse the ids.
        for round in 0..20 {
            let pod = if round % 2 == 0 { &b2 } else { &b1 };
            lab.apply(&slice("old", &[pod]))?;
            lab.settle()?;
        }
        lab.delete(&service)?;
        lab.apply(&web("new", "10.96.20.5"))?;
        lab.apply(&slice("new", &[&b1]))?;
        lab.settle()?;
        client.many_tcp("10.96.20.5:80", 7)?.none_failed()?;
        lab.eventually(|| {
            let metrics = n1.metrics()?;
            let name = "fairlead_connections_opened_total";
            ensure!(!metrics.contains("service=\"old\""), "{metrics}");
            let count = sum(&metrics, name, &["service=\"new\"", "port=\"http\""])?;
            ensure!(count == 7, "{count} in {metrics}");
            Ok(())
        })
    });
}

#[test]
fn every_metric_is_in_the_documentation() {
    let documented = include_str!("../../docs/metrics.md");
    story(lab, |lab| {
        let n1 = lab.node("n1");
        let (b1, client) = (n1.pod("b1")?.serve(8080)?, n1.pod("client")?);
        lab.apply(&web("told", "10.96.20.6"))?;
        lab.apply(&slice("told", &[&b1]))?;
        lab.start_agents()?;
        client.tcp("10.96.20.6:80")?.answered_by("b1")?;
        let metrics = n1.metrics()?;
        let samples = metrics.lines().filter(|line| !line.starts_with('#'));
        let names: BTreeSet<&str> = samples
            .filter_map(|line| line.split(['{', ' ']).next())
            .map(|name| {
                let parts = ["_bucket", "_count", "_sum"];
                let part = parts.iter().find_map(|part| name.strip_suffix(part));
                part.unwrap_or(name)
            })
            .collect();
        ensure!(names.len() > 20, "{names:?}");
        for name in names {
            let is_there = documented.contains(&format!("`{name}`"));
            ensure!(is_there, "{name} is not in docs/metrics.md");
        }
        Ok(())
    });
}
