//! From one set of maps to another.

use super::*;
use crate::publish::Kernel;
use crate::publish::migrate::{Migrated, copy, fresh_generation, set_generations};
use proxy_common::{BackendId, DeviceSettings};
use std::collections::BTreeMap;

/// A Service with so many endpoints, whose last numbers begin with `from`.
fn with_endpoints(number: u8, from: u8, count: u8) -> ResolvedService {
    let endpoints = (from..from + count)
        .map(|host| endpoint(IpAddr::from([10, 0, 0, host]), true, false))
        .collect();
    let address = format!("10.96.0.{number}");
    let frontends = vec![frontend(&address, EndpointSet::Cluster)];
    service(number, number.into(), vec![port(frontends, endpoints)])
}

fn publish(kernel: &Fake, services: &[&ResolvedService]) {
    let changes = services
        .iter()
        .map(|&it| (it.name.clone(), Some(it.clone())));
    assert!(publisher(kernel).publish(changes.collect()).is_empty());
}

/// Id and generation of each backend in use, by address.
fn ids(kernel: &Fake) -> BTreeMap<String, (BackendId, u32)> {
    (1..kernel.backends_max())
        .map(|id| (id, kernel.backend(id)))
        .filter(|(_, backend)| backend.service != 0)
        .map(|(id, backend)| {
            (
                backend.address.to_ip().to_string(),
                (id, backend.generation),
            )
        })
        .collect()
}

#[test]
fn a_larger_set_has_everything_under_the_same_ids_and_generations() {
    let (old, mut new) = (Fake::new(64, 64), Fake::new(256, 64));
    let service = with_endpoints(1, 1, 20);
    publish(&old, &[&service]);
    let migrated = copy(&old, &mut new, 1000).unwrap();
    assert_eq!(
        migrated,
        Migrated {
            frontends: 1,
            left_out: 0
        }
    );
    assert_eq!(ids(&new), ids(&old));
    let key = key(&service.ports[0].frontends[0], &service.ports[0]);
    assert_eq!(new.answers(&key), old.answers(&key));
    // The publish that follows changes nothing of it.
    publish(&new, &[&service]);
    assert_eq!(ids(&new), ids(&old));
}

#[test]
fn what_does_not_fit_a_smaller_set_comes_back_under_ids_that_nobody_remembers() {
    let (old, mut new) = (Fake::new(64, 64), Fake::new(16, 64));
    let (gone, stays) = (with_endpoints(1, 1, 10), with_endpoints(2, 20, 10));
    publish(&old, &[&gone, &stays]);
    let mut changes = publisher(&old);
    changes.publish(vec![(name(1), None)]);
    let migrated = copy(&old, &mut new, 0).unwrap();
    assert_eq!(
        migrated,
        Migrated {
            frontends: 0,
            left_out: 1
        },
        "ids 11 to 20 do not fit below 16"
    );
    let mut publisher = publisher(&new);
    assert!(
        publisher
            .publish(vec![(name(2), Some(stays.clone()))])
            .is_empty()
    );
    let key = key(&stays.ports[0].frontends[0], &stays.ports[0]);
    assert_eq!(new.answers(&key).unwrap().len(), 10);
    let before = ids(&old);
    for (address, (id, generation)) in ids(&new) {
        let same = before.get(&address) == Some(&(id, generation));
        let remembered = before.values().any(|it| *it == (id, generation));
        assert!(
            same || !remembered,
            "{address} has the reference of another"
        );
    }
}

/// What else is in the settings comes from the options of this start.
#[test]
fn the_seed_of_maglev_tables_stays() {
    let (mut old, mut new) = (Fake::new(64, 64), Fake::new(64, 64));
    let settings = |seed, snat_first_port| DeviceSettings {
        seed,
        snat_first_port,
        ..DeviceSettings::default()
    };
    old.set_device_settings(&settings(7, 1024)).unwrap();
    new.set_device_settings(&settings(0, 2048)).unwrap();
    copy(&old, &mut new, 0).unwrap();
    assert_eq!(new.device_settings().unwrap(), settings(7, 2048));
}

#[test]
fn a_full_set_leaves_out_and_goes_on() {
    let (old, mut new) = (Fake::new(64, 64), Fake::new(64, 1));
    publish(&old, &[&with_endpoints(1, 1, 2), &with_endpoints(2, 5, 2)]);
    let migrated = copy(&old, &mut new, 0).unwrap();
    assert_eq!((migrated.frontends, migrated.left_out), (1, 1));
}

#[test]
fn an_empty_set_begins_above_the_generations_of_earlier_ones() {
    let mut kernel = Fake::new(16, 16);
    let base = fresh_generation();
    set_generations(&mut kernel, base);
    publish(&kernel, &[&with_endpoints(1, 1, 3)]);
    assert!(
        ids(&kernel)
            .values()
            .all(|(_, it)| *it == base.wrapping_add(1))
    );
}
