//! [`LearningRateMonitor`]: logs the learning rate and the momentum of each group of parameters.

use std::sync::Arc;

use crate::callbacks::callback::Callback;
use crate::rules::learning_rates::GroupRates;
use crate::rules::step_rule::StepRule;

/// Logs the learning rate of each parameter group as `lr/GROUP`, and its momentum as
/// `momentum/GROUP`. For Adam and its relatives the momentum is the first beta. The name of a group
/// is its pattern in [`ParamGroups`](fulmen_nn::optim::ParamGroups). Parameters that match no
/// pattern are logged as `lr` and `momentum`; `lr` is logged without this callback too. The values
/// of a log point are those of its latest step.
///
/// ```
/// use fulmen_trainer::{Trainer, callbacks::LearningRateMonitor};
/// let builder = Trainer::builder().callback(LearningRateMonitor::new().log_momentum(true));
/// ```
#[derive(Debug, Default)]
#[must_use]
pub struct LearningRateMonitor {
    momentum: bool,
}

impl LearningRateMonitor {
    /// Logs only learning rates.
    pub fn new() -> LearningRateMonitor {
        LearningRateMonitor::default()
    }

    /// Sets whether to log the momentum too; false by default.
    pub fn log_momentum(mut self, log: bool) -> LearningRateMonitor {
        self.momentum = log;
        self
    }
}

impl Callback for LearningRateMonitor {
    fn name(&self) -> &'static str {
        "LearningRateMonitor"
    }

    fn step_rule(&self) -> Option<Arc<dyn StepRule>> {
        Some(Arc::new(GroupRates { momentum: self.momentum }))
    }
}
