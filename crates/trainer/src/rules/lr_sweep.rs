//! [`LrSweep`]: rising learning rates instead of the optimizer's, to find a good one.

use fulmen_tensor::{DType, Tensor};

/// Rates that rise from `min` to `max` over `steps` steps.
#[derive(Clone, Debug, PartialEq)]
pub struct LrSweep {
    /// The rate of the first step.
    pub min: f64,
    /// The rate of the last step.
    pub max: f64,
    /// The number of steps.
    pub steps: u64,
    /// How the rate rises.
    pub mode: SweepMode,
}

/// How the learning rate rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SweepMode {
    /// The rate changes by the same factor in each step.
    #[default]
    Exponential,
    /// The rate changes by the same difference in each step.
    Linear,
}

impl LrSweep {
    /// The rate of the step after `finished` steps, an i32 scalar, on the device.
    pub(crate) fn rate_on_device(&self, finished: &Tensor) -> Tensor {
        let LrSweep { min, max, steps, mode } = *self;
        let share = finished.to_dtype(DType::F32) / steps.saturating_sub(1).max(1) as f64;
        match mode {
            SweepMode::Exponential => (share * (max / min).ln()).exp() * min,
            SweepMode::Linear => share * (max - min) + min,
        }
    }

    /// The rate after this fraction of the steps.
    pub(crate) fn rate(&self, share: f64) -> f64 {
        match self.mode {
            SweepMode::Exponential => self.min * (self.max / self.min).powf(share),
            SweepMode::Linear => self.min + share * (self.max - self.min),
        }
    }
}
