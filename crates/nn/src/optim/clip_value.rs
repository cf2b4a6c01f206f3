//! [`ClipValue`]: limits each element of a gradient.

use std::panic::Location;

use fulmen_tensor::{Tensor, TensorType};

use super::{GradientTransformation, Step, Updates};
use crate::library::NN;
use crate::{Error, Result};

/// Limits each element of the gradients to `-limit … limit`, as PyTorch's `clip_grad_value_` does.
///
/// ```
/// use fulmen_nn::optim::{AdamW, ClipValue, chain};
/// let optimizer = chain((ClipValue::new(0.5), AdamW::new(3e-4)));
/// ```
#[derive(Clone, Debug)]
pub struct ClipValue {
    limit: f64,
    location: &'static Location<'static>,
}

impl ClipValue {
    /// Limits the absolute value of real elements to `limit`.
    #[track_caller]
    pub fn new(limit: f64) -> ClipValue {
        ClipValue { limit, location: Location::caller() }
    }

    /// A clipped gradient.
    #[track_caller]
    pub fn clip(&self, gradient: &Tensor) -> Tensor {
        let _scope = NN.open();
        gradient.maximum(-self.limit).minimum(self.limit)
    }
}

impl GradientTransformation for ClipValue {
    fn name(&self) -> &'static str {
        "clip_value"
    }

    fn update(&self, _: &Step, updates: &mut Updates) {
        let _scope = NN.at(self.location);
        for parameter in &mut updates.parameters {
            parameter.update = self.clip(&parameter.update);
        }
    }

    fn check(&self, _: &[(String, TensorType)]) -> Result<()> {
        if self.limit.is_finite() && self.limit > 0.0 {
            return Ok(());
        }
        let message =
            format!("ClipValue: the limit must be finite and above 0, but it is {}", self.limit);
        Err(Error::usage_at(message, self.location))
    }
}
