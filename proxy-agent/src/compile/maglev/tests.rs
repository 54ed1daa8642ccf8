//! The properties that the paper promises, and the table beside another's.

use super::*;
use proptest::prelude::*;
use proxy_common::Address;
use std::collections::BTreeMap;
use std::net::IpAddr;

const SEED: u32 = 7;

fn member(number: u32) -> Member {
    let [_, a, b, c] = number.to_be_bytes();
    Member {
        key: (Address::from(IpAddr::from([10, a, b, c])), 8080),
        weight: 1,
    }
}

fn members(count: u32) -> Vec<Member> {
    (1..=count).map(member).collect()
}

/// The table with the backends themselves in the slots.
fn keys(members: &[Member], seed: u32, size: u32) -> Vec<BackendKey> {
    let slots = table(members, seed, size);
    slots.iter().map(|&it| members[it as usize].key).collect()
}

fn slots_of<T: Ord + Copy>(table: &[T]) -> BTreeMap<T, usize> {
    let mut slots = BTreeMap::new();
    for it in table {
        *slots.entry(*it).or_default() += 1;
    }
    slots
}

fn moved<T: PartialEq>(a: &[T], b: &[T]) -> f64 {
    let moved = a.iter().zip(b).filter(|(a, b)| a != b).count();
    moved as f64 / a.len() as f64
}

/// An agent of another version on the next node has to agree. The numbers were
/// computed apart, with the SipHash of OpenSSL.
#[test]
fn the_tables_of_all_versions_and_machines_are_the_same() {
    let seed = seed("fairlead");
    assert_eq!(seed, 2_903_503_322);
    let first = [2, 1, 1, 2, 2, 2, 2, 0, 1, 1, 2, 2, 0, 1, 2, 2];
    assert_eq!(table(&members(3), seed, 251)[..16], first);
}

#[test]
fn each_number_of_backends_has_one_size() {
    let rows = [
        (0, 0),
        (1, 251),
        (2, 2_039),
        (10, 2_039),
        (11, 16_381),
        (81, 16_381),
        (82, 131_071),
        (655, 131_071),
        (1_311, 131_071),
        (100_000, 131_071),
    ];
    for (members, wanted) in rows {
        assert_eq!(size(members), wanted, "{members}");
    }
}

#[test]
fn sizes_are_primes() {
    for size in SIZES {
        let divisor = (2..size)
            .take_while(|it| it * it <= size)
            .find(|it| size % it == 0);
        assert_eq!(divisor, None, "{size}");
    }
}

#[test]
fn no_backend_and_no_weight_make_an_empty_table() {
    assert!(table(&[], SEED, 251).is_empty());
    let idle = Member {
        weight: 0,
        ..member(1)
    };
    assert!(table(&[idle], SEED, 251).is_empty());
    assert_eq!(
        keys(&[idle, member(2)], SEED, 251),
        vec![member(2).key; 251]
    );
}

#[test]
fn weights_are_shares() {
    let mut all = members(10);
    all[3].weight = 5;
    all[4].weight = 0;
    for it in &mut all {
        it.weight *= 2;
    }
    all[5].weight = 1;
    let slots = slots_of(&table(&all, SEED, 2_039));
    let parts: u32 = all.iter().map(|it| it.weight).sum();
    for (index, it) in all.iter().enumerate() {
        let wanted = f64::from(2_039 * it.weight) / f64::from(parts);
        let got = *slots.get(&(index as u32)).unwrap_or(&0) as f64;
        assert!((got - wanted).abs() <= 2.0, "{index}: {got} for {wanted}");
    }
}

/// What moves beyond the slots of the one that goes; the same moves when it comes.
fn moved_in_vain(all: &[Member], gone: usize, seed: u32) -> f64 {
    let size = size(all.len());
    let mut left = all.to_vec();
    left.remove(gone);
    moved(&keys(all, seed, size), &keys(&left, seed, size)) - 1.0 / all.len() as f64
}

/// Of a few seeds, since a single one may hit two backends whose walks meet.
#[test]
fn at_every_number_of_backends_one_that_goes_or_comes_moves_two_percent_of_the_others() {
    for count in (2..=24).chain([40, 81, 82, 164, 400, 655, 1_000, 1_310]) {
        let all = members(count);
        let seeds = match count {
            ..=10 => 60,
            11..=81 => 6,
            _ => 2,
        };
        let moved: Vec<f64> = (0..seeds)
            .map(|seed| moved_in_vain(&all, (seed % count) as usize, seed))
            .collect();
        let mean = moved.iter().sum::<f64>() / moved.len() as f64;
        assert!(mean <= 0.02, "{count}: {mean}");
    }
}

/// The other implementation's table cannot be seen: many keys are asked for.
struct Other(maglev::Maglev<BackendKey>);

impl Other {
    fn of(members: &[Member], size: u32) -> Self {
        let keys: Vec<BackendKey> = members.iter().map(|it| it.key).collect();
        Self(maglev::Maglev::with_capacity(keys, size as usize))
    }

    fn picks(&self) -> Vec<BackendKey> {
        use maglev::ConsistentHasher;
        (0_u32..100_000)
            .map(|client| *self.0.get(&client).unwrap())
            .collect()
    }
}

/// What clients of our table get, of as many.
fn picks(members: &[Member], size: u32) -> Vec<BackendKey> {
    let table = keys(members, SEED, size);
    (0_u32..100_000)
        .map(|client| {
            let hash = SipHasher24::new_with_keys(1, 2).hash(&client.to_be_bytes());
            table[(hash.h1 % u64::from(size)) as usize]
        })
        .collect()
}

/// Shares and moves of the crate `maglev`, beside ours.
#[test]
fn another_implementation_behaves_alike() {
    let all = members(16);
    let size = size(all.len());
    for gone in 0..all.len() {
        let mut left = all.clone();
        left.remove(gone);
        let ours = [picks(&all, size), picks(&left, size)];
        let other = [
            Other::of(&all, size).picks(),
            Other::of(&left, size).picks(),
        ];
        for [before, after] in [&ours, &other] {
            for (table, count) in [(before, 16.0), (after, 15.0)] {
                let fair = 100_000.0 / count;
                for (key, slots) in slots_of(table) {
                    let share = slots as f64 / fair;
                    assert!((0.93..1.07).contains(&share), "{key:?} has {share}");
                }
            }
            let moved = moved(before, after);
            assert!((0.055..1.0 / 16.0 + 0.025).contains(&moved), "{moved}");
        }
    }
}

fn any_members() -> impl Strategy<Value = Vec<Member>> {
    let key = (any::<u32>(), any::<bool>(), 1_u16..4);
    proptest::collection::btree_set(key, 1..60).prop_map(|keys| {
        let member = |(number, v6, port): (u32, bool, u16)| {
            let address = if v6 {
                IpAddr::from((0xfd00_u128 << 112 | u128::from(number)).to_be_bytes())
            } else {
                IpAddr::from(number.to_be_bytes())
            };
            Member {
                key: (address.into(), port),
                weight: 1,
            }
        };
        keys.into_iter().map(member).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_order_in_which_backends_were_learnt_does_not_matter(
        (sorted, shuffled) in any_members().prop_flat_map(|it| (Just(it.clone()), Just(it).prop_shuffle())),
        seed in any::<u32>(),
    ) {
        let size = size(sorted.len());
        prop_assert_eq!(keys(&sorted, seed, size), keys(&shuffled, seed, size));
    }

    #[test]
    fn every_slot_is_taken_and_shares_differ_by_one_at_most(all in any_members(), seed in any::<u32>()) {
        let slots = slots_of(&table(&all, seed, size(all.len())));
        prop_assert_eq!(slots.len(), all.len());
        let (least, most) = (slots.values().min().unwrap(), slots.values().max().unwrap());
        prop_assert!(most - least <= 1, "{least} to {most}");
    }

    #[test]
    fn another_seed_makes_another_table(all in any_members(), seed in any::<u32>()) {
        prop_assume!(all.len() > 1);
        let size = size(all.len());
        prop_assert_ne!(keys(&all, seed, size), keys(&all, seed.wrapping_add(1), size));
    }
}

/// Backends whose weights differ a lot.
fn weighted_members() -> impl Strategy<Value = Vec<Member>> {
    let weight = prop_oneof![1_u32..10, 1_u32..=1_000];
    any_members().prop_flat_map(move |members| {
        let weights = proptest::collection::vec(weight.clone(), members.len());
        (Just(members), weights).prop_map(|(mut members, weights)| {
            for (member, weight) in members.iter_mut().zip(weights) {
                member.weight = weight;
            }
            members
        })
    })
}

fn sum_of(members: &[Member]) -> f64 {
    members.iter().map(|it| f64::from(it.weight)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn with_weights_neither_order_nor_scale_matters(
        (sorted, shuffled) in weighted_members().prop_flat_map(|it| (Just(it.clone()), Just(it).prop_shuffle())),
        seed in any::<u32>(),
        scale in 1_u32..50,
    ) {
        let size = size(sorted.len());
        let mut scaled = shuffled;
        for member in &mut scaled {
            member.weight *= scale;
        }
        prop_assert_eq!(keys(&sorted, seed, size), keys(&scaled, seed, size));
    }

    /// One slot for the first turn, which weights do not ask for, and what others
    /// got by theirs.
    #[test]
    fn slots_are_weights(all in weighted_members(), seed in any::<u32>()) {
        let size = size(all.len());
        let slots = slots_of(&table(&all, seed, size));
        prop_assert_eq!(slots.len(), all.len(), "everybody has some");
        for (index, it) in (0..).zip(&all) {
            let wanted = f64::from(size) * f64::from(it.weight) / sum_of(&all);
            let got = slots[&index] as f64;
            prop_assert!((got - wanted).abs() <= 1.0 + wanted * 0.02, "{got} for {wanted}");
        }
    }
}

/// On average, as with equal weights: the worst of many is no bound.
#[test]
fn a_weighted_backend_that_goes_moves_its_share_and_two_percent_of_the_others() {
    let weights = [1, 100, 5, 1_000, 20, 7, 300, 50, 2, 600];
    for count in [2, 3, 5, 8, 13, 40, 100, 200] {
        let mut all = members(count);
        for (member, weight) in all.iter_mut().zip(weights.iter().cycle()) {
            member.weight = *weight;
        }
        let moved: Vec<f64> = (0..40_u32)
            .map(|round| {
                let gone = (round % count) as usize;
                let mut left = all.clone();
                let share = f64::from(left.remove(gone).weight) / sum_of(&all);
                let size = size(all.len());
                moved(&keys(&all, round, size), &keys(&left, round, size)) - share
            })
            .collect();
        let mean = moved.iter().sum::<f64>() / moved.len() as f64;
        assert!(mean <= 0.02, "{count}: {mean} of {moved:?}");
    }
}
