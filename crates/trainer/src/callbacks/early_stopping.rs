//! [`EarlyStopping`]: ends training when a metric no longer gets better.

use fulmen_loggers::number;
use serde_json::{Value, json};

use super::Mode;
use super::monitor::find;
use crate::callbacks::callback::Callback;
use crate::console::note;
use crate::hooks::FitStart;
use crate::{Actions, LogPoint};

/// Ends the fit when a metric has not become better for some validations: Lightning's `EarlyStopping`, with its rules and
/// defaults.
///
/// ```
/// use fulmen_trainer::callbacks::{EarlyStopping, Mode};
/// let stopping = EarlyStopping::new("val_loss", Mode::Min).patience(3).min_delta(1e-3).divergence_threshold(10.0);
/// ```
#[derive(Debug)]
pub struct EarlyStopping {
    metric: String,
    mode: Mode,
    patience: u64,
    min_delta: f64,
    strict: bool,
    check_finite: bool,
    stopping_threshold: Option<f64>,
    divergence_threshold: Option<f64>,
    best: Option<f64>,
    waited: u64,
    /// The step of the latest value.
    judged: Option<u64>,
    /// The step of the latest validation, and whether there is any.
    validated: Option<u64>,
    validates: bool,
    /// Whether the metric was there, or its absence was told.
    known: bool,
}

impl EarlyStopping {
    /// Watches a metric with a patience of 3.
    pub fn new(metric: impl Into<String>, mode: Mode) -> EarlyStopping {
        EarlyStopping {
            metric: metric.into(),
            mode,
            patience: 3,
            min_delta: 0.0,
            strict: true,
            check_finite: true,
            stopping_threshold: None,
            divergence_threshold: None,
            best: None,
            waited: 0,
            judged: None,
            validated: None,
            validates: false,
            known: false,
        }
    }

    /// How many values in a row may be no better; the last of them ends training. One value comes with each epoch, or with
    /// each validation where validations are more frequent.
    pub fn patience(mut self, values: u64) -> EarlyStopping {
        self.patience = values;
        self
    }

    /// By how much a value must be better to count.
    pub fn min_delta(mut self, delta: f64) -> EarlyStopping {
        self.min_delta = delta;
        self
    }

    /// Whether it is an error (the default) or only a warning if the metric is not there at the end of an epoch that was
    /// validated, or of any in a fit that never validates.
    pub fn strict(mut self, strict: bool) -> EarlyStopping {
        self.strict = strict;
        self
    }

    /// Whether a value that is NaN or infinite ends training; true by default. If not, NaN is never better.
    pub fn check_finite(mut self, check: bool) -> EarlyStopping {
        self.check_finite = check;
        self
    }

    /// Ends training as soon as the metric is better than this.
    pub fn stopping_threshold(mut self, threshold: f64) -> EarlyStopping {
        self.stopping_threshold = Some(threshold);
        self
    }

    /// Ends training as soon as the metric is worse than this.
    pub fn divergence_threshold(mut self, threshold: f64) -> EarlyStopping {
        self.divergence_threshold = Some(threshold);
        self
    }

    /// Takes up a value; gives the reason if training is to end.
    fn judge(&mut self, value: f64) -> Option<String> {
        let (mode, name) = (self.mode, &self.metric);
        if self.check_finite && !value.is_finite() {
            let best = self.best.map_or(String::new(), |best| format!("; its best value was {}", number(best)));
            return Some(format!("{name} is {value}, which is not finite{best}"));
        }
        if let Some(threshold) = self.stopping_threshold.filter(|&t| mode.is_better(value, Some(t), 0.0)) {
            return Some(format!("{name} has reached the stopping_threshold: {value} is better than {threshold}"));
        }
        if let Some(threshold) = self.divergence_threshold.filter(|&t| mode.is_better(t, Some(value), 0.0)) {
            return Some(format!("{name} has passed the divergence_threshold: {value} is worse than {threshold}"));
        }
        if mode.is_better(value, self.best, self.min_delta) {
            (self.best, self.waited) = (Some(value), 0);
            return None;
        }
        self.waited += 1;
        (self.waited >= self.patience).then(|| {
            let best = self.best.map_or(String::new(), |best| format!("; its best value is {}", number(best)));
            format!("{name} has not become better {} times in a row{best}", self.waited)
        })
    }
}

impl Callback for EarlyStopping {
    fn name(&self) -> &'static str {
        "EarlyStopping"
    }

    fn refusal(&self) -> Option<String> {
        if self.patience == 0 {
            return Some("patience must be at least 1, it is 0".into());
        }
        if !self.min_delta.is_finite() || self.min_delta < 0.0 {
            return Some(format!("min_delta must be finite and at least 0, it is {}", self.min_delta));
        }
        let thresholds =
            [("stopping_threshold", self.stopping_threshold), ("divergence_threshold", self.divergence_threshold)];
        if let Some((name, _)) = thresholds.iter().find(|(_, threshold)| threshold.is_some_and(f64::is_nan)) {
            return Some(format!("{name} is NaN, which no value can pass; give a number"));
        }
        if let (Some(stop), Some(diverge)) = (self.stopping_threshold, self.divergence_threshold)
            && !self.mode.is_better(stop, Some(diverge), 0.0)
        {
            return Some(format!(
                "stopping_threshold is {stop} and divergence_threshold {diverge}, so that every value ends training; \
                 stopping_threshold must be the better one"
            ));
        }
        None
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        (self.best, self.waited, self.judged) = (None, 0, None);
        (self.validated, self.validates, self.known) = (None, start.validates, false);
    }

    /// A validation within an epoch counts as one that ends an epoch, if it has the metric.
    fn on_validation_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        if actions.is_fitting() {
            self.validated = Some(point.global_step);
            if point.get(&self.metric).is_some() {
                self.on_train_epoch_end(point, actions);
            }
        }
    }

    fn on_train_epoch_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        if self.judged == Some(point.global_step) {
            return;
        }
        let value = match find(point, &self.metric) {
            Ok(value) => value,
            Err(missing) => {
                // A validation that was not due may well have it.
                let all_is_there = !self.validates || self.validated == Some(point.global_step);
                if all_is_there && !std::mem::replace(&mut self.known, true) {
                    match self.strict {
                        true => actions.fail(format!("EarlyStopping {missing}. With strict(false) it only warns")),
                        false => note(&format!("warning: EarlyStopping {missing}")),
                    }
                }
                return;
            }
        };
        (self.known, self.judged) = (true, Some(point.global_step));
        if let Some(reason) = self.judge(value) {
            actions.stop(reason);
        }
    }

    fn state(&self) -> Option<Value> {
        Some(json!({ "best": self.best.map(f64::to_bits), "waited": self.waited }))
    }

    fn load_state(&mut self, state: &Value) {
        // Files of earlier versions have the number itself.
        self.best = state["best"].as_u64().map(f64::from_bits).or(state["best"].as_f64());
        self.waited = state["waited"].as_u64().unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many values training ends, and why.
    fn ends(mut stopping: EarlyStopping, values: &[f64]) -> Option<(usize, String)> {
        assert_eq!(stopping.refusal(), None);
        values.iter().enumerate().find_map(|(i, &value)| Some((i + 1, stopping.judge(value)?)))
    }

    fn loss() -> EarlyStopping {
        EarlyStopping::new("loss", Mode::Min)
    }

    fn accuracy() -> EarlyStopping {
        EarlyStopping::new("acc", Mode::Max)
    }

    #[test]
    fn patience_counts_values_in_a_row_that_are_no_better() {
        let check =
            |stopping, values: &[f64], at| assert_eq!(ends(stopping, values).map(|end| end.0), at, "{values:?}");
        check(loss(), &[3.0, 2.0, 2.0, 2.0, 2.0], Some(5));
        check(loss(), &[3.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0], None);
        check(loss().patience(1), &[3.0, 3.0], Some(2));
        check(accuracy().patience(2), &[0.1, 0.2, 0.15, 0.2, 0.3], Some(4));
        // Better by less than min_delta is not better, and the best stays what it was.
        check(loss().patience(2).min_delta(0.1), &[1.0, 0.95, 0.91], Some(3));
        check(loss().patience(2).min_delta(0.1), &[1.0, 0.95, 0.89, 0.85], None);
        check(accuracy().patience(1).min_delta(0.1), &[0.5, 0.6], Some(2));
        let reason = ends(loss().patience(1), &[3.0, 3.5]).unwrap().1;
        assert_eq!(reason, "loss has not become better 1 times in a row; its best value is 3.0000");
    }

    #[test]
    fn what_is_not_finite_ends_training_or_is_no_better() {
        let values = [1.0, f64::NAN, f64::INFINITY, 0.5];
        let (at, reason) = ends(loss(), &values).unwrap();
        assert_eq!((at, &*reason), (2, "loss is NaN, which is not finite; its best value was 1.0000"));
        assert_eq!(ends(loss().check_finite(false), &values), None);
        assert_eq!(ends(loss().check_finite(false).patience(2), &values).unwrap().0, 3);
    }

    #[test]
    fn thresholds_end_training_at_once() {
        let reason = |stopping, values: &[f64]| ends(stopping, values).map(|(at, reason)| format!("{at}: {reason}"));
        let reached = reason(loss().stopping_threshold(0.1), &[1.0, 0.1, 0.05]).unwrap();
        assert_eq!(reached, "3: loss has reached the stopping_threshold: 0.05 is better than 0.1");
        let passed = reason(loss().divergence_threshold(10.0), &[1.0, 10.0, 11.0]).unwrap();
        assert_eq!(passed, "3: loss has passed the divergence_threshold: 11 is worse than 10");
        assert!(reason(accuracy().stopping_threshold(0.9), &[0.95]).unwrap().starts_with("1: "));
        assert!(reason(accuracy().divergence_threshold(0.2), &[0.3, 0.1]).unwrap().starts_with("2: "));
    }

    #[test]
    fn what_cannot_be_is_said_by_name() {
        let check = |stopping: EarlyStopping, expected: &str| {
            let refusal = stopping.refusal().unwrap();
            assert!(refusal.starts_with(expected), "{refusal}");
        };
        check(loss().patience(0), "patience must be at least 1, it is 0");
        check(loss().min_delta(-1.0), "min_delta must be finite and at least 0, it is -1");
        check(loss().stopping_threshold(f64::NAN), "stopping_threshold is NaN");
        check(
            loss().stopping_threshold(2.0).divergence_threshold(1.0),
            "stopping_threshold is 2 and divergence_threshold 1",
        );
        assert_eq!(accuracy().stopping_threshold(0.9).divergence_threshold(0.1).refusal(), None);
    }
}
