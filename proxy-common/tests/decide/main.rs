//! The decision against a plain model that knows nothing of maps.
//!
//! The model works on addresses and lists of endpoints; the maps that the
//! decision reads are encoded from the same description. Whatever is asked, the
//! decision must refuse for the model's reason or pick what the model allows.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod algorithms;
mod model;
mod world;

use model::{Allowed, model};
use proptest::prelude::*;
use proxy_common::decide::{BackendRef, Decision, FrontendLookup, Maps, Refusal, Request, decide};
use proxy_common::{
    Address, Affinity, AffinityKey, Algorithm, Backend, BackendId, DropReason, EndpointSet,
    Frontend, FrontendKey, Protocol, Scope, ServiceId, SourceFilter, TableRef,
};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use world::{Client, Encoded, Endpoint, GENERATION, Service, World};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn any_ip() -> impl Strategy<Value = IpAddr> {
    prop::sample::select(
        [
            "10.96.0.1",
            "10.96.0.2",
            "192.0.2.11",
            "127.0.0.1",
            "127.9.9.9",
            "10.96.9.9",
            "0.0.0.0",
            "::",
            "203.0.113.5",
            "fd00:96::1",
            "::1",
            "2001:db8:2::11",
        ]
        .map(ip)
        .to_vec(),
    )
}

fn any_client_ip() -> impl Strategy<Value = IpAddr> {
    prop::sample::select(
        ["10.244.1.5", "10.244.1.6", "fd00:244:1::5"]
            .map(ip)
            .to_vec(),
    )
}

fn any_filter() -> impl Strategy<Value = SourceFilter> {
    prop::sample::select(vec![
        SourceFilter::Anyone,
        SourceFilter::Ranges,
        SourceFilter::RangesAndHost,
    ])
}

fn any_protocol() -> impl Strategy<Value = Protocol> {
    prop::sample::select(vec![Protocol::Tcp, Protocol::Udp])
}

fn any_service() -> impl Strategy<Value = Service> {
    let set = prop::sample::select(vec![EndpointSet::Cluster, EndpointSet::Local]);
    // The API's side rejects a frontend on an unspecified address.
    let specified = any_ip().prop_filter("unspecified", |ip| !ip.is_unspecified());
    let address = prop::option::weighted(0.7, specified);
    let frontends = prop::collection::vec((address, 80_u16..83, any_protocol(), set), 0..4);
    let endpoints = prop::collection::vec(
        (1_u8..9, any::<bool>(), any::<bool>(), any::<bool>()),
        0..20,
    );
    let affinity = prop::sample::select(vec![0_u32, 10]);
    let allowed = prop::collection::btree_set(any_client_ip(), 0..3);
    let algorithm = prop::sample::select(Algorithm::ALL.to_vec());
    let how = (any_filter(), algorithm);
    (frontends, endpoints, affinity, how, allowed).prop_map(
        |(frontends, endpoints, affinity_timeout_s, (source_filter, algorithm), allowed)| {
            let mut endpoints: Vec<Endpoint> = endpoints
                .into_iter()
                .map(|(host, v6, cluster, local)| Endpoint {
                    address: if v6 {
                        ip(&format!("fd00::{host}"))
                    } else {
                        IpAddr::from([10, 244, 0, host])
                    },
                    cluster,
                    local,
                    serving: true,
                })
                .collect();
            endpoints.sort_by_key(|it| it.address);
            endpoints.dedup_by_key(|it| it.address);
            Service {
                affinity_timeout_s,
                frontends,
                endpoints,
                source_filter,
                algorithm,
                allowed,
            }
        },
    )
}

fn any_world() -> impl Strategy<Value = World> {
    (
        prop::collection::vec(any_service(), 0..4),
        prop::collection::btree_set(any_ip(), 0..3),
        prop::collection::btree_set(any_ip(), 0..3),
        prop::option::of(any_ip()),
    )
        .prop_map(
            |(services, node_addresses, cluster_ips, service_cidr)| World {
                services,
                node_addresses: node_addresses
                    .into_iter()
                    .filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
                    .collect(),
                cluster_ips,
                service_cidr,
            },
        )
}

fn any_request() -> impl Strategy<Value = Request> {
    (any_ip(), 80_u16..84, any_protocol()).prop_map(|(ip, port, protocol)| Request {
        destination: ip.into(),
        port,
        protocol,
        scope: Scope::Internal,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_decision_is_one_that_the_model_allows(
        world in any_world(),
        requests in prop::collection::vec((any_request(), 0_u32..8), 1..20),
        is_host in any::<bool>(),
        addresses in prop::collection::vec(any_client_ip(), 0..3),
    ) {
        let client = Client { cookie: 42, is_host, addresses, now_s: Cell::new(1000) };
        let maps = Encoded::new(&world, &client);
        // Affinity as the model has it: per service, the endpoint and the last use.
        let mut last: BTreeMap<(ServiceId, bool), (Address, u32)> = BTreeMap::new();
        for (request, pause_s) in requests {
            client.now_s.set(client.now_s.get() + pause_s);
            let now_s = client.now_s.get();
            match (decide(&maps, &request, BackendRef::NONE), model(&world, &request, &client)) {
                (Decision::NotOurs, Allowed::NotOurs) => {}
                (Decision::Refuse(refusal), Allowed::Refused(expected)) => prop_assert_eq!(refusal.reason, expected),
                (Decision::Forward(target), Allowed::OneOf(usable)) => {
                    let address = target.address.to_ip();
                    prop_assert!(usable.iter().any(|it| it.address == address), "{address} is none of {usable:?}");
                    let id = maps.backends[target.backend.id as usize].service;
                    let service = &world.services[id as usize - 1];
                    if service.affinity_timeout_s > 0 {
                        if let Some((earlier, used_s)) = last.get(&(id, target.address.is_v4()))
                            && now_s - used_s < service.affinity_timeout_s
                            && usable.iter().any(|it| Address::from(it.address) == *earlier)
                        {
                            prop_assert_eq!(target.address, *earlier, "affinity was not kept");
                        }
                        last.insert((id, target.address.is_v4()), (target.address, now_s));
                    }
                }
                (decision, allowed) => prop_assert!(false, "{request:?}: {decision:?}, but the model says {allowed:?}"),
            }
        }
    }
}

fn one_service(endpoints: Vec<Endpoint>) -> World {
    let frontends = vec![(
        Some(ip("10.96.0.1")),
        80,
        Protocol::Udp,
        EndpointSet::Cluster,
    )];
    World {
        services: vec![Service {
            affinity_timeout_s: 0,
            frontends,
            endpoints,
            source_filter: SourceFilter::Anyone,
            algorithm: Algorithm::default(),
            allowed: BTreeSet::new(),
        }],
        ..World::default()
    }
}

fn endpoint(host: u8, cluster: bool, serving: bool) -> Endpoint {
    Endpoint {
        address: IpAddr::from([10, 244, 0, host]),
        cluster,
        local: false,
        serving,
    }
}

fn to_service() -> Request {
    Request {
        destination: ip("10.96.0.1").into(),
        port: 80,
        protocol: Protocol::Udp,
        scope: Scope::Internal,
    }
}

fn pod() -> Client {
    Client {
        cookie: 42,
        is_host: false,
        addresses: Vec::new(),
        now_s: Cell::new(1000),
    }
}

/// (what the socket's backend is now, whether the socket keeps it)
#[test]
fn a_udp_socket_keeps_its_backend_while_that_serves() {
    let kept = |id, generation| BackendRef { id, generation };
    for (case, first, kept, stays) in [
        ("ready", endpoint(1, true, true), kept(1, GENERATION), true),
        (
            "terminating and serving, out of the set",
            endpoint(1, false, true),
            kept(1, GENERATION),
            true,
        ),
        (
            "no longer serving",
            endpoint(1, false, false),
            kept(1, GENERATION),
            false,
        ),
        (
            "the id was given to another endpoint",
            endpoint(1, false, true),
            kept(1, GENERATION - 1),
            false,
        ),
        (
            "an id that never was",
            endpoint(1, false, true),
            kept(99, GENERATION),
            false,
        ),
    ] {
        let world = one_service(vec![first, endpoint(2, true, true)]);
        let client = pod();
        let maps = Encoded::new(&world, &client);
        let Decision::Forward(target) = decide(&maps, &to_service(), kept) else {
            panic!("{case}: not forwarded");
        };
        assert_eq!(target.backend == kept, stays, "{case}");
    }
}

#[test]
fn new_connections_spread_evenly() {
    let world = one_service((1..=10).map(|host| endpoint(host, true, true)).collect());
    let client = pod();
    let maps = Encoded::new(&world, &client);
    let mut counts = [0_u32; 11];
    for _ in 0..10_000 {
        let Decision::Forward(target) = decide(&maps, &to_service(), BackendRef::NONE) else {
            panic!("not forwarded")
        };
        counts[target.backend.id as usize] += 1;
    }
    assert!(
        counts[1..]
            .iter()
            .all(|&count| (750..1250).contains(&count)),
        "{counts:?}"
    );
}

#[test]
fn an_unstable_or_broken_map_refuses_and_never_misdelivers() {
    struct Broken(Option<Frontend>, Option<BackendId>, Option<Backend>);
    impl Maps for Broken {
        fn frontend(&self, _: &FrontendKey, copy: &mut Frontend) -> FrontendLookup {
            let Some(found) = self.0 else {
                return FrontendLookup::Unstable;
            };
            *copy = found;
            FrontendLookup::Found
        }
        fn is_node_address(&self, _: &Address) -> bool {
            false
        }
        fn is_cluster_ip(&self, _: &Address) -> bool {
            false
        }
        fn in_service_cidr(&self, _: &Address) -> bool {
            false
        }
        fn table_entry(&self, _: TableRef, _: u32) -> Option<BackendId> {
            self.1
        }
        fn backend(&self, _: BackendId) -> Option<Backend> {
            self.2
        }
        fn affinity(&self, _: &AffinityKey) -> Option<Affinity> {
            None
        }
        fn remember_affinity(&self, _: &AffinityKey, _: &Affinity) {}
        fn source_allowed(&self, _: ServiceId, _: &Address) -> bool {
            false
        }
        fn client_address(&self, _: bool) -> Option<Address> {
            None
        }
        fn client(&self) -> u64 {
            1
        }
        fn client_is_host(&self) -> bool {
            false
        }
        fn number(&self, _of_client: bool) -> u32 {
            0
        }
        fn open_connections(&self, _id: BackendId) -> u32 {
            0
        }
        fn random(&self) -> u32 {
            0
        }
        fn now_s(&self) -> u32 {
            0
        }
    }
    let world = one_service(vec![endpoint(1, true, true)]);
    let client = pod();
    let sound = Encoded::new(&world, &client);
    let found = Some(sound.frontends[&to_service().key()]);
    let foreign = Backend {
        service: 2,
        ..sound.backends[1]
    };
    for (case, maps, reason) in [
        (
            "changes while read",
            Broken(None, None, None),
            DropReason::FrontendUnstable,
        ),
        (
            "no such line",
            Broken(found, None, None),
            DropReason::BackendMissing,
        ),
        (
            "no such backend",
            Broken(found, Some(1), None),
            DropReason::BackendMissing,
        ),
        (
            "backend of another service",
            Broken(found, Some(1), Some(foreign)),
            DropReason::BackendMissing,
        ),
    ] {
        let service = match reason {
            DropReason::FrontendUnstable => 0,
            _ => 1,
        };
        assert_eq!(
            decide(&maps, &to_service(), BackendRef::NONE),
            Decision::Refuse(Refusal { reason, service }),
            "{case}"
        );
    }
}

#[test]
fn reasons_have_distinct_labels_in_the_order_of_their_numbers() {
    let labels: BTreeSet<&str> = DropReason::ALL.iter().map(|it| it.as_str()).collect();
    assert_eq!(labels.len(), DropReason::COUNT as usize);
    assert!(
        DropReason::ALL
            .iter()
            .zip(0..)
            .all(|(reason, index)| *reason as u32 == index)
    );
    assert!(
        DropReason::ALL
            .iter()
            .all(|reason| !reason.help().is_empty())
    );
}
