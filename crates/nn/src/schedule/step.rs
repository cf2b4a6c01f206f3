//! [`Step`]: less by a factor every so many steps.

use fulmen_tensor::Tensor;

use super::power::power;
use super::{Schedule, not_finite, steps, unless, zero};

/// `lr·γ^⌊step/step_size⌋`, as PyTorch's `StepLR`.
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
pub struct Step {
    lr: f64,
    step_size: u64,
    gamma: f64,
}

impl Step {
    /// A tenth of it after each `step_size` steps.
    pub fn new(lr: f64, step_size: u64) -> Step {
        Step { lr, step_size, gamma: 0.1 }
    }

    /// What it is multiplied by each time: 0.1 by default.
    pub fn gamma(mut self, gamma: f64) -> Step {
        self.gamma = gamma;
        self
    }
}

impl Schedule for Step {
    #[track_caller]
    fn value(&self, step: &Tensor) -> Tensor {
        let error =
            zero(&[("step_size", self.step_size)]).or_else(|| not_finite(&[("lr", self.lr), ("gamma", self.gamma)]));
        checked("Step", error, || power(self.gamma, &(step / steps(self.step_size))) * self.lr)
    }
}
