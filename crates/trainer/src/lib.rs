//! The [`Trainer`]: one compiled program per step, the training state on the device, and the parts
//! known from Lightning: callbacks, checkpoints, loggers, a progress bar.
//!
//! A [`TrainingModule`] is recorded once and becomes **one** program: forward, backward, optimizer,
//! schedule, batch statistics, random keys and sums of logged values. The loop takes a batch that
//! is already on the device, queues the program and continues. It reads the device only at log
//! points, at the end of an epoch and for a checkpoint. Nothing that it reads can cause a
//! compilation.
//!
//! With several devices, the program is one program with shardings ([`Strategy`]). With several
//! processes, one per host, each process builds the same Trainer. Before the first step, the
//! processes check that they are about to run the same program.
//!
//! [`preflight`] estimates a training step on TPUs that this machine does not have.
//!
//! The command line is in `fulmen-trainer-cli`.

// The layers of this crate, lowest first: a module imports only from modules above it in this list.

// Small modules for all others.
mod batch;
mod batches_per_step;
mod console;
mod error;
mod goodput;
mod host_memory;
mod out_of_memory;
mod plan;
mod position;
mod predictions;
mod recording;
mod stage;

mod bad_samples;

mod secret;

// Options, other processes, logged values, and the events of a run.
mod options;

mod process_group;

mod approved_kernels;

mod logs;

mod hooks;

// How a step is recorded, up to the optimizer.
mod rules;

mod step_config;

mod state;

mod recorder;

// The user's module, and its steps as programs.
mod module;

mod program;

// Callbacks and checkpoints.
pub mod callbacks;

mod checkpoint;

// Running steps.
mod executor;

mod session;

mod evaluation;

mod step;

mod fit;

// The public interface, and the modules built on it.
mod trainer;

pub mod preflight;
pub mod tuner;

/// Loggers: where logged values are written.
pub mod loggers {
    #[doc(inline)]
    pub use fulmen_loggers::*;
}

#[doc(hidden)]
pub mod internal;

#[cfg(test)]
#[path = "../../pjrt/tests/it/common/libtpu.rs"]
mod libtpu;

pub use batch::Batch;
pub use callbacks::callback::Callback;
pub use callbacks::train_start::TrainStart;
pub use checkpoint::load_hyperparameters;
pub use checkpoint::named_checkpoint::load_arguments;
pub use checkpoint::weights::Weights;
pub use console::init_logging;
pub use evaluation::predicted_batches::PredictedBatches;
pub use evaluation::prediction_writer::PredictionWriter;
#[doc(inline)]
pub use fulmen_error::{Error, Result};
pub use fulmen_loggers::{Histogram, Images, LogPoint, LoggedArray, Media, Sink};
pub use fulmen_nn::ModelSummary;
pub use fulmen_signals::Signal;
pub use goodput::Goodput;
pub use hooks::actions::{Actions, CheckpointRole};
pub use hooks::summary::FitSummary;
pub use hooks::{CheckpointFile, EvaluationProgress, FitStart, ProgramOutput, Progress};
pub use logs::log_entry::{LogOptions, ReduceFx};
pub use module::TrainingModule;
pub use module::step_context::StepContext;
pub use module::training_fn::TrainingFn;
pub use options::batch_limit::{BatchLimit, FastDevRun};
pub use options::clip_algorithm::GradientClipAlgorithm;
pub use options::duration::TrainDuration;
pub use options::learning_rate_scaling::LearningRateScaling;
pub use options::logger_set::LoggerSet;
pub use options::metrics_port::MetricsPort;
pub use options::precision::Precision;
pub use options::profiler::Profiler;
pub use options::resume::Resume;
pub use options::strategy::{ParallelSizes, Strategy};
pub use options::{OptionRow, Options, TrainerArgs};
pub use plan::Plan;
pub use predictions::{Predicted, Predictions};
pub use program::evaluation_set::{EvaluationSet, EvaluationSets};
pub use recording::{Recording, run_layer};
pub use rules::averaging::WeightAveraging;
pub use rules::step_rule::{
    Candidate, FrozenParameters, StepInputs, StepRule, UpdatedParameter, UpdatedStep,
};
pub use secret::Secret;
pub use step::{EvalStep, StepFunction, StepLogs, TrainStep};
pub use step_config::optimizers::Optimizers;
pub use trainer::Trainer;
pub use trainer::builder::TrainerBuilder;
