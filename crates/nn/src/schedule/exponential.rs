//! [`Exponential`]: multiplies by a factor in every step.

use fulmen_tensor::Tensor;

use super::power::power;
use super::{Schedule, checked, not_finite};

/// `lr·γ^step`, like PyTorch's `ExponentialLR`.
///
/// ```
/// use fulmen_nn::schedule::{Exponential, Schedule};
/// use fulmen_tensor::Tensor;
///
/// let rate = Exponential::new(0.8, 0.5).value(&Tensor::scalar(3i32));
/// assert_eq!(rate.eval()?.to_vec::<f32>()?, [0.1]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Exponential {
    lr: f64,
    gamma: f64,
}

impl Exponential {
    /// Multiplies `lr` by `gamma` in every step.
    pub fn new(lr: f64, gamma: f64) -> Exponential {
        Exponential { lr, gamma }
    }
}

impl Schedule for Exponential {
    #[track_caller]
    fn value(&self, step: &Tensor) -> Tensor {
        let error = not_finite(&[("lr", self.lr), ("gamma", self.gamma)]);
        checked("Exponential", error, || power(self.gamma, step) * self.lr)
    }
}
