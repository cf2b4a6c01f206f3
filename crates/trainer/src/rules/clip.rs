//! Gradient clipping by the Trainer, as
//! [`gradient_clip_algorithm`](crate::Options::gradient_clip_algorithm) selects it.

use fulmen_nn::optim::{ClipNorm, ClipValue};
use fulmen_tensor::Tensor;

use crate::{GradientClipAlgorithm, Options};

/// How gradients are clipped.
pub(crate) enum Clip {
    Off,
    Norm(ClipNorm),
    Value(ClipValue),
}

impl Clip {
    pub(crate) fn new(options: &Options) -> Clip {
        let limit = options.gradient_clip_val;
        if limit <= 0.0 {
            return Clip::Off;
        }
        match options.gradient_clip_algorithm {
            GradientClipAlgorithm::Norm => Clip::Norm(ClipNorm::new(limit)),
            GradientClipAlgorithm::Value => Clip::Value(ClipValue::new(limit)),
        }
    }

    pub(crate) fn needs_norm(&self) -> bool {
        matches!(self, Clip::Norm(_))
    }

    /// Clips a gradient. `norm` is that of all gradients, if it is needed.
    pub(crate) fn clip(&self, gradient: &Tensor, norm: Option<&Tensor>) -> Tensor {
        match (self, norm) {
            (Clip::Value(rule), _) => rule.clip(gradient),
            (Clip::Norm(rule), Some(norm)) => rule.clip(gradient, norm),
            _ => gradient.clone(),
        }
    }
}
