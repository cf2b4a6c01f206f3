//! [`GroupRates`]: logs the learning rate and the momentum of each group of parameters.

use fulmen_tensor::Tensor;

use crate::logs::LEARNING_RATE;
use crate::rules::step_rule::{StepRule, UpdatedStep, grouped};

/// Logs the learning rate of each parameter group, and its momentum.
#[derive(Clone, Debug)]
pub(crate) struct GroupRates {
    /// Whether to log the momentum too.
    pub(crate) momentum: bool,
}

impl StepRule for GroupRates {
    fn name(&self) -> &'static str {
        "learning_rates"
    }

    /// The rate of each group, `lr/GROUP`, and its momentum. The rate of parameters without a group
    /// is logged as `lr` anyway.
    fn logged(&self, step: &UpdatedStep, _: &[Tensor]) -> Vec<(String, Tensor)> {
        let mut logged = Vec::new();
        for (name, parameters) in grouped(&step.stored, |parameter| parameter.group.name.clone()) {
            let Some(first) = parameters.first() else { continue };
            let suffix = if name.is_empty() { name } else { format!("/{name}") };
            if !suffix.is_empty() {
                logged
                    .push((format!("{LEARNING_RATE}{suffix}"), first.group.learning_rate.clone()));
            }
            if let Some(momentum) = first.group.momentum.as_ref().filter(|_| self.momentum) {
                logged.push((format!("momentum{suffix}"), momentum.clone()));
            }
        }
        logged
    }
}
