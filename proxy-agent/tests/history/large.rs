//! Sizes that no history reaches: large slices and Services, and full maps.

use crate::compare::Probes;
use crate::generate::{ADDRESSES, PORTS};
use crate::steps::{History, Kind, Op, Room, Step};
use crate::world;
use serde_json::{Value, json};

/// Room for each case below.
const LARGE: Room = Room {
    backends: 16_384,
    services: 512,
    frontends: 4096,
};

fn service(name: &str, cluster_ip: &str) -> Op {
    Op::Apply(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"clusterIPs": [cluster_ip], "ports": [{"name": "http", "port": 80}]},
    }))
}

/// A slice of the endpoints `first..first + length`.
fn slice(of: &str, number: usize, first: usize, length: usize) -> Op {
    let endpoint = |index: usize| -> Value {
        json!({"addresses": [format!("10.{}.{}.{}", 8 + index / 62_500, index / 250 % 250, 1 + index % 250)]})
    };
    let endpoints: Vec<Value> = (first..first + length).map(endpoint).collect();
    Op::Apply(json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "shop",
            "name": format!("{of}-{number}"),
            "labels": {"kubernetes.io/service-name": of},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": endpoints,
    }))
}

fn delete(kind: Kind, name: &str) -> Op {
    Op::Delete((kind, "shop".to_owned(), name.to_owned()))
}

fn step(ops: Vec<Op>) -> Step {
    Step {
        ops,
        free: true,
        ..Step::default()
    }
}

/// Runs the steps; [`world::run`] compares every entry of every table, and the
/// end with what is left over. Returns how often a Service found no room.
fn check(room: Room, steps: Vec<Step>) -> usize {
    let probes = Probes::of(ADDRESSES, PORTS);
    match world::run(&History { room, steps }, &probes) {
        Ok(failed) => failed,
        Err(fault) => {
            let what: String = fault.what.chars().take(2000).collect();
            panic!("step {}: {what}", fault.step);
        }
    }
}

#[test]
fn a_slice_of_a_thousand_endpoints_is_used_whole() {
    let steps = vec![step(vec![
        service("web", "10.96.0.1"),
        slice("web", 1, 0, 1000),
    ])];
    assert_eq!(check(LARGE, steps), 0);
}

/// K68: nothing is truncated, and none of those that go in a burst is used.
#[test]
fn a_service_of_five_thousand_endpoints_loses_seven_hundred_in_one_burst() {
    let mut first = vec![service("web", "10.96.0.1")];
    first.extend((0..50).map(|number| slice("web", number, 100 * number, 100)));
    for number in 0..150 {
        let name = format!("other-{number}");
        first.push(service(&name, &format!("10.96.1.{number}")));
        first.push(slice(&name, 0, 60_000 + 3 * number, 3));
    }
    let gone = (0..7).map(|number| delete(Kind::EndpointSlice, &format!("web-{number}")));
    let partly = (10..17).map(|number| slice("web", number, 100 * number, 50));
    let restart = Step {
        restart: true,
        ..step(Vec::new())
    };
    let steps = vec![
        step(first),
        step(gone.collect()),
        step(partly.collect()),
        restart,
    ];
    assert_eq!(check(LARGE, steps), 0);
}

/// [`world::run`] excuses only those who fail, and demands that what fits in the
/// end is published.
#[test]
fn a_full_map_fails_the_newcomers_until_there_is_room() {
    let ip = |number: usize| format!("10.96.0.{}", 1 + number);
    let mut fill = Vec::new();
    for number in 0..3 {
        fill.push(service(&format!("s{number}"), &ip(number)));
        fill.push(slice(&format!("s{number}"), 0, 100 * number, 20));
    }
    let too_many = vec![service("late", &ip(3)), slice("late", 0, 900, 20)];
    let grows = vec![slice("s0", 0, 0, 25)];
    let room_again = vec![delete(Kind::Service, "s1")];
    let rooms = [(61, 64, 64), (1024, 4, 64), (1024, 64, 6)];
    for (backends, services, frontends) in rooms {
        let room = Room {
            backends,
            services,
            frontends,
        };
        let parts = [&fill, &too_many, &grows, &room_again].map(|ops| step(ops.clone()));
        // "late", at first and again when "s0" grows; then "s1" makes room.
        let failed = check(room, parts.into());
        assert!(failed >= 2, "{room:?}: {failed}");
    }
}
