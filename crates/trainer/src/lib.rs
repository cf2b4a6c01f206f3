//! The [`Trainer`]: one compiled program a step, the training state on the device, and around it what people know from
//! Lightning: callbacks, checkpoints, loggers, a progress bar.
//!
//! A [`TrainingModule`] is recorded once and becomes **one** program: forward, backward, optimizer, schedule, batch
//! statistics, random keys and sums of logged values. The loop takes a batch that is on the device already, runs the
//! program and goes on. It reads the device at log points, at the end of an epoch and for a checkpoint, and nothing it
//! reads can cause a compilation.
//!
//! Several devices are one program with shardings ([`Strategy`]). With several processes, one a host, each builds the
//! same Trainer; before the first step they compare what they are about to run.
//!
//! [`cli`] makes a command line of a module and its data; [`preflight`] judges a training step for TPUs that are not
//! here.

mod accumulate;
mod actions;
mod averaging;
mod bad_samples;
mod batch;
mod batch_limit;
mod builder;
mod callback;
pub mod callbacks;
mod checkpoint;
pub mod cli;
mod clip;
mod duration;
mod environment;
mod epoch;
mod error;
mod evaluate;
mod executor;
mod fit;
mod hints;
mod hooks;
mod host_memory;
mod hosts;
mod hyperparameters;
mod interrupt;
mod learning_rate_scaling;
#[cfg(test)]
#[path = "../../pjrt/tests/it/common/libtpu.rs"]
mod libtpu;
mod limits;
mod log_point;
mod logged;
pub mod loggers;
mod logs;
mod loss_scale;
mod media;
mod model_summary;
mod module;
mod named;
mod nearest;
mod newest;
mod old_names;
mod optimizers;
mod options;
mod phases;
mod placeholders;
mod plan;
mod precision;
mod predict;
mod prediction_writer;
mod predictions;
pub mod preflight;
mod prepare;
mod program;
mod reading;
mod resume;
mod say;
mod session;
mod setting;
mod stage;
mod state;
mod step;
mod step_part;
mod strategy;
mod summary;
mod train_start;
mod trainer;
mod training_fn;
pub mod tuner;
mod typed;
mod validation_set;
mod weights;

pub use actions::{Actions, CheckpointRole};
pub use averaging::WeightAveraging;
pub use batch::Batch;
pub use batch_limit::{BatchLimit, FastDevRun};
pub use builder::TrainerBuilder;
pub use callback::{Callback, CheckpointFile, EvaluationProgress, FitStart, ProgramOutput, Progress};
pub use clip::GradientClipAlgorithm;
pub use duration::TrainDuration;
pub use error::{Error, Result};
pub use hyperparameters::load_hyperparameters;
pub use interrupt::Signal;
pub use learning_rate_scaling::LearningRateScaling;
pub use log_point::{LogPoint, Sink};
pub use logged::{LogOptions, ReduceFx};
pub use media::{Histogram, Media, Picture};
pub use model_summary::ModelSummary;
pub use module::{StepContext, TrainingModule};
pub use newest::Resume;
pub use optimizers::Optimizers;
pub use options::{OptionRow, Options, TrainerArgs};
pub use plan::Plan;
pub use precision::Precision;
pub use predict::{Predicted, PredictedBatches};
pub use prediction_writer::PredictionWriter;
pub use predictions::Predictions;
pub use step::{EvalStep, StepFunction, StepLogs, TrainStep};
pub use step_part::StepPart;
pub use strategy::Strategy;
pub use summary::FitSummary;
pub use train_start::TrainStart;
pub use trainer::Trainer;
pub use training_fn::TrainingFn;
pub use validation_set::{ValidationSet, ValidationSets};
pub use weights::Weights;
