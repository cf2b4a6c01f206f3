//! From the loss to the gradients that the optimizer gets: those of the loss without its scale, summed over the devices,
//! accumulated over batches, and then clipped.

use fulmen_nn::optim::GradScaler;
use fulmen_tensor::{DType, Tensor, grad};

use super::spikes::Spikes;
use super::values::Values;
use crate::logs::Monitored;
use crate::rules::accumulate::Group;
use crate::rules::clip::{self, Clip};
use crate::state::{OptimizerSlots, ParamSlots, SpikeSlots};
use crate::step_config::StepConfig;
use crate::step_config::step_part::StepPart;

/// A parameter that is to be changed.
pub(super) struct Param<'a> {
    /// What the state has of it.
    pub(super) slots: &'a ParamSlots,
    /// Its value.
    pub(super) value: Tensor,
    /// The values that the model saw, before they were gathered: the loss is computed from them.
    pub(super) used: Vec<Tensor>,
}

/// The gradient of one parameter.
pub(super) struct Gradient<'a> {
    pub(super) param: Param<'a>,
    /// The gradient; of a group of batches the sum over its samples so far.
    pub(super) sum: Tensor,
}

/// What the optimizer gets.
pub(super) struct Gradients<'a> {
    /// Of each parameter that the loss depends on.
    pub(super) of: Vec<Gradient<'a>>,
    /// The parameters that are frozen in this phase.
    pub(super) frozen: Vec<Param<'a>>,
    /// Whether this step changes parameters, a boolean scalar; nothing where each does.
    pub(super) updates: Option<Tensor>,
    /// Whether a group of batches ends here, whatever its gradient.
    pub(super) due: Option<Tensor>,
    /// The samples that the sums are over, where they are sums.
    samples: Option<Tensor>,
    clip: Clip,
    /// The length of all gradients together before they are clipped, if it is asked for in every step.
    pub(super) norm: Option<Tensor>,
    /// What is logged of steps that are skipped.
    pub(super) skipped: Vec<Monitored>,
}

impl Gradients<'_> {
    /// The gradient as the optimizer gets it. Recorded where it is used: a whole gradient that goes into a branch would
    /// take memory, where its sum is there already.
    /// `norm` is [`Gradients::norm_to_clip`].
    pub(super) fn ready(&self, sum: &Tensor, norm: Option<&Tensor>) -> Tensor {
        let mean = match &self.samples {
            Some(samples) => sum / samples.to_dtype(sum.dtype()),
            None => sum.clone(),
        };
        clip::clip(self.clip, &mean, norm)
    }

    /// The length that clipping needs, if it does. Recorded where it is used too: within a group it is not needed.
    pub(super) fn norm_to_clip(&self) -> Option<Tensor> {
        let norm = || self.norm_of(self.of.iter().map(|gradient| &gradient.sum));
        clip::needs_norm(self.clip).then(|| self.norm.clone().unwrap_or_else(norm))
    }

    /// The length of some gradients together, of their sums or of rows of these.
    pub(super) fn norm_of<'b>(&self, sums: impl IntoIterator<Item = &'b Tensor>) -> Tensor {
        norm(sums, self.samples.as_ref())
    }
}

/// The global norm of gradients that are sums over this number of samples.
fn norm<'a>(sums: impl IntoIterator<Item = &'a Tensor>, samples: Option<&Tensor>) -> Tensor {
    let norm = clip::norm(sums.into_iter());
    match samples {
        Some(samples) => norm / samples,
        None => norm,
    }
}

/// Differentiates the loss of an optimizer with respect to its parameters, of which some are frozen. `group` is there where it steps once for a group
/// of batches.
pub(super) fn gradients<'a>(
    optimizer: &OptimizerSlots,
    loss: &Tensor,
    (params, frozen): (Vec<Param<'a>>, Vec<Param<'a>>),
    values: &mut Values,
    group: Option<&Group>,
    setting: &StepConfig,
) -> Gradients<'a> {
    let used: Vec<Tensor> = params.iter().flat_map(|param| &param.used).cloned().collect();
    let wrt: Vec<&Tensor> = used.iter().collect();
    let scale = optimizer.loss_scale.map(|ids| GradScaler::new(values.all_of(ids)));
    let found = match &scale {
        Some(scale) => grad(&scale.scale(loss), &wrt).iter().map(|g| scale.unscale(g)).collect(),
        None => grad(loss, &wrt),
    };
    let mut found = found.into_iter().zip(loss.depends_on_each(&wrt));
    let mut of = vec![];
    for param in params {
        // As in PyTorch: what has no gradient is left alone, by weight decay too.
        let parts = found.by_ref().take(param.used.len());
        let parts = parts.filter(|(_, is_used)| *is_used).map(|(gradient, _)| gradient);
        let Some(sum) = parts.reduce(|sum, part| sum + part) else { continue };
        // Summed over the devices. Each keeps only the part that it updates.
        let sharding = &values.layout[param.slots.param].sharding;
        let sum = if sharding.is_replicated() { sum } else { sum.with_sharding(sharding) };
        of.push(Gradient { param, sum });
    }
    for gradient in &mut of {
        if let (Some(group), Some(sum)) = (group, gradient.param.slots.grad_sum) {
            gradient.sum = group.add(values.before(sum), &gradient.sum);
        }
    }
    let mut loss = loss.to_dtype(DType::F32);
    if let Some((group, sum)) = group.zip(optimizer.spikes.as_ref().and_then(|slots| slots.loss_sum)) {
        let total = group.add(values.before(sum), &loss);
        loss = &total / group.samples();
        values.set(sum, group.due().select(&total.zeros_like(), &total));
    }
    let (due, samples) = (group.map(|group| group.due().clone()), group.map(Group::samples));
    let finite = scale.as_ref().map(|scale| scale.all_finite(of.iter().map(|gradient| &gradient.sum)));
    if let (Some(ids), Some(scale), Some(finite)) = (optimizer.loss_scale, &scale, &finite) {
        values.set_all(ids, scale.update(finite, due.as_ref()));
    }
    let asked = setting.options.log_grad_norm || optimizer.spikes.as_ref().is_some_and(SpikeSlots::judges_gradients);
    let norm = asked.then(|| norm(of.iter().map(|gradient| &gradient.sum), samples.as_ref()));
    let mut updates = match (&due, finite) {
        (Some(due), Some(finite)) => Some(due.and(finite)),
        (due, finite) => due.clone().or(finite),
    };
    let mut skipped = vec![];
    let guard = setting.parts.iter().find_map(|part| match (part, &optimizer.spikes) {
        (StepPart::SpikeGuard { warmup, deviations, .. }, Some(slots)) => {
            Some(Spikes::new(slots, *warmup, *deviations))
        }
        _ => None,
    });
    if let Some(guard) = guard {
        // Counted as the host counts: groups of batches.
        let counters = &values.layout.counters;
        let number = values.before(counters.group.map_or(counters.step, |[_, groups]| groups)) + 1.0;
        let (passes, latest) = guard.skip(values, [Some(&loss), norm.as_ref()], updates.as_ref(), &number);
        (updates, skipped) = (Some(passes), latest);
    }
    Gradients { of, frozen, updates, due, samples, clip: setting.clip(), norm, skipped }
}
