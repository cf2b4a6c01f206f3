//! Steps for a loop of one's own: the training step and what belongs to it. [`TrainStep`] holds the training state and runs
//! the compiled step, [`EvalStep`] validates with its weights, [`StepFunction`] computes with them, and [`StepLogs`] is what
//! its steps have logged. The Trainer's own loop (`fit`) runs on a [`TrainStep`] too.

mod eval;
mod function;
mod logs;
mod train;

pub use eval::EvalStep;
pub use function::StepFunction;
pub use logs::StepLogs;
pub(crate) use logs::training_point;
pub use train::TrainStep;
pub(crate) use train::{Averages, agree};
