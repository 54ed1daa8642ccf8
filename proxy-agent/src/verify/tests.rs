//! Each thing broken by hand, and the line that names it.

use super::{Difference, Part, Wanted, at_both, compare, node};
use crate::attach::HookState;
use crate::devices::Chosen;
use crate::model::{ForwardingMode, ObjectName, Service};
use crate::publish::Publisher;
use crate::publish::tests::fake::{Fake, Maps};
use crate::resolve::{self, ResolveOptions};
use crate::source::Object;
use crate::store::{Store, tests as objects};
use proxy_common::{Address, Device, Frontend, FrontendKey, Scope};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

fn options() -> ResolveOptions {
    ResolveOptions {
        service_proxy_name: None,
        external_ips: true,
        health_check_node_ports: true,
        skip: Vec::new(),
        forwarding: ForwardingMode::default(),
    }
}

fn address(text: &str) -> Address {
    text.parse::<IpAddr>().unwrap().into()
}

fn service(name: &str, ip: &str, change: impl FnOnce(&mut Service)) -> Object {
    let Object::Service(mut service) = objects::service(name, ip) else {
        unreachable!("a Service is made")
    };
    change(&mut service);
    Object::Service(service)
}

/// Two Services with endpoints; both ask for one externalIP, and `old` has it.
fn store() -> Store {
    let external = |service: &mut Service| {
        service.external_ips = ["203.0.113.1".parse().unwrap()].into();
    };
    let old = service("old", "10.96.0.1", |service| {
        external(service);
        service.created_s = -1;
    });
    objects::store([
        service("new", "10.96.0.2", external),
        old,
        objects::slice("new-1", Some("new"), &["10.1.0.1", "10.1.0.2"], None),
        objects::slice("old-1", Some("old"), &["10.1.0.1"], None),
    ])
}

fn published(store: &Store) -> Fake {
    let kernel = Fake::new(64, 64);
    let mut publisher = Publisher::restore(kernel.clone()).unwrap();
    publisher.set_seed(7).unwrap();
    let is_cluster_ip = |ip| store.is_cluster_ip(ip);
    let resolve = |name: &ObjectName| {
        let (service, slices) = store.view(name).unwrap();
        let resolved = resolve::resolve(service, slices, store.node(), is_cluster_ip, &options());
        (name.clone(), Some(resolved.0))
    };
    let failures = publisher.publish(store.service_names().map(resolve).collect());
    assert!(failures.is_empty(), "{failures:?}");
    kernel
}

fn lines(store: &Store, kernel: &Fake) -> Vec<String> {
    let differences = compare(&Wanted::of(store, &options()), kernel).unwrap();
    let line = |it: &Difference| it.to_string().split("; ").next().unwrap().to_owned();
    differences.iter().map(line).collect()
}

/// After this has been done to the maps, just these lines come.
fn check(breaks: impl FnOnce(&mut Maps), wanted: &[&str]) {
    let store = store();
    let kernel = published(&store);
    assert_eq!(lines(&store, &kernel), [""; 0]);
    breaks(&mut kernel.0.borrow_mut());
    assert_eq!(lines(&store, &kernel), wanted);
}

fn frontend<'a>(maps: &'a mut Maps, ip: &str, scope: Scope) -> &'a mut Frontend {
    let is_it = |key: &FrontendKey| key.address == address(ip) && key.scope == scope;
    let mut found = maps.frontends.iter_mut().filter(|(key, _)| is_it(key));
    found.next().unwrap().1
}

#[test]
fn a_frontend_that_is_missing_foreign_or_another_is_named() {
    check(
        |maps| {
            let key = frontend(maps, "10.96.0.1", Scope::External).key;
            maps.frontends.remove(&key);
        },
        &[
            "frontends: 10.96.0.1:80/TCP for clients outside: wanted ClusterIP of shop/old:http with cluster set, found nothing",
        ],
    );
    check(
        |maps| {
            let mut stranger = *frontend(maps, "10.96.0.1", Scope::Internal);
            stranger.key.port = 81;
            maps.frontends.insert(stranger.key, stranger);
        },
        &[
            "frontends: 10.96.0.1:81/TCP for clients on this node: wanted nothing, found ClusterIP of shop/old:http with cluster set",
        ],
    );
    check(
        |maps| {
            let owner = frontend(maps, "10.96.0.2", Scope::Internal).service;
            frontend(maps, "203.0.113.1", Scope::External).service = owner;
            frontend(maps, "10.96.0.1", Scope::Internal).elsewhere = 1;
        },
        &[
            "frontends: 10.96.0.1:80/TCP for clients on this node: wanted ClusterIP of shop/old:http with cluster set, found ClusterIP of shop/old:http with cluster set, endpoints elsewhere",
            "frontends: 203.0.113.1:80/TCP for clients outside: wanted ExternalIP of shop/old:http with cluster set, found ExternalIP of shop/new:http with cluster set",
        ],
    );
}

#[test]
fn a_table_with_another_backend_or_none_is_named_once_for_all_frontends_that_share_it() {
    check(
        |maps| {
            let table = frontend(maps, "10.96.0.2", Scope::Internal).table;
            let line = &mut maps.chunks[table.chunk as usize][table.first_line as usize];
            line.backends.swap(0, 1);
        },
        &[
            "tables: 10.96.0.2:80/TCP for clients on this node: wanted 2 slots, slot 0 10.1.0.1:8080, found 2 slots, slot 0 10.1.0.2:8080",
        ],
    );
    check(
        |maps| {
            let table = frontend(maps, "203.0.113.1", Scope::External).table;
            let line = &mut maps.chunks[table.chunk as usize][table.first_line as usize + 1];
            line.backends[1] = 9;
        },
        &[
            "tables: 203.0.113.1:80/TCP for clients outside: wanted 251 slots, slot 17 10.1.0.1:8080, found 251 slots, slot 17 backend 9 of nobody or another service port",
        ],
    );
    check(
        |maps| frontend(maps, "10.96.0.2", Scope::External).table.length = 1,
        &[
            "tables: 10.96.0.2:80/TCP for clients outside: wanted 2 slots, slot 1 10.1.0.2:8080, found 1 slots",
        ],
    );
}

#[test]
fn a_backend_with_another_state_or_address_and_one_of_nobody_are_named() {
    check(
        |maps| {
            let service = frontend(maps, "10.96.0.2", Scope::Internal).service;
            let mut mine = maps.backends.iter_mut().filter(|it| it.service == service);
            mine.next().unwrap().state = 0;
            maps.backends[60].service = 50;
            maps.backends[60].address = address("10.9.9.9");
        },
        &[
            "backends: 10.1.0.1:8080 of shop/new:http: wanted cluster set, serving, found about to be freed",
            "backends: 10.9.9.9:0 of service port 50, which has no name: wanted nothing, found about to be freed, weight 0",
        ],
    );
}

#[test]
fn names_addresses_and_source_ranges_that_differ_are_named() {
    check(
        |maps| {
            let id = frontend(maps, "10.96.0.2", Scope::Internal).service;
            maps.services.get_mut(&id).unwrap().internal_local = 1;
            let copy = maps.services[&id];
            maps.services.insert(
                40,
                proxy_common::ServiceRecord {
                    protocol: 17,
                    ..copy
                },
            );
            maps.vips.remove(&address("10.96.0.1"));
            maps.vips.insert(address("10.96.0.9"));
        },
        &[
            "vips: 10.96.0.1: wanted an element, found nothing",
            "vips: 10.96.0.9: wanted nothing, found an element",
            "services: shop/new:http/TCP: wanted internal policy Cluster, external policy Cluster, found internal policy Local, external policy Cluster",
            "services: shop/new:http/UDP: wanted nothing, found id 40",
        ],
    );
}

#[test]
fn what_the_agent_has_missed_is_named_too() {
    let mut store = store();
    let kernel = published(&store);
    let more = objects::slice("new-2", Some("new"), &["10.1.0.3"], None);
    store.apply(crate::source::Event::Apply(more));
    assert_eq!(
        lines(&store, &kernel),
        [
            "tables: 10.96.0.2:80/TCP for clients on this node: wanted 3 slots, slot 2 10.1.0.3:8080, found 2 slots",
            "backends: 10.1.0.3:8080 of shop/new:http: wanted cluster set, serving, found nothing",
        ]
    );
}

fn hook(pinned: Option<Result<u32, &str>>, ours: &[u32]) -> HookState {
    HookState {
        hook: "ingress",
        device: Some(2),
        pinned: pinned.map(|it| it.map_err(str::to_owned)),
        ours: ours.to_vec(),
    }
}

fn device() -> Device {
    Device {
        role: Device::UPLINK,
        header_bytes: 14,
        mtu: 1500,
        default_v6: 0,
        v4: address("192.0.2.11"),
        v6: Address::ANY_V6,
    }
}

fn eth0() -> BTreeMap<u32, Chosen> {
    let name = "eth0".to_owned();
    [(
        2,
        Chosen {
            name,
            device: device(),
        },
    )]
    .into()
}

#[test]
fn every_hook_has_our_program_once_and_no_other_device_has_it() {
    let found = |state: HookState, in_path: &BTreeMap<u32, Chosen>| {
        let differences = node::hooks(&[state], in_path, |index| format!("device {index}"));
        differences.into_iter().next().map(|it| it.found)
    };
    let text = |text: &str| Some(text.to_owned());
    let rows = [
        (hook(Some(Ok(7)), &[7]), None, text("program 7")),
        (hook(None, &[]), text("nothing"), None),
        (
            hook(None, &[7]),
            text("program 7 without a pin"),
            text("program 7"),
        ),
        (hook(Some(Err("gone")), &[]), text("gone"), text("gone")),
        (
            hook(Some(Err("gone")), &[7]),
            text("gone, and program 7 beside it"),
            text("gone"),
        ),
        (
            hook(Some(Ok(7)), &[7, 8]),
            text("programs 7 and 8"),
            text("program 7"),
        ),
        (
            hook(Some(Ok(7)), &[]),
            text("program 7, which works on other maps"),
            text("program 7"),
        ),
    ];
    for (state, in_path, elsewhere) in rows {
        assert_eq!(found(state.clone(), &eth0()), in_path, "{state:?}");
        assert_eq!(
            found(state.clone(), &BTreeMap::new()),
            elsewhere,
            "{state:?}"
        );
    }
}

#[test]
fn devices_ranges_and_single_values_are_compared_key_by_key() {
    let name = |index| format!("device {index}");
    let mut found = BTreeMap::from([(2, device())]);
    assert_eq!(node::devices(&eth0(), &found, name), []);
    found.insert(
        3,
        Device {
            role: Device::RETURN,
            ..device()
        },
    );
    found.get_mut(&2).unwrap().mtu = 1400;
    let lines: Vec<String> = node::devices(&eth0(), &found, name)
        .iter()
        .map(|it| format!("{} {} {}", it.object, it.wanted, it.found))
        .collect();
    assert_eq!(
        lines,
        [
            "eth0 uplink, header 14 bytes, MTU 1500, 192.0.2.11, :: uplink, header 14 bytes, MTU 1400, 192.0.2.11, ::",
            "device 3 nothing return, header 14 bytes, MTU 1500, 192.0.2.11, ::",
        ]
    );
    let key = (112, address("10.96.0.0"));
    let ranges = node::service_ranges(&[(key, 1)].into(), &[(key, 0)].into());
    assert_eq!(
        (ranges[0].object.as_str(), ranges.len()),
        ("10.96.0.0/16", 1)
    );
    let values = node::values(
        Part::Settings,
        [("a", "1".into(), "1".into()), ("b", "1".into(), "2".into())],
    );
    assert_eq!((values[0].object.as_str(), values.len()), ("b", 1));
}

#[test]
fn a_difference_counts_only_if_it_is_there_twice_word_for_word() {
    let one = |object: &str, found: &str| Difference::new(Part::Vips, object, "nothing", found);
    let first = vec![one("a", "1"), one("b", "1"), one("c", "1")];
    let second = [one("b", "2"), one("c", "1"), one("d", "1")];
    assert_eq!(at_both(first, &second), [one("c", "1")]);
    let same = BTreeSet::from([address("10.0.0.1")]);
    assert_eq!(node::addresses(Part::Vips, &same, &same), []);
}
