//! [`MultiStep`]: multiplies by a factor at chosen steps.

use fulmen_tensor::{DType, Tensor};

use super::{Schedule, checked, not_finite, steps};

/// `lr·γᵏ` after `k` of the milestones, like PyTorch's `MultiStepLR`.
///
/// ```
/// use fulmen_nn::schedule::{MultiStep, Schedule};
/// use fulmen_tensor::Tensor;
///
/// let rate = MultiStep::new(0.8, [30, 80]).gamma(0.5).value(&Tensor::from_slice(&[29i32, 30, 80], [3]));
/// assert_eq!(rate.eval()?.to_vec::<f32>()?, [0.8, 0.4, 0.2]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct MultiStep {
    lr: f64,
    milestones: Vec<u64>,
    gamma: f64,
}

impl MultiStep {
    /// Multiplies by 0.1 at each of these steps. A step that is listed twice counts twice.
    pub fn new(lr: f64, milestones: impl IntoIterator<Item = u64>) -> MultiStep {
        let mut milestones: Vec<u64> = milestones.into_iter().collect();
        milestones.sort_unstable();
        MultiStep { lr, milestones, gamma: 0.1 }
    }

    /// The factor applied each time; 0.1 by default.
    pub fn gamma(mut self, gamma: f64) -> MultiStep {
        self.gamma = gamma;
        self
    }
}

impl Schedule for MultiStep {
    #[track_caller]
    fn value(&self, step: &Tensor) -> Tensor {
        checked("MultiStep", not_finite(&[("lr", self.lr), ("gamma", self.gamma)]), || {
            let number = |value: f64| Tensor::full(DType::F32, step.shape(), value);
            let mut rate = self.lr;
            let mut value = number(rate);
            for &milestone in &self.milestones {
                rate *= self.gamma;
                value = step.ge(steps(milestone)).select(&number(rate), &value);
            }
            value
        })
    }
}
