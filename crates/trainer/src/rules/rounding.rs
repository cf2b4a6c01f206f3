//! [`Rounding`]: stochastic rounding of updated parameters to bf16.

use std::sync::Arc;

use fulmen_nn::optim::round_to_bf16;
use fulmen_tensor::{DType, Tensor};

use crate::rules::step_rule::StepRule;
use crate::{Options, Precision};

/// Rounds updated bf16 parameters.
#[derive(Debug)]
struct Rounding;

/// The rule, if the parameters are in bf16 and `stochastic_rounding` is on.
pub(super) fn of_options(options: &Options, _: &[Arc<dyn StepRule>]) -> Option<Arc<dyn StepRule>> {
    let is_on = options.stochastic_rounding && options.precision == Precision::Bf16;
    is_on.then(|| Arc::new(Rounding) as _)
}

impl StepRule for Rounding {
    fn name(&self) -> &'static str {
        "stochastic rounding"
    }

    fn rounds_to(&self) -> Option<DType> {
        Some(DType::Bf16)
    }

    fn round(&self, value: &Tensor, key: &Tensor) -> Tensor {
        round_to_bf16(key, value)
    }
}
