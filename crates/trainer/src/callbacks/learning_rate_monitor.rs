//! [`LearningRateMonitor`]: logs the learning rate and the momentum of each group of parameters.

use crate::StepPart;
use crate::callbacks::callback::Callback;

/// Logs the learning rate of each group of parameters as `lr/GROUP`, and its momentum as `momentum/GROUP` (of Adam and its
/// kin: the first of the betas). A group has the pattern of [`ParamGroups`](fulmen_nn::optim::ParamGroups) as its name;
/// parameters that no pattern fits have `lr`, which is always logged, and `momentum`. The values are those of the latest
/// step, and come with the other values of a log point.
///
/// ```
/// use fulmen_trainer::{Trainer, callbacks::LearningRateMonitor};
/// let builder = Trainer::builder().callback(LearningRateMonitor::new().log_momentum(true));
/// ```
#[derive(Debug, Default)]
pub struct LearningRateMonitor {
    momentum: bool,
}

impl LearningRateMonitor {
    /// Logs learning rates alone.
    pub fn new() -> LearningRateMonitor {
        LearningRateMonitor::default()
    }

    /// Whether to log the momentum too.
    pub fn log_momentum(mut self, log: bool) -> LearningRateMonitor {
        self.momentum = log;
        self
    }
}

impl Callback for LearningRateMonitor {
    fn name(&self) -> &'static str {
        "LearningRateMonitor"
    }

    fn step_part(&self) -> Option<StepPart> {
        Some(StepPart::LearningRates { momentum: self.momentum })
    }
}
