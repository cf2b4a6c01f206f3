//! [`Lambda`]: a function as a schedule.

use std::fmt;

use fulmen_tensor::Tensor;

use super::Schedule;

/// A function of the step counter, an i32 tensor, that records an f32 tensor of the same shape. It
/// is called once, while the step is recorded. Like PyTorch's `LambdaLR`, but it returns the rate
/// itself instead of a factor.
///
/// ```
/// use fulmen_nn::schedule::{Lambda, Schedule};
/// use fulmen_tensor::{DType, Tensor};
///
/// let schedule = Lambda::new(|step: &Tensor| 0.1 / (step.to_dtype(DType::F32) + 1.0));
/// assert_eq!(schedule.value(&Tensor::scalar(1i32)).eval()?.to_vec::<f32>()?, [0.05]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct Lambda<F>(F);

impl<F: Fn(&Tensor) -> Tensor + Send + Sync> Lambda<F> {
    /// A schedule from a function.
    pub fn new(f: F) -> Lambda<F> {
        Lambda(f)
    }
}

impl<F> fmt::Debug for Lambda<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lambda")
    }
}

impl<F: Fn(&Tensor) -> Tensor + Send + Sync> Schedule for Lambda<F> {
    fn value(&self, step: &Tensor) -> Tensor {
        (self.0)(step)
    }
}
