//! [`ReduceLROnPlateau`]: reduces the learning rate when a metric no longer improves.

use serde_json::{Value, json};

use super::Mode;
use super::monitor::Monitored;
use crate::callbacks::callback::Callback;
use crate::hooks::FitStart;
use crate::{Actions, LogPoint};

/// How [`ReduceLROnPlateau::threshold`] is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThresholdMode {
    /// Relative to the best value.
    #[default]
    Rel,
    /// As an absolute difference.
    Abs,
}

/// Multiplies the learning rate by a factor when a metric has not improved for some epochs. This is
/// PyTorch's `ReduceLROnPlateau`, with its rules and defaults.
///
/// The factor is an input of the compiled step, so changing it compiles nothing. It multiplies the
/// rate of the optimizer's schedule in all parameter groups, and combines with the factors of other
/// callbacks. `min_lr` limits the logged rate.
///
/// ```
/// use fulmen_trainer::callbacks::{Mode, ReduceLROnPlateau};
/// let plateau = ReduceLROnPlateau::new("val_loss", Mode::Min).factor(0.5).patience(3).min_lr(1e-5);
/// ```
#[derive(Debug)]
#[must_use]
pub struct ReduceLROnPlateau {
    metric: Monitored,
    mode: Mode,
    factor: f64,
    patience: u64,
    threshold: f64,
    threshold_mode: ThresholdMode,
    cooldown: u64,
    min_lr: f64,
    eps: f64,
    best: Option<f64>,
    bad_epochs: u64,
    cooling: u64,
}

impl ReduceLROnPlateau {
    /// Watches a metric. After more than 10 epochs without an improvement by a ten-thousandth, it
    /// divides the learning rate by ten.
    pub fn new(metric: impl Into<String>, mode: Mode) -> ReduceLROnPlateau {
        ReduceLROnPlateau {
            metric: Monitored::new("ReduceLROnPlateau", metric),
            mode,
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            threshold_mode: ThresholdMode::Rel,
            cooldown: 0,
            min_lr: 0.0,
            eps: 1e-8,
            best: None,
            bad_epochs: 0,
            cooling: 0,
        }
    }

    /// Sets the factor that multiplies the rate, at least 0 and below 1; 0.1 by default.
    pub fn factor(mut self, factor: f64) -> ReduceLROnPlateau {
        self.factor = factor;
        self
    }

    /// Sets how many epochs without improvement are tolerated; 10 by default.
    pub fn patience(mut self, epochs: u64) -> ReduceLROnPlateau {
        self.patience = epochs;
        self
    }

    /// Sets by how much a value must be better to count as an improvement; by default 1e-4 of the
    /// best value.
    pub fn threshold(mut self, threshold: f64, mode: ThresholdMode) -> ReduceLROnPlateau {
        (self.threshold, self.threshold_mode) = (threshold, mode);
        self
    }

    /// Sets how many epochs after a reduction don't count; 0 by default.
    pub fn cooldown(mut self, epochs: u64) -> ReduceLROnPlateau {
        self.cooldown = epochs;
        self
    }

    /// Sets the smallest rate; 0 by default.
    pub fn min_lr(mut self, min_lr: f64) -> ReduceLROnPlateau {
        self.min_lr = min_lr;
        self
    }

    /// Sets the smallest change of the rate: a reduction by `eps` or less is not made. 1e-8 by
    /// default.
    pub fn eps(mut self, eps: f64) -> ReduceLROnPlateau {
        self.eps = eps;
        self
    }

    /// Sets whether it is an error (the default) or only a warning if an epoch ends without the
    /// metric after every validation set has run.
    pub fn strict(mut self, strict: bool) -> ReduceLROnPlateau {
        self.metric.strict = strict;
        self
    }

    fn is_better(&self, value: f64) -> bool {
        let Some(best) = self.best else { return !value.is_nan() };
        match (self.mode, self.threshold_mode) {
            (Mode::Min, ThresholdMode::Rel) => value < best * (1.0 - self.threshold),
            (Mode::Min, ThresholdMode::Abs) => value < best - self.threshold,
            (Mode::Max, ThresholdMode::Rel) => value > best * (1.0 + self.threshold),
            (Mode::Max, ThresholdMode::Abs) => value > best + self.threshold,
        }
    }

    /// Takes the metric's next value. Returns the factor for the current `rate` if the rate must
    /// change.
    fn reduction(&mut self, value: f64, rate: f64) -> Option<f64> {
        if self.is_better(value) {
            (self.best, self.bad_epochs) = (Some(value), 0);
        } else {
            self.bad_epochs += 1;
        }
        if self.cooling > 0 {
            self.cooling -= 1;
            self.bad_epochs = 0;
        }
        if self.bad_epochs <= self.patience {
            return None;
        }
        (self.cooling, self.bad_epochs) = (self.cooldown, 0);
        let next = (rate * self.factor).max(self.min_lr);
        if rate - next <= self.eps {
            return None;
        }
        // `rate` is rounded to f32, so use it only if needed.
        Some(if next > self.min_lr { self.factor } else { next / rate })
    }
}

impl Callback for ReduceLROnPlateau {
    fn name(&self) -> &'static str {
        "ReduceLROnPlateau"
    }

    fn config_error(&self) -> Option<String> {
        if !(0.0..1.0).contains(&self.factor) {
            return Some(format!(
                "the factor must be at least 0 and below 1, but it is {}",
                self.factor
            ));
        }
        let numbers = [("threshold", self.threshold), ("min_lr", self.min_lr), ("eps", self.eps)];
        let (name, value) = numbers.iter().find(|(_, value)| value.is_nan() || *value < 0.0)?;
        Some(format!("{name} must be at least 0, but it is {value}"))
    }

    fn changes_learning_rate(&self) -> bool {
        true
    }

    fn on_fit_start(&mut self, _: &FitStart) {
        (self.best, self.bad_epochs, self.cooling) = (None, 0, 0);
        self.metric.start_fit();
    }

    fn on_train_epoch_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        let Some(value) = self.metric.at_epoch_end(point, actions) else { return };
        if let Some(factor) = self.reduction(value, actions.next_learning_rate()) {
            actions.set_learning_rate_factor(actions.learning_rate_factor() * factor);
        }
    }

    fn state(&self) -> Option<Value> {
        Some(json!({
            "best": self.best.map(f64::to_bits),
            "bad_epochs": self.bad_epochs,
            "cooling": self.cooling,
        }))
    }

    fn load_state(&mut self, state: &Value) {
        self.best = state["best"].as_u64().map(f64::from_bits);
        self.bad_epochs = state["bad_epochs"].as_u64().unwrap_or(0);
        self.cooling = state["cooling"].as_u64().unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rates_are_pytorchs() {
        let text = include_str!("../../../nn/tests/reference/plateau.json");
        let document: Value = serde_json::from_str(text).unwrap();
        let cases = document["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 9);
        for case in cases {
            let attrs = &case["attrs"];
            let numbers = |name: &str| {
                let list = case[name].as_array().unwrap();
                list.iter().map(|n| n.as_f64().unwrap()).collect::<Vec<f64>>()
            };
            let mode = if attrs["mode"] == "max" { Mode::Max } else { Mode::Min };
            let threshold_mode = if attrs["threshold_mode"] == "abs" {
                ThresholdMode::Abs
            } else {
                ThresholdMode::Rel
            };
            let mut plateau = ReduceLROnPlateau::new("m", mode)
                .factor(attrs["factor"].as_f64().unwrap_or(0.1))
                .patience(attrs["patience"].as_u64().unwrap_or(10))
                .threshold(attrs["threshold"].as_f64().unwrap_or(1e-4), threshold_mode)
                .cooldown(attrs["cooldown"].as_u64().unwrap_or(0))
                .min_lr(attrs["min_lr"].as_f64().unwrap_or(0.0))
                .eps(attrs["eps"].as_f64().unwrap_or(1e-8));
            assert_eq!(plateau.config_error(), None);
            let mut rate = 0.1f32;
            let mut scale = 1.0;
            let metrics = numbers("metrics");
            let expected = numbers("lr");
            assert!(expected.iter().any(|&lr| lr < 0.1), "{case}");
            for (epoch, (&metric, &expected)) in metrics.iter().zip(&expected).enumerate() {
                if let Some(factor) = plateau.reduction(metric, f64::from(rate)) {
                    scale *= factor;
                    rate = 0.1f32 * scale as f32;
                }
                let deviation = (f64::from(rate) / expected - 1.0).abs();
                assert!(
                    deviation < 1e-6,
                    "{} epoch {epoch}: {rate} is not {expected}",
                    case["name"]
                );
            }
        }
    }
}
