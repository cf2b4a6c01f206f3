//! [`Callback`]: code that runs at the turns of a training run. It sees values that have arrived on the host, and
//! never a device buffer; it cannot make the device wait or cause a compilation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value as Json;

use crate::{Error, FitSummary, LogPoint, Plan, StepPart, Strategy};

/// What is known when a fit starts.
#[derive(Clone, Debug)]
pub struct FitStart {
    /// The folder of this run, for files; there even if checkpoints are off.
    pub run_dir: PathBuf,
    /// How long training is going to be.
    pub plan: Plan,
    /// Finished epochs: more than 0 when training resumes.
    pub epoch: u64,
    /// The platform's name: `cpu`, `cuda`, `tpu`.
    pub platform: String,
    /// The ids of the devices taking part.
    pub devices: Vec<i32>,
    /// The processes that feed them.
    pub processes: usize,
    /// What the optimizer's learning rate is multiplied by, for the number of devices; 1 unless asked for.
    pub learning_rate_factor: f64,
    /// The devices as a grid, such as `data=8`.
    pub mesh: String,
    /// How training is spread over them.
    pub strategy: Strategy,
    /// Rows of a step's batch, over all devices.
    pub batch_size: usize,
    /// Rows of it that each device gets.
    pub per_device_batch_size: usize,
    /// The element types that the model is kept and computed in.
    pub precision: String,
    /// How exactly products of f32 numbers are computed.
    pub matmul_precision: String,
    /// Elements of all parameters.
    pub num_parameters: usize,
    /// The name under which the training loss is logged.
    pub loss: String,
}

/// Where training stands; no value of the device is part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The running epoch, counted from 0.
    pub epoch: u64,
    /// Batches of this epoch that were handed to the device.
    pub batch: u64,
    /// Batches of an epoch.
    pub batches: u64,
    /// Optimizer steps that were handed to the device, in all.
    pub global_step: u64,
}

/// Which role a checkpoint has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointRole {
    /// The latest state.
    Last,
    /// The best by the monitored metric.
    Best,
    /// Neither: one more copy.
    Extra,
}

/// What a callback asks the Trainer to do.
#[derive(Debug)]
pub struct Actions {
    pub(crate) saves: Vec<(PathBuf, CheckpointRole)>,
    pub(crate) stop: Option<String>,
    pub(crate) learning_rate: f64,
    factor: f64,
    pub(crate) new_learning_rate_factor: Option<f64>,
}

impl Actions {
    /// After a step with this learning rate, of which the factor is a part.
    pub(crate) fn new(learning_rate: f64, factor: f64) -> Actions {
        Actions { saves: vec![], stop: None, learning_rate, factor, new_learning_rate_factor: None }
    }

    /// Save the training state to this file. Several files of one turn are written from one read of the device.
    pub fn save_checkpoint(&mut self, path: impl AsRef<Path>, role: CheckpointRole) {
        self.saves.push((path.as_ref().into(), role));
    }

    /// The learning rate of the latest step, as it is logged.
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    /// What the learning rate of the steps to come is multiplied by: 1 until a callback sets another factor. A callback
    /// sees what those before it have set in the same turn.
    pub fn learning_rate_factor(&self) -> f64 {
        self.new_learning_rate_factor.unwrap_or(self.factor)
    }

    /// The learning rate of the latest step with the factor of the steps to come.
    pub(crate) fn next_learning_rate(&self) -> f64 {
        match self.new_learning_rate_factor {
            Some(new) if self.factor != 0.0 => self.learning_rate * (new / self.factor),
            _ => self.learning_rate,
        }
    }

    /// Multiply the learning rate of the steps to come by this instead of the factor before. One of several callbacks that
    /// change the rate multiplies [`Actions::learning_rate_factor`]. The step takes the factor as an input, so that nothing
    /// is compiled anew. Only for a callback that [says so](Callback::changes_learning_rate).
    pub fn set_learning_rate_factor(&mut self, factor: f64) {
        self.new_learning_rate_factor = Some(factor);
    }

    /// End the fit here, or as soon as `min_epochs` and `min_steps` let it; the reason is shown.
    pub fn stop(&mut self, reason: impl Into<String>) {
        self.stop.get_or_insert(reason.into());
    }
}

/// Code that runs at the turns of a training run. All methods have a default that does nothing.
pub trait Callback: Send {
    /// The name that the callback's state has in checkpoints, and that messages use.
    fn name(&self) -> &'static str;

    /// Why what it was told makes no sense, if it does not; a Trainer is not built with such a callback.
    fn refusal(&self) -> Option<String> {
        None
    }

    /// Whether it calls [`Actions::set_learning_rate_factor`]; the compiled step then takes the factor from the host.
    fn changes_learning_rate(&self) -> bool {
        false
    }

    /// What the compiled step does for it, if anything. A Trainer has one callback for each kind of part.
    fn step_part(&self) -> Option<StepPart> {
        None
    }

    /// Before the first step. A Trainer can fit more than once: what an earlier fit left is to be forgotten here.
    fn on_fit_start(&mut self, start: &FitStart) {
        let _ = start;
    }

    /// Before a program is compiled, which may take minutes; not for one that was compiled before. `program` names it, such
    /// as `training step`. Those of a fit are compiled before its first step; those of a validation, test or prediction,
    /// before its first batch.
    fn on_compile_start(&mut self, program: &str) {
        let _ = program;
    }

    /// After a program was compiled; without a time if that failed.
    fn on_compile_end(&mut self, program: &str, time: Option<Duration>) {
        let _ = (program, time);
    }

    /// After a step was handed to the device; it may not have run yet.
    fn on_train_batch_end(&mut self, progress: &Progress) {
        let _ = progress;
    }

    /// When the values of a log point have arrived, some steps after they were taken.
    fn on_log(&mut self, point: &LogPoint) {
        let _ = point;
    }

    /// After a validation within an epoch (`val_check_interval`). The values of one that ends an epoch are in the point of
    /// [`on_train_epoch_end`](Callback::on_train_epoch_end). What it saves can be resumed in the middle of the epoch.
    fn on_validation_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        let _ = (point, actions);
    }

    /// After an epoch and the validation that belongs to it.
    fn on_train_epoch_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        let _ = (point, actions);
    }

    /// After the last epoch.
    fn on_fit_end(&mut self, summary: &FitSummary) {
        let _ = summary;
    }

    /// When a fit fails.
    fn on_exception(&mut self, error: &Error) {
        let _ = error;
    }

    /// What of this callback belongs in a checkpoint.
    fn state(&self) -> Option<Json> {
        None
    }

    /// Takes up what [`Callback::state`] gave before, when a fit resumes; after [`Callback::on_fit_start`].
    fn load_state(&mut self, state: &Json) {
        let _ = state;
    }
}

/// The callbacks with names that tell two of a kind apart: `Name`, `Name#2`, …
pub(crate) fn numbered(callbacks: &mut [Box<dyn Callback>]) -> impl Iterator<Item = (String, &mut Box<dyn Callback>)> {
    let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
    callbacks.iter_mut().map(move |callback| {
        let name = callback.name();
        let count = seen.entry(name).or_default();
        *count += 1;
        (if *count == 1 { name.to_owned() } else { format!("{name}#{count}") }, callback)
    })
}
