//! [`CosineAnnealing`]: decreases along half a cosine wave.

use fulmen_tensor::Tensor;

use super::{Schedule, checked, half_wave, not_finite, steps, zero};

/// `eta_min + (lr − eta_min)/2·(1 + cos(π·step/t_max))`, like PyTorch's `CosineAnnealingLR`:
/// decreases over `t_max` steps, and increases again if training continues.
///
/// ```
/// use fulmen_nn::schedule::{CosineAnnealing, Schedule};
/// use fulmen_tensor::Tensor;
///
/// let rate = CosineAnnealing::new(0.4, 100).eta_min(0.2).value(&Tensor::from_slice(&[0i32, 100, 200], [3]));
/// assert_eq!(rate.eval()?.to_vec::<f32>()?, [0.4, 0.2, 0.4]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct CosineAnnealing {
    lr: f64,
    t_max: u64,
    eta_min: f64,
}

impl CosineAnnealing {
    /// Anneals the rate from `lr` to 0 over `t_max` steps.
    pub fn new(lr: f64, t_max: u64) -> CosineAnnealing {
        CosineAnnealing { lr, t_max, eta_min: 0.0 }
    }

    /// The minimum; 0 by default.
    pub fn eta_min(mut self, eta_min: f64) -> CosineAnnealing {
        self.eta_min = eta_min;
        self
    }
}

impl Schedule for CosineAnnealing {
    #[track_caller]
    fn value(&self, step: &Tensor) -> Tensor {
        let error = zero(&[("t_max", self.t_max)])
            .or_else(|| not_finite(&[("lr", self.lr), ("eta_min", self.eta_min)]));
        checked("CosineAnnealing", error, || {
            let length = steps(self.t_max.min(i32::MAX as u64 / 2));
            let position = step.remainder(2.0 * length);
            let elapsed = position.minimum(2.0 * length - &position);
            half_wave(&elapsed, &Tensor::full(step.dtype(), [], length), self.lr, self.eta_min)
        })
    }
}
