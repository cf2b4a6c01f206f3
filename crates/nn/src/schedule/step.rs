//! [`Step`]: multiplies by a factor at regular intervals.

use fulmen_tensor::Tensor;

use super::power::power;
use super::{Schedule, checked, not_finite, steps, zero};

/// `lr·γ^⌊step/step_size⌋`, like PyTorch's `StepLR`.
///
/// ```
/// use fulmen_nn::schedule::{Schedule, Step};
/// use fulmen_tensor::Tensor;
///
/// let rate = Step::new(0.8, 30).gamma(0.5).value(&Tensor::from_slice(&[29i32, 30, 60], [3]));
/// assert_eq!(rate.eval()?.to_vec::<f32>()?, [0.8, 0.4, 0.2]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Step {
    lr: f64,
    step_size: u64,
    gamma: f64,
}

impl Step {
    /// Multiplies by 0.1 after every `step_size` steps.
    pub fn new(lr: f64, step_size: u64) -> Step {
        Step { lr, step_size, gamma: 0.1 }
    }

    /// The factor applied each time; 0.1 by default.
    pub fn gamma(mut self, gamma: f64) -> Step {
        self.gamma = gamma;
        self
    }
}

impl Schedule for Step {
    #[track_caller]
    fn value(&self, step: &Tensor) -> Tensor {
        let error = zero(&[("step_size", self.step_size)])
            .or_else(|| not_finite(&[("lr", self.lr), ("gamma", self.gamma)]));
        checked("Step", error, || power(self.gamma, &(step / steps(self.step_size))) * self.lr)
    }
}
