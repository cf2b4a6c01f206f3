//! From the loss to the gradients that the optimizer gets: those of the loss without its scale, summed over the devices,
//! accumulated over batches, and then clipped.

use fulmen_tensor::{DType, Tensor, grad};

use super::forward::Forward;
use super::spikes::Spikes;
use super::values::Values;
use crate::Batch;
use crate::accumulate::Group;
use crate::clip::{self, Clip};
use crate::epoch::Epoch;
use crate::logs::Latest;
use crate::loss_scale::LossScale;
use crate::setting::Setting;
use crate::state::ParamSlots;
use crate::step_part::StepPart;

/// The gradient of one parameter.
pub(super) struct Gradient<'a> {
    /// The parameter, with what the optimizer keeps of it.
    pub(super) slots: &'a ParamSlots,
    /// The gradient; of a group of batches the sum over its samples so far.
    pub(super) sum: Tensor,
}

/// What the optimizer gets.
pub(super) struct Gradients<'a> {
    /// Of each parameter that the loss depends on.
    pub(super) of: Vec<Gradient<'a>>,
    /// Whether this step changes parameters, a boolean scalar; nothing where each does.
    pub(super) updates: Option<Tensor>,
    /// Whether a group of batches ends here, whatever its gradient.
    pub(super) due: Option<Tensor>,
    /// The samples that the sums are over, where they are sums.
    samples: Option<Tensor>,
    clip: Clip,
    /// The length of all gradients together before they are clipped, if anybody asks for it.
    pub(super) norm: Option<Tensor>,
    /// What is logged of steps that are skipped.
    pub(super) skipped: Vec<Latest>,
}

impl Gradients<'_> {
    /// The gradient as the optimizer gets it. Recorded where it is used: a whole gradient that goes into a branch would
    /// take memory, where its sum is there already.
    /// `norm` is [`Gradients::norm_to_clip`].
    pub(super) fn ready(&self, gradient: &Gradient<'_>, norm: Option<&Tensor>) -> Tensor {
        let mean = match &self.samples {
            Some(samples) => &gradient.sum / samples.to_dtype(gradient.sum.dtype()),
            None => gradient.sum.clone(),
        };
        clip::clip(self.clip, &mean, norm)
    }

    /// The length that clipping needs, if it does. Recorded where it is used too: within a group nobody needs it.
    pub(super) fn norm_to_clip(&self) -> Option<Tensor> {
        clip::needs_norm(self.clip).then(|| self.norm.clone().unwrap_or_else(|| self.norm_of(&self.of)))
    }

    /// The length of some gradients together.
    pub(super) fn norm_of<'b>(&'b self, of: impl IntoIterator<Item = &'b Gradient<'b>>) -> Tensor {
        norm(of, self.samples.as_ref())
    }
}

/// The length of gradients together, which are sums over so many samples.
fn norm<'a>(of: impl IntoIterator<Item = &'a Gradient<'a>>, samples: Option<&Tensor>) -> Tensor {
    let norm = clip::norm(of.into_iter().map(|gradient| &gradient.sum));
    match samples {
        Some(samples) => norm / samples,
        None => norm,
    }
}

/// Differentiates the loss.
pub(super) fn gradients<'a>(
    forward: &Forward,
    values: &mut Values<'a>,
    batch: &Batch,
    setting: &Setting,
    epoch: Option<&Epoch>,
) -> Gradients<'a> {
    let layout = values.layout;
    let params = &layout.optimizer.params;
    let wrt: Vec<&Tensor> = params.iter().map(|slots| &forward.used[slots.param.index()]).collect();
    let scale = layout.counters.loss_scale.map(|ids| LossScale::new(values.all_of(ids)));
    let mut found = match &scale {
        Some(scale) => grad(&scale.scaled(&forward.loss), &wrt).iter().map(|g| scale.unscaled(g)).collect(),
        None => grad(&forward.loss, &wrt),
    };
    for (slots, gradient) in params.iter().zip(&mut found) {
        // Summed over the devices, of which each keeps only the part that it updates.
        let sharding = &layout[slots.param].sharding;
        if !sharding.is_replicated() {
            *gradient = gradient.with_sharding(sharding);
        }
    }
    let mut of: Vec<_> = params.iter().zip(found).map(|(slots, sum)| Gradient { slots, sum }).collect();
    // As in PyTorch: what has no gradient is left alone, by weight decay too.
    of.retain(|gradient| forward.loss.depends_on(values.before(gradient.slots.param)));

    let (mut due, mut samples) = (None, None);
    let mut loss = forward.loss.to_dtype(DType::F32);
    if let (Some(ids), Some(epoch)) = (layout.optimizer.group, epoch) {
        let [before, groups] = values.all_of(ids);
        let group = Group::new(epoch, &before, batch, setting.options.accumulate_grad_batches);
        for gradient in &mut of {
            if let Some(sum) = gradient.slots.grad_sum {
                gradient.sum = group.add(values.before(sum), &gradient.sum);
            }
        }
        if let Some(sum) = layout.spikes.as_ref().and_then(|slots| slots.loss_sum) {
            let total = group.add(values.before(sum), &loss);
            loss = &total / group.samples();
            values.set(sum, group.due().select(&total.zeros_like(), &total));
        }
        values.set_all(ids, group.next(&groups));
        (due, samples) = (Some(group.due().clone()), Some(group.samples()));
    }
    let finite = scale.as_ref().map(|scale| scale.all_finite(of.iter().map(|gradient| &gradient.sum)));
    if let (Some(ids), Some(scale), Some(finite)) = (layout.counters.loss_scale, &scale, &finite) {
        values.set_all(ids, scale.next(finite, due.as_ref()));
    }
    let asked = setting.options.log_grad_norm || layout.spikes.is_some();
    let norm = asked.then(|| norm(&of, samples.as_ref()));
    let mut updates = match (&due, finite) {
        (Some(due), Some(finite)) => Some(due.and(finite)),
        (due, finite) => due.clone().or(finite),
    };
    let mut skipped = vec![];
    if let (Some(slots), Some(norm)) = (&layout.spikes, &norm) {
        let guard = setting.parts.iter().find_map(|part| match *part {
            StepPart::SpikeGuard { warmup, deviations, .. } => Some(Spikes::new(slots, warmup, deviations)),
            _ => None,
        });
        if let Some(guard) = guard {
            // Counted as the host counts: groups of batches.
            let finished = layout.optimizer.group.map_or(layout.counters.step, |[_, groups]| groups);
            let number = values.before(finished) + 1.0;
            let (passes, latest) = guard.skip(values, [&loss, norm], updates.as_ref(), &number);
            (updates, skipped) = (Some(passes), latest);
        }
    }
    Gradients { of, updates, due, samples, clip: setting.clip(), norm, skipped }
}
