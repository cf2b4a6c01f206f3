//! Steps for a user's own loop. [`TrainStep`] holds the training state and runs the compiled step.
//! [`EvalStep`] validates with its weights, [`StepFunction`] computes with them, and [`StepLogs`]
//! holds the logged values. The Trainer's own loop, `fit`, also runs on a [`TrainStep`].

mod eval;
mod function;
mod logs;
mod train;

pub use eval::EvalStep;
pub use function::StepFunction;
pub use logs::StepLogs;
pub(crate) use logs::training_point;
pub use train::TrainStep;
pub(crate) use train::{Averages, check_consistent};
