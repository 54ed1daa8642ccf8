//! Medians and how far to trust them.

use serde::Serialize;

/// Where a set of samples lies.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) samples: usize,
    pub(crate) p25: f64,
    pub(crate) median: f64,
    pub(crate) p75: f64,
    pub(crate) p99: f64,
    /// The median of the distribution lies between these with 95 % confidence,
    /// whatever the distribution is.
    pub(crate) median_from: f64,
    pub(crate) median_to: f64,
}

impl Spread {
    /// Of at least one sample; of none, all is NaN.
    pub(crate) fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let count = samples.len();
        // The rank of the true median is binomial, with deviation √n / 2.
        let doubt = 0.98 / (count.max(1) as f64).sqrt();
        Self {
            samples: count,
            p25: quantile(&samples, 0.25),
            median: quantile(&samples, 0.5),
            p75: quantile(&samples, 0.75),
            p99: quantile(&samples, 0.99),
            median_from: quantile(&samples, 0.5 - doubt),
            median_to: quantile(&samples, 0.5 + doubt),
        }
    }

    /// One figure that was measured once.
    pub(crate) fn single(value: f64) -> Self {
        Self::of(vec![value])
    }
}

/// Linear between neighbours; the ends of the samples are the ends.
fn quantile(sorted: &[f64], at: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let place = at.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}
