//! [`NormMonitor`]: logs the norms of gradients, parameters and updates.

use std::sync::Arc;

use crate::callbacks::callback::Callback;
use crate::rules::norms::{NormGroup, Norms};
use crate::rules::step_rule::StepRule;

/// Logs Euclidean norms at each log point: of the gradients before clipping (`grad_norm`), of the
/// parameters after the step (`param_norm`), and of the change of the parameters in the step
/// (`update_norm`).
///
/// Each norm is logged for all trained parameters together. With several groups, each group has its
/// own value, such as `grad_norm/GROUP`. Steps between log points don't compute norms. For an
/// optimizer that doesn't step at each step, the values are those of its latest step.
///
/// ```
/// use fulmen_trainer::Trainer;
/// use fulmen_trainer::callbacks::{NormGroup, NormMonitor};
/// let builder = Trainer::builder().callback(NormMonitor::new().group_by(NormGroup::Layer).parameters(false));
/// ```
#[derive(Debug)]
#[must_use]
pub struct NormMonitor(Norms);

impl Default for NormMonitor {
    fn default() -> NormMonitor {
        NormMonitor(Norms {
            gradients: true,
            parameters: true,
            updates: true,
            group_by: NormGroup::default(),
        })
    }
}

impl NormMonitor {
    /// Logs all three norms, for each parameter group of the optimizer.
    pub fn new() -> NormMonitor {
        NormMonitor::default()
    }

    /// Sets whether to log the norms of gradients.
    pub fn gradients(mut self, log: bool) -> NormMonitor {
        self.0.gradients = log;
        self
    }

    /// Sets whether to log the norms of parameters.
    pub fn parameters(mut self, log: bool) -> NormMonitor {
        self.0.parameters = log;
        self
    }

    /// Sets whether to log the norms of updates: the changes that a step makes to the parameters.
    pub fn updates(mut self, log: bool) -> NormMonitor {
        self.0.updates = log;
        self
    }

    /// Sets how parameters are grouped.
    pub fn group_by(mut self, group: NormGroup) -> NormMonitor {
        self.0.group_by = group;
        self
    }
}

impl Callback for NormMonitor {
    fn name(&self) -> &'static str {
        "NormMonitor"
    }

    fn config_error(&self) -> Option<String> {
        let logs = self.0.gradients || self.0.parameters || self.0.updates;
        (!logs).then(|| {
            "gradients, parameters and updates are all off, so it logs nothing; turn one on".into()
        })
    }

    fn step_rule(&self) -> Option<Arc<dyn StepRule>> {
        Some(Arc::new(self.0.clone()))
    }
}
