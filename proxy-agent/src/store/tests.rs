//! Order of events, marks, and property tests.

use super::*;
use crate::model::{
    Endpoint, Family, ForwardingMode, Hints, ServicePort, ServiceType, SlicePort, Weights,
};
use crate::resolve::{ResolveOptions, ResolvedService, resolve};
use proptest::prelude::*;
use proxy_common::{Algorithm, Protocol};
use std::collections::BTreeMap;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

pub(crate) fn name(name: &str) -> ObjectName {
    ObjectName::new("shop", name)
}

pub(crate) fn service(service: &str, cluster_ip: &str) -> Object {
    Object::Service(Service {
        source_ranges: Box::default(),
        name: name(service),
        created_s: 0,
        kind: ServiceType::ClusterIp,
        headless: false,
        proxy_name: None,
        cluster_ips: [ip(cluster_ip)].into(),
        ip_families: Box::default(),
        external_ips: Box::default(),
        load_balancer_ips: Box::default(),
        affinity_timeout_s: 0,
        internal_local: false,
        external_local: false,
        health_check_node_port: 0,
        algorithm: Algorithm::default(),
        forwarding: None,
        weights: Weights::default(),
        ports: [ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: 0,
        }]
        .into(),
    })
}

/// A slice with ready endpoints of these addresses, hinted for a zone.
pub(crate) fn slice(
    slice: &str,
    service: Option<&str>,
    addresses: &[&str],
    zone: Option<&str>,
) -> Object {
    let hints = || {
        zone.map(|zone| {
            Box::new(Hints {
                nodes: Box::default(),
                zones: [zone.into()].into(),
            })
        })
    };
    let endpoint = |address: &&str| Endpoint {
        address: ip(address),
        ready: true,
        serving: true,
        terminating: false,
        node: None,
        hints: hints(),
    };
    Object::Slice(EndpointSlice {
        triggered_ms: None,
        name: name(slice),
        service: service.map(name),
        family: Family::V4,
        ports: [SlicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 8080,
        }]
        .into(),
        endpoints: addresses.iter().map(endpoint).collect(),
        targets: "".into(),
        weights: Weights::default(),
    })
}

pub(crate) fn node(name: &str, zone: Option<&str>) -> Object {
    Object::Node(Node {
        name: ObjectName::new("", name),
        zone: zone.map(Arc::from),
        internal_ips: Box::default(),
        leaving: false,
    })
}

pub(crate) fn store(objects: impl IntoIterator<Item = Object>) -> Store {
    let mut store = Store::new("n1".into());
    for object in objects {
        store.apply(Event::Apply(object));
    }
    store.take_dirty();
    store
}

/// The Services that events touch, by name.
fn touched(store: &mut Store, events: impl IntoIterator<Item = Event>) -> Vec<String> {
    for event in events {
        store.apply(event);
    }
    store
        .take_dirty()
        .iter()
        .map(|name| name.name.to_string())
        .collect()
}

fn slice_names(store: &Store, service: &str) -> Vec<String> {
    let (_, slices) = store.view(&name(service)).expect("known");
    slices
        .iter()
        .map(|slice| slice.name.name.to_string())
        .collect()
}

#[test]
fn an_event_touches_its_service_and_no_other() {
    let web = || {
        [
            service("web", "10.96.0.1"),
            service("api", "10.96.0.2"),
            slice("web-1", Some("web"), &["10.244.0.1"], None),
        ]
    };
    for (title, event, want) in [
        (
            "same service",
            Event::Apply(service("web", "10.96.0.1")),
            &[][..],
        ),
        (
            "changed service",
            Event::Apply(service("web", "10.96.0.9")),
            &["web"],
        ),
        (
            "deleted service",
            Event::Delete(Kind::Service, name("web")),
            &["web"],
        ),
        (
            "unknown service",
            Event::Delete(Kind::Service, name("www")),
            &[],
        ),
        (
            "same slice",
            Event::Apply(slice("web-1", Some("web"), &["10.244.0.1"], None)),
            &[],
        ),
        (
            "changed slice",
            Event::Apply(slice("web-1", Some("web"), &["10.244.0.2"], None)),
            &["web"],
        ),
        (
            "second slice",
            Event::Apply(slice("web-0", Some("web"), &["10.244.0.2"], None)),
            &["web"],
        ),
        (
            "slice changes its label",
            Event::Apply(slice("web-1", Some("api"), &["10.244.0.1"], None)),
            &["api", "web"],
        ),
        (
            "slice loses its label",
            Event::Apply(slice("web-1", None, &["10.244.0.1"], None)),
            &["web"],
        ),
        (
            "deleted slice",
            Event::Delete(Kind::EndpointSlice, name("web-1")),
            &["web"],
        ),
        (
            "slice of an unknown service",
            Event::Apply(slice("x", Some("www"), &["10.244.0.1"], None)),
            &[],
        ),
        (
            "a zone that no hint needs",
            Event::Apply(node("n1", Some("za"))),
            &[],
        ),
    ] {
        assert_eq!(touched(&mut store(web()), [event]), want, "{title}");
    }
}

#[test]
fn a_slice_may_come_before_its_service() {
    let mut store = store([slice("web-1", Some("web"), &["10.244.0.1"], None)]);
    assert!(store.view(&name("web")).is_none());
    assert_eq!(
        touched(&mut store, [Event::Apply(service("web", "10.96.0.1"))]),
        ["web"]
    );
    assert_eq!(slice_names(&store, "web"), ["web-1"]);
    // And stays when the Service is created anew.
    store.apply(Event::Delete(Kind::Service, name("web")));
    store.apply(Event::Apply(service("web", "10.96.0.1")));
    assert_eq!(slice_names(&store, "web"), ["web-1"]);
}

#[test]
fn slices_are_in_order_of_their_names() {
    let slices =
        ["web-3", "web-1", "web-2"].map(|it| slice(it, Some("web"), &["10.244.0.1"], None));
    let mut store = store(slices.into_iter().chain([service("web", "10.96.0.1")]));
    assert_eq!(slice_names(&store, "web"), ["web-1", "web-2", "web-3"]);
    store.apply(Event::Delete(Kind::EndpointSlice, name("web-2")));
    assert_eq!(slice_names(&store, "web"), ["web-1", "web-3"]);
}

#[test]
fn the_zone_touches_services_with_zone_hints() {
    let mut store = store([
        service("web", "10.96.0.1"),
        service("api", "10.96.0.2"),
        slice("web-1", Some("web"), &["10.244.0.1"], Some("za")),
        slice("api-1", Some("api"), &["10.244.0.2"], None),
        slice("www-1", Some("www"), &["10.244.0.3"], Some("za")),
    ]);
    assert_eq!(
        touched(&mut store, [Event::Apply(node("n1", Some("za")))]),
        ["web"]
    );
    assert_eq!(store.node().zone.as_deref(), Some("za"));
    assert_eq!(
        touched(&mut store, [Event::Apply(node("n1", Some("za")))]),
        [""; 0]
    );
    assert_eq!(
        touched(&mut store, [Event::Apply(node("n2", Some("zb")))]),
        [""; 0]
    );
    assert_eq!(
        touched(
            &mut store,
            [Event::Delete(Kind::Node, ObjectName::new("", "n1"))]
        ),
        ["web"]
    );
    store.apply(Event::Delete(Kind::EndpointSlice, name("web-1")));
    store.take_dirty();
    assert_eq!(
        touched(&mut store, [Event::Apply(node("n1", Some("zb")))]),
        [""; 0]
    );
}

#[test]
fn a_cluster_ip_that_is_an_endpoint_touches_its_users() {
    let mut store = store([
        service("web", "10.96.0.1"),
        slice("web-1", Some("web"), &["10.96.0.2"], None),
    ]);
    assert_eq!(
        touched(&mut store, [Event::Apply(service("api", "10.96.0.2"))]),
        ["api", "web"]
    );
    assert!(store.is_cluster_ip(ip("10.96.0.2")));
    // A second owner of the address changes nothing for web, nor does the first one's end.
    assert_eq!(
        touched(&mut store, [Event::Apply(service("bis", "10.96.0.2"))]),
        ["bis"]
    );
    assert_eq!(
        touched(&mut store, [Event::Delete(Kind::Service, name("api"))]),
        ["api"]
    );
    assert_eq!(
        touched(&mut store, [Event::Apply(service("bis", "10.96.0.3"))]),
        ["bis", "web"]
    );
    assert!(!store.is_cluster_ip(ip("10.96.0.2")));
    // Of two slices with the address one goes, and the other still counts.
    store.apply(Event::Apply(slice(
        "web-2",
        Some("web"),
        &["10.96.0.2"],
        None,
    )));
    store.apply(Event::Delete(Kind::EndpointSlice, name("web-1")));
    store.take_dirty();
    assert_eq!(
        touched(&mut store, [Event::Apply(service("api", "10.96.0.2"))]),
        ["api", "web"]
    );
}

#[test]
fn a_complete_list_removes_what_it_does_not_name() {
    let mut store = store([
        service("web", "10.96.0.1"),
        service("api", "10.96.0.2"),
        slice("web-1", Some("web"), &["10.244.0.1"], None),
        slice("web-2", Some("web"), &["10.244.0.2"], None),
    ]);
    let same = relist(
        Kind::Service,
        vec![service("api", "10.96.0.2"), service("web", "10.96.0.1")],
    );
    assert_eq!(touched(&mut store, same), [""; 0]);
    assert_eq!(
        touched(
            &mut store,
            relist(Kind::Service, vec![service("web", "10.96.0.1")])
        ),
        ["api"]
    );
    let one = vec![slice("web-2", Some("web"), &["10.244.0.2"], None)];
    assert_eq!(
        touched(&mut store, relist(Kind::EndpointSlice, one)),
        ["web"]
    );
    assert_eq!(slice_names(&store, "web"), ["web-2"]);
    assert_eq!(
        touched(&mut store, [Event::Apply(node("n1", Some("za")))]),
        [""; 0]
    );
    store.apply(Event::Begin(Kind::Node));
    store.apply(Event::Done(Kind::Node));
    assert_eq!(store.node().zone, None);
}

/// A complete list.
fn relist(kind: Kind, objects: Vec<Object>) -> Vec<Event> {
    let applied = objects.into_iter().map(Event::Apply);
    [Event::Begin(kind)]
        .into_iter()
        .chain(applied)
        .chain([Event::Done(kind)])
        .collect()
}

#[test]
fn a_list_that_is_broken_off_removes_nothing() {
    let mut store = store([service("web", "10.96.0.1"), service("api", "10.96.0.2")]);
    store.apply(Event::Begin(Kind::Service));
    store.apply(Event::Apply(service("api", "10.96.0.2")));
    store.apply(Event::Begin(Kind::Service));
    store.apply(Event::Apply(service("web", "10.96.0.1")));
    store.apply(Event::Apply(service("api", "10.96.0.2")));
    store.apply(Event::Delete(Kind::Service, name("api")));
    store.apply(Event::Done(Kind::Service));
    store.apply(Event::Done(Kind::Service));
    assert!(store.view(&name("web")).is_some());
    assert!(store.view(&name("api")).is_none());
}

#[test]
fn complete_means_both_lists() {
    let mut store = store([service("web", "10.96.0.1")]);
    for (event, complete) in [
        (Event::Begin(Kind::Service), false),
        (Event::Done(Kind::Service), false),
        (Event::Done(Kind::EndpointSlice), false),
        (Event::Begin(Kind::EndpointSlice), false),
        (Event::Done(Kind::EndpointSlice), true),
        (Event::Begin(Kind::Service), true),
    ] {
        store.apply(event.clone());
        assert_eq!(store.complete(), complete, "{event:?}");
    }
}

const SERVICES: [&str; 3] = ["api", "web", "www"];

/// Few names and addresses, pod and ClusterIP addresses mixed, so that all meets.
fn any_object() -> impl Strategy<Value = Object> {
    let address =
        || proptest::sample::select(&["10.96.0.1", "10.96.0.2", "10.244.0.1", "10.244.0.2"][..]);
    let zone = || proptest::sample::select(&[None, Some("za"), Some("zb")][..]);
    let owner = proptest::sample::select(&[None, Some("web"), Some("api"), Some("www")][..]);
    let addresses = proptest::collection::vec(address(), 0..3);
    prop_oneof![
        (proptest::sample::select(&SERVICES[..]), address())
            .prop_map(|(name, ip)| service(name, ip)),
        (
            proptest::sample::select(&["a", "b", "c"][..]),
            owner,
            addresses,
            zone()
        )
            .prop_map(|(name, owner, addresses, zone)| slice(name, owner, &addresses, zone)),
        (proptest::sample::select(&["n1", "n2"][..]), zone())
            .prop_map(|(name, zone)| node(name, zone)),
    ]
}

fn any_events() -> impl Strategy<Value = Vec<Event>> {
    let event = (any_object(), 0..3_u8).prop_map(|(object, what)| match what {
        0 => Event::Delete(object.kind(), object.name().clone()),
        _ => Event::Apply(object),
    });
    proptest::collection::vec(event, 0..25)
}

/// What the agent would do with each Service.
fn answers(store: &Store) -> BTreeMap<ObjectName, ResolvedService> {
    let options = ResolveOptions {
        health_check_node_ports: true,
        skip: Vec::new(),
        forwarding: ForwardingMode::Snat,
        service_proxy_name: None,
        external_ips: true,
    };
    let resolved = |it: &&str| {
        let (service, slices) = store.view(&name(it))?;
        Some((
            name(it),
            resolve(
                service,
                slices,
                store.node(),
                |ip| store.is_cluster_ip(ip),
                &options,
            )
            .0,
        ))
    };
    SERVICES.iter().filter_map(resolved).collect()
}

/// The objects that are there after the events.
fn last_state(events: &[Event]) -> BTreeMap<(Kind, ObjectName), Object> {
    let mut objects = BTreeMap::new();
    for event in events {
        match event {
            Event::Apply(object) => {
                drop(objects.insert((object.kind(), object.name().clone()), object.clone()))
            }
            Event::Delete(kind, name) => drop(objects.remove(&(*kind, name.clone()))),
            Event::Begin(_) | Event::Done(_) | Event::Unavailable(_) | Event::Warning(_) => {}
        }
    }
    objects
}

proptest! {
    #[test]
    fn the_answer_depends_on_the_objects_alone(events in any_events(), turn in any::<prop::sample::Index>()) {
        let mut lived = Store::new("n1".into());
        for event in &events {
            lived.apply(event.clone());
        }
        let mut objects: Vec<Object> = last_state(&events).into_values().collect();
        let fresh = store(objects.clone());
        prop_assert_eq!(answers(&lived), answers(&fresh));
        // Any order, and told as complete lists to the store that has lived.
        let by = turn.index(objects.len().max(1));
        objects.rotate_left(by);
        prop_assert_eq!(answers(&store(objects.clone())), answers(&fresh));
        for kind in Kind::ALL {
            lived.apply(Event::Begin(kind));
        }
        lived.take_dirty();
        for event in objects.into_iter().map(Event::Apply).chain(Kind::ALL.map(Event::Done)) {
            lived.apply(event);
        }
        prop_assert_eq!(lived.take_dirty(), vec![]);
        prop_assert_eq!(answers(&lived), answers(&fresh));
    }

    #[test]
    fn every_changed_answer_is_marked(events in any_events()) {
        let mut store = Store::new("n1".into());
        for event in events {
            let before = answers(&store);
            store.apply(event.clone());
            let after = answers(&store);
            let dirty = store.take_dirty();
            for name in before.keys().chain(after.keys()) {
                prop_assert!(before.get(name) == after.get(name) || dirty.contains(name), "{} by {:?}", name, event);
            }
        }
    }
}
