//! Medians with their spread.

use serde::{Deserialize, Serialize};

/// The median of several measurements, and its quartiles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) count: usize,
}

impl Spread {
    /// `None` if there are no values, or if one of them is NaN.
    pub(crate) fn new(values: &[f64]) -> Option<Spread> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        if sorted.is_empty() || sorted.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let [low, median, high] = [0.25, 0.5, 0.75].map(|share| quantile(&sorted, share));
        Some(Spread { median, low, high, count: sorted.len() })
    }
}

/// Interpolates linearly between two values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = share * (sorted.len() - 1) as f64;
    let below = sorted[rank.floor() as usize];
    let above = sorted[rank.ceil() as usize];
    below + (above - below) * rank.fract()
}

/// The median; NaN if there are no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    Spread::new(values).map_or(f64::NAN, |spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quartiles_surround_the_median() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        let spread = Spread::new(&[5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!(spread, Spread { median: 3.0, low: 2.0, high: 4.0, count: 5 });
        assert_eq!(Spread::new(&[1.0, f64::NAN]), None);
    }
}
