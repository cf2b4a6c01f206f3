//! [`Polynomial`]: decreases to 0 with a power of the remaining steps.

use fulmen_tensor::{DType, Tensor};

use super::{Schedule, checked, not_finite, steps, zero};

/// `lr·(1 − step/total_iters)^power`, and 0 after `total_iters`: PyTorch's `PolynomialLR`.
///
/// ```
/// use fulmen_nn::schedule::{Polynomial, Schedule};
/// use fulmen_tensor::Tensor;
///
/// let rate = Polynomial::new(0.4, 100).power(2.0).value(&Tensor::from_slice(&[0i32, 50, 100], [3]));
/// assert_eq!(rate.eval()?.to_vec::<f32>()?, [0.4, 0.1, 0.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Polynomial {
    lr: f64,
    total_iters: u64,
    power: f64,
}

impl Polynomial {
    /// Linear, over this many steps.
    pub fn new(lr: f64, total_iters: u64) -> Polynomial {
        Polynomial { lr, total_iters, power: 1.0 }
    }

    /// The exponent; 1 by default.
    pub fn power(mut self, power: f64) -> Polynomial {
        self.power = power;
        self
    }
}

impl Schedule for Polynomial {
    #[track_caller]
    fn value(&self, step: &Tensor) -> Tensor {
        let error = zero(&[("total_iters", self.total_iters)])
            .or_else(|| not_finite(&[("lr", self.lr), ("power", self.power)]))
            .or_else(|| {
                (self.power < 0.0)
                    .then(|| format!("power must be at least 0, but it is {}", self.power))
            });
        checked("Polynomial", error, || {
            let total = steps(self.total_iters);
            let remaining = (total - step.minimum(total)).to_dtype(DType::F32) / total;
            let share = if self.power == 1.0 { remaining } else { remaining.pow(self.power) };
            share * self.lr
        })
    }
}
