//! [`LrSweep`]: rising learning rates instead of the optimizer's, to find a good one.

use fulmen_tensor::{DType, Tensor};

use crate::rules::step_rule::StepRule;
use crate::{Error, Result};

/// Rates that rise from `min` to `max` over `steps` steps.
#[derive(Clone, Debug)]
pub(crate) struct LrSweep {
    /// The rate of the first step.
    pub(crate) min: f64,
    /// The rate of the last step.
    pub(crate) max: f64,
    /// The number of steps.
    pub(crate) steps: u64,
    /// How the rate rises.
    pub(crate) mode: SweepMode,
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

impl StepRule for LrSweep {
    fn name(&self) -> &'static str {
        "lr_sweep"
    }

    fn check(&self, optimizers: &[&str]) -> Result<()> {
        if optimizers.len() == 1 {
            return Ok(());
        }
        let names: Vec<_> = optimizers.iter().map(|name| format!("`{name}`")).collect();
        Err(Error::usage(format!(
            "lr_find: the module has the optimizers {}, but lr_find tries only one learning rate; return one optimizer",
            names.join(", ")
        )))
    }

    fn learning_rate(&self, finished: &Tensor) -> Option<Tensor> {
        let LrSweep { min, max, steps, mode } = *self;
        let share = finished.to_dtype(DType::F32) / steps.saturating_sub(1).max(1) as f64;
        Some(match mode {
            SweepMode::Exponential => (share * (max / min).ln()).exp() * min,
            SweepMode::Linear => share * (max - min) + min,
        })
    }
}

impl LrSweep {
    /// The rate after this fraction of the steps.
    pub(crate) fn rate(&self, share: f64) -> f64 {
        match self.mode {
            SweepMode::Exponential => self.min * (self.max / self.min).powf(share),
            SweepMode::Linear => self.min + share * (self.max - self.min),
        }
    }
}
