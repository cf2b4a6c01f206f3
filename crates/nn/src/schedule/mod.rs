//! Schedules: numbers, such as the learning rate, that change from step to step. They are computed on the device from
//! the step counter, so a new value costs the host nothing.

mod one_cycle;
mod scaled;

use std::fmt::Debug;
use std::sync::Arc;

use fulmen_tensor::{DType, Tensor};

pub(crate) use scaled::Scaled;

pub use one_cycle::{Anneal, OneCycle, OneCycleMomentum};

/// A number for each step.
///
/// A plain `f64` is the schedule that never changes.
///
/// ```
/// use fulmen_nn::schedule::Schedule;
/// use fulmen_tensor::{DType, Tensor};
///
/// /// Grows by the same amount each step until it is `to`.
/// #[derive(Debug)]
/// struct Warmup { to: f64, steps: f64 }
///
/// impl Schedule for Warmup {
///     fn value(&self, step: &Tensor) -> Tensor {
///         (step.to_dtype(DType::F32) * (self.to / self.steps)).minimum(self.to)
///     }
/// }
///
/// let rate = Warmup { to: 1.0, steps: 8.0 }.value(&Tensor::scalar(2i32));
/// assert_eq!(rate.eval()?.to_vec::<f32>()?, [0.25]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
pub trait Schedule: Send + Sync + Debug {
    /// The number (an f32 scalar) for the step after `step` finished ones (an i32 scalar).
    fn value(&self, step: &Tensor) -> Tensor;

    /// The number, if it is the same for all steps.
    fn constant(&self) -> Option<f64> {
        None
    }
}

impl Schedule for f64 {
    fn value(&self, _: &Tensor) -> Tensor {
        Tensor::full(DType::F32, [], *self)
    }
    fn constant(&self) -> Option<f64> {
        Some(*self)
    }
}

macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<S: Schedule + ?Sized> Schedule for $pointer {
            fn value(&self, step: &Tensor) -> Tensor {
                (**self).value(step)
            }
            fn constant(&self) -> Option<f64> {
                (**self).constant()
            }
        }
    )*};
}
pointers!(Arc<S>, Box<S>);
