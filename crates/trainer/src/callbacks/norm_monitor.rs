//! [`NormMonitor`]: logs how long gradients, parameters and their changes are.

use crate::callbacks::callback::Callback;
use crate::step_config::step_part::{NormGroup, StepPart};

/// Logs Euclidean lengths of the step of a log point: of the gradients before clipping (`grad_norm`), of the parameters after the
/// step (`param_norm`), and of what the step changed of them (`update_norm`). Each is logged for all trained parameters
/// together, and as `grad_norm/GROUP` for each group where there are several. They come with the other values of the log
/// point, and the steps between compute nothing for them; of an optimizer that skips steps they are those of its latest step.
///
/// ```
/// use fulmen_trainer::Trainer;
/// use fulmen_trainer::callbacks::{NormGroup, NormMonitor};
/// let builder = Trainer::builder().callback(NormMonitor::new().group_by(NormGroup::Layer).parameters(false));
/// ```
#[derive(Debug)]
pub struct NormMonitor {
    gradients: bool,
    parameters: bool,
    updates: bool,
    by: NormGroup,
}

impl Default for NormMonitor {
    fn default() -> NormMonitor {
        NormMonitor { gradients: true, parameters: true, updates: true, by: NormGroup::default() }
    }
}

impl NormMonitor {
    /// Logs all three lengths by the groups of the optimizer.
    pub fn new() -> NormMonitor {
        NormMonitor::default()
    }

    /// Whether to log the lengths of gradients.
    pub fn gradients(mut self, log: bool) -> NormMonitor {
        self.gradients = log;
        self
    }

    /// Whether to log the lengths of parameters.
    pub fn parameters(mut self, log: bool) -> NormMonitor {
        self.parameters = log;
        self
    }

    /// Whether to log the lengths of what a step changes.
    pub fn updates(mut self, log: bool) -> NormMonitor {
        self.updates = log;
        self
    }

    /// Which parameters are taken together.
    pub fn group_by(mut self, by: NormGroup) -> NormMonitor {
        self.by = by;
        self
    }
}

impl Callback for NormMonitor {
    fn name(&self) -> &'static str {
        "NormMonitor"
    }

    fn refusal(&self) -> Option<String> {
        let logs = self.gradients || self.parameters || self.updates;
        (!logs).then(|| "gradients, parameters and updates are all off, so that it logs nothing; turn one on".into())
    }

    fn step_part(&self) -> Option<StepPart> {
        let NormMonitor { gradients, parameters, updates, by } = *self;
        Some(StepPart::Norms { gradients, parameters, updates, by })
    }
}
