//! Lists to pick from by chance: each backend as often as its weight asks.

/// Entries that a list with weights may have whatever the number of backends: 8 KiB.
const LENGTH_MIN: u64 = 2_048;

/// Entries for each backend, so that shares of many are even enough, too.
const LENGTH_PER_BACKEND: u64 = 64;

/// The longest list with weights, 512 KiB, unless there are more backends.
const LENGTH_MAX: u64 = 131_072;

/// How often each backend stands in the list; with equal weights once.
///
/// Exact while the weights without their common factor fit into the list. Else
/// they are rounded to entries, and nobody with a weight gets less than one.
pub fn repeats(weights: &[u16]) -> Vec<u32> {
    let factor = weights.iter().fold(0, |factor, &it| gcd(factor, it.into()));
    let factor = factor.max(1);
    let sum: u64 = weights.iter().map(|&it| u64::from(it) / factor).sum();
    let per_backends = weights.len() as u64 * LENGTH_PER_BACKEND;
    let length = per_backends.clamp(LENGTH_MIN, LENGTH_MAX);
    let entries = |weight: u16| {
        let weight = u64::from(weight) / factor;
        if sum <= length || weight == 0 {
            return weight;
        }
        ((2 * weight * length + sum) / (2 * sum)).max(1)
    };
    // Below 2^32: no weight is more than the longest list has entries.
    weights.iter().map(|&it| entries(it) as u32).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::WEIGHT_MAX;
    use proptest::prelude::*;
    use proxy_common::{IDS_PER_LINE, limits::LINES_PER_CHUNK};

    #[test]
    fn small_weights_are_exact() {
        for (weights, wanted) in [
            (vec![], vec![]),
            (vec![0, 0], vec![0, 0]),
            (vec![7], vec![1]),
            (vec![1, 1, 1], vec![1, 1, 1]),
            (vec![500, 500], vec![1, 1]),
            (vec![3, 1], vec![3, 1]),
            (vec![90, 0, 10], vec![9, 0, 1]),
            (vec![1000, 1], vec![1000, 1]),
            (vec![1000, 999, 1], vec![1000, 999, 1]),
        ] {
            assert_eq!(repeats(&weights), wanted, "{weights:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_rounded_and_never_to_nothing() {
        assert_eq!(repeats(&[1000, 1000, 999, 1]), [683, 683, 682, 1]);
        let mut weights = vec![1000; 5_000];
        weights.push(1);
        let repeats = repeats(&weights);
        assert_eq!((repeats[0], repeats[5_000]), (26, 1));
    }

    proptest! {
        #[test]
        fn shares_are_weights(weights in prop::collection::vec(0..=WEIGHT_MAX, 1..3_000)) {
            let repeats = repeats(&weights);
            let length: u32 = repeats.iter().sum();
            prop_assert!(length <= LINES_PER_CHUNK * IDS_PER_LINE);
            prop_assert!(u64::from(length) <= LENGTH_MAX + weights.len() as u64);
            let sum: f64 = weights.iter().map(|&it| f64::from(it)).sum();
            for (&weight, &entries) in weights.iter().zip(&repeats) {
                prop_assert_eq!(weight == 0, entries == 0);
                let wanted = f64::from(weight) / sum.max(1.0) * f64::from(length);
                // One for rounding, and one percent for what others were rounded by.
                prop_assert!((f64::from(entries) - wanted).abs() <= 1.0 + wanted * 0.01, "{entries} for {wanted}");
            }
        }
    }
}
