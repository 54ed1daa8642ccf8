//! Nodes, and backends on this one.

use super::*;
use crate::publish::{Kernel, NodeMaps, Nodes};
use proxy_common::{Address, NodeAddresses, limits};
use std::sync::Arc;

fn addresses(v4: &str) -> NodeAddresses {
    NodeAddresses {
        v4: ip(v4).into(),
        v6: Address::ANY_V6,
    }
}

fn nodes(list: &[(&str, &str)]) -> Nodes {
    let named = list.iter();
    named
        .map(|(name, v4)| (Arc::from(*name), addresses(v4)))
        .collect()
}

/// A Service with one endpoint on each of these Nodes, 10.0.0.1 and on.
fn on_nodes(names: &[&str]) -> ResolvedService {
    let endpoints = (1..).zip(names).map(|(host, node)| ResolvedEndpoint {
        node: Some(Arc::from(*node)),
        local: *node == "n1",
        ..endpoint(IpAddr::from([10, 0, 0, host]), true, false)
    });
    let frontends = vec![frontend("10.96.0.1", EndpointSet::Cluster)];
    service(1, 1, vec![port(frontends, endpoints.collect())])
}

fn publish(publisher: &mut Publisher<Fake>, service: &ResolvedService) {
    let failures = publisher.publish(vec![(service.name.clone(), Some(service.clone()))]);
    assert!(failures.is_empty(), "{failures:?}");
}

/// The address of each backend's Node, "" for none.
fn published(kernel: &Fake, names: &[&str]) -> Vec<String> {
    let maps = kernel.0.borrow();
    let node = |host: u8| {
        let key = (IpAddr::from([10, 0, 0, host]).into(), 8080);
        let (_, backend) = maps.backend_of(1, key).unwrap();
        let node = maps.nodes.elements.get(&backend.node);
        node.map_or_else(String::new, |it| it.v4.to_ip().to_string())
    };
    (1..).zip(names).map(|(host, _)| node(host)).collect()
}

#[test]
fn a_backend_has_its_node_once_both_are_known() {
    let kernel = Fake::new(64, 64);
    let mut publisher = publisher(&kernel);
    let names = ["n1", "n2", "n9"];
    publish(&mut publisher, &on_nodes(&names));
    assert_eq!(published(&kernel, &names), ["", "", ""]);
    let outcome = publisher.set_nodes(&nodes(&[("n1", "192.0.2.1"), ("n2", "192.0.2.2")]));
    assert!(outcome.is_first && outcome.changed.len() == 2);
    publish(&mut publisher, &on_nodes(&names));
    assert_eq!(published(&kernel, &names), ["192.0.2.1", "192.0.2.2", ""]);
    assert_eq!(kernel.node_ids().unwrap().len(), 2);
}

#[test]
fn a_restart_keeps_the_nodes_of_backends_until_the_nodes_are_told() {
    let kernel = Fake::new(64, 64);
    let names = ["n2", "n3"];
    let both = nodes(&[("n2", "192.0.2.2"), ("n3", "192.0.2.3")]);
    let mut first = publisher(&kernel);
    first.set_nodes(&both);
    publish(&mut first, &on_nodes(&names));
    let ids = kernel.nodes().unwrap();
    let mut second = publisher(&kernel);
    publish(&mut second, &on_nodes(&names));
    free(&kernel, &mut second);
    assert_eq!(published(&kernel, &names), ["192.0.2.2", "192.0.2.3"]);
    // One went meanwhile. The other has its id still.
    second.set_nodes(&nodes(&[("n3", "192.0.2.3")]));
    publish(&mut second, &on_nodes(&names));
    assert_eq!(published(&kernel, &names), ["", "192.0.2.3"]);
    free(&kernel, &mut second);
    assert_eq!(kernel.nodes().unwrap(), ids[1..]);
}

#[test]
fn a_node_with_another_address_gets_another_id_and_the_old_one_goes_last() {
    let kernel = Fake::new(64, 64);
    let mut publisher = publisher(&kernel);
    publisher.set_nodes(&nodes(&[("n2", "192.0.2.2")]));
    publish(&mut publisher, &on_nodes(&["n2"]));
    let outcome = publisher.set_nodes(&nodes(&[("n2", "192.0.2.7")]));
    assert!(!outcome.is_first && outcome.changed.contains("n2"));
    // Its packets are taken from the new address at once, and from the old no more.
    let from = kernel.node_ids().unwrap();
    assert_eq!(from.len(), 1);
    assert_eq!(from[0].0.to_ip(), ip("192.0.2.7"));
    assert!(publisher.take_retired().is_none(), "a backend refers to it");
    assert_eq!(published(&kernel, &["n2"]), ["192.0.2.2"]);
    publish(&mut publisher, &on_nodes(&["n2"]));
    assert_eq!(published(&kernel, &["n2"]), ["192.0.2.7"]);
    assert_eq!(kernel.nodes().unwrap().len(), 2);
    free(&kernel, &mut publisher);
    assert_eq!(kernel.nodes().unwrap().len(), 1);
}

#[test]
fn of_two_nodes_with_one_address_the_other_takes_over() {
    let kernel = Fake::new(64, 64);
    let mut publisher = publisher(&kernel);
    publisher.set_nodes(&nodes(&[("n2", "192.0.2.2"), ("n3", "192.0.2.2")]));
    let ids = kernel.nodes().unwrap();
    assert_eq!(ids.len(), 2);
    publisher.set_nodes(&nodes(&[("n3", "192.0.2.2")]));
    let from = kernel.node_ids().unwrap();
    assert_eq!(from, [(ip("192.0.2.2").into(), ids[1].0)]);
    free(&kernel, &mut publisher);
    assert_eq!(kernel.nodes().unwrap(), ids[1..]);
}

#[test]
fn nodes_that_find_no_room_are_named_and_get_it_later() {
    let kernel = Fake::new(64, 64);
    let mut publisher = publisher(&kernel);
    let names: Vec<String> = (0..kernel.nodes_max())
        .map(|it| format!("n{it:03}"))
        .collect();
    let many = names.iter().zip(1..).map(|(name, host): (_, u8)| {
        let address = IpAddr::from([192, 0, 2, host]).to_string();
        (Arc::from(name.as_str()), addresses(&address))
    });
    let mut many: Nodes = many.collect();
    let outcome = publisher.set_nodes(&many);
    let [(name, error)] = &outcome.failures[..] else {
        panic!("{outcome:?}");
    };
    assert_eq!(**name, **names.last().unwrap());
    assert!(error.is_full(), "{error}");
    many.remove("n000");
    publisher.set_nodes(&many);
    free(&kernel, &mut publisher);
    let outcome = publisher.set_nodes(&many);
    assert!(outcome.failures.is_empty() && outcome.changed.contains(&**names.last().unwrap()));
    const { assert!(limits::NODES_MAX > 5_000, "what Kubernetes supports") };
}

#[test]
fn a_backend_of_this_node_is_listed_as_long_as_it_serves() {
    let kernel = Fake::new(64, 64);
    let mut publisher = publisher(&kernel);
    let listed = || kernel.local_backends().unwrap();
    publish(&mut publisher, &on_nodes(&["n1", "n2"]));
    assert_eq!(listed().len(), 1);
    let (key, id) = listed()[0];
    assert_eq!(
        (key.address.to_ip(), key.port, key.service),
        (ip("10.0.0.1"), 8080, 1)
    );
    assert_eq!(kernel.backend(id).address, key.address);
    // It drains.
    let mut draining = on_nodes(&["n1", "n2"]);
    draining.ports[0].endpoints[0].in_cluster_set = false;
    publish(&mut publisher, &draining);
    assert_eq!(listed(), [(key, id)]);
    publish(&mut publisher, &on_nodes(&["n2"]));
    assert!(listed().is_empty(), "10.0.0.1 is on another node now");
}

#[test]
fn where_no_backend_can_be_listed_the_service_works_and_the_error_is_told() {
    let kernel = Fake::new(64, 64);
    kernel.0.borrow_mut().nodes.local_max = 1;
    let mut publisher = publisher(&kernel);
    let service = on_nodes(&["n1", "n1", "n2"]);
    let failures = publisher.publish(vec![(name(1), Some(service.clone()))]);
    let [(_, error)] = &failures[..] else {
        panic!("{failures:?}");
    };
    assert!(
        error.is_full() && error.to_string().contains("local_backends"),
        "{error}"
    );
    assert_eq!(answers(&kernel, &service), Some(3));
    kernel.0.borrow_mut().nodes.local_max = 0;
    publish(&mut publisher, &service);
    assert_eq!(kernel.local_backends().unwrap().len(), 2);
}

#[test]
fn what_an_agent_left_listed_that_died_goes() {
    let kernel = Fake::new(64, 64);
    let mut first = publisher(&kernel);
    publish(&mut first, &on_nodes(&["n1"]));
    let mut second = publisher(&kernel);
    let (mut key, id) = kernel.local_backends().unwrap()[0];
    key.port = 9;
    kernel.clone().set_local_backend(&key, id).unwrap();
    assert!(second.prune().is_ok());
    let mut third = publisher(&kernel);
    third.prune().unwrap();
    assert_eq!(kernel.local_backends().unwrap().len(), 1);
}

#[test]
fn the_own_address_survives_other_settings() {
    let kernel = Fake::new(64, 64);
    let mut publisher = publisher(&kernel);
    publisher.set_own_node(addresses("192.0.2.1")).unwrap();
    publisher.set_seed(7).unwrap();
    let settings = kernel.device_settings().unwrap();
    assert_eq!((settings.seed, settings.node), (7, addresses("192.0.2.1")));
    // A second time nothing is written.
    kernel.0.borrow_mut().crash_in(Some(0));
    publisher.set_own_node(addresses("192.0.2.1")).unwrap();
}
