//! [`Linear`]: a rate that changes linearly from one fraction of `lr` to another.

use fulmen_tensor::{DType, Tensor};

use super::{Schedule, checked, not_finite, steps, zero};

/// Changes linearly from `lr·start_factor` to `lr·end_factor` over `total_iters` steps, and then
/// stays: PyTorch's `LinearLR`.
///
/// ```
/// use fulmen_nn::schedule::{Linear, Schedule};
/// use fulmen_tensor::Tensor;
///
/// let rate = Linear::new(0.8, 4).start_factor(0.5).value(&Tensor::from_slice(&[0i32, 2, 9], [3]));
/// assert_eq!(rate.eval()?.to_vec::<f32>()?, [0.4, 0.6, 0.8]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Linear {
    lr: f64,
    start_factor: f64,
    end_factor: f64,
    total_iters: u64,
}

impl Linear {
    /// Increases the rate from a third of `lr` to `lr` over `total_iters` steps.
    pub fn new(lr: f64, total_iters: u64) -> Linear {
        Linear { lr, start_factor: 1.0 / 3.0, end_factor: 1.0, total_iters }
    }

    /// The initial fraction of `lr`; ⅓ by default.
    pub fn start_factor(mut self, factor: f64) -> Linear {
        self.start_factor = factor;
        self
    }

    /// The final fraction of `lr`; 1 by default.
    pub fn end_factor(mut self, factor: f64) -> Linear {
        self.end_factor = factor;
        self
    }
}

impl Schedule for Linear {
    #[track_caller]
    fn value(&self, step: &Tensor) -> Tensor {
        let Linear { lr, start_factor, end_factor, total_iters } = *self;
        let numbers = [("lr", lr), ("start_factor", start_factor), ("end_factor", end_factor)];
        let error = zero(&[("total_iters", total_iters)]).or_else(|| not_finite(&numbers));
        checked("Linear", error, || {
            let total = steps(total_iters);
            let elapsed = step.minimum(total);
            let part = |count: Tensor| count.to_dtype(DType::F32) / total;
            part(total - &elapsed) * (lr * start_factor) + part(elapsed) * (lr * end_factor)
        })
    }
}
