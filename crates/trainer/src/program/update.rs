//! The optimizer's part of a step: new parameters, and what it remembers of them.

use fulmen_nn::optim::{Optimizer, Step};
use fulmen_tensor::Tensor;

use super::gradients::Gradients;
use super::values::Values;
use crate::state::OPTIMIZER;
use crate::{Error, Result};

/// Lets the optimizer change the parameters that have a gradient.
pub(super) fn update(
    optimizer: &dyn Optimizer,
    step: &Step,
    values: &mut Values<'_>,
    gradients: &Gradients,
) -> Result<()> {
    for (i, gradient) in &gradients.of {
        let (i, name) = (*i, &values.entries[*i].name);
        let slots = optimizer.state(name, values.before(i).ty()).into_iter();
        let slots =
            slots.map(|(slot, _)| values.expect(&format!("{OPTIMIZER}{slot}/{name}"))).collect::<Result<Vec<_>>>()?;
        let before: Vec<Tensor> = slots.iter().map(|&slot| values.before(slot).clone()).collect();
        let (parameter, state) = optimizer.update(step, name, values.before(i), gradient, &before);
        if state.len() != slots.len() {
            return Err(Error::usage(format!(
                "the optimizer has {} tensors of state for `{name}`, and its update() returned {}",
                slots.len(),
                state.len()
            )));
        }
        for (slot, new) in [i].into_iter().chain(slots).zip([parameter].into_iter().chain(state)) {
            values.set(slot, kept(new, values.before(slot), gradients.updates.as_ref()));
        }
    }
    Ok(())
}

/// A step that is none for the optimizer, because a group of batches goes on or gradients overflowed, changes nothing
/// that the optimizer changes.
fn kept(new: Tensor, old: &Tensor, updates: Option<&Tensor>) -> Tensor {
    match updates {
        Some(updates) if new.fault().is_none() && new.ty() == old.ty() => updates.select(&new, old),
        _ => new,
    }
}
