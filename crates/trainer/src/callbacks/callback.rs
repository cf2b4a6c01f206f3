//! [`Callback`]: code that runs at the turns of a training run. It sees values that have arrived on the host, and
//! never a device buffer; it cannot make the device wait or cause a compilation.
//!
//! Not here: what it is told (`hooks/mod.rs`), what it can ask for (`hooks/actions.rs`), and who calls it (`calls.rs`).

use std::time::Duration;

use serde_json::Value as Json;

use crate::hooks::{CheckpointFile, EvaluationProgress, FitStart, ProgramOutput, Progress, hook_table};
use crate::{Actions, Error, FitSummary, LogPoint, Predicted, StepPart, TrainStart};

macro_rules! callback_methods {
    ($($(#[$doc:meta])* $hook:ident($($arg:ident: $ty:ty),*);)*) => {$(
        $(#[$doc])*
        fn $hook(&mut self, $($arg: $ty),*) {
            $(let _ = $arg;)*
        }
    )*};
}

/// Code that runs at the turns of a training run. All methods have a default that does nothing; they are in the order in
/// which they are called. Callbacks are called in the order in which they were added, then the module's own hook.
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

    /// What the compiled step does for it, if anything. A Trainer has one callback for each kind of part, except
    /// [`StepPart::Unfreeze`].
    fn step_part(&self) -> Option<StepPart> {
        None
    }

    /// Takes up what [`Callback::state`] gave before, when a fit resumes; after [`Callback::on_fit_start`].
    fn load_state(&mut self, state: &Json) {
        let _ = state;
    }

    /// Before a program is compiled, which may take minutes; not for one that was compiled before. `program` names it, such
    /// as `training step`. Those of a fit are compiled after [`on_fit_start`](Callback::on_fit_start) and before its first
    /// step; those of a validation, test or prediction, before its first batch.
    fn on_compile_start(&mut self, program: &str) {
        let _ = program;
    }

    /// After a program was compiled; without a time if that failed.
    fn on_compile_end(&mut self, program: &str, time: Option<Duration>) {
        let _ = (program, time);
    }

    /// When all is compiled, before the first step of a fit.
    fn on_train_start(&mut self, start: &TrainStart<'_>) {
        let _ = start;
    }

    hook_table!(callback_methods);

    /// Values of its own for a log point, by name, which loggers and all callbacks see after those of the step; before
    /// [`on_log`](Callback::on_log).
    fn log_values(&mut self, point: &LogPoint) -> Vec<(String, f64)> {
        let _ = point;
        vec![]
    }

    /// Before the first batch of a prediction.
    fn on_predict_start(&mut self, progress: &EvaluationProgress) {
        let _ = progress;
    }

    /// When the predictions for a batch have arrived.
    fn on_predict_batch_end(&mut self, progress: &EvaluationProgress, predicted: &Predicted) {
        let _ = (progress, predicted);
    }

    /// After the last batch of a prediction.
    fn on_predict_end(&mut self) {}

    /// The state of this callback for a checkpoint.
    fn state(&self) -> Option<Json> {
        None
    }
}
