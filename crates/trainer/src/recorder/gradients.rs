//! Computes the gradients for the optimizer from the loss: unscaled, summed over the devices,
//! accumulated over batches, and clipped.

use std::panic::Location;

use fulmen_nn::optim::{GradScaler, gradient_norm};
use fulmen_tensor::internal::{gradients as differentiate, row_updates};
use fulmen_tensor::{DType, Shape, Tensor};

use super::values::Values;
use crate::logs::MonitoredValue;
use crate::rules::accumulation::Group;
use crate::rules::clip::Clip;
use crate::rules::row_gradient::RowGradient;
use crate::rules::skip_rule::{Candidate, SkipRule, SkipStep};
use crate::state::{EntryId, OptimizerSlots, ParamSlots};
use crate::step_config::StepConfig;
use crate::{Error, Result};

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
    /// The gradient. For a group of batches, the weighted sum over its batches so far.
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
    /// Whether a group of batches ends here, even if its gradient overflowed.
    pub(super) group_complete: Option<Tensor>,
    /// The weight of the batches, if the gradients are sums.
    weight: Option<Tensor>,
    clip: Clip,
    /// The norm of all gradients before clipping, if each step needs it.
    pub(super) norm: Option<Tensor>,
    /// The values to log about skipped steps.
    pub(super) skipped: Vec<MonitoredValue>,
}

impl Gradients<'_> {
    /// The mean and clipped gradient for the optimizer. Call this in the branch that uses the
    /// gradient: a gradient computed outside needs additional memory, but the sum is in memory
    /// already. `norm` is [`Gradients::norm_to_clip`].
    pub(super) fn final_gradient(&self, sum: &Tensor, norm: Option<&Tensor>) -> Tensor {
        let mean = match &self.weight {
            Some(weight) => sum / weight.to_dtype(sum.dtype()),
            None => sum.clone(),
        };
        self.clip.clip(&mean, norm)
    }

    /// The norm, if clipping needs it. Call this in the branch that clips, because steps within a
    /// group don't need the norm.
    pub(super) fn norm_to_clip(&self) -> Option<Tensor> {
        let norm = || self.norm_of(self.params.iter().map(|gradient| &gradient.sum));
        self.clip.needs_norm().then(|| self.norm.clone().unwrap_or_else(norm))
    }

    /// The norm of some gradients, from their sums or rows of their sums.
    pub(super) fn norm_of<'b>(&self, sums: impl IntoIterator<Item = &'b Tensor>) -> Tensor {
        norm(sums, self.weight.as_ref())
    }
}

/// The global norm of gradients that are sums over batches of this weight.
fn norm<'a>(sums: impl IntoIterator<Item = &'a Tensor>, weight: Option<&Tensor>) -> Tensor {
    let norm = gradient_norm(sums);
    match weight {
        Some(weight) => {
            let weight = weight.to_dtype(norm.dtype());
            norm / weight
        }
        None => norm,
    }
}

/// How the gradient of a parameter is computed from the gradients of the values that the model used
/// of it.
struct UsedValues<'a> {
    /// The scale of the loss.
    scale: Option<&'a GradScaler>,
    /// Whether the gradients of a group of batches are summed.
    accumulates: bool,
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
        let gradient = table.gradient(parts, param.value.shape(), self.accumulates)?;
        let sum = self.for_optimizer(gradient.rows);
        Ok(Gradient { param, sum, rows: Some(gradient.indices) })
    }

    /// The gradient without the scale of the loss. That of a complex parameter becomes the
    /// direction of ascent, `∂/∂x + i·∂/∂y`, which optimizers expect; differentiation gives its
    /// conjugate.
    fn for_optimizer(&self, gradient: Tensor) -> Tensor {
        let gradient = gradient.conj();
        match self.scale {
            Some(scale) => scale.unscale(&gradient),
            None => gradient,
        }
    }
}

/// Differentiates the loss of an optimizer with respect to its parameters, except the frozen ones.
/// `group` is set if the optimizer steps once per group of batches.
pub(super) fn gradients<'a>(
    optimizer: &'a OptimizerSlots,
    loss: &Tensor,
    params: Vec<Param<'a>>,
    frozen: Vec<Param<'a>>,
    values: &mut Values,
    group: Option<&Group>,
    config: &StepConfig,
) -> Result<Gradients<'a>> {
    let used: Vec<Tensor> = params.iter().flat_map(|param| &param.used).cloned().collect();
    let wrt: Vec<&Tensor> = used.iter().collect();
    let scale = optimizer.loss_scale.map(|ids| {
        let [scale, good_steps] = values.all_of(ids);
        GradScaler::new(scale, good_steps)
    });
    let parts = match &scale {
        Some(scale) => differentiate(scale.scale(loss), &wrt),
        None => differentiate(loss, &wrt),
    };
    let used_values = UsedValues { scale: scale.as_ref(), accumulates: group.is_some(), values };
    let (mut with_gradient, without) = used_values.sum(params, parts)?;
    for gradient in &mut with_gradient {
        if let (Some(group), Some(sum)) = (group, gradient.param.slots.grad_sum) {
            gradient.sum = group.add(values.before(sum), &gradient.sum);
        }
    }
    let group_complete = group.map(|group| group.group_complete().clone());
    let weight = group.map(Group::divisor);
    let finite = scale
        .as_ref()
        .map(|scale| scale.all_finite(with_gradient.iter().map(|gradient| &gradient.sum)));
    if let (Some(ids), Some(scale), Some(finite)) = (optimizer.loss_scale, &scale, &finite) {
        values.set_all(ids, scale.update(finite, group_complete.as_ref()));
    }
    let needs_norm =
        config.options.log_grad_norm || config.skip_rules().any(SkipRule::needs_grad_norm);
    let norm = needs_norm
        .then(|| norm(with_gradient.iter().map(|gradient| &gradient.sum), weight.as_ref()));
    let mut updates = match (&group_complete, finite) {
        (Some(group_complete), Some(finite)) => Some(group_complete.and(finite)),
        (group_complete, finite) => group_complete.clone().or(finite),
    };
    let mut skipped = Vec::new();
    // The host counts groups of batches too.
    let counters = &values.layout.counters;
    let finished = counters.group.map_or(counters.step, |[_, groups]| groups);
    for (rule, slots) in config.skip_rules().zip(&optimizer.skip_rules) {
        let state = slots.iter().map(|&id| values.before(id).clone()).collect();
        let candidate = Candidate {
            loss: loss.to_dtype(DType::F32),
            grad_norm: norm.as_ref().map(|norm| norm.to_dtype(DType::F32)),
            number: values.before(finished) + 1.0,
        };
        let decision = SkipStep { rule, state }.decide(candidate, updates.as_ref(), group)?;
        for (name, value) in rule.logged(&decision.state[..rule.init().len()]) {
            skipped.push(MonitoredValue {
                name: name.into(),
                value,
                belongs_to_group: false,
                logger: format!("the rule `{}`", rule.name()),
            });
        }
        for (&id, value) in slots.iter().zip(decision.state) {
            values.set(id, value);
        }
        updates = Some(decision.updates);
    }
    Ok(Gradients {
        slots: optimizer,
        params: with_gradient,
        without,
        frozen,
        updates,
        group_complete,
        weight,
        clip: Clip::new(&config.options),
        norm,
        skipped,
    })
}

/// A table with sparse gradients, in messages.
struct Table<'a> {
    name: &'a str,
    /// The line that asked for sparse gradients.
    location: &'static Location<'static>,
}

impl Table<'_> {
    /// The rows of the table that have a gradient, from the gradients of its uses.
    fn gradient(&self, parts: &[Tensor], shape: &Shape, accumulates: bool) -> Result<RowGradient> {
        if accumulates {
            return Err(self.error(
                "the gradients of a group of batches would have ever more rows; set \
                 accumulate_grad_batches to 1",
            ));
        }
        let mut updates = Vec::new();
        for part in parts {
            updates.extend(row_updates(part).map_err(|other| self.error_of_use(&other))?);
        }
        Ok(RowGradient::sum(&updates, shape))
    }

    fn error_of_use(&self, other: &Tensor) -> Error {
        let operation = other.operation_name().unwrap_or("an input");
        self.error(&format!(
            "its gradient also comes from `{operation}`, recorded at {}, which is not a look-up outside of bodies; use \
             the table only in look-ups, outside of scan, cond and other bodies",
            other.location()
        ))
    }

    fn error(&self, reason: &str) -> Error {
        let Table { name, location } = self;
        Error::usage(format!("`{name}` cannot have sparse gradients: {reason}\n  at {location}"))
    }
}

/// The error of an optimizer that cannot update rows of a table.
pub(super) fn refused_rows(
    name: &str,
    location: &'static Location<'static>,
    reason: &str,
) -> Error {
    Table { name, location }.error(reason)
}
