//! [`LossScale`]: the loss scale of f16, which skips the steps whose gradients overflow.

use std::sync::Arc;

use fulmen_nn::optim::GradScaler;
use fulmen_tensor::{DType, Tensor};

use crate::Options;
use crate::rules::step_rule::{Candidate, StepRule};

/// Scales the loss, so that small gradients don't underflow in f16.
#[derive(Clone, Copy, Debug)]
struct LossScale;

/// The rule, if the precision needs it.
pub(super) fn of_options(options: &Options, _: &[Arc<dyn StepRule>]) -> Option<Arc<dyn StepRule>> {
    options.precision.scales_loss().then(|| Arc::new(LossScale) as _)
}

impl LossScale {
    fn scaler(state: &[Tensor]) -> Option<GradScaler> {
        let [scale, good_steps] = state else { return None };
        Some(GradScaler::new(scale.clone(), good_steps.clone()))
    }
}

impl StepRule for LossScale {
    fn name(&self) -> &'static str {
        "loss_scale"
    }

    fn state_name(&self, slot: &str) -> String {
        slot.to_owned()
    }

    /// The scale, and the good steps since its last change.
    fn init(&self) -> Vec<(&'static str, Tensor)> {
        vec![
            ("loss_scale", Tensor::scalar(GradScaler::INIT_SCALE)),
            ("good_steps", Tensor::zeros(DType::I32, [])),
        ]
    }

    fn scale_loss(&self, loss: &Tensor, state: &[Tensor]) -> Tensor {
        LossScale::scaler(state).map_or_else(|| loss.clone(), |scaler| scaler.scale(loss))
    }

    fn unscale(&self, gradient: &Tensor, state: &[Tensor]) -> Tensor {
        LossScale::scaler(state).map_or_else(|| gradient.clone(), |scaler| scaler.unscale(gradient))
    }

    /// Whether no gradient overflowed. An overflow lowers the scale.
    fn accepts(&self, step: &Candidate, state: &mut [Tensor]) -> Option<Tensor> {
        let scaler = LossScale::scaler(state)?;
        let finite = scaler.all_finite(step.gradients.iter());
        state.clone_from_slice(&scaler.update(&finite, None));
        Some(finite)
    }
}
