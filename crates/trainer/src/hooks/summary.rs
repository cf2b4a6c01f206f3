//! [`FitSummary`]: the result of a fit, in numbers.

use std::path::PathBuf;
use std::time::Duration;

use fulmen_data::LoaderReport;

use crate::{Goodput, LogPoint, Signal};

/// The result of a fit.
/// ```
/// use fulmen_trainer::FitSummary;
///
/// fn report(fit: &FitSummary) {
///     println!("{} steps, loss {:?}", fit.global_step, fit.train_loss);
///     if let Some(path) = &fit.best_checkpoint {
///         println!("the best checkpoint is {}", path.display());
///     }
///     if let Some(reason) = &fit.stopped {
///         println!("ended early: {reason}");
///     }
/// }
/// # report(&FitSummary::default());
/// ```
#[derive(Clone, Debug, Default)]
pub struct FitSummary {
    /// Finished epochs, including those before a resume.
    pub epochs: u64,
    /// Finished optimizer steps, including those before a resume.
    pub global_step: u64,
    /// The values of the last epoch: means over the epoch, and its validation. If a limit ended the
    /// run within an epoch, they cover the part of the epoch that ran.
    pub last_epoch: Option<LogPoint>,
    /// The mean training loss of the last epoch.
    pub train_loss: Option<f64>,
    /// Why training ended before its last epoch or step, if it did.
    pub stopped: Option<String>,
    /// Whether a signal (Ctrl-C, SIGTERM or SIGHUP) ended training. The last checkpoint may then be
    /// within an epoch; resuming continues there.
    pub interrupted: bool,
    /// The signal, if any.
    pub signal: Option<Signal>,
    /// The best checkpoint by the monitored metric.
    pub best_checkpoint: Option<PathBuf>,
    /// The latest checkpoint.
    pub last_checkpoint: Option<PathBuf>,
    /// How many times the training step was compiled.
    pub train_compilations: u64,
    /// How many times the validation step was compiled.
    pub eval_compilations: u64,
    /// Bytes of the training state on each device of this process: parameters, statistics and the
    /// optimizer's state.
    pub state_bytes: Vec<usize>,
    /// The time from the call of `fit` to the end of its first step.
    pub time_to_first_step: Duration,
    /// The median time between two steps, without the first.
    pub step_time_p50: Duration,
    /// The number of training samples per second, without the first step and validation.
    pub samples_per_second: f64,
    /// The share of the steps' time, from 0 to 1, in which the device waited for a batch, without
    /// the first step. It is an upper bound. If the device had finished all steps when the batch
    /// came, the whole time since the loop asked for the batch counts as waiting.
    pub data_wait_share: f64,
    /// Where the wall time went, including the earlier runs that this one resumes.
    pub goodput: Goodput,
    /// Where the time of the training loader went in this fit, by stage and queue. Each fit
    /// restarts the report of the loader. [`bottleneck`](fulmen_data::LoaderReport::bottleneck)
    /// names the slow stage.
    pub loader: Option<LoaderReport>,
    /// How many training samples could not be read in this fit and were skipped or replaced
    /// ([`OnError`](fulmen_data::OnError)).
    pub bad_samples: u64,
}
