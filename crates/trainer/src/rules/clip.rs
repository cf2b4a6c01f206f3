//! [`Clip`]: gradient clipping by the Trainer, as
//! [`gradient_clip_algorithm`](crate::Options::gradient_clip_algorithm) selects it.

use std::sync::Arc;

use fulmen_nn::optim::{ClipNorm, ClipValue};
use fulmen_tensor::Tensor;

use crate::rules::step_rule::StepRule;
use crate::{GradientClipAlgorithm, Options};

/// How gradients are clipped.
#[derive(Debug)]
enum Clip {
    Norm(ClipNorm),
    Value(ClipValue),
}

/// The rule, if there is a limit.
pub(super) fn of_options(options: &Options, _: &[Arc<dyn StepRule>]) -> Option<Arc<dyn StepRule>> {
    let limit = options.gradient_clip_val;
    let clip = match options.gradient_clip_algorithm {
        GradientClipAlgorithm::Norm => Clip::Norm(ClipNorm::new(limit)),
        GradientClipAlgorithm::Value => Clip::Value(ClipValue::new(limit)),
    };
    (limit > 0.0).then(|| Arc::new(clip) as _)
}

impl StepRule for Clip {
    fn name(&self) -> &'static str {
        "clip"
    }

    fn changes_by_norm(&self) -> bool {
        matches!(self, Clip::Norm(_))
    }

    fn changed_gradient(&self, gradient: &Tensor, norm: Option<&Tensor>) -> Tensor {
        match (self, norm) {
            (Clip::Value(rule), _) => rule.clip(gradient),
            (Clip::Norm(rule), Some(norm)) => rule.clip(gradient, norm),
            _ => gradient.clone(),
        }
    }
}
