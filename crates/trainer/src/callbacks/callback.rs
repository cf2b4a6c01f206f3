//! [`Callback`]: code that runs at certain points of a training run. A callback gets values that
//! have arrived on the host, never a device buffer. It therefore cannot make the device wait or
//! cause a compilation.
//!
//! The arguments of its methods are in `hooks/mod.rs`, its actions in `hooks/actions.rs`, and its
//! caller in `hook_calls.rs`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;

use crate::hooks::{
    CheckpointFile, EvaluationProgress, FitStart, ProgramOutput, Progress, hook_table,
};
use crate::rules::step_rule::StepRule;
use crate::{Actions, Error, FitSummary, LogPoint, Predicted, TrainStart};

macro_rules! callback_methods {
    ($($(#[$doc:meta])* $hook:ident($($arg:ident: $ty:ty),*);)*) => {$(
        $(#[$doc])*
        fn $hook(&mut self, $($arg: $ty),*) {
            $(let _ = $arg;)*
        }
    )*};
}

/// Code that runs at certain points of a training run.
///
/// All methods except `name` have a default that does nothing. They are listed in the order in
/// which they are called. Callbacks are called in the order in which they were added; the module's
/// own hook is called last.
///
/// A callback that ends a run once the training loss is small enough:
///
/// ```
/// use fulmen_trainer::{Actions, Callback, LogPoint, Trainer};
///
/// struct StopBelow(f64);
///
/// impl Callback for StopBelow {
///     fn name(&self) -> &'static str {
///         "StopBelow"
///     }
///
///     fn on_train_epoch_end(&mut self, point: &LogPoint, actions: &mut Actions) {
///         if point.get("train_loss").is_some_and(|loss| loss < self.0) {
///             actions.stop(format!("the loss is below {}", self.0));
///         }
///     }
/// }
///
/// let trainer = Trainer::builder().callback(StopBelow(0.1));
/// # let _ = trainer;
/// ```
pub trait Callback: Send {
    /// The name of the callback's state in checkpoints, which messages use too.
    fn name(&self) -> &'static str;

    /// Checks the callback's settings. If they are invalid, it returns what is wrong, and building
    /// the Trainer fails.
    fn config_error(&self) -> Option<String> {
        None
    }

    /// Whether it calls [`Actions::set_learning_rate_factor`]. If so, the compiled step takes the
    /// factor from the host.
    fn changes_learning_rate(&self) -> bool {
        false
    }

    /// The rule that this callback adds to the compiled step, if any. The rules of a Trainer have
    /// different names, except those that [freeze](StepRule::frozen) parameters.
    fn step_rule(&self) -> Option<Arc<dyn StepRule>> {
        None
    }

    /// Restores what [`Callback::state`] returned before. Called when a fit resumes, after
    /// [`Callback::on_fit_start`].
    fn load_state(&mut self, state: &Json) {
        let _ = state;
    }

    /// Called before a program is compiled, which may take minutes. It is not called for a program
    /// that was compiled before. `program` is its name, such as `training step`. The programs of a
    /// fit are compiled after [`on_fit_start`](Callback::on_fit_start) and before the first step.
    /// Those of a validation, test or prediction are compiled before the first batch.
    fn on_compile_start(&mut self, program: &str) {
        let _ = program;
    }

    /// Called after a program was compiled. `time` is `None` if compilation failed.
    fn on_compile_end(&mut self, program: &str, time: Option<Duration>) {
        let _ = (program, time);
    }

    /// Called when all programs of a fit are compiled, before its first step.
    fn on_train_start(&mut self, start: &TrainStart<'_>) {
        let _ = start;
    }

    hook_table!(callback_methods);

    /// Returns the callback's own values for a log point, by name. Loggers and all callbacks get
    /// them after the values of the step. Called before [`on_log`](Callback::on_log).
    fn log_values(&mut self, point: &LogPoint) -> Vec<(String, f64)> {
        let _ = point;
        Vec::new()
    }

    /// Called before the first batch of a prediction.
    fn on_predict_start(&mut self, progress: &EvaluationProgress) {
        let _ = progress;
    }

    /// Called when the predictions for a batch have arrived.
    fn on_predict_batch_end(&mut self, progress: &EvaluationProgress, predicted: &Predicted) {
        let _ = (progress, predicted);
    }

    /// Called after the last batch of a prediction.
    fn on_predict_end(&mut self) {}

    /// Returns the state of this callback for a checkpoint.
    fn state(&self) -> Option<Json> {
        None
    }
}
