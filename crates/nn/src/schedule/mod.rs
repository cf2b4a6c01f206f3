//! Schedules: numbers, such as the learning rate, that change from step to step. They are computed
//! on the device from the step counter, so they cost the host nothing.
//!
//! Schedules count optimizer steps. Where PyTorch's examples step a scheduler once per epoch,
//! multiply by `steps_per_epoch` of the Trainer's `Plan`. Names, defaults and values are those of
//! PyTorch's `lr_scheduler`, without the suffix `LR`. The counter stays an integer until a number
//! depends on it, so step 10,000,000 is as exact as the first.

mod chained;
mod constant;
mod cosine_annealing;
mod cyclic;
mod exponential;
mod inverse_sqrt;
mod lambda;
mod linear;
mod multi_step;
mod one_cycle;
mod polynomial;
mod power;
mod sequential;
mod step;
mod warm_restarts;
mod warmup;

use std::f64::consts::FRAC_PI_2;
use std::fmt::Debug;
use std::sync::Arc;

use fulmen_tensor::{DType, Tensor};

pub use chained::Chained;
pub use constant::Constant;
pub use cosine_annealing::CosineAnnealing;
pub use cyclic::{Cyclic, CyclicMode};
pub use exponential::Exponential;
pub use inverse_sqrt::InverseSqrt;
pub use lambda::Lambda;
pub use linear::Linear;
pub use multi_step::MultiStep;
pub use one_cycle::{Anneal, OneCycle, OneCycleMomentum};
pub use polynomial::Polynomial;
pub use sequential::Sequential;
pub use step::Step;
pub use warm_restarts::CosineAnnealingWarmRestarts;
pub use warmup::Warmup;

/// A number for each step.
///
/// A plain `f64` is a constant schedule.
///
/// ```
/// use fulmen_nn::schedule::Schedule;
/// use fulmen_tensor::{DType, Tensor};
///
/// // /// Grows by the same amount in each step until it reaches `to`.
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
    /// The value (an f32 scalar) for the step after `step` finished steps (an i32 scalar).
    fn value(&self, step: &Tensor) -> Tensor;

    /// The value, if it is the same for all steps.
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

/// A count of steps as a float to compare with the i32 counter. Larger counts are never reached.
fn steps(count: u64) -> f64 {
    count.min(i32::MAX as u64) as f64
}

/// `value`, or poison if there is an error in the settings.
#[track_caller]
fn checked(name: &str, error: Option<String>, value: impl FnOnce() -> Tensor) -> Tensor {
    match error {
        Some(message) => Tensor::poison(name, message),
        None => value(),
    }
}

/// A message about the first of these numbers that is infinite or NaN.
fn not_finite(numbers: &[(&str, f64)]) -> Option<String> {
    let (name, value) = numbers.iter().find(|(_, value)| !value.is_finite())?;
    Some(format!("{name} must be finite, but it is {value}"))
}

/// A message about the first of these counts that is 0.
fn zero(counts: &[(&str, u64)]) -> Option<String> {
    counts
        .iter()
        .find(|(_, count)| *count == 0)
        .map(|(name, _)| format!("{name} must be at least 1"))
}

/// A value on half a cosine wave: `from` if `elapsed` is 0, `to` if `elapsed` is `length`.
fn half_wave(elapsed: &Tensor, length: &Tensor, from: f64, to: f64) -> Tensor {
    let share = |part: Tensor| part.to_dtype(DType::F32) / length.to_dtype(DType::F32);
    cosine(share(length - elapsed), share(elapsed.clone()), from, to)
}

/// PyTorch's `to + (from − to)/2·(1 + cos(π·elapsed))` by half-angle formulas, where `remaining` is
/// `1 − elapsed`. This sum of two terms keeps its digits where it is small; in f32, PyTorch's form
/// does not.
fn cosine(remaining: Tensor, elapsed: Tensor, from: f64, to: f64) -> Tensor {
    let share = |part: Tensor| {
        let s = (part * FRAC_PI_2).sin();
        &s * &s
    };
    share(remaining) * from + share(elapsed) * to
}
