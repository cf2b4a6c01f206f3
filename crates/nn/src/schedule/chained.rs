//! [`Chained`]: the product of several schedules.

use std::sync::Arc;

use fulmen_tensor::Tensor;

use super::Schedule;

/// The product of several schedules: the first is the rate, the others are factors. PyTorch's
/// `ChainedScheduler`.
///
/// ```
/// use fulmen_nn::schedule::{Chained, Constant, Exponential, Schedule};
/// use fulmen_tensor::Tensor;
///
/// let schedule = Chained::new(Exponential::new(0.8, 0.5)).times(Constant::new(1.0, 2).factor(0.25));
/// let rate = schedule.value(&Tensor::from_slice(&[0i32, 1, 2], [3]));
/// assert_eq!(rate.eval()?.to_vec::<f32>()?, [0.2, 0.1, 0.2]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Chained(Vec<Arc<dyn Schedule>>);

impl Chained {
    /// Starts with the rate.
    pub fn new(schedule: impl Schedule + 'static) -> Chained {
        Chained(vec![Arc::new(schedule)])
    }

    /// Multiplies by another schedule.
    pub fn times(mut self, factor: impl Schedule + 'static) -> Chained {
        self.0.push(Arc::new(factor));
        self
    }
}

impl Schedule for Chained {
    #[track_caller]
    fn value(&self, step: &Tensor) -> Tensor {
        let mut product = self.0[0].value(step);
        for factor in &self.0[1..] {
            product = product * factor.value(step);
        }
        product
    }

    fn constant(&self) -> Option<f64> {
        self.0.iter().map(|schedule| schedule.constant()).product()
    }
}
