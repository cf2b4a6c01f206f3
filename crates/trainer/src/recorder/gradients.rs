//! Computes the gradients for the optimizer from the loss: unscaled, summed over the devices,
//! collected over batches, and changed by rules.

use std::panic::Location;
use std::sync::Arc;

use fulmen_tensor::internal::gradients as differentiate;
use fulmen_tensor::{DType, Tensor};

use super::values::Values;
use crate::Result;
use crate::rules::row_gradient::Table;
use crate::rules::step_rule::{
    Candidate, CollectedParameter, RuleState, StepBatch, StepRule, mean_gradient,
    mean_gradient_norm,
};
use crate::state::{EntryId, OptimizerSlots, ParamSlots};
use crate::step_config::StepConfig;

/// A parameter of an optimizer.
pub(super) struct Param<'a> {
    /// The parameter's entries in the state.
    pub(super) slots: &'a ParamSlots,
    /// The parameter's value.
    pub(super) value: Tensor,
    /// The values that the model used, before they were gathered. The loss is computed from them.
    pub(super) used: Vec<Tensor>,
}

/// The gradient of one parameter.
pub(super) struct Gradient<'a> {
    pub(super) param: Param<'a>,
    /// The gradient. If steps take several batches, the weighted sum over the batches so far.
    pub(super) sum: Tensor,
    /// For a table with sparse gradients, the indices of the rows of `sum`. An index past the end is
    /// unused.
    pub(super) rows: Option<Tensor>,
}

/// The gradients for an optimizer.
pub(super) struct Gradients<'a> {
    /// The optimizer's entries in the state.
    pub(super) slots: &'a OptimizerSlots,
    /// The gradients of the parameters on which the loss depends.
    pub(super) params: Vec<Gradient<'a>>,
    /// The parameters that are not frozen, but with respect to which the loss has no derivative.
    pub(super) without: Vec<EntryId>,
    /// The parameters that are frozen in this phase.
    pub(super) frozen: Vec<Param<'a>>,
    /// Whether this step changes parameters, a Boolean scalar. `None` if every step changes them.
    pub(super) updates: Option<Tensor>,
    /// Whether a step of several batches ends here, even if its gradient overflowed.
    pub(super) step_ends: Option<Tensor>,
    /// The weight of the batches, if the gradients are sums.
    pub(super) weight: Option<Tensor>,
    /// The rules of the step, which may change the gradients for the optimizer.
    rules: Vec<Arc<dyn StepRule>>,
    /// The norm of all gradients, if each step needs it.
    pub(super) norm: Option<Tensor>,
}

impl Gradients<'_> {
    /// The mean gradient for the optimizer, as the rules change it. Call this in the branch that
    /// uses the gradient: a gradient computed outside needs additional memory, but the sum is in
    /// memory already. `norm` is [`Gradients::norm_for_rules`].
    pub(super) fn final_gradient(&self, sum: &Tensor, norm: Option<&Tensor>) -> Tensor {
        let mean = mean_gradient(sum, self.weight.as_ref());
        self.rules.iter().fold(mean, |gradient, rule| rule.changed_gradient(&gradient, norm))
    }

    /// The norm, if a rule changes gradients by it. Call this in the branch that changes them,
    /// because only the last batch of a step needs the norm.
    pub(super) fn norm_for_rules(&self) -> Option<Tensor> {
        let sums = self.params.iter().map(|gradient| &gradient.sum);
        let norm = || mean_gradient_norm(sums, self.weight.as_ref());
        let reads_norm = self.rules.iter().any(|rule| rule.changes_by_norm());
        reads_norm.then(|| self.norm.clone().unwrap_or_else(norm))
    }
}

/// How the gradient of a parameter is computed from the gradients of the values that the model used
/// of it.
struct UsedValues<'a> {
    /// The rules of the step, which may have scaled the loss.
    rules: &'a [RuleState<'a>],
    values: &'a Values,
}

impl UsedValues<'_> {
    /// The gradient of each parameter that has one, and the other parameters. `parts` are the
    /// gradients of all used values of all parameters.
    fn sum<'p>(
        &self,
        params: Vec<Param<'p>>,
        parts: Vec<Option<Tensor>>,
    ) -> Result<(Vec<Gradient<'p>>, Vec<EntryId>)> {
        let mut parts = parts.into_iter();
        let mut with_gradient = Vec::new();
        let mut without = Vec::new();
        for param in params {
            // As in PyTorch, a parameter without a gradient doesn't change, not even by weight
            // decay.
            let mut own_parts = parts.by_ref().take(param.used.len()).flatten();
            let Some(first) = own_parts.next() else {
                without.push(param.slots.param);
                continue;
            };
            with_gradient.push(match param.slots.sparse {
                Some(location) => {
                    let all: Vec<Tensor> = std::iter::once(first).chain(own_parts).collect();
                    self.rows(param, &all, location)?
                }
                None => {
                    let first = self.for_optimizer(first);
                    let sum = own_parts.fold(first, |sum, part| sum + self.for_optimizer(part));
                    self.whole(param, sum)
                }
            });
        }
        Ok((with_gradient, without))
    }

    /// The gradient of a parameter, from the sum of its parts.
    fn whole<'p>(&self, param: Param<'p>, sum: Tensor) -> Gradient<'p> {
        // XLA sums the gradient over the devices. Each device keeps only the part that it updates.
        let sharding = &self.values.layout[param.slots.param].sharding;
        let sum = if sharding.is_replicated() { sum } else { sum.with_sharding(sharding) };
        Gradient { param, sum, rows: None }
    }

    /// The gradient of a table with sparse gradients.
    fn rows<'p>(
        &self,
        param: Param<'p>,
        parts: &[Tensor],
        location: &'static Location<'static>,
    ) -> Result<Gradient<'p>> {
        let table = Table { name: &self.values.layout[param.slots.param].name, location };
        let gradient = table.gradient(parts, param.value.shape())?;
        let sum = self.for_optimizer(gradient.rows);
        Ok(Gradient { param, sum, rows: Some(gradient.indices) })
    }

    /// The gradient without the scale of the loss. That of a complex parameter becomes the
    /// direction of ascent, `∂/∂x + i·∂/∂y`, which optimizers expect; differentiation gives its
    /// conjugate.
    fn for_optimizer(&self, gradient: Tensor) -> Tensor {
        let gradient = gradient.conj();
        let unscale = |gradient, rule: &RuleState<'_>| rule.rule.unscale(&gradient, &rule.state);
        self.rules.iter().rev().fold(gradient, unscale)
    }
}

/// Differentiates the loss of an optimizer with respect to its parameters, except the frozen ones.
pub(super) fn gradients<'a>(
    optimizer: &'a OptimizerSlots,
    batch: &mut StepBatch<'_>,
    params: Vec<Param<'a>>,
    frozen: Vec<Param<'a>>,
    values: &mut Values,
    config: &StepConfig,
) -> Result<Gradients<'a>> {
    let used: Vec<Tensor> = params.iter().flat_map(|param| &param.used).cloned().collect();
    let wrt: Vec<&Tensor> = used.iter().collect();
    let mut rules = Vec::new();
    for (rule, slots) in config.rules.iter().zip(&optimizer.step_rules) {
        let state = slots.iter().map(|&id| values.before(id).clone()).collect();
        rules.push(RuleState { rule: &**rule, state });
    }
    let scale = |loss, rule: &RuleState<'_>| rule.rule.scale_loss(&loss, &rule.state);
    let parts = differentiate(&rules.iter().fold(batch.loss.clone(), scale), &wrt);
    let (mut with_gradient, without) = UsedValues { rules: &rules, values }.sum(params, parts)?;
    if batch.step_ends.is_some() {
        collect(batch, &mut rules, &mut with_gradient, values)?;
    }
    let weight = batch.weight.take();
    let sums = with_gradient.iter().map(|gradient| &gradient.sum);
    let needs_norm = config.rules.iter().any(|rule| rule.inputs().grad_norm);
    let norm = needs_norm.then(|| mean_gradient_norm(sums.clone(), weight.as_ref()));
    let counters = &values.layout.counters;
    let candidate = Candidate {
        loss: Some(batch.mean_loss.clone()),
        grad_norm: norm.as_ref().map(|norm| norm.to_dtype(DType::F32)),
        gradients: sums.cloned().collect(),
        number: values.before(counters.steps.unwrap_or(counters.step)) + 1.0,
    };
    let mut updates = batch.step_ends.cloned();
    for (mut rule, slots) in rules.into_iter().zip(&optimizer.step_rules) {
        updates = rule.decide(&candidate, updates)?;
        for (&id, value) in slots.iter().zip(rule.state) {
            values.set(id, value);
        }
    }
    Ok(Gradients {
        slots: optimizer,
        params: with_gradient,
        without,
        frozen,
        updates,
        step_ends: batch.step_ends.cloned(),
        weight,
        rules: config.rules.clone(),
        norm,
    })
}

/// Lets the rules join the gradients of a batch with those of earlier batches of its step.
fn collect(
    batch: &mut StepBatch<'_>,
    rules: &mut [RuleState<'_>],
    gradients: &mut [Gradient<'_>],
    values: &mut Values,
) -> Result<()> {
    for (index, RuleState { rule, state }) in rules.iter_mut().enumerate() {
        let before = |id: &EntryId| values.before(*id).clone();
        let parameter = |Gradient { param, sum, .. }: &Gradient<'_>| CollectedParameter {
            name: values.layout[param.slots.param].name.clone(),
            sparse: param.slots.sparse,
            gradient: sum.clone(),
            state: param.slots.step_rules[index].iter().map(before).collect(),
        };
        batch.parameters = gradients.iter().map(parameter).collect();
        rule.collect(batch, state)?;
        for (gradient, parameter) in gradients.iter_mut().zip(batch.parameters.drain(..)) {
            gradient.sum = parameter.gradient;
            for (&id, value) in gradient.param.slots.step_rules[index].iter().zip(parameter.state) {
                values.set(id, value);
            }
        }
    }
    Ok(())
}
