//! From the loss to the gradients that the optimizer gets: those of the loss without its scale, summed over the devices,
//! accumulated over batches, and then clipped.

use fulmen_tensor::{Tensor, grad};

use super::forward::Forward;
use super::values::Values;
use crate::accumulate::{self, Group};
use crate::clip::{self, Clip};
use crate::epoch::Epoch;
use crate::loss_scale::LossScale;
use crate::setting::Setting;
use crate::{Batch, Result};

/// The gradient of one parameter.
pub(super) struct Gradient {
    /// The place of the parameter's entry.
    pub(super) place: usize,
    /// The gradient; of a group of batches the sum over its samples so far.
    pub(super) sum: Tensor,
    /// Where the sum is kept for the next batch of the group.
    pub(super) buffer: Option<usize>,
}

/// What the optimizer gets.
pub(super) struct Gradients {
    /// Of each parameter that the loss depends on.
    pub(super) of: Vec<Gradient>,
    /// Whether this step changes parameters, a boolean scalar; nothing where each does.
    pub(super) updates: Option<Tensor>,
    /// Whether a group of batches ends here, whatever its gradient.
    pub(super) due: Option<Tensor>,
    /// The samples that the sums are over, where they are sums.
    samples: Option<Tensor>,
    clip: Clip,
    /// The length of all gradients together before they are clipped, if it is logged.
    pub(super) norm: Option<Tensor>,
}

impl Gradients {
    /// The gradient as the optimizer gets it. Recorded where it is used: a whole gradient that goes into a branch would
    /// take memory, where its sum is there already.
    /// `norm` is [`Gradients::norm_to_clip`].
    pub(super) fn ready(&self, gradient: &Gradient, norm: Option<&Tensor>) -> Tensor {
        let mean = match &self.samples {
            Some(samples) => &gradient.sum / samples.to_dtype(gradient.sum.dtype()),
            None => gradient.sum.clone(),
        };
        clip::clip(self.clip, &mean, norm)
    }

    /// The length that clipping needs, if it does. Recorded where it is used too: within a group nobody needs it.
    pub(super) fn norm_to_clip(&self) -> Option<Tensor> {
        clip::needs_norm(self.clip).then(|| self.norm.clone().unwrap_or_else(|| norm(&self.of, self.samples.as_ref())))
    }
}

/// The length of all gradients together, which are sums over so many samples.
fn norm(of: &[Gradient], samples: Option<&Tensor>) -> Tensor {
    let norm = clip::norm(of.iter().map(|gradient| &gradient.sum));
    match samples {
        Some(samples) => norm / samples,
        None => norm,
    }
}

/// Differentiates the loss.
pub(super) fn gradients(
    forward: &Forward,
    values: &mut Values<'_>,
    batch: &Batch,
    setting: &Setting,
    epoch: Option<&Epoch>,
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
    let with_place = |(place, sum)| Gradient { place, sum, buffer: None };
    let mut of: Vec<Gradient> = trained.into_iter().zip(found).map(with_place).collect();
    // As in PyTorch: what has no gradient is left alone, by weight decay too.
    of.retain(|gradient| forward.loss.depends_on(values.before(gradient.place)));

    let (mut due, mut samples) = (None, None);
    if setting.accumulate > 1 {
        let group = Group::new(epoch, values.named(accumulate::SAMPLES), batch, setting.accumulate)?;
        for gradient in &mut of {
            let buffer = values.expect(&accumulate::buffer(&values.entries[gradient.place].name))?;
            gradient.sum = group.add(values.before(buffer), &gradient.sum);
            gradient.buffer = Some(buffer);
        }
        for (name, next) in group.next(values.named(accumulate::GROUPS)) {
            values.set_named(name, next);
        }
        (due, samples) = (Some(group.due().clone()), Some(group.samples()));
    }
    let finite = scale.as_ref().map(|scale| scale.all_finite(of.iter().map(|gradient| &gradient.sum)));
    if let (Some(scale), Some(finite)) = (&scale, &finite) {
        for (name, next, before) in scale.next(finite) {
            let next = due.as_ref().map_or_else(|| next.clone(), |due| due.select(&next, before));
            values.set_named(name, next);
        }
    }
    let norm = setting.log_grad_norm.then(|| norm(&of, samples.as_ref()));
    let updates = match (&due, finite) {
        (Some(due), Some(finite)) => Some(due.and(finite)),
        (due, finite) => due.clone().or(finite),
    };
    Ok(Gradients { of, updates, due, samples, clip: setting.clip, norm })
}
