//! [`CosineAnnealingWarmRestarts`]: decreases along half a cosine wave, repeatedly.

use fulmen_tensor::Tensor;

use super::{Schedule, checked, half_wave, not_finite, steps, zero};

/// PyTorch's `CosineAnnealingWarmRestarts` (SGDR): decreases from `lr` to `eta_min` along half a
/// cosine wave over `t_0` steps, then again over `t_0·t_mult` steps, `t_0·t_mult²`, …
///
/// ```
/// use fulmen_nn::schedule::{CosineAnnealingWarmRestarts, Schedule};
/// use fulmen_tensor::Tensor;
///
/// let rate = CosineAnnealingWarmRestarts::new(0.4, 10).t_mult(2).value(&Tensor::from_slice(&[0i32, 10, 20, 30], [4]));
/// let rate = rate.eval()?.to_vec::<f32>()?;
/// assert_eq!((rate[0], rate[1], rate[3]), (0.4, 0.4, 0.4));
/// assert!((rate[2] - 0.2).abs() < 1e-7);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct CosineAnnealingWarmRestarts {
    lr: f64,
    t_0: u64,
    t_mult: u64,
    eta_min: f64,
}

impl CosineAnnealingWarmRestarts {
    /// Decreases to 0 every `t_0` steps.
    pub fn new(lr: f64, t_0: u64) -> CosineAnnealingWarmRestarts {
        CosineAnnealingWarmRestarts { lr, t_0, t_mult: 1, eta_min: 0.0 }
    }

    /// The factor by which each cycle is longer than the previous one; 1 by default.
    pub fn t_mult(mut self, t_mult: u64) -> CosineAnnealingWarmRestarts {
        self.t_mult = t_mult;
        self
    }

    /// The minimum; 0 by default.
    pub fn eta_min(mut self, eta_min: f64) -> CosineAnnealingWarmRestarts {
        self.eta_min = eta_min;
        self
    }
}

impl Schedule for CosineAnnealingWarmRestarts {
    #[track_caller]
    fn value(&self, step: &Tensor) -> Tensor {
        let error = zero(&[("t_0", self.t_0), ("t_mult", self.t_mult)])
            .or_else(|| not_finite(&[("lr", self.lr), ("eta_min", self.eta_min)]));
        checked("CosineAnnealingWarmRestarts", error, || {
            let number = |count: u64| Tensor::full(step.dtype(), step.shape(), steps(count));
            if self.t_mult == 1 {
                let length = number(self.t_0);
                return half_wave(&step.remainder(&length), &length, self.lr, self.eta_min);
            }
            // The cycles that a 31-bit counter can reach: each is at least twice as long as the
            // previous one.
            let mut start = 0u64;
            let mut length = self.t_0;
            let mut cycle_start = number(start);
            let mut cycle_length = number(length);
            loop {
                start = start.saturating_add(length);
                length = length.saturating_mul(self.t_mult);
                if start > i32::MAX as u64 {
                    break;
                }
                let reached = step.ge(steps(start));
                cycle_start = reached.select(&number(start), &cycle_start);
                cycle_length = reached.select(&number(length), &cycle_length);
            }
            half_wave(&(step - cycle_start), &cycle_length, self.lr, self.eta_min)
        })
    }
}
