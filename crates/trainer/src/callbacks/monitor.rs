//! Watching one metric for its best value.

/// Whether a metric is better when smaller or when larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Smaller is better, as for a loss.
    Min,
    /// Larger is better, as for an accuracy.
    Max,
}

impl Mode {
    /// Whether `value` is better than `best` by more than `margin`; NaN never is, and any number is better than none.
    pub(super) fn is_better(self, value: f64, best: Option<f64>, margin: f64) -> bool {
        match (self, best) {
            _ if value.is_nan() => false,
            (_, None) => true,
            (Mode::Min, Some(best)) => value < best - margin,
            (Mode::Max, Some(best)) => value > best + margin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_never_better() {
        assert!(!Mode::Min.is_better(f64::NAN, None, 0.0));
        assert!(Mode::Min.is_better(1.0, None, 0.0));
        assert!(Mode::Max.is_better(0.9, Some(0.8), 0.05));
        assert!(!Mode::Max.is_better(0.9, Some(0.88), 0.05));
    }
}
