//! [`Warmup`]: a linear increase, then any schedule.

use std::sync::Arc;

use fulmen_tensor::{DType, Tensor};

use super::{Schedule, checked, not_finite, steps};

/// Increases linearly to the first value of another schedule, which then starts. In PyTorch, this
/// is a `SequentialLR` of a `LinearLR` and the other schedule.
///
/// ```
/// use fulmen_nn::schedule::{CosineAnnealing, Schedule, Warmup};
/// use fulmen_tensor::Tensor;
///
/// let rate = Warmup::new(4, CosineAnnealing::new(0.8, 100)).value(&Tensor::from_slice(&[0i32, 1, 4, 104], [4]));
/// assert_eq!(rate.eval()?.to_vec::<f32>()?, [0.0, 0.2, 0.8, 0.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Warmup {
    steps: u64,
    start_factor: f64,
    then: Arc<dyn Schedule>,
}

impl Warmup {
    /// Increases from 0 over this many steps; `then` counts from their end.
    pub fn new(steps: u64, then: impl Schedule + 'static) -> Warmup {
        Warmup { steps, start_factor: 0.0, then: Arc::new(then) }
    }

    /// The initial fraction of the first value; 0 by default.
    pub fn start_factor(mut self, factor: f64) -> Warmup {
        self.start_factor = factor;
        self
    }
}

impl Schedule for Warmup {
    #[track_caller]
    fn value(&self, step: &Tensor) -> Tensor {
        let error = not_finite(&[("start_factor", self.start_factor)]);
        checked("Warmup", error, || {
            if self.steps == 0 {
                return self.then.value(step);
            }
            let length = steps(self.steps);
            let elapsed = step.minimum(length);
            let part = |count: Tensor| count.to_dtype(DType::F32) / length;
            let factor = part(length - &elapsed) * self.start_factor + part(elapsed);
            self.then.value(&(step - length).maximum(0.0)) * factor
        })
    }
}
