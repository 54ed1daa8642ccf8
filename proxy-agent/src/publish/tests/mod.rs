//! The publisher against a kernel that checks itself at every write.

pub(crate) mod fake;
mod histories;
mod migration;
mod nodes;
mod outside;

use super::{PublishError, Publisher};
use crate::compile::{self, PortKey};
use crate::model::ObjectName;
use crate::resolve::{ResolvedEndpoint, ResolvedFrontend, ResolvedPort, ResolvedService};
use fake::Fake;
use proxy_common::{
    Algorithm, EndpointSet, Forwarding, FrontendKey, FrontendKind, Protocol, Scope, SourceFilter,
};
use std::net::IpAddr;

fn name(service: u8) -> ObjectName {
    ObjectName::new("default", format!("svc-{service}"))
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn endpoint(address: IpAddr, cluster: bool, local: bool) -> ResolvedEndpoint {
    ResolvedEndpoint {
        address,
        port: 8080,
        weight: 1,
        local,
        node: None,
        in_cluster_set: cluster,
        in_local_set: local,
    }
}

fn port(frontends: Vec<ResolvedFrontend>, endpoints: Vec<ResolvedEndpoint>) -> ResolvedPort {
    ResolvedPort {
        source_ranges: Vec::new(),
        name: "http".into(),
        protocol: Protocol::Tcp,
        affinity_timeout_s: 0,
        internal_local: false,
        external_local: false,
        frontends,
        endpoints,
    }
}

fn service(number: u8, created_s: i64, ports: Vec<ResolvedPort>) -> ResolvedService {
    ResolvedService {
        name: name(number),
        created_s,
        cluster_ips: Vec::new(),
        ports,
        health_check: None,
    }
}

fn frontend(address: &str, set: EndpointSet) -> ResolvedFrontend {
    ResolvedFrontend {
        source_filter: SourceFilter::Anyone,
        algorithm: Algorithm::Maglev,
        forwarding: Forwarding::Snat,
        address: ip(address).into(),
        port: 80,
        kind: FrontendKind::ExternalIp,
        scope: Scope::Internal,
        set,
    }
}

/// The same for clients outside.
fn outside(address: &str, set: EndpointSet) -> ResolvedFrontend {
    ResolvedFrontend {
        scope: Scope::External,
        ..frontend(address, set)
    }
}

fn key(frontend: &ResolvedFrontend, port: &ResolvedPort) -> FrontendKey {
    compile::frontend_key(frontend, &PortKey::of(port))
}

fn publisher(kernel: &Fake) -> Publisher<Fake> {
    Publisher::restore(kernel.clone()).unwrap()
}

fn free(kernel: &Fake, publisher: &mut Publisher<Fake>) {
    if let Some((retired, _)) = publisher.take_retired() {
        kernel.wait_for_readers();
        publisher.free(retired).unwrap();
    }
}

/// A Service with one frontend and endpoints 10.0.N.1 and on.
fn simple(number: u8, vip: &str, endpoints: u8) -> ResolvedService {
    let address = |host| IpAddr::from([10, 0, number, host]);
    let endpoints = (1..=endpoints).map(|host| endpoint(address(host), true, false));
    let frontends = vec![frontend(vip, EndpointSet::Cluster)];
    service(
        number,
        number.into(),
        vec![port(frontends, endpoints.collect())],
    )
}

/// How many endpoints answer at a Service's frontend; `None` without the frontend.
fn answers(kernel: &Fake, service: &ResolvedService) -> Option<usize> {
    let port = &service.ports[0];
    Some(kernel.answers(&key(&port.frontends[0], port))?.len())
}

#[test]
fn a_service_that_does_not_fit_leaves_the_room_to_others() {
    let kernel = Fake::new(4, 64);
    let mut publisher = publisher(&kernel);
    let (large, small) = (simple(1, "10.96.0.1", 9), simple(2, "10.96.0.2", 2));
    for _ in 0..3 {
        let mut failures = publisher.publish(vec![(name(1), Some(large.clone()))]);
        let failure = failures.pop().map(|(_, error)| error);
        assert!(matches!(
            failure,
            Some(PublishError::BackendsFull { capacity: 3 })
        ));
    }
    assert!(
        publisher
            .publish(vec![(name(2), Some(small.clone()))])
            .is_empty()
    );
    assert_eq!(
        (answers(&kernel, &large), answers(&kernel, &small)),
        (None, Some(2))
    );
    // It shrinks and fits.
    let shrunk = simple(1, "10.96.0.1", 1);
    assert!(
        publisher
            .publish(vec![(name(1), Some(shrunk.clone()))])
            .is_empty()
    );
    assert_eq!(answers(&kernel, &shrunk), Some(1));
}

#[test]
fn a_service_that_finds_no_room_still_lets_go_of_what_is_gone() {
    let kernel = Fake::new(6, 64);
    let mut publisher = publisher(&kernel);
    let (before, other) = (simple(1, "10.96.0.1", 2), simple(2, "10.96.0.2", 2));
    assert!(
        publisher
            .publish(vec![
                (name(1), Some(before.clone())),
                (name(2), Some(other))
            ])
            .is_empty()
    );
    // One endpoint is gone, two are new, and there is room for one.
    let mut after = before;
    after.ports[0].endpoints.remove(0);
    for host in [8, 9] {
        after.ports[0]
            .endpoints
            .push(endpoint(IpAddr::from([10, 0, 1, host]), true, false));
    }
    let failures = publisher.publish(vec![(name(1), Some(after.clone()))]);
    assert!(matches!(
        failures[..],
        [(_, PublishError::BackendsFull { .. })]
    ));
    assert_eq!(
        answers(&kernel, &after),
        Some(1),
        "what is gone is still in use"
    );
    // The room that it gave back is enough.
    free(&kernel, &mut publisher);
    assert!(
        publisher
            .publish(vec![(name(1), Some(after.clone()))])
            .is_empty()
    );
    assert_eq!(answers(&kernel, &after), Some(3));
}

#[test]
fn a_frontend_never_outlives_its_owner_even_if_the_next_one_fails() {
    let kernel = Fake::new(4, 64);
    let mut publisher = publisher(&kernel);
    let (old, new, other) = (
        simple(1, "10.96.0.1", 1),
        simple(2, "10.96.0.1", 9),
        simple(3, "10.96.0.3", 2),
    );
    assert!(
        publisher
            .publish(vec![(name(1), Some(old.clone()))])
            .is_empty()
    );
    // One batch: the frontend changes hands, and the new owner does not fit.
    let failures = publisher.publish(vec![(name(1), None), (name(2), Some(new))]);
    assert_eq!(failures.len(), 1);
    assert_eq!(
        answers(&kernel, &old),
        None,
        "it would lead to ids that are given to others"
    );
    free(&kernel, &mut publisher);
    assert!(
        publisher
            .publish(vec![(name(3), Some(other.clone()))])
            .is_empty()
    );
    assert_eq!(
        (answers(&kernel, &old), answers(&kernel, &other)),
        (None, Some(2))
    );
}

#[test]
fn a_full_frontends_map_names_the_map_and_keeps_what_is_there() {
    let kernel = Fake::new(64, 1);
    let mut publisher = publisher(&kernel);
    let with = |n: u8, address| {
        service(
            n,
            n.into(),
            vec![port(
                vec![frontend(address, EndpointSet::Cluster)],
                vec![endpoint(ip("10.0.0.1"), true, false)],
            )],
        )
    };
    assert!(
        publisher
            .publish(vec![(name(1), Some(with(1, "10.96.0.1")))])
            .is_empty()
    );
    let failures = publisher.publish(vec![(name(2), Some(with(2, "10.96.0.2")))]);
    assert_eq!(failures.len(), 1);
    assert!(
        failures[0].1.to_string().contains("map frontends"),
        "{}",
        failures[0].1
    );
    assert_eq!(kernel.0.borrow().frontends.len(), 1);
    // Room appears: the retry succeeds.
    assert!(
        publisher
            .publish(vec![(name(1), None), (name(2), Some(with(2, "10.96.0.2")))])
            .len()
            <= 1
    );
    assert!(
        publisher
            .publish(vec![(name(2), Some(with(2, "10.96.0.2")))])
            .is_empty()
    );
    assert_eq!(kernel.0.borrow().frontends.len(), 1);
}

#[test]
fn a_frontend_that_two_services_ask_for_goes_to_the_older_and_then_to_the_heir() {
    let kernel = Fake::new(64, 64);
    let mut publisher = publisher(&kernel);
    let with = |n: u8, created_s, endpoint_ip| {
        service(
            n,
            created_s,
            vec![port(
                vec![frontend("203.0.113.6", EndpointSet::Cluster)],
                vec![endpoint(ip(endpoint_ip), true, false)],
            )],
        )
    };
    let (young, old) = (with(1, 20, "10.0.0.1"), with(2, 10, "10.0.0.2"));
    let key = key(&old.ports[0].frontends[0], &old.ports[0]);
    let answer = |kernel: &Fake| kernel.answers(&key).unwrap()[0].0.to_ip().to_string();
    publisher.publish(vec![(name(1), Some(young.clone()))]);
    assert_eq!(answer(&kernel), "10.0.0.1");
    publisher.publish(vec![(name(2), Some(old))]);
    assert_eq!(answer(&kernel), "10.0.0.2");
    assert_eq!(publisher.sizes().contested_frontends, 1);
    publisher.publish(vec![(name(2), None)]);
    assert_eq!(answer(&kernel), "10.0.0.1");
    publisher.publish(vec![(name(1), None)]);
    assert!(kernel.answers(&key).is_none());
}
