//! semantics.md, "Affinity".

use anyhow::{Result, ensure};
use lab::{Cast, Counts, SharedLab, manifests};
use std::time::Duration;

static CAST: SharedLab<Cast> = SharedLab::new(Cast::new);

/// The one pod that answered all of these.
fn only_one(counts: &Counts) -> Result<String> {
    counts.none_failed()?;
    let pods: Vec<&String> = counts.answered.keys().collect();
    let [pod] = pods[..] else {
        anyhow::bail!("answers of several pods: {:?}", counts.answered)
    };
    Ok(pod.clone())
}

#[test]
fn a_client_stays_with_its_backend_on_all_frontends_of_a_service_port() {
    CAST.story(|cast| {
        cast.apply(
            &manifests::service("sticky")
                .cluster_ip("10.96.5.1")
                .port("http", 80, 8080)
                .node_port(30501)
                .lb_ip("198.51.100.51")
                .external_ips(&["203.0.113.51"])
                .affinity(10800),
        )?;
        cast.apply(
            &manifests::slice("sticky", "sticky")
                .port("http", 8080)
                .ready_endpoints([&cast.b1, &cast.b2, &cast.b3]),
        )?;
        cast.settle()?;
        let pod = only_one(&cast.client.many_tcp("10.96.5.1:80", 30)?)?;
        for to in ["192.0.2.11:30501", "198.51.100.51:80", "203.0.113.51:80"] {
            ensure!(
                only_one(&cast.client.many_tcp(to, 30)?)? == pod,
                "{to} has an affinity of its own"
            );
        }
        Ok(())
    });
}

#[test]
fn clients_are_independent_of_each_other() {
    CAST.story(|cast| {
        cast.apply(&cast.service("each", "10.96.5.2").affinity(10800))?;
        cast.apply(&cast.ready("each", &[&cast.b1, &cast.b2, &cast.b3]))?;
        cast.settle()?;
        let mut chosen = std::collections::BTreeSet::new();
        let mut clients = Vec::new();
        for number in 0..12 {
            let client = cast.node("n1").pod(&format!("each-{number}"))?;
            chosen.insert(only_one(&client.many_tcp("10.96.5.2:80", 10)?)?);
            only_one(&client.many_udp("10.96.5.2:53", 10)?)?;
            clients.push(client);
        }
        only_one(&cast.host().many_tcp("10.96.5.2:80", 10)?)?;
        // All twelve on one backend by chance: once in 177,147 runs.
        ensure!(chosen.len() > 1, "all clients share {chosen:?}");
        Ok(())
    });
}

#[test]
fn affinity_lets_go_of_a_backend_that_is_not_usable() {
    // K24
    CAST.story(|cast| {
        cast.apply(&cast.service("fickle", "10.96.5.3").affinity(10800))?;
        let pods = [&cast.b1, &cast.b2, &cast.b3];
        let all = cast.ready("fickle", &pods);
        let without = |name: &str, how: &str| {
            pods.iter()
                .fold(cast.slice("fickle", "fickle"), |slice, pod| match how {
                    _ if pod.name() != name => slice.endpoint(pod).ready(),
                    "N" => slice.endpoint(pod).not_ready(),
                    "T" => slice.endpoint(pod).terminating(),
                    _ => slice,
                })
        };
        for how in ["N", "T", "gone"] {
            cast.apply(&all)?;
            cast.settle()?;
            let first = only_one(&cast.client.many_tcp("10.96.5.3:80", 10)?)?;
            let first_udp = only_one(&cast.client.many_udp("10.96.5.3:53", 10)?)?;
            cast.apply(&without(&first, how))?;
            cast.settle()?;
            let second = only_one(&cast.client.many_tcp("10.96.5.3:80", 20)?)?;
            ensure!(second != first, "{first} is {how} and still chosen");
            let second_udp = only_one(&cast.client.many_udp("10.96.5.3:53", 20)?)?;
            ensure!(
                first_udp == first || second_udp == first_udp,
                "UDP left {first_udp}, which was usable"
            );
            ensure!(
                second_udp != first,
                "{first} is {how} and still chosen for UDP"
            );
            // The first comes back: no reason to leave the second.
            cast.apply(&all)?;
            cast.settle()?;
            ensure!(
                only_one(&cast.client.many_tcp("10.96.5.3:80", 20)?)? == second,
                "left {second} without need"
            );
        }
        Ok(())
    });
}

#[test]
fn affinity_stays_within_the_set_of_the_policy() {
    // K24 with policies Local
    CAST.story(|cast| {
        let service = cast.service("within", "10.96.5.4").affinity(10800);
        cast.apply(&service)?;
        cast.apply(&cast.ready("within", &[&cast.b2, &cast.b3]))?;
        cast.settle()?;
        only_one(&cast.client.many_tcp("10.96.5.4:80", 10)?)?;
        cast.apply(&cast.ready("within", &[&cast.b1, &cast.b2, &cast.b3]))?;
        cast.apply(&service.clone().internal_local())?;
        cast.settle()?;
        cast.client.many_tcp("10.96.5.4:80", 20)?.only_by(&["b1"])?;
        // Back to Cluster: b1 is in that set, too, so the client stays.
        cast.apply(&service)?;
        cast.settle()?;
        cast.client.many_tcp("10.96.5.4:80", 20)?.only_by(&["b1"])
    });
}

#[test]
fn affinity_ends_when_no_new_connection_came_for_its_timeout() {
    CAST.story(|cast| {
        cast.apply(&cast.service("short", "10.96.5.5").affinity(1))?;
        cast.apply(&cast.ready("short", &[&cast.b1, &cast.b2, &cast.b3]))?;
        cast.settle()?;
        let first = cast.client.tcp("10.96.5.5:80")?.pod()?.to_owned();
        cast.within(Duration::from_secs(40), || {
            // The passing of time is what this story is about. Each try is a
            // new connection, so each waits longer than the timeout first.
            std::thread::sleep(Duration::from_millis(2100));
            ensure!(
                cast.client.tcp("10.96.5.5:80")?.pod()? != first,
                "still {first}"
            );
            Ok(())
        })
    });
}

#[test]
fn turning_affinity_off_spreads_connections_again() {
    CAST.story(|cast| {
        let service = cast.service("off", "10.96.5.6");
        cast.apply(&service.clone().affinity(10800))?;
        cast.apply(&cast.ready("off", &[&cast.b1, &cast.b2, &cast.b3]))?;
        cast.settle()?;
        only_one(&cast.client.many_tcp("10.96.5.6:80", 20)?)?;
        cast.apply(&service)?;
        cast.settle()?;
        cast.client
            .many_tcp("10.96.5.6:80", 60)?
            .only_by(&["b1", "b2", "b3"])
    });
}
