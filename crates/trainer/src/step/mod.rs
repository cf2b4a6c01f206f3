//! Steps for a user's own loop. [`TrainStep`] holds the training state and runs the compiled step.
//! [`EvalStep`] validates with its weights, [`StepFunction`] computes with them, and [`StepLogs`]
//! holds the logged values. The Trainer's own loop, `fit`, also runs on a [`TrainStep`].

mod checkpoint;
mod checks;
mod eval_step;
mod own_batch;
mod step_function;
mod step_logs;
mod train_step;

pub(crate) use checks::check_consistent;
pub use eval_step::EvalStep;
pub use step_function::StepFunction;
pub use step_logs::StepLogs;
pub(crate) use step_logs::training_point;
pub use train_step::TrainStep;
pub(crate) use train_step::WeightConversion;
