//! The optimizer's part of a step: the new parameters and optimizer state.

use fulmen_nn::optim::{Optimizer, Step};
use fulmen_tensor::{DType, Tensor, call, cond, random};

use super::gradients::{Gradient, Gradients, Param};
use super::values::Values;
use crate::rules::rounding::round_to_bf16;
use crate::state::ParamSlots;
use crate::{Error, Result};

pub(super) struct OptimizerSteps {
    /// The step of the optimizer's own schedule.
    pub(super) own: Step,
    /// The steps of parameters that were frozen at first, one for each unfreezing.
    pub(super) unfrozen: Vec<Step>,
    /// The key by which updated parameters are rounded, if they are rounded stochastically.
    pub(super) rounding_key: Option<Tensor>,
}

impl OptimizerSteps {
    /// The step of one parameter.
    pub(super) fn step_of(&self, param: &ParamSlots) -> &Step {
        param.unfreezing.map_or(&self.own, |number| &self.unfrozen[number])
    }

    /// The rounding key of each parameter, if it is rounded stochastically.
    fn rounding_keys(&self, params: &[Gradient<'_>], values: &Values) -> Vec<Option<Tensor>> {
        let entry = |gradient: &Gradient<'_>| &values.layout[gradient.param.slots.param];
        let names: Vec<&str> =
            params.iter().map(|gradient| entry(gradient).name.as_str()).collect();
        let keys = self.rounding_key.as_ref().map(|key| random::fold_in_names(key, &names));
        let key = |(row, gradient)| {
            let keys = keys.as_ref().filter(|_| entry(gradient).ty.dtype == DType::Bf16)?;
            Some(keys.index(0, row as isize))
        };
        params.iter().enumerate().map(key).collect()
    }
}

/// Changes the parameters that have a gradient. If the optimizer doesn't step (within a group of
/// batches, after an overflow, in a spike), no parameter changes.
///
/// With accumulation, most steps are within a group. A branch saves them the work of the optimizer
/// and of clipping; averages of weights are computed separately. On one TPU, a branch needs memory
/// for one more copy of the parameters than a select operation; under FSDP it needs no copy.
/// Overflows and spikes are too rare to be worth a branch. XLA's CPU compiler runs a branch on one
/// thread.
pub(super) fn update(
    optimizer: &dyn Optimizer,
    steps: &OptimizerSteps,
    values: &mut Values,
    gradients: &Gradients<'_>,
) -> Result<()> {
    let after = updated_values(optimizer, steps, values, gradients)?;
    for id in gradients.params.iter().flat_map(|gradient| gradient.param.slots.changed()) {
        values.set(id, after[id.index()].clone());
    }
    for gradient in &gradients.params {
        if let (Some(group_complete), Some(sum)) =
            (&gradients.group_complete, gradient.param.slots.grad_sum)
        {
            values.set(sum, group_complete.select(&gradient.sum.zeros_like(), &gradient.sum));
        }
    }
    Ok(())
}

/// All values of the state after the optimizer changed its parameters.
pub(super) fn updated_values(
    optimizer: &dyn Optimizer,
    steps: &OptimizerSteps,
    values: &Values,
    gradients: &Gradients<'_>,
) -> Result<Vec<Tensor>> {
    let params = gradients.params.iter().map(|gradient| &gradient.param);
    let changed = params.clone().flat_map(|param| param.slots.changed());
    let before: Vec<Tensor> = params.flat_map(|param| optimizer_inputs(param, values)).collect();
    let mut outcome = Ok(());
    let mut step = || {
        changed_values(optimizer, steps, values, gradients).unwrap_or_else(|error| {
            outcome = Err(error);
            before.clone()
        })
    };
    let new = match &gradients.updates {
        Some(updates) if gradients.group_complete.is_some() => {
            cond(updates, &[], |_| step(), |_| before.clone())
        }
        _ => step(),
    };
    outcome?;
    let mut after = values.all_after().to_vec();
    for (id, value) in changed.zip(new) {
        after[id.index()] = value;
    }
    Ok(after)
}

/// The value of a parameter and its optimizer state.
fn optimizer_inputs(param: &Param<'_>, values: &Values) -> Vec<Tensor> {
    let slots = param.slots.slots.iter().map(|&slot| values.after(slot));
    [&param.value].into_iter().chain(slots).cloned().collect()
}

/// The new values of all entries that the optimizer changes. Their types stay the same.
fn changed_values(
    optimizer: &dyn Optimizer,
    steps: &OptimizerSteps,
    values: &Values,
    gradients: &Gradients<'_>,
) -> Result<Vec<Tensor>> {
    let mut changed = Vec::new();
    let norm = gradients.norm_to_clip();
    // Within a group, a branch decides.
    let updates = gradients.updates.as_ref().filter(|_| gradients.group_complete.is_none());
    let keys = steps.rounding_keys(&gradients.params, values);
    for (gradient, key) in gradients.params.iter().zip(&keys) {
        let slots = gradient.param.slots;
        let entry = &values.layout[slots.param];
        let before = optimizer_inputs(&gradient.param, values);
        let step = if entry.is_joined() {
            &steps.step_of(slots).of_stacked()
        } else {
            steps.step_of(slots)
        };
        let inputs: Vec<&Tensor> = [&gradient.sum].into_iter().chain(&before).chain(key).collect();
        // Parameters of one type share a function.
        let after = call("update", &inputs, |inputs| {
            let ready = gradients.final_gradient(&inputs[0], norm.as_ref());
            let (before, key) = inputs[1..].split_at(before.len());
            let (parameter, state) = (&before[0], &before[1..]);
            let name = &entry.names()[0];
            let (parameter, state) = match key {
                [key] => {
                    let wide = parameter.to_dtype(DType::F32);
                    let (wide, state) = optimizer.update(step, name, &wide, &ready, state);
                    let stochastic = wide.dtype() == DType::F32;
                    (if stochastic { round_to_bf16(key, &wide) } else { wide }, state)
                }
                _ => optimizer.update(step, name, parameter, &ready, state),
            };
            // The gradient of a group of batches may have a wider type than its parameter, and then
            // the result has it too.
            let rounds = parameter.dtype().is_float() && entry.ty.dtype.is_float();
            let parameter = if rounds { parameter.to_dtype(entry.ty.dtype) } else { parameter };
            let new = [parameter].into_iter().chain(state).collect();
            match updates {
                Some(updates) => keep_unless(updates, before, new),
                None => new,
            }
        });
        if after.len() != before.len() {
            return Err(Error::usage(format!(
                "the optimizer has {} tensors of state for `{}`, but its update() returned {}",
                before.len() - 1,
                entry.name,
                after.len() - 1
            )));
        }
        for (new, id) in after.into_iter().zip(slots.changed()) {
            values.check_one(id, &new)?;
            changed.push(new);
        }
    }
    Ok(changed)
}

/// The new value of a parameter and of its optimizer state where the step updates, else the old
/// ones. The new parameter depends on the selected state. Otherwise, XLA would compute the state a
/// second time, from a copy.
fn keep_unless(updates: &Tensor, before: &[Tensor], new: Vec<Tensor>) -> Vec<Tensor> {
    // The caller refuses values of other types.
    if new.len() != before.len() || new.iter().zip(before).any(|(new, old)| new.ty() != old.ty()) {
        return new;
    }
    let select = |(new, old): (&Tensor, &Tensor)| updates.select(new, old);
    let state: Vec<Tensor> = new.iter().zip(before).skip(1).map(select).collect();
    let pairs: Vec<_> = new.iter().skip(1).zip(&state).collect();
    let parameter = new.first().map(|parameter| parameter.substitute(&pairs));
    parameter.iter().zip(before).map(select).chain(state).collect()
}
