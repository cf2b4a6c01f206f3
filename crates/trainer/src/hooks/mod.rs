//! What happens in a run, as callbacks and modules are told of it: the table of their hooks, and what each hook is given.

pub(crate) mod actions;
pub(crate) mod summary;

use std::path::PathBuf;

use crate::{Plan, Predicted, Strategy};

/// What is known when a fit starts.
#[derive(Clone, Debug)]
pub struct FitStart {
    /// The folder of this run, for files; there even if checkpoints are off. `fast_dev_run` and `barebones` have none.
    pub run_dir: Option<PathBuf>,
    /// The folder of the run's checkpoints.
    pub checkpoint_dir: Option<PathBuf>,
    /// How long training is going to be.
    pub plan: Plan,
    /// Finished epochs: more than 0 when training resumes.
    pub epoch: u64,
    /// Finished optimizer steps: more than 0 when training resumes.
    pub global_step: u64,
    /// Whether a checkpoint within an epoch can be resumed from. Where batches come in any order it cannot.
    pub resumes_within_epoch: bool,
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
    /// Elements of a batch's field `input_ids`, over all devices; none without such a field, or with buckets.
    pub tokens_per_batch: Option<u64>,
    /// The element types that the model is kept and computed in.
    pub precision: String,
    /// How exactly products of f32 numbers are computed.
    pub matmul_precision: String,
    /// Elements of all parameters.
    pub num_parameters: usize,
    /// The name under which the training loss is logged.
    pub loss: String,
    /// Whether the fit validates.
    pub validates: bool,
}

/// The progress of training; no value of the device is part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// The progress of a validation, a test or a prediction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvaluationProgress {
    /// The name of the set; empty where the loader has none, and in a prediction.
    pub dataset: String,
    /// Batches that were handed to the device.
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
    /// Where it lies.
    pub path: PathBuf,
    /// Finished epochs.
    pub epoch: u64,
    /// Finished optimizer steps.
    pub global_step: u64,
    /// Whether it has the weights alone.
    pub weights_only: bool,
}

/// What a [program](crate::TrainingModule::programs) of the module has computed.
#[derive(Debug)]
pub struct ProgramOutput {
    /// The program's name.
    pub name: String,
    /// The epoch whose weights it ran with.
    pub epoch: u64,
    /// The optimizer step after which it ran.
    pub global_step: u64,
    /// What it computed, by name.
    pub values: Predicted,
}

/// Hands the hooks that callbacks and modules share to a macro, in the order in which they run.
macro_rules! hook_table {
    ($hooks:ident) => {
        $hooks! {
            /// Before the first step. A Trainer can fit more than once: what an earlier fit left is to be forgotten here.
            on_fit_start(start: &FitStart);

            /// When a fit resumes, after [`on_fit_start`](Self::on_fit_start). The state of a callback comes back before it.
            on_load_checkpoint(checkpoint: &CheckpointFile);

            /// Before the validation batches that `num_sanity_val_steps` runs before the first step. None of the hooks of a
            /// validation is called for them.
            on_sanity_check_start();

            /// After them.
            on_sanity_check_end();

            /// Before an epoch's first batch, and before the first one after a resume within an epoch. A learning rate that
            /// is set here is that of the first step.
            on_train_epoch_start(progress: &Progress, actions: &mut Actions);

            /// Before a batch is handed to the device; `progress` does not count it yet.
            on_train_batch_start(progress: &Progress);

            /// After a batch was handed to the device; its step may not have run yet.
            on_train_batch_end(progress: &Progress, actions: &mut Actions);

            /// When the values of a log point have arrived, some steps after they were taken.
            on_log(point: &LogPoint, actions: &mut Actions);

            /// When the output of a program has arrived that was asked for by
            /// [`run_program`](Actions::run_program).
            on_program_end(output: &ProgramOutput, actions: &mut Actions);

            /// Before the first batch of each validation set.
            on_validation_start(progress: &EvaluationProgress);

            /// After a validation batch was handed to the device.
            on_validation_batch_end(progress: &EvaluationProgress);

            /// After a validation, with the values of all sets that it ran on. Where it ends an epoch,
            /// [`on_train_epoch_end`](Self::on_train_epoch_end) follows with the same values among those of the epoch. In
            /// [`Trainer::validate`](crate::Trainer::validate) nothing is done that is asked for here, and
            /// [`is_fitting`](Actions::is_fitting) says so.
            on_validation_end(point: &LogPoint, actions: &mut Actions);

            /// After an epoch and the validation that belongs to it: means over the epoch, and the values of the validation.
            on_train_epoch_end(point: &LogPoint, actions: &mut Actions);

            /// Before a checkpoint is written; also where the writing fails afterwards. With several processes, in all.
            on_save_checkpoint(checkpoint: &CheckpointFile);

            /// Before the first batch of a test.
            on_test_start(progress: &EvaluationProgress);

            /// After a test batch was handed to the device.
            on_test_batch_end(progress: &EvaluationProgress);

            /// After a test.
            on_test_end(point: &LogPoint);

            /// When a fit, a validation, a test or a prediction fails. A fit that has begun still saves what is asked for
            /// here, but not with several processes, as the others have ended.
            on_exception(error: &Error, actions: &mut Actions);

            /// After the last epoch.
            on_fit_end(summary: &FitSummary);
        }
    };
}
pub(crate) use hook_table;
