//! The hooks that callbacks and modules share, and the values that each hook receives.

pub(crate) mod actions;
pub(crate) mod summary;

use std::path::PathBuf;

use crate::{Plan, Predicted, Strategy};

/// The facts that are known when a fit starts.
///
/// ```
/// use fulmen_trainer::{Callback, FitStart};
///
/// /// Prints where a fit starts, and where its files are.
/// struct Announce;
///
/// impl Callback for Announce {
///     fn name(&self) -> &'static str {
///         "announce"
///     }
///
///     fn on_fit_start(&mut self, start: &FitStart) {
///         println!("step {} on {}, files in {:?}", start.global_step, start.platform, start.run_dir);
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct FitStart {
    /// The folder of this run, even with checkpoints off. `None` with `fast_dev_run` and
    /// `barebones`.
    pub run_dir: Option<PathBuf>,
    /// The folder of the run's checkpoints.
    pub checkpoint_dir: Option<PathBuf>,
    /// How long the training will be.
    pub plan: Plan,
    /// Finished epochs. More than 0 if training resumes.
    pub epoch: u64,
    /// Finished optimizer steps. More than 0 if training resumes.
    pub global_step: u64,
    /// Whether training can resume from a checkpoint within an epoch. It cannot if the loader is
    /// not ordered.
    pub resumes_within_epoch: bool,
    /// The platform's name: `cpu`, `cuda`, `tpu`.
    pub platform: String,
    /// The ids of the devices used.
    pub devices: Vec<i32>,
    /// The number of processes.
    pub processes: usize,
    /// The factor on the optimizer's learning rate that scales it with the number of devices. 1
    /// unless scaling is on.
    pub learning_rate_factor: f64,
    /// The devices as a grid, such as `data=8`.
    pub mesh: String,
    /// How training is spread over the devices.
    pub strategy: Strategy,
    /// Rows of a step's batch, on all devices together.
    pub batch_size: usize,
    /// Rows of a step's batch on each device.
    pub per_device_batch_size: usize,
    /// Elements of a batch's field `input_ids`, on all devices together. `None` without such a
    /// field, or with buckets.
    pub tokens_per_batch: Option<u64>,
    /// The element types of the model's parameters and computations.
    pub precision: String,
    /// The precision of products of f32 numbers.
    pub matmul_precision: String,
    /// The number of elements of all parameters.
    pub num_parameters: usize,
    /// The name of the logged training loss.
    pub loss: String,
    /// Whether the fit validates.
    pub validates: bool,
}

/// The progress of training. Reading it never waits for the device.
///
/// ```
/// use fulmen_trainer::{Actions, Callback, Progress};
///
/// /// Ends the fit in the middle of the second epoch.
/// struct Half;
///
/// impl Callback for Half {
///     fn name(&self) -> &'static str {
///         "half"
///     }
///
///     fn on_train_batch_end(&mut self, progress: &Progress, actions: &mut Actions) {
///         if progress.epoch == 1 && 2 * progress.batch >= progress.batches {
///             actions.stop("the second epoch is half done");
///         }
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The current epoch, counted from 0.
    pub epoch: u64,
    /// Batches of this epoch queued on the device so far.
    pub batch: u64,
    /// Batches of an epoch.
    pub batches: u64,
    /// Optimizer steps queued on the device so far, in the whole training.
    pub global_step: u64,
}

/// The progress of a validation, a test or a prediction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvaluationProgress {
    /// The name of the set. Empty if the loader has none, and in a prediction.
    pub dataset: String,
    /// Batches queued on the device so far.
    pub batch: u64,
    /// Batches of the loader.
    pub batches: u64,
    /// The epoch that training has reached.
    pub epoch: u64,
    /// The optimizer step that training has reached.
    pub global_step: u64,
}

/// A checkpoint that is being written or was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointFile {
    /// The path of the checkpoint.
    pub path: PathBuf,
    /// Finished epochs.
    pub epoch: u64,
    /// Finished optimizer steps.
    pub global_step: u64,
    /// Whether the checkpoint holds only weights.
    pub weights_only: bool,
}

/// The output of a module's [program](crate::TrainingModule::programs).
#[derive(Debug)]
pub struct ProgramOutput {
    /// The program's name.
    pub name: String,
    /// The epoch whose weights it ran with.
    pub epoch: u64,
    /// The optimizer step after which it ran.
    pub global_step: u64,
    /// The output tensors, by name.
    pub values: Predicted,
}

/// Passes the hooks that callbacks and modules share to a macro, in calling order.
macro_rules! hook_table {
    ($hooks:ident) => {
        $hooks! {
            /// Called before the first step. A Trainer can fit more than once, so reset the state
            /// of an earlier fit here.
            on_fit_start(start: &FitStart);

            /// Called when a fit resumes, after [`on_fit_start`](Self::on_fit_start). The
            /// callback's saved state was loaded before.
            on_load_checkpoint(checkpoint: &CheckpointFile);

            /// Called before the sanity check: the validation batches that run before the first
            /// step with `num_sanity_val_steps`. They call no validation hooks.
            on_sanity_check_start();

            /// Called after the sanity check.
            on_sanity_check_end();

            /// Called before an epoch's first batch, and before the first batch after a resume
            /// within an epoch. A learning rate set here applies to the first step.
            on_train_epoch_start(progress: &Progress, actions: &mut Actions);

            /// Called before a batch is queued on the device. `progress` does not count it yet.
            on_train_batch_start(progress: &Progress);

            /// Called after a batch is queued on the device. Its step may not have run yet.
            on_train_batch_end(progress: &Progress, actions: &mut Actions);

            /// Called when the values of a log point arrive, some steps later.
            on_log(point: &LogPoint, actions: &mut Actions);

            /// Called when the output of a program that [`run_program`](Actions::run_program)
            /// requested arrives.
            on_program_end(output: &ProgramOutput, actions: &mut Actions);

            /// Called before the first batch of each validation set.
            on_validation_start(progress: &EvaluationProgress);

            /// Called after a validation batch is queued on the device.
            on_validation_batch_end(progress: &EvaluationProgress);

            /// Called after a validation, with the values of all its sets. At the end of an epoch,
            /// [`on_train_epoch_end`](Self::on_train_epoch_end) follows, and its values include
            /// these. In [`Trainer::validate`](crate::Trainer::validate), requests made here are
            /// ignored, and [`is_fitting`](Actions::is_fitting) returns false.
            on_validation_end(point: &LogPoint, actions: &mut Actions);

            /// Called after an epoch and its validation, with the means over the epoch and the
            /// values of the validation.
            on_train_epoch_end(point: &LogPoint, actions: &mut Actions);

            /// Called before a checkpoint is written, even if the write fails later. With several
            /// processes, it is called in all of them.
            on_save_checkpoint(checkpoint: &CheckpointFile);

            /// Called before the first batch of a test.
            on_test_start(progress: &EvaluationProgress);

            /// Called after a test batch is queued on the device.
            on_test_batch_end(progress: &EvaluationProgress);

            /// Called after a test.
            on_test_end(point: &LogPoint);

            /// Called when a fit, a validation, a test or a prediction fails. A fit that has begun
            /// still saves the checkpoints requested here. With several processes it does not,
            /// because the others have ended.
            on_exception(error: &Error, actions: &mut Actions);

            /// Called after the last epoch.
            on_fit_end(summary: &FitSummary);
        }
    };
}
pub(crate) use hook_table;
