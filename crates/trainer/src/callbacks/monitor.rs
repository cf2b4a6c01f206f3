//! The value of a monitored metric, and whether one value is better than another.

use crate::LogPoint;
use crate::console::note;

/// Whether a metric is better when smaller or when larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Smaller is better, as for a loss.
    Min,
    /// Larger is better, as for an accuracy.
    Max,
}

impl Mode {
    /// Whether `value` is better than `best` by more than `margin`. NaN is never better; any number
    /// is better than none.
    pub(super) fn is_better(self, value: f64, best: Option<f64>, margin: f64) -> bool {
        match (self, best) {
            _ if value.is_nan() => false,
            (_, None) => true,
            (Mode::Min, Some(best)) => value < best - margin,
            (Mode::Max, Some(best)) => value > best + margin,
        }
    }
}

/// The value of a monitored metric at the end of an epoch. If there is no value of that name, it is
/// the value of the training metric over the epoch, `NAME_epoch`.
///
/// # Errors
/// A message that lists the metrics of this point.
pub(super) fn find(point: &LogPoint, metric: &str) -> Result<f64, String> {
    let over_epoch = match metric.split_once('/') {
        Some((name, element)) => format!("{name}_epoch/{element}"),
        None => format!("{metric}_epoch"),
    };
    point.get(metric).or_else(|| point.get(&over_epoch)).ok_or_else(|| {
        let names: Vec<_> = point.columns().into_iter().map(|m| m.0).collect();
        format!(
            "monitors `{metric}`, which this epoch did not log; it logged: {}",
            names.join(", ")
        )
    })
}

/// Like [`find`], but warns once if the metric is missing.
pub(super) fn monitored(
    point: &LogPoint,
    metric: &str,
    callback: &str,
    warned: &mut bool,
) -> Option<f64> {
    let missing = match find(point, metric) {
        Ok(value) => return Some(value),
        Err(missing) => missing,
    };
    if !std::mem::replace(warned, true) {
        note(&format!("warning: {callback} {missing}"));
    }
    None
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
