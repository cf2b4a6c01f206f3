//! [`Norms`]: logs the norms of gradients, parameters and updates.

use fulmen_nn::optim::gradient_norm;
use fulmen_tensor::Tensor;

use crate::logs::GRAD_NORM;
use crate::rules::step_rule::{StepInputs, StepRule, UpdatedParameter, UpdatedStep, grouped};
use crate::rules::sum_dtype::sum_dtype;

/// Logs Euclidean norms of the step of a log point.
#[derive(Clone, Debug)]
pub(crate) struct Norms {
    /// Log the norms of gradients, before clipping.
    pub(crate) gradients: bool,
    /// Log the norms of parameters, after the step.
    pub(crate) parameters: bool,
    /// Log the norms of the changes of parameters.
    pub(crate) updates: bool,
    /// Which parameters share a norm.
    pub(crate) group_by: NormGroup,
}

/// The parameters that share a norm in [`NormMonitor`](crate::callbacks::NormMonitor).
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
        StepInputs { update: true, ..StepInputs::default() }
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
}

/// A value in the dtype of sums.
fn wide(value: &Tensor) -> Tensor {
    value.to_dtype(sum_dtype(value.dtype()))
}

fn norm(parameters: &[&UpdatedParameter], value: impl Fn(&UpdatedParameter) -> Tensor) -> Tensor {
    let values: Vec<Tensor> = parameters.iter().map(|parameter| value(parameter)).collect();
    gradient_norm(&values)
}
