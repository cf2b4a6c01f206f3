//! [`FitSummary`]: what a fit did, in numbers.

use std::path::PathBuf;
use std::time::Duration;

use fulmen_data::LoaderReport;

use crate::{Goodput, LogPoint, Signal};

/// What a fit did.
#[derive(Clone, Debug, Default)]
pub struct FitSummary {
    /// Finished epochs, those before a resume included.
    pub epochs: u64,
    /// Finished optimizer steps, those before a resume included.
    pub global_step: u64,
    /// The values of the last epoch: means over the epoch and its validation. Where a limit has ended the run within an epoch
    /// they are those of the epoch so far.
    pub last_epoch: Option<LogPoint>,
    /// The mean training loss of the last epoch.
    pub train_loss: Option<f64>,
    /// Why training ended before its last epoch or step, if it did.
    pub stopped: Option<String>,
    /// Whether a signal ended training: Ctrl-C, SIGTERM or SIGHUP. The last checkpoint is then of the middle of an epoch,
    /// and resuming from it continues there.
    pub interrupted: bool,
    /// Which signal it was.
    pub signal: Option<Signal>,
    /// The best checkpoint by the monitored metric.
    pub best_checkpoint: Option<PathBuf>,
    /// The latest checkpoint.
    pub last_checkpoint: Option<PathBuf>,
    /// How often the training step was compiled.
    pub train_compilations: u64,
    /// How often the validation step was compiled.
    pub eval_compilations: u64,
    /// Bytes of the training state in the memory of each device of this process: parameters, statistics, what the optimizer
    /// remembers.
    pub state_bytes: Vec<usize>,
    /// From the call of `fit` to the end of its first step.
    pub time_to_first_step: Duration,
    /// Median time between two steps, the first not counted.
    pub step_time_p50: Duration,
    /// Samples trained on each second, the first step and validation not counted.
    pub samples_per_second: f64,
    /// The share of the steps' time, from 0 to 1, in which the device had nothing to do because no batch was there; the
    /// first step not counted. At most: a wait counts from where the loop asked for the batch, if the device was done
    /// with all steps when it came.
    pub data_wait_share: f64,
    /// Where the wall time went, that of the runs included that this one goes on with.
    pub goodput: Goodput,
    /// Where the time of the training loader went in this fit, by its stages and queues; the report of the loader itself
    /// restarts with each fit. Its
    /// [verdict](fulmen_data::LoaderReport::bottleneck) names what is slow.
    pub loader: Option<LoaderReport>,
    /// How often a training sample could not be read in this fit and was skipped or replaced
    /// ([`OnError`](fulmen_data::OnError)).
    pub bad_samples: u64,
}
