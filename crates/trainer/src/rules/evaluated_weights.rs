//! [`EvaluatedWeights`]: a rule that keeps a second set of weights, which validation, tests and saved
//! weights use.

use std::fmt::Debug;

use fulmen_tensor::{Tensor, TensorType};

use crate::Result;
use crate::rules::epoch::Epoch;

/// Weights that are evaluated instead of those that are trained. They are part of the training
/// state, and each step updates them.
pub(crate) trait EvaluatedWeights: Debug + Send + Sync {
    /// The name of the number of steps that changed the weights, in checkpoints.
    fn name(&self) -> &'static str;

    /// Checks the rule for the module's parameters. Each has the index of the optimizer that trains
    /// it, or `None` if it is not trained. `optimizers` are their names.
    ///
    /// # Errors
    /// A setting does not fit the parameters.
    fn check_for(&self, parameters: &[(&str, Option<usize>)], optimizers: &[&str]) -> Result<()>;

    /// The settings as text. A run cannot continue weights of a rule with a different text.
    fn description(&self) -> String;

    /// Whether a name belongs to the rule, if its value can be evaluated.
    fn includes(&self, name: &str) -> bool;

    /// Whether a value of the module with this name has a second value.
    fn has(&self, name: &str, ty: &TensorType, trained: bool, is_buffer: bool) -> bool;

    /// Whether steps are the updates of one optimizer instead of the steps of the training.
    fn counts_updates_of_one_optimizer(&self) -> bool;

    /// Whether the rule depends on epochs, so that a step must know when an epoch ends.
    fn counts_epochs(&self) -> bool;

    /// How the weights change in a step after which the optimizer has made `updates` updates.
    /// `count` is the number of earlier steps that changed them. `done` says whether the optimizer
    /// made a step; `None` if it did. The end of an epoch counts even if its last step overflowed.
    fn step(
        &self,
        updates: &Tensor,
        count: &Tensor,
        done: Option<&Tensor>,
        epoch: Option<&Epoch>,
    ) -> EvaluatedStep;
}

/// How one step changes the evaluated weights.
pub(crate) struct EvaluatedStep {
    /// The number of steps that changed them, with this one.
    pub(crate) next: Tensor,
    /// Whether an earlier step changed them. If none did, they are the trained weights.
    pub(crate) started: Tensor,
    /// Whether this step changes them.
    pub(crate) applies: Tensor,
    /// The fraction of the way to the trained weights.
    pub(crate) share: Tensor,
}

impl EvaluatedStep {
    /// The evaluated value after this step, for a trained value that is now `new`.
    pub(crate) fn apply(&self, evaluated: &Tensor, new: &Tensor) -> Tensor {
        let new = new.to_dtype(evaluated.dtype());
        let moved = evaluated + (&new - evaluated) * self.share.to_dtype(evaluated.dtype());
        self.started.select(&self.applies.select(&moved, evaluated), &new)
    }
}
