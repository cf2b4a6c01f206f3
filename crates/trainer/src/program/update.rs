//! The optimizer's part of a step: new parameters, and what it remembers of them.

use fulmen_nn::optim::{Optimizer, Step};
use fulmen_tensor::{Tensor, cond};

use super::gradients::{Gradient, Gradients};
use super::values::Values;
use crate::setting::Setting;
use crate::state::OPTIMIZER;
use crate::{Error, Result};

/// Lets the optimizer change the parameters that have a gradient. A step that is none for it, because a group of batches
/// goes on or gradients overflowed, changes nothing of theirs. Within a group, which is most steps, nothing is computed
/// for the optimizer or for clipping either (averages of weights are, which stand apart); an overflow is too rare for a branch. On one TPU the branch keeps one more copy of the
/// parameters than a selection would; under FSDP it keeps none.
pub(super) fn update(
    optimizer: &dyn Optimizer,
    step: &Step,
    values: &mut Values<'_>,
    gradients: &Gradients,
    setting: &Setting,
) -> Result<()> {
    let places = places(optimizer, values, gradients)?;
    let before: Vec<Tensor> = places.iter().flatten().map(|&i| values.before(i).clone()).collect();
    let mut outcome = Ok(());
    let mut after = || {
        all(optimizer, step, values, gradients, &places).unwrap_or_else(|error| {
            outcome = Err(error);
            before.clone()
        })
    };
    let after = match &gradients.updates {
        Some(updates) if setting.accumulate > 1 => cond(updates, &[], |_| after(), |_| before.clone()),
        Some(updates) => after().iter().zip(&before).map(|(new, old)| updates.select(new, old)).collect(),
        None => after(),
    };
    outcome?;
    for (&i, value) in places.iter().flatten().zip(after) {
        values.set(i, value);
    }
    for gradient in &gradients.of {
        if let (Some(due), Some(buffer)) = (&gradients.due, gradient.buffer) {
            values.set(buffer, due.select(&gradient.sum.zeros_like(), &gradient.sum));
        }
    }
    Ok(())
}

/// For each gradient the places of its parameter and of what the optimizer remembers of it.
fn places(optimizer: &dyn Optimizer, values: &Values<'_>, gradients: &Gradients) -> Result<Vec<Vec<usize>>> {
    let of = |gradient: &Gradient| {
        let i = gradient.place;
        let name = &values.entries[i].name;
        let slots = optimizer.state(name, values.before(i).ty()).into_iter();
        let slots = slots.map(|(slot, _)| values.expect(&format!("{OPTIMIZER}{slot}/{name}")));
        [Ok(i)].into_iter().chain(slots).collect()
    };
    gradients.of.iter().map(of).collect()
}

/// The new values of all those places, of the types that they had.
fn all(
    optimizer: &dyn Optimizer,
    step: &Step,
    values: &Values<'_>,
    gradients: &Gradients,
    places: &[Vec<usize>],
) -> Result<Vec<Tensor>> {
    let mut all = vec![];
    let norm = gradients.norm_to_clip();
    for (gradient, places) in gradients.of.iter().zip(places) {
        let i = gradient.place;
        let name = &values.entries[i].name;
        let before: Vec<Tensor> = places[1..].iter().map(|&slot| values.before(slot).clone()).collect();
        let (parameter, state) =
            optimizer.update(step, name, values.before(i), &gradients.ready(gradient, norm.as_ref()), &before);
        // A gradient may be wider than its parameter, that of a group of batches say, and so what is made of both.
        let ty = &values.entries[i].ty;
        let rounds = parameter.dtype().is_float() && ty.dtype.is_float();
        let parameter = if rounds { parameter.to_dtype(ty.dtype) } else { parameter };
        if state.len() != before.len() {
            return Err(Error::usage(format!(
                "the optimizer has {} tensors of state for `{name}`, and its update() returned {}",
                before.len(),
                state.len()
            )));
        }
        for (new, &place) in [parameter].into_iter().chain(state).zip(places) {
            values.check_one(place, &new)?;
            all.push(new);
        }
    }
    Ok(all)
}
