//! [`Constant`]: a constant with a reduced value in the first steps.

use fulmen_tensor::{DType, Tensor};

use super::{Schedule, checked, not_finite, steps};

/// `lr·factor` for the first `total_iters` steps, then `lr`: PyTorch's `ConstantLR`. For a value
/// that never changes, use the number itself.
///
/// ```
/// use fulmen_nn::schedule::{Constant, Schedule};
/// use fulmen_tensor::Tensor;
///
/// let rate = Constant::new(0.4, 10).factor(0.25).value(&Tensor::from_slice(&[9i32, 10], [2]));
/// assert_eq!(rate.eval()?.to_vec::<f32>()?, [0.1, 0.4]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Constant {
    lr: f64,
    factor: f64,
    total_iters: u64,
}

impl Constant {
    /// A third of `lr` for this many steps.
    pub fn new(lr: f64, total_iters: u64) -> Constant {
        Constant { lr, factor: 1.0 / 3.0, total_iters }
    }

    /// The initial fraction of `lr`; ⅓ by default.
    pub fn factor(mut self, factor: f64) -> Constant {
        self.factor = factor;
        self
    }
}

impl Schedule for Constant {
    #[track_caller]
    fn value(&self, step: &Tensor) -> Tensor {
        checked("Constant", not_finite(&[("lr", self.lr), ("factor", self.factor)]), || {
            let number = |value: f64| Tensor::full(DType::F32, step.shape(), value);
            step.lt(steps(self.total_iters))
                .select(&number(self.lr * self.factor), &number(self.lr))
        })
    }
}
