//! [`NormMonitor`]: logs the norms of gradients, parameters and updates. The option `log_grad_norm`
//! logs that of all gradients in each step.

use std::sync::Arc;

use fulmen_nn::optim::gradient_norm;
use fulmen_tensor::Tensor;

use crate::Options;
use crate::callbacks::callback::Callback;
use crate::rules::step_rule::{StepInputs, StepRule, UpdatedParameter, UpdatedStep, grouped};
use crate::rules::sum_dtype::sum_dtype;

/// The name of the norm of all gradients.
const GRAD_NORM: &str = "grad_norm";

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
            in_each_step: false,
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

/// Logs Euclidean norms of the step of a log point.
#[derive(Clone, Debug)]
struct Norms {
    /// Only log the norm of all gradients, in each step.
    in_each_step: bool,
    /// Log the norms of gradients, before clipping.
    gradients: bool,
    /// Log the norms of parameters, after the step.
    parameters: bool,
    /// Log the norms of the changes of parameters.
    updates: bool,
    /// Which parameters share a norm.
    group_by: NormGroup,
}

/// The parameters that share a norm in [`NormMonitor`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NormGroup {
    /// The parameters of an optimizer's parameter group, named by its pattern. Parameters without a
    /// pattern are the group `default`.
    #[default]
    ParamGroup,
    /// The parameters of a layer: `encoder.0` has `encoder.0.weight` and `encoder.0.bias`.
    Layer,
    /// Each parameter on its own.
    Parameter,
}

impl NormGroup {
    /// The name of a parameter's group.
    fn name(self, UpdatedParameter { name, group, .. }: &UpdatedParameter) -> String {
        match self {
            NormGroup::ParamGroup if group.name.is_empty() => "default".into(),
            NormGroup::ParamGroup => group.name.clone(),
            NormGroup::Layer => name.rsplit_once('.').map_or(&**name, |(layer, _)| layer).into(),
            NormGroup::Parameter => name.clone(),
        }
    }
}

impl StepRule for Norms {
    fn name(&self) -> &'static str {
        "norms"
    }

    fn inputs(&self) -> StepInputs {
        StepInputs { grad_norm: self.in_each_step, update: !self.in_each_step, loss: false }
    }

    fn observed(&self, step: &UpdatedStep) -> Vec<(String, Tensor)> {
        let mut norms = Vec::new();
        let groups = grouped(&step.parameters, |parameter| self.group_by.name(parameter));
        let all = (String::new(), step.stored.iter().collect());
        let is_several = groups.len() > 1;
        for (group, parameters) in
            [all].into_iter().chain(groups.into_iter().filter(|_| is_several))
        {
            let suffix = if group.is_empty() { group } else { format!("/{group}") };
            let mut push = |kind: &str, norm| norms.push((format!("{kind}{suffix}"), norm));
            let trained: Vec<_> =
                parameters.iter().copied().filter(|parameter| !parameter.is_frozen()).collect();
            // The norm of all gradients may exist already.
            if self.gradients && !(suffix.is_empty() && step.grad_norm.is_some()) {
                push(GRAD_NORM, step.gradient_norm(trained.iter().copied()));
            }
            if self.parameters {
                push("param_norm", norm(&parameters, |parameter| wide(&parameter.after)));
            }
            if self.updates {
                let change =
                    |parameter: &UpdatedParameter| wide(&parameter.after) - wide(&parameter.before);
                push("update_norm", norm(&trained, change));
            }
        }
        norms
    }

    fn logged(&self, step: &UpdatedStep, _: &[Tensor]) -> Vec<(String, Tensor)> {
        let norm = step.grad_norm.iter().filter(|_| self.gradients);
        norm.map(|norm| (GRAD_NORM.to_owned(), norm.clone())).collect()
    }

    fn logs_in_epochs(&self, name: &str) -> bool {
        name == GRAD_NORM
    }
}

/// The rule that logs the norm of all gradients in each step, if `log_grad_norm` is on. Steps that
/// overflow log it too, because it shows the overflow.
pub(super) fn of_options(options: &Options, _: &[Arc<dyn StepRule>]) -> Option<Arc<dyn StepRule>> {
    let rule = Norms { in_each_step: true, ..NormMonitor::default().0 };
    options.log_grad_norm.then(|| Arc::new(rule) as _)
}

/// A value in the dtype of sums.
fn wide(value: &Tensor) -> Tensor {
    value.to_dtype(sum_dtype(value.dtype()))
}

fn norm(parameters: &[&UpdatedParameter], value: impl Fn(&UpdatedParameter) -> Tensor) -> Tensor {
    let values: Vec<Tensor> = parameters.iter().map(|parameter| value(parameter)).collect();
    gradient_norm(&values)
}
