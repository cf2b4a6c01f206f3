//! [`Freeze`]: parameters that are frozen at first.

use fulmen_nn::optim::Step;
use fulmen_tensor::{DType, Tensor};

use crate::TrainDuration;
use crate::rules::step_rule::{FrozenParameters, StepRule};

/// Freezes parameters at first, and then trains them with a learning rate that rises.
#[derive(Clone, Debug)]
pub(crate) struct Freeze {
    /// The parameters whose dotted names match.
    pub(crate) pattern: String,
    /// When to unfreeze them: epochs or steps.
    pub(crate) unfreeze_at: TrainDuration,
    /// The initial learning rate of the parameters, as a fraction of the optimizer's.
    pub(crate) initial_ratio: f64,
    /// The factor by which that fraction grows after each epoch.
    pub(crate) multiplier: f64,
    /// Whether the fraction stays at most 1.
    pub(crate) should_align: bool,
    /// Whether batch norm is trained from the beginning.
    pub(crate) train_bn: bool,
}

impl StepRule for Freeze {
    fn name(&self) -> &'static str {
        "BackboneFinetuning"
    }

    fn state_name(&self, slot: &str) -> String {
        format!("unfrozen_updates/{slot}")
    }

    fn frozen(&self) -> Option<FrozenParameters> {
        Some(FrozenParameters {
            pattern: self.pattern.clone(),
            until: self.unfreeze_at,
            freezes_batch_norms: !self.train_bn,
        })
    }

    fn unfrozen_step(&self, step: Step, epochs: &Tensor) -> Step {
        if self.multiplier == 1.0 {
            let ratio =
                if self.should_align { self.initial_ratio.min(1.0) } else { self.initial_ratio };
            return step.scaled(ratio);
        }
        let epochs = epochs.to_dtype(DType::F32);
        let ratio = (epochs * self.multiplier.ln()).exp() * self.initial_ratio;
        step.scaled_by(&if self.should_align { ratio.minimum(1.0) } else { ratio })
    }
}
