//! Random histories of Services, with restarts, upgrades and crashes.

use super::*;
use crate::compile::maglev;
use crate::publish::{Change, Nodes, migrate};
use proptest::prelude::*;
use proxy_common::{Address, NodeAddresses, ServiceId};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// A Service in a history, from few addresses so that they collide.
fn any_service(number: u8) -> impl Strategy<Value = Option<ResolvedService>> {
    let weight = prop_oneof![3 => Just(1_u16), 1 => 1_u16..5];
    let sets = (any::<bool>(), any::<bool>());
    // Of the Nodes of a step, and one that never is.
    let node = prop::sample::select(vec![None, Some("n1"), Some("n2"), Some("n3"), Some("n9")]);
    let endpoint = (0_u8..6, any::<bool>(), sets, weight, node).prop_map(
        |(host, v6, (cluster, local), weight, node)| {
            let address = if v6 {
                ip(&format!("fd00::{host}"))
            } else {
                IpAddr::from([10, 0, 0, host])
            };
            ResolvedEndpoint {
                weight,
                node: node.map(Arc::from),
                ..endpoint(address, cluster, local)
            }
        },
    );
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let site = (0_u8..4, flags, any::<bool>());
    let frontend = site.prop_map(|(host, (v6, local, external, cluster_ip), dsr)| {
        let set = if local {
            EndpointSet::Local
        } else {
            EndpointSet::Cluster
        };
        let address = if v6 {
            format!("fd00:96::{host}")
        } else {
            format!("10.96.0.{host}")
        };
        let kind = if cluster_ip {
            FrontendKind::ClusterIp
        } else {
            FrontendKind::LoadBalancer
        };
        let scope = if external {
            Scope::External
        } else {
            Scope::Internal
        };
        let forwarding = if dsr && external {
            Forwarding::Dsr
        } else {
            Forwarding::Snat
        };
        ResolvedFrontend {
            kind,
            scope,
            forwarding,
            ..frontend(&address, set)
        }
    });
    let port_strategy = (
        prop::collection::vec(frontend, 0..5),
        prop::collection::vec(endpoint, 0..40),
        (any::<bool>(), prop::sample::select(Algorithm::ALL.to_vec())),
    );
    let ports = prop::collection::vec(port_strategy, 0..3);
    prop::option::weighted(0.8, (ports, 0_i64..3)).prop_map(move |spec| {
        let (ports, created_s) = spec?;
        let ports = ports.into_iter().zip(["a", "b", "c"]).map(
            |((mut frontends, mut endpoints, (udp, algorithm)), name)| {
                for frontend in &mut frontends {
                    frontend.algorithm = algorithm;
                }
                frontends.sort_by_key(|it| (it.address, it.scope));
                frontends.dedup_by_key(|it| (it.address, it.scope));
                endpoints.sort();
                endpoints.dedup_by_key(|it| (it.address, it.port));
                let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
                ResolvedPort {
                    name: name.into(),
                    protocol,
                    ..port(frontends, endpoints)
                }
            },
        );
        let cluster_ips = vec![IpAddr::from([10, 96, 1, number])];
        Some(ResolvedService {
            cluster_ips,
            ..service(number, created_s, ports.collect())
        })
    })
}

#[derive(Clone, Debug)]
enum Step {
    Publish(Vec<(u8, Option<ResolvedService>)>),
    /// These are the Nodes now.
    Nodes(Nodes),
    Free,
    Restart,
    /// Maps of another size take over, with room for so many backends.
    Upgrade(usize),
    /// The process dies at this write of the publish, of Nodes and Services.
    Crash(usize, Nodes, Vec<(u8, Option<ResolvedService>)>),
}

/// Some Nodes, of few addresses so that they change hands.
fn any_nodes() -> impl Strategy<Value = Nodes> {
    let node = (
        prop::sample::select(vec!["n1", "n2", "n3"]),
        prop_oneof![
            (1_u8..4).prop_map(|host| (Some(host), None)),
            (1_u8..4).prop_map(|host| (None, Some(host))),
            (1_u8..4, 1_u8..4).prop_map(|(v4, v6)| (Some(v4), Some(v6))),
        ],
    );
    prop::collection::vec(node, 0..4).prop_map(|nodes| {
        let addresses = |(v4, v6): (Option<u8>, Option<u8>)| NodeAddresses {
            v4: v4.map_or(Address::ANY_V4, |it| IpAddr::from([192, 0, 2, it]).into()),
            v6: v6.map_or(Address::ANY_V6, |it| ip(&format!("fd00:9::{it}")).into()),
        };
        let named = nodes.into_iter();
        named
            .map(|(name, it)| (Arc::from(name), addresses(it)))
            .collect()
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    let change = (0_u8..4).prop_flat_map(|n| any_service(n).prop_map(move |service| (n, service)));
    let changes = prop::collection::vec(change, 1..4);
    prop_oneof![
        6 => changes.clone().prop_map(Step::Publish),
        2 => Just(Step::Free),
        2 => any_nodes().prop_map(Step::Nodes),
        1 => Just(Step::Restart),
        1 => (200_usize..1024).prop_map(Step::Upgrade),
        2 => (prop_oneof![1_usize..60, 1_usize..1500], any_nodes(), changes)
            .prop_map(|(writes, nodes, changes)| Step::Crash(writes, nodes, changes)),
    ]
}

type World = BTreeMap<u8, ResolvedService>;

/// The members of a set, with their weights.
type Members = BTreeMap<(Address, u16), usize>;

/// The model: whose each frontend is.
fn owners(world: &World) -> BTreeMap<FrontendKey, (&ResolvedPort, &ResolvedFrontend)> {
    let mut ranked: Vec<(i64, u8)> = world
        .iter()
        .map(|(number, service)| (service.created_s, *number))
        .collect();
    ranked.sort();
    let mut owners = BTreeMap::new();
    for (_, number) in ranked {
        for port in &world[&number].ports {
            for frontend in &port.frontends {
                owners
                    .entry(key(frontend, port))
                    .or_insert((port, frontend));
            }
        }
    }
    owners
}

/// The members of the set that a frontend has.
fn members(port: &ResolvedPort, frontend: &ResolvedFrontend) -> Members {
    port.endpoints
        .iter()
        .filter(|it| it.address.is_ipv4() == frontend.address.is_v4())
        .filter(|it| match frontend.set {
            EndpointSet::Cluster => it.in_cluster_set,
            EndpointSet::Local => it.in_local_set,
        })
        .map(|it| ((it.address.into(), it.port), it.weight.into()))
        .collect()
}

/// Backends have the Nodes of their endpoints, and those on this node are listed.
fn check_nodes(maps: &fake::Maps, nodes: &Nodes, port: &ResolvedPort, service: ServiceId) {
    let mut local = BTreeMap::new();
    for endpoint in &port.endpoints {
        let key = (Address::from(endpoint.address), endpoint.port);
        let (id, backend) = maps.backend_of(service, key).expect("it is published");
        let node = endpoint.node.as_ref().and_then(|name| nodes.get(name));
        assert_eq!(maps.nodes.elements.get(&backend.node), node, "{endpoint:?}");
        if endpoint.local {
            local.insert((key.0, key.1.into(), service), id);
        }
    }
    let listed = maps.nodes.local.iter().filter(|(key, _)| key.2 == service);
    assert!(
        listed.eq(local.iter()),
        "{:?} for {local:?}",
        maps.nodes.local
    );
}

fn check(kernel: &Fake, world: &World, nodes: &Nodes) {
    let maps = kernel.0.borrow();
    let expected = owners(world);
    assert_eq!(
        maps.frontends.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>()
    );
    let addresses = nodes.values().flat_map(|it| [it.v4, it.v6]);
    let addresses: BTreeSet<Address> = addresses.filter(|it| !it.same(it.wildcard())).collect();
    assert!(maps.nodes.ids.keys().eq(addresses.iter()));
    for (key, (port, wanted)) in &expected {
        let members = &members(port, wanted);
        let frontend = maps.frontends[key];
        assert_eq!(frontend.forwarding, wanted.forwarding, "{key:?}");
        check_nodes(&maps, nodes, port, frontend.service);
        let published = maps.members(frontend.service, frontend.set, key.address.is_v4());
        assert!(published.iter().eq(members.keys()), "{key:?}");
        let table = kernel.answers(key).unwrap();
        let is_list = key.scope == Scope::Internal
            || frontend.kind == FrontendKind::ClusterIp
            || frontend.algorithm != Algorithm::Maglev;
        if is_list {
            check_list(&table, members);
        } else {
            check_maglev(&table, members);
        }
    }
    let vips: Vec<String> = maps
        .vips
        .iter()
        .map(|vip| vip.to_ip().to_string())
        .collect();
    let wanted: Vec<String> = world
        .keys()
        .map(|number| format!("10.96.1.{number}"))
        .collect();
    assert_eq!(vips, wanted);
    let is_external = |it: &&FrontendKey| {
        let kind = maps.frontends[it].kind;
        matches!(kind, FrontendKind::LoadBalancer | FrontendKind::ExternalIp)
    };
    let external = maps.frontends.keys().filter(is_external);
    let external: BTreeSet<Address> = external.map(|it| it.address).collect();
    assert_eq!(maps.external_addresses, external);
}

fn slots(table: &[(Address, u16)]) -> Members {
    let mut slots = Members::new();
    for entry in table {
        *slots.entry(*entry).or_insert(0) += 1;
    }
    slots
}

/// Weights are small here: each member is there as often as the weights say in
/// their least form.
fn check_list(table: &[(Address, u16)], members: &Members) {
    let slots = slots(table);
    assert!(slots.keys().eq(members.keys()), "{slots:?} for {members:?}");
    let divides = |by: &usize| members.values().all(|it| it % by == 0);
    let factor = (1..5).rev().find(divides).unwrap_or(1);
    assert!(
        slots.values().eq(members
            .values()
            .map(|it| it / factor)
            .collect::<Vec<_>>()
            .iter()),
        "{slots:?} for {members:?}"
    );
}

/// Each member has the slots of its weight, but for two, and with equal weights as
/// many as any other, or one more.
fn check_maglev(table: &[(Address, u16)], members: &Members) {
    assert_eq!(table.len(), maglev::size(members.len()) as usize);
    let slots = slots(table);
    assert!(slots.keys().eq(members.keys()), "{slots:?} for {members:?}");
    let sum: usize = members.values().sum();
    for (member, weight) in members {
        let wanted = (table.len() * weight / sum).abs_diff(slots[member]);
        assert!(wanted <= 2, "{slots:?} for {members:?}");
    }
    let is_even = members
        .values()
        .all(|it| Some(it) == members.values().next());
    let least = table.len() / members.len().max(1);
    let differs_by_one = |it: &usize| *it == least || *it == least + 1;
    assert!(!is_even || slots.values().all(differs_by_one));
}

/// Invariant 4: a node that has seen nothing of the history has the same tables.
fn check_against_another_node(kernel: &Fake, world: &World) {
    let other = Fake::new(1024, 1024);
    restart(&other, world, &Nodes::new());
    for key in other.0.borrow().frontends.keys() {
        assert_eq!(kernel.answers(key), other.answers(key), "{key:?}");
    }
}

fn apply(world: &mut World, changes: &[(u8, Option<ResolvedService>)]) -> Vec<Change> {
    for (number, service) in changes {
        match service {
            Some(service) => world.insert(*number, service.clone()),
            None => world.remove(number),
        };
    }
    // One publish names each Service once, with its last state.
    let numbers: BTreeSet<u8> = changes.iter().map(|(number, _)| *number).collect();
    numbers
        .into_iter()
        .map(|number| (name(number), world.get(&number).cloned()))
        .collect()
}

/// A new process: its first publish names all that it or the kernel knows.
fn restart(kernel: &Fake, world: &World, nodes: &Nodes) -> Publisher<Fake> {
    kernel.wait_for_readers();
    let mut publisher = publisher(kernel);
    let mut names: BTreeSet<ObjectName> = publisher.known_services().cloned().collect();
    names.extend(world.keys().map(|&number| name(number)));
    let all: BTreeMap<ObjectName, &ResolvedService> = world
        .iter()
        .map(|(n, service)| (name(*n), service))
        .collect();
    let changes = names
        .into_iter()
        .map(|it| (it.clone(), all.get(&it).map(|&service| service.clone())))
        .collect();
    assert!(publisher.publish(changes).is_empty());
    publisher.prune().unwrap();
    // The Nodes come late.
    set_nodes(&mut publisher, world, nodes);
    let all = world.iter().map(|(n, it)| (name(*n), Some(it.clone())));
    assert!(publisher.publish(all.collect()).is_empty());
    publisher
}

/// What must be published anew for it.
fn set_nodes(publisher: &mut Publisher<Fake>, world: &World, nodes: &Nodes) -> Vec<Change> {
    let outcome = publisher.set_nodes(nodes);
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    let is_there = |it: &ResolvedEndpoint| {
        let node = it.node.as_ref();
        node.is_some_and(|node| outcome.changed.contains(node))
    };
    let touched = world.iter().filter(|(_, service)| {
        let mut endpoints = service.ports.iter().flat_map(|port| &port.endpoints);
        endpoints.any(is_there)
    });
    touched
        .map(|(n, it)| (name(*n), Some(it.clone())))
        .collect()
}

/// A new process with maps of other sizes, which have the old ones' content.
fn upgrade(old: &Fake, backends: usize, world: &World, nodes: &Nodes) -> (Fake, Publisher<Fake>) {
    let mut kernel = Fake::new(backends, 1024);
    migrate::copy(old, &mut kernel, 7).unwrap();
    let mut publisher = restart(&kernel, world, nodes);
    free(&kernel, &mut publisher);
    (kernel, publisher)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// After each step the maps are what the model says, and at every write in
    /// between (the fake checks) every reader finds complete tables. Crashes and
    /// restarts anywhere change nothing of that.
    #[test]
    fn maps_follow_any_history(steps in prop::collection::vec(any_step(), 1..25)) {
        let mut kernel = Fake::new(1024, 1024);
        let mut world = World::new();
        let mut nodes = Nodes::new();
        let mut publisher = publisher(&kernel);
        for step in steps {
            match step {
                Step::Publish(changes) => {
                    let failures = publisher.publish(apply(&mut world, &changes));
                    prop_assert!(failures.is_empty(), "{failures:?}");
                }
                Step::Nodes(new) => {
                    nodes = new;
                    let changes = set_nodes(&mut publisher, &world, &nodes);
                    prop_assert!(publisher.publish(changes).is_empty());
                }
                Step::Free => free(&kernel, &mut publisher),
                Step::Restart => publisher = restart(&kernel, &world, &nodes),
                Step::Upgrade(backends) => {
                    (kernel, publisher) = upgrade(&kernel, backends, &world, &nodes);
                }
                Step::Crash(writes, new, changes) => {
                    nodes = new;
                    let mut changes = apply(&mut world, &changes);
                    kernel.0.borrow_mut().crash_in(Some(writes));
                    let publish = || {
                        changes.extend(set_nodes(&mut publisher, &world, &nodes));
                        changes.sort_by(|a, b| a.0.cmp(&b.0));
                        changes.dedup_by(|a, b| a.0 == b.0);
                        publisher.publish(changes)
                    };
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(publish))
                        && !panic.is::<fake::Died>()
                    {
                        resume_unwind(panic);
                    }
                    kernel.0.borrow_mut().crash_in(None);
                    publisher = restart(&kernel, &world, &nodes);
                }
            }
            check(&kernel, &world, &nodes);
        }
        check_against_another_node(&kernel, &world);
        // Invariant 5: nothing is left over when all is gone.
        let gone = world.keys().map(|&number| (name(number), None)).collect();
        publisher.publish(gone);
        publisher.set_nodes(&Nodes::new());
        free(&kernel, &mut publisher);
        let maps = kernel.0.borrow();
        prop_assert_eq!((maps.frontends.len(), maps.services.len(), maps.backends_in_use()), (0, 0, 0));
        let left = (maps.nodes.elements.len(), maps.nodes.ids.len(), maps.nodes.local.len());
        prop_assert_eq!(left, (0, 0, 0));
    }
}
