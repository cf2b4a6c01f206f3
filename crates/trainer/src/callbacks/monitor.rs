//! [`Monitored`]: the metric that a callback watches, and whether one value is better than another.

use crate::console::warning;
use crate::{Actions, LogPoint};

/// Whether a metric is better when smaller or when larger.
///
/// ```
/// use fulmen_trainer::callbacks::{EarlyStopping, Mode, ModelCheckpoint};
///
/// let stopping = EarlyStopping::new("val_loss", Mode::Min);
/// let best = ModelCheckpoint::new().monitor("val_acc", Mode::Max);
/// # let _ = (stopping, best);
/// ```
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

/// A metric that a callback watches. It is missing if no validation logged it, nor the epoch.
#[derive(Debug)]
pub(super) struct Monitored {
    callback: &'static str,
    metric: String,
    /// Whether a missing metric is an error or only a warning.
    pub(super) strict: bool,
    /// Whether it is only a warning as long as no validation has run.
    pub(super) needs_validation: bool,
    /// Whether a validation has run in this fit.
    has_validated: bool,
    /// Whether the metric was found, or its absence was reported.
    known: bool,
    /// The names that validations within the epoch logged.
    validated: Vec<String>,
}

impl Monitored {
    pub(super) fn new(callback: &'static str, metric: impl Into<String>) -> Monitored {
        let metric = metric.into();
        Monitored {
            callback,
            metric,
            strict: true,
            needs_validation: false,
            has_validated: false,
            known: false,
            validated: Vec::new(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.metric
    }

    /// Forgets what an earlier fit logged.
    pub(super) fn start_fit(&mut self) {
        self.known = false;
        self.has_validated = false;
        self.validated.clear();
    }

    /// The metric's value in a validation, if it has the metric.
    pub(super) fn in_validation(&mut self, point: &LogPoint) -> Option<f64> {
        let value = point.get(&self.metric);
        self.has_validated = true;
        self.known |= value.is_some();
        if !self.known {
            self.validated.extend(names(point));
        }
        value
    }

    /// The metric's value at the end of an epoch. If there is no value of that name, it is the
    /// value of the training metric over the epoch, `NAME_epoch`.
    ///
    /// Without a value, the callback fails or warns once, as soon as every validation set has run.
    pub(super) fn at_epoch_end(&mut self, point: &LogPoint, actions: &mut Actions) -> Option<f64> {
        let metric = &self.metric;
        let over_epoch = match metric.split_once('/') {
            Some((name, element)) => format!("{name}_epoch/{element}"),
            None => format!("{metric}_epoch"),
        };
        let value = point.get(metric).or_else(|| point.get(&over_epoch));
        // Before that, a set that is validated less often may log it.
        let is_missing = value.is_none() && !self.known && actions.all_sets_validated();
        self.known |= value.is_some() || is_missing;
        if is_missing {
            let mut logged = names(point);
            for name in self.validated.drain(..) {
                if !logged.contains(&name) {
                    logged.push(name);
                }
            }
            let missing = format!(
                "{} monitors `{metric}`, which this epoch did not log; it logged: {}",
                self.callback,
                logged.join(", ")
            );
            if self.strict && (self.has_validated || !self.needs_validation) {
                actions.fail(format!("{missing}. With strict(false) it only warns"));
            } else {
                warning!("{missing}");
            }
        }
        value
    }
}

/// The names of the numbers of a log point.
fn names(point: &LogPoint) -> Vec<String> {
    point.columns().into_iter().map(|(name, _)| name).collect()
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
