//! What a fit did, in numbers.

use std::path::PathBuf;
use std::time::Duration;

use crate::LogPoint;

/// What a fit did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FitSummary {
    /// Finished epochs, those before a resume included.
    pub epochs: u64,
    /// Finished optimizer steps, those before a resume included.
    pub global_step: u64,
    /// The values of the last epoch: means over the epoch and its validation.
    pub last_epoch: Option<LogPoint>,
    /// The mean training loss of the last epoch.
    pub train_loss: Option<f64>,
    /// Why training ended before the last epoch, if it did.
    pub stopped: Option<String>,
    /// Whether it was Ctrl-C that ended training. The last checkpoint is then of the middle of an epoch, and resuming
    /// from it continues there.
    pub interrupted: bool,
    /// The best checkpoint by the monitored metric.
    pub best_checkpoint: Option<PathBuf>,
    /// The latest checkpoint.
    pub last_checkpoint: Option<PathBuf>,
    /// How often the training step was compiled.
    pub train_compilations: u64,
    /// How often the validation step was compiled.
    pub eval_compilations: u64,
    /// From the call of `fit` to the end of its first step.
    pub time_to_first_step: Duration,
    /// Median time between two steps, the first not counted.
    pub step_time_p50: Duration,
    /// Samples trained on each second, the first step and validation not counted.
    pub samples_per_second: f64,
}

/// Collects the times of steps.
#[derive(Debug, Default)]
pub(crate) struct StepTimes {
    nanoseconds: Vec<u64>,
}

impl StepTimes {
    pub(crate) fn push(&mut self, time: Duration) {
        self.nanoseconds.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn median(&self) -> Duration {
        let mut sorted = self.nanoseconds.clone();
        sorted.sort_unstable();
        Duration::from_nanos(sorted.get(sorted.len() / 2).copied().unwrap_or(0))
    }

    pub(crate) fn steps_per_second(&self) -> f64 {
        let total: u64 = self.nanoseconds.iter().sum();
        if total == 0 { 0.0 } else { self.nanoseconds.len() as f64 / (total as f64 * 1e-9) }
    }
}
