//! [`Freeze`]: parameters that are frozen at first.

use crate::TrainDuration;
use crate::rules::step_rule::StepRule;

/// Freezes parameters at first. Each unfreezing begins a phase with its own program.
#[derive(Clone, Debug)]
pub struct Freeze {
    /// The parameters whose dotted names match.
    pub pattern: String,
    /// When to unfreeze them: epochs or steps.
    pub unfreeze_at: TrainDuration,
    /// The initial learning rate of the parameters, as a fraction of the optimizer's.
    pub initial_ratio: f64,
    /// The factor by which that fraction grows after each epoch.
    pub multiplier: f64,
    /// Whether the fraction stays at most 1.
    pub should_align: bool,
    /// Whether batch norm is trained from the beginning.
    pub train_bn: bool,
}

impl StepRule for Freeze {
    fn name(&self) -> &'static str {
        "freeze"
    }

    fn freeze(&self) -> Option<&Freeze> {
        Some(self)
    }
}
