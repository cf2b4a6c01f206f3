//! [`ModelCheckpoint`]: the last state, the best by a metric, or every epoch's.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::Mode;
use super::monitor::monitored;
use crate::LogPoint;
use crate::callback::{Actions, Callback, CheckpointRole, FitStart};

/// Saves the training state after each epoch and each validation within one: `checkpoints/last.safetensors` in the run's folder, and
/// `checkpoints/best.safetensors` when the monitored metric is better than ever before.
///
/// ```
/// use fulmen_trainer::callbacks::{Mode, ModelCheckpoint};
/// let checkpoint = ModelCheckpoint::new().monitor("val_acc", Mode::Max);
/// ```
#[derive(Debug, Default)]
pub struct ModelCheckpoint {
    monitor: Option<(String, Mode)>,
    every_epoch: bool,
    folder: PathBuf,
    best: Option<f64>,
    warned: bool,
}

impl ModelCheckpoint {
    /// Saves the last state only.
    pub fn new() -> ModelCheckpoint {
        ModelCheckpoint::default()
    }

    /// Also saves the state with the best value of a metric.
    pub fn monitor(mut self, metric: impl Into<String>, mode: Mode) -> ModelCheckpoint {
        self.monitor = Some((metric.into(), mode));
        self
    }

    /// Also keeps the state of every epoch, as `epoch=E-step=S.safetensors`.
    pub fn every_epoch(mut self, keep: bool) -> ModelCheckpoint {
        self.every_epoch = keep;
        self
    }

    /// Saves the state if this value of the monitored metric is the best.
    fn judge(&mut self, value: Option<f64>, actions: &mut Actions) {
        let Some((_, mode)) = &self.monitor else { return };
        if let Some(value) = value.filter(|&v| mode.is_better(v, self.best, 0.0)) {
            self.best = Some(value);
            actions.save_checkpoint(self.folder.join("best.safetensors"), CheckpointRole::Best);
        }
    }
}

impl Callback for ModelCheckpoint {
    fn name(&self) -> &'static str {
        "ModelCheckpoint"
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        self.folder = start.run_dir.join("checkpoints");
        self.best = None;
    }

    fn on_validation_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        let value = self.monitor.as_ref().and_then(|(metric, _)| point.get(metric));
        // The end of an epoch may well be without it then.
        self.warned |= value.is_some();
        self.judge(value, actions);
        actions.save_checkpoint(self.folder.join("last.safetensors"), CheckpointRole::Last);
    }

    fn on_train_epoch_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        if let Some((metric, _)) = &self.monitor {
            let value = monitored(point, metric, "ModelCheckpoint", &mut self.warned);
            self.judge(value, actions);
        }
        if self.every_epoch {
            let file = format!("epoch={}-step={}.safetensors", point.epoch, point.global_step);
            actions.save_checkpoint(self.folder.join(file), CheckpointRole::Extra);
        }
        actions.save_checkpoint(self.folder.join("last.safetensors"), CheckpointRole::Last);
    }

    fn state(&self) -> Option<Value> {
        Some(json!({ "best": self.best }))
    }

    fn load_state(&mut self, state: &Value) {
        self.best = state["best"].as_f64();
    }
}
