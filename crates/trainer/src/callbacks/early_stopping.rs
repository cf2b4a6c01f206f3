//! [`EarlyStopping`]: ends training when a metric no longer gets better.

use serde_json::{Value, json};

use super::Mode;
use super::monitor::monitored;
use crate::callback::{Callback, FitStart};
use crate::{Actions, LogPoint};

/// Ends the fit when a metric has not become better for some epochs.
///
/// ```
/// use fulmen_trainer::callbacks::{EarlyStopping, Mode};
/// let stopping = EarlyStopping::new("val_loss", Mode::Min).patience(3).min_delta(1e-3);
/// ```
#[derive(Debug)]
pub struct EarlyStopping {
    metric: String,
    mode: Mode,
    patience: u64,
    min_delta: f64,
    best: Option<f64>,
    waited: u64,
    /// The step of the latest value.
    judged: u64,
    warned: bool,
}

impl EarlyStopping {
    /// Watches a metric with a patience of 3 epochs.
    pub fn new(metric: impl Into<String>, mode: Mode) -> EarlyStopping {
        EarlyStopping {
            metric: metric.into(),
            mode,
            patience: 3,
            min_delta: 0.0,
            best: None,
            waited: 0,
            judged: 0,
            warned: false,
        }
    }

    /// Epochs without a better value after which training ends.
    pub fn patience(mut self, epochs: u64) -> EarlyStopping {
        self.patience = epochs;
        self
    }

    /// By how much a value must be better to count.
    pub fn min_delta(mut self, delta: f64) -> EarlyStopping {
        self.min_delta = delta;
        self
    }
}

impl Callback for EarlyStopping {
    fn name(&self) -> &'static str {
        "EarlyStopping"
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        (self.best, self.waited, self.judged) = (None, 0, start.global_step);
    }

    /// A validation within an epoch counts as one that ends an epoch, if it has the metric.
    fn on_validation_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        if actions.is_fitting() && point.get(&self.metric).is_some() {
            // The end of an epoch may well be without it then.
            self.warned = true;
            self.on_train_epoch_end(point, actions);
        }
    }

    fn on_train_epoch_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        if self.judged == point.global_step {
            return;
        }
        let Some(value) = monitored(point, &self.metric, "EarlyStopping", &mut self.warned) else { return };
        self.judged = point.global_step;
        if self.mode.is_better(value, self.best, self.min_delta) {
            (self.best, self.waited) = (Some(value), 0);
            return;
        }
        self.waited += 1;
        if self.waited >= self.patience {
            actions.stop(format!("{} has not become better for {} epochs", self.metric, self.waited));
        }
    }

    fn state(&self) -> Option<Value> {
        Some(json!({ "best": self.best, "waited": self.waited }))
    }

    fn load_state(&mut self, state: &Value) {
        self.best = state["best"].as_f64();
        self.waited = state["waited"].as_u64().unwrap_or(0);
    }
}
