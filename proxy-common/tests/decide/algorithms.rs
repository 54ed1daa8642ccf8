//! How a backend is picked from a table.

use super::{endpoint, one_service, pod, to_service};
use crate::world::Encoded;
use proxy_common::decide::{BackendRef, Decision, decide};
use proxy_common::{Algorithm, TableRef};

/// How often each of the endpoints .1 to .4 is picked, of a thousand times.
fn picks(algorithm: Algorithm, tuple: Option<u32>) -> Vec<usize> {
    let mut world = one_service((1..=4).map(|host| endpoint(host, true, true)).collect());
    world.services[0].algorithm = algorithm;
    let client = pod();
    let mut maps = Encoded::new(&world, &client);
    maps.tuple = tuple;
    let mut picked = vec![0; 4];
    for _ in 0..1_000 {
        let Decision::Forward(target) = decide(&maps, &to_service(), BackendRef::NONE) else {
            panic!("refused");
        };
        picked[target.backend.id as usize - 1] += 1;
    }
    picked
}

#[test]
fn maglev_goes_by_the_tuple_and_random_by_chance() {
    assert_eq!(picks(Algorithm::Maglev, Some(6)), [0, 0, 1_000, 0]);
    for (algorithm, tuple) in [
        (Algorithm::Maglev, None),
        (Algorithm::Random, None),
        (Algorithm::Random, Some(6)),
    ] {
        let picked = picks(algorithm, tuple);
        assert!(
            picked.iter().all(|&it| it > 150),
            "{algorithm:?} {picked:?}"
        );
    }
}

/// Opens connections, each where the decision says; how many each backend has.
fn open_many(weights: &[u32], count: u32) -> Vec<u32> {
    let hosts = 1..=weights.len() as u8;
    let mut world = one_service(hosts.map(|host| endpoint(host, true, true)).collect());
    world.services[0].algorithm = Algorithm::LeastConnections;
    let client = pod();
    let mut maps = Encoded::new(&world, &client);
    // As the agent lists them.
    let key = to_service().key();
    let mut frontend = maps.frontends[&key];
    maps.lines = (1..)
        .zip(weights)
        .flat_map(|(id, &weight)| vec![id; weight as usize])
        .collect();
    frontend.table = TableRef {
        chunk: 0,
        first_line: 0,
        length: maps.lines.len() as u32,
    };
    maps.frontends.insert(key, frontend);
    for (backend, &weight) in maps.backends[1..].iter_mut().zip(weights) {
        backend.weight = weight;
    }
    for _ in 0..count {
        let Decision::Forward(target) = decide(&maps, &to_service(), BackendRef::NONE) else {
            panic!("refused");
        };
        *maps.open.borrow_mut().entry(target.backend.id).or_default() += 1;
    }
    let open = maps.open.borrow();
    (1..=weights.len() as u32)
        .map(|id| open.get(&id).copied().unwrap_or_default())
        .collect()
}

#[test]
fn least_connections_keeps_what_is_open_even() {
    assert_eq!(open_many(&[1], 10), [10]);
    // Of two it is the least, always.
    assert_eq!(open_many(&[1, 1], 1_000), [500, 500]);
    // By chance alone, ten differ by about a hundred here.
    let open = open_many(&[1; 10], 10_000);
    assert!(open.iter().all(|it| it.abs_diff(1_000) <= 8), "{open:?}");
    let open = open_many(&[6, 3, 1], 10_000);
    for (open, wanted) in open.into_iter().zip([6_000_u32, 3_000, 1_000]) {
        assert!(open.abs_diff(wanted) <= wanted / 20, "{open} for {wanted}");
    }
}

#[test]
fn least_connections_looks_at_what_is_open_now() {
    let mut world = one_service((1..=4).map(|host| endpoint(host, true, true)).collect());
    world.services[0].algorithm = Algorithm::LeastConnections;
    let client = pod();
    let maps = Encoded::new(&world, &client);
    maps.open.borrow_mut().extend([(1, 50), (2, 50), (4, 49)]);
    let mut picked = [0; 4];
    for _ in 0..1_000 {
        match decide(&maps, &to_service(), BackendRef::NONE) {
            Decision::Forward(target) => picked[target.backend.id as usize - 1] += 1,
            other => panic!("{other:?}"),
        }
    }
    // Of 12 pairs 6 have the third, 4 more the fourth; 1 and 2 win among themselves.
    let wanted = [83, 83, 500, 333];
    for (picked, wanted) in picked.into_iter().zip(wanted) {
        let picked: i32 = picked;
        assert!(picked.abs_diff(wanted) < 60, "{picked} for {wanted}");
    }
}
