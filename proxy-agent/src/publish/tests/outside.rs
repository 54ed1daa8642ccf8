//! Frontends for clients outside, and their Maglev tables.

use super::*;
use crate::compile::maglev;
use crate::publish::Kernel;
use proxy_common::{Address, TableRef};
use std::collections::BTreeSet;

/// Clients inside and outside of one address, with endpoints 10.0.1.HOST.
fn balanced(hosts: impl IntoIterator<Item = u8>) -> ResolvedService {
    let address = |host| IpAddr::from([10, 0, 1, host]);
    let endpoints = hosts
        .into_iter()
        .map(|host| endpoint(address(host), true, host % 2 == 0));
    let frontends = vec![
        frontend("198.51.100.1", EndpointSet::Cluster),
        outside("198.51.100.1", EndpointSet::Cluster),
        ResolvedFrontend {
            kind: FrontendKind::ClusterIp,
            ..outside("10.96.0.1", EndpointSet::Cluster)
        },
    ];
    service(1, 1, vec![port(frontends, endpoints.collect())])
}

fn keys(service: &ResolvedService) -> [FrontendKey; 3] {
    let port = &service.ports[0];
    [0, 1, 2].map(|index| key(&port.frontends[index], port))
}

fn publish(publisher: &mut Publisher<Fake>, service: &ResolvedService) {
    let failures = publisher.publish(vec![(service.name.clone(), Some(service.clone()))]);
    assert!(failures.is_empty(), "{failures:?}");
}

fn table_of(kernel: &Fake, key: &FrontendKey) -> TableRef {
    kernel.0.borrow().frontends[key].table
}

#[test]
fn only_what_a_client_outside_may_reach_by_any_node_has_a_maglev_table() {
    let kernel = Fake::new(64, 64);
    let mut publisher = publisher(&kernel);
    let service = balanced(1..=3);
    publish(&mut publisher, &service);
    let [inside, outside, cluster_ip] = keys(&service);
    assert_eq!(kernel.answers(&inside).unwrap().len(), 3);
    assert_eq!(kernel.answers(&outside).unwrap().len(), 2_039);
    // One list serves both who need no Maglev.
    assert_eq!(table_of(&kernel, &cluster_ip), table_of(&kernel, &inside));
}

#[test]
fn policy_local_has_a_table_of_its_own_and_an_empty_set_none() {
    let kernel = Fake::new(64, 64);
    let mut publisher = publisher(&kernel);
    let mut service = balanced(1..=3);
    service.ports[0].frontends[1].set = EndpointSet::Local;
    publish(&mut publisher, &service);
    let [_, outside, _] = keys(&service);
    let local: BTreeSet<Address> = kernel
        .answers(&outside)
        .unwrap()
        .into_iter()
        .map(|(address, _)| address)
        .collect();
    assert_eq!(local, BTreeSet::from([ip("10.0.1.2").into()]));
    service.ports[0].endpoints.remove(1);
    publish(&mut publisher, &service);
    let frontend = kernel.0.borrow().frontends[&outside];
    assert_eq!((frontend.table.length, frontend.elsewhere), (0, 1));
}

#[test]
fn a_backend_that_goes_leaves_the_others_nearly_all_of_their_slots() {
    let kernel = Fake::new(64, 64);
    let mut publisher = publisher(&kernel);
    let service = balanced(1..=8);
    publish(&mut publisher, &service);
    let [_, outside, _] = keys(&service);
    let before = kernel.answers(&outside).unwrap();
    publish(&mut publisher, &balanced((1..=8).filter(|&it| it != 5)));
    let after = kernel.answers(&outside).unwrap();
    let gone = (Address::from(ip("10.0.1.5")), 8080);
    let moved = before.iter().zip(&after).filter(|(a, b)| a != b).count();
    let own = before.iter().filter(|it| **it == gone).count();
    assert!(!after.contains(&gone));
    assert!(moved - own < 2_039 / 25, "{moved} of which {own} its own");
}

#[test]
fn a_restart_keeps_the_tables_that_are_right() {
    let kernel = Fake::new(64, 64);
    let mut first = publisher(&kernel);
    first.set_seed(3).unwrap();
    let service = balanced(1..=8);
    publish(&mut first, &service);
    let tables = keys(&service).map(|key| table_of(&kernel, &key));
    kernel.wait_for_readers();
    let mut second = publisher(&kernel);
    assert_eq!(second.seed(), 3);
    // Any write beyond the record of the service would be the process's last.
    kernel.0.borrow_mut().crash_in(Some(1));
    publish(&mut second, &service);
    kernel.0.borrow_mut().crash_in(None);
    assert_eq!(keys(&service).map(|key| table_of(&kernel, &key)), tables);
}

#[test]
fn another_seed_makes_other_maglev_tables_and_nothing_else() {
    let kernel = Fake::new(64, 64);
    let mut publisher = publisher(&kernel);
    let service = balanced(1..=8);
    publish(&mut publisher, &service);
    let [inside, outside, _] = keys(&service);
    let (list, before) = (table_of(&kernel, &inside), kernel.answers(&outside));
    let seed = maglev::seed("a cluster's UID");
    publisher.set_seed(seed).unwrap();
    publish(&mut publisher, &service);
    assert_eq!(table_of(&kernel, &inside), list);
    assert_ne!(kernel.answers(&outside), before);
    assert_eq!(kernel.device_settings().unwrap().seed, seed);
    free(&kernel, &mut publisher);
}

#[test]
fn a_service_that_no_longer_serves_outside_gives_the_room_back() {
    let kernel = Fake::new(64, 64);
    let mut publisher = publisher(&kernel);
    // The one chunk has room for 64 of these tables.
    for round in 0..100 {
        let service = balanced(1..=11 + round % 2);
        publish(&mut publisher, &service);
        publish(&mut publisher, &simple(1, "10.96.0.1", 3));
        free(&kernel, &mut publisher);
    }
    assert_eq!(kernel.chunks(), 1);
}
