//! [`EarlyStopping`]: ends training when a metric no longer improves.

use fulmen_durable::messages::quantity;
use fulmen_loggers::number;
use serde_json::{Value, json};

use super::Mode;
use super::monitor::Monitored;
use crate::callbacks::callback::Callback;
use crate::hooks::FitStart;
use crate::{Actions, LogPoint};

/// Ends the fit when a metric has not improved for some validations. This is Lightning's
/// `EarlyStopping`, with its rules and defaults.
///
/// ```
/// use fulmen_trainer::callbacks::{EarlyStopping, Mode};
/// let stopping = EarlyStopping::new("val_loss", Mode::Min).patience(3).min_delta(1e-3).divergence_threshold(10.0);
/// ```
#[derive(Debug)]
#[must_use]
pub struct EarlyStopping {
    metric: Monitored,
    mode: Mode,
    patience: u64,
    min_delta: f64,
    check_finite: bool,
    stopping_threshold: Option<f64>,
    divergence_threshold: Option<f64>,
    best: Option<f64>,
    waited: u64,
    /// The step of the latest value.
    value_step: Option<u64>,
}

impl EarlyStopping {
    /// Watches a metric with a patience of 3.
    pub fn new(metric: impl Into<String>, mode: Mode) -> EarlyStopping {
        EarlyStopping {
            metric: Monitored::new("EarlyStopping", metric),
            mode,
            patience: 3,
            min_delta: 0.0,
            check_finite: true,
            stopping_threshold: None,
            divergence_threshold: None,
            best: None,
            waited: 0,
            value_step: None,
        }
    }

    /// Sets how many values in a row without improvement end training; 3 by default. Each epoch has
    /// one value, or each validation if validations are more frequent.
    pub fn patience(mut self, values: u64) -> EarlyStopping {
        self.patience = values;
        self
    }

    /// Sets by how much a value must be better to count as an improvement; 0 by default.
    pub fn min_delta(mut self, delta: f64) -> EarlyStopping {
        self.min_delta = delta;
        self
    }

    /// Sets whether a missing metric is an error (the default) or only a warning. It is missing if
    /// an epoch ends without it, and no validation has logged it although every validation set has
    /// run.
    pub fn strict(mut self, strict: bool) -> EarlyStopping {
        self.metric.strict = strict;
        self
    }

    /// Sets whether a NaN or infinite value ends training; true by default. If it doesn't, NaN is
    /// never an improvement.
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

    /// Compares a value with the best one. Returns the reason if training must end.
    fn stop_reason(&mut self, value: f64) -> Option<String> {
        let mode = self.mode;
        let name = self.metric.name();
        if self.check_finite && !value.is_finite() {
            let best = self
                .best
                .map_or(String::new(), |best| format!("; its best value was {}", number(best)));
            return Some(format!("{name} is {value}, which is not finite{best}"));
        }
        if let Some(threshold) =
            self.stopping_threshold.filter(|&t| mode.is_better(value, Some(t), 0.0))
        {
            return Some(format!(
                "{name} has reached the stopping_threshold: {value} is better than {threshold}"
            ));
        }
        if let Some(threshold) =
            self.divergence_threshold.filter(|&t| mode.is_better(t, Some(value), 0.0))
        {
            return Some(format!(
                "{name} has passed the divergence_threshold: {value} is worse than {threshold}"
            ));
        }
        if mode.is_better(value, self.best, self.min_delta) {
            (self.best, self.waited) = (Some(value), 0);
            return None;
        }
        self.waited += 1;
        (self.waited >= self.patience).then(|| {
            let best = self
                .best
                .map_or(String::new(), |best| format!("; its best value is {}", number(best)));
            format!("{name} has not improved {} in a row{best}", quantity(self.waited, "time"))
        })
    }

    /// Takes the metric's next value, and ends training if it must end.
    fn compare(&mut self, value: f64, point: &LogPoint, actions: &mut Actions) {
        self.value_step = Some(point.global_step);
        if let Some(reason) = self.stop_reason(value) {
            actions.stop(reason);
        }
    }
}

impl Callback for EarlyStopping {
    fn name(&self) -> &'static str {
        "EarlyStopping"
    }

    fn config_error(&self) -> Option<String> {
        if self.patience == 0 {
            return Some("patience must be at least 1, but it is 0".into());
        }
        if !self.min_delta.is_finite() || self.min_delta < 0.0 {
            return Some(format!(
                "min_delta must be finite and at least 0, but it is {}",
                self.min_delta
            ));
        }
        let thresholds = [
            ("stopping_threshold", self.stopping_threshold),
            ("divergence_threshold", self.divergence_threshold),
        ];
        if let Some((name, _)) =
            thresholds.iter().find(|(_, threshold)| threshold.is_some_and(f64::is_nan))
        {
            return Some(format!("{name} is NaN, which no value can reach; use a number"));
        }
        if let (Some(stop), Some(diverge)) = (self.stopping_threshold, self.divergence_threshold)
            && !self.mode.is_better(stop, Some(diverge), 0.0)
        {
            return Some(format!(
                "stopping_threshold is {stop} and divergence_threshold {diverge}, so every value ends training; \
                 stopping_threshold must be the better one"
            ));
        }
        None
    }

    fn on_fit_start(&mut self, _: &FitStart) {
        (self.best, self.waited, self.value_step) = (None, 0, None);
        self.metric.start_fit();
    }

    /// A validation within an epoch counts like one at the end of an epoch if it has the metric.
    fn on_validation_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        if actions.is_fitting()
            && let Some(value) = self.metric.in_validation(point)
        {
            self.compare(value, point, actions);
        }
    }

    fn on_train_epoch_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        if self.value_step != Some(point.global_step)
            && let Some(value) = self.metric.at_epoch_end(point, actions)
        {
            self.compare(value, point, actions);
        }
    }

    fn state(&self) -> Option<Value> {
        Some(json!({ "best": self.best.map(f64::to_bits), "waited": self.waited }))
    }

    fn load_state(&mut self, state: &Value) {
        // Earlier versions saved the number itself.
        self.best = state["best"].as_u64().map(f64::from_bits).or(state["best"].as_f64());
        self.waited = state["waited"].as_u64().unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of values after which training ends, and the reason.
    fn ends(mut stopping: EarlyStopping, values: &[f64]) -> Option<(usize, String)> {
        assert_eq!(stopping.config_error(), None);
        values
            .iter()
            .enumerate()
            .find_map(|(i, &value)| Some((i + 1, stopping.stop_reason(value)?)))
    }

    fn loss() -> EarlyStopping {
        EarlyStopping::new("loss", Mode::Min)
    }

    fn accuracy() -> EarlyStopping {
        EarlyStopping::new("acc", Mode::Max)
    }

    #[test]
    fn patience_counts_values_in_a_row_without_improvement() {
        let check = |stopping, values: &[f64], expected| {
            assert_eq!(ends(stopping, values).map(|end| end.0), expected, "{values:?}");
        };
        check(loss(), &[3.0, 2.0, 2.0, 2.0, 2.0], Some(5));
        check(loss(), &[3.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0], None);
        check(loss().patience(1), &[3.0, 3.0], Some(2));
        check(accuracy().patience(2), &[0.1, 0.2, 0.15, 0.2, 0.3], Some(4));
        // An improvement by less than min_delta doesn't count, and the best value stays.
        check(loss().patience(2).min_delta(0.1), &[1.0, 0.95, 0.91], Some(3));
        check(loss().patience(2).min_delta(0.1), &[1.0, 0.95, 0.89, 0.85], None);
        check(accuracy().patience(1).min_delta(0.1), &[0.5, 0.6], Some(2));
        let reason = ends(loss().patience(1), &[3.0, 3.5]).unwrap().1;
        assert_eq!(reason, "loss has not improved 1 time in a row; its best value is 3.0000");
    }

    #[test]
    fn a_value_that_is_not_finite_ends_training_or_is_no_improvement() {
        let values = [1.0, f64::NAN, f64::INFINITY, 0.5];
        let (count, reason) = ends(loss(), &values).unwrap();
        assert_eq!(
            (count, &*reason),
            (2, "loss is NaN, which is not finite; its best value was 1.0000")
        );
        assert_eq!(ends(loss().check_finite(false), &values), None);
        assert_eq!(ends(loss().check_finite(false).patience(2), &values).unwrap().0, 3);
    }

    #[test]
    fn thresholds_end_training_at_once() {
        let reason = |stopping, values: &[f64]| {
            ends(stopping, values).map(|(count, reason)| format!("{count}: {reason}"))
        };
        let reached = reason(loss().stopping_threshold(0.1), &[1.0, 0.1, 0.05]).unwrap();
        assert_eq!(reached, "3: loss has reached the stopping_threshold: 0.05 is better than 0.1");
        let passed = reason(loss().divergence_threshold(10.0), &[1.0, 10.0, 11.0]).unwrap();
        assert_eq!(passed, "3: loss has passed the divergence_threshold: 11 is worse than 10");
        assert!(reason(accuracy().stopping_threshold(0.9), &[0.95]).unwrap().starts_with("1: "));
        assert!(
            reason(accuracy().divergence_threshold(0.2), &[0.3, 0.1]).unwrap().starts_with("2: ")
        );
    }

    #[test]
    fn invalid_settings_are_named() {
        let check = |stopping: EarlyStopping, expected: &str| {
            let refusal = stopping.config_error().unwrap();
            assert!(refusal.starts_with(expected), "{refusal}");
        };
        check(loss().patience(0), "patience must be at least 1, but it is 0");
        check(loss().min_delta(-1.0), "min_delta must be finite and at least 0, but it is -1");
        check(loss().stopping_threshold(f64::NAN), "stopping_threshold is NaN");
        check(
            loss().stopping_threshold(2.0).divergence_threshold(1.0),
            "stopping_threshold is 2 and divergence_threshold 1",
        );
        assert_eq!(
            accuracy().stopping_threshold(0.9).divergence_threshold(0.1).config_error(),
            None
        );
    }
}
