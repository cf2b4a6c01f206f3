//! From the loss to the gradients that the optimizer gets: those of the loss without its scale, summed over the devices,
//! accumulated over batches, and then clipped.

use fulmen_tensor::{Tensor, grad};

use super::forward::Forward;
use super::values::Values;
use crate::accumulate::{self, Group};
use crate::clip;
use crate::loss_scale::LossScale;
use crate::setting::Setting;
use crate::{Batch, Result};

/// What the optimizer gets.
pub(super) struct Gradients {
    /// Of each parameter that the loss depends on: the place of its entry, and its gradient.
    pub(super) of: Vec<(usize, Tensor)>,
    /// Whether this step changes parameters, a boolean scalar; nothing where each does.
    pub(super) updates: Option<Tensor>,
    /// The length of all gradients together before they are clipped, if anyone asks for it.
    pub(super) norm: Option<Tensor>,
}

/// Differentiates the loss. `batches` is the number of batches of an epoch.
pub(super) fn gradients(
    forward: &Forward,
    values: &mut Values<'_>,
    batch: &Batch,
    setting: &Setting,
    batches: u64,
) -> Result<Gradients> {
    let trained: Vec<usize> = (0..values.entries.len()).filter(|&i| values.entries[i].trained).collect();
    let wrt: Vec<&Tensor> = trained.iter().map(|&i| &forward.used[i]).collect();
    let scale = LossScale::of(|name| values.named(name).cloned());
    let mut found = match &scale {
        Some(scale) => grad(&scale.scaled(&forward.loss), &wrt).iter().map(|g| scale.unscaled(g)).collect(),
        None => grad(&forward.loss, &wrt),
    };
    for (&i, gradient) in trained.iter().zip(&mut found) {
        // Summed over the devices, of which each keeps only the part that it updates.
        if !values.entries[i].sharding.is_replicated() {
            *gradient = gradient.with_sharding(&values.entries[i].sharding);
        }
    }
    let mut gradients: Vec<(usize, Tensor)> = trained.into_iter().zip(found).collect();
    // As in PyTorch: what has no gradient is left alone, by weight decay too.
    gradients.retain(|&(i, _)| forward.loss.depends_on(values.before(i)));

    let mut due = None;
    if setting.accumulate > 1 {
        let group = Group::new(values.named(accumulate::BATCH), values.named(accumulate::SAMPLES), batch)?;
        let group = group.up_to(setting.accumulate, batches);
        for (i, gradient) in &mut gradients {
            let buffer = values.expect(&accumulate::buffer(&values.entries[*i].name))?;
            let (mean, next) = group.add(values.before(buffer), gradient);
            *gradient = mean;
            values.set(buffer, next);
        }
        for (name, next) in group.next(values.named(accumulate::GROUPS)) {
            values.set_named(name, next);
        }
        due = Some(group.due().clone());
    }
    let finite = scale.as_ref().map(|scale| scale.all_finite(gradients.iter().map(|(_, gradient)| gradient)));
    if let (Some(scale), Some(finite)) = (&scale, &finite) {
        for (name, next, before) in scale.next(finite) {
            let next = due.as_ref().map_or_else(|| next.clone(), |due| due.select(&next, before));
            values.set_named(name, next);
        }
    }
    let norm = (setting.log_grad_norm || clip::needs_norm(setting.clip))
        .then(|| clip::norm(gradients.iter().map(|(_, gradient)| gradient)));
    for (_, gradient) in &mut gradients {
        *gradient = clip::clip(setting.clip, gradient, norm.as_ref());
    }
    let updates = match (due, finite) {
        (Some(due), Some(finite)) => Some(due.and(finite)),
        (due, finite) => due.or(finite),
    };
    Ok(Gradients { of: gradients, updates, norm: norm.filter(|_| setting.log_grad_norm) })
}
