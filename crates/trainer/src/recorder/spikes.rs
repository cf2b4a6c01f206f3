//! Skips steps whose loss or gradient norm is far above its values in the steps before. The
//! training state has the values of the latest steps, so the device can decide alone, and a resumed
//! run makes the same decisions.

use fulmen_tensor::internal::global_norm;
use fulmen_tensor::{DType, Tensor};

use super::values::Values;
use crate::logs::MonitoredValue;
use crate::state::{EntryId, SpikeSlots};

/// The smallest deviation, as a share of the mean. Without this minimum, a rounding error in a
/// constant loss would count as a spike.
const MIN_DEVIATION: f64 = 1e-3;

/// Compares steps with the latest ones.
pub(super) struct SpikeDetector<'a> {
    slots: &'a SpikeSlots,
    warmup: u64,
    deviations: f64,
}

impl<'a> SpikeDetector<'a> {
    pub(super) fn new(slots: &'a SpikeSlots, warmup: u64, deviations: f64) -> SpikeDetector<'a> {
        SpikeDetector { slots, warmup, deviations }
    }

    /// Decides whether step `number` is skipped, from its loss and gradient norm, f32 scalars. The
    /// norm counts only if it has a window. `updates` is whether the optimizer would step without
    /// this check. Returns whether the optimizer steps now, and the values to log.
    pub(super) fn skip(
        &self,
        values: &mut Values,
        loss: &Tensor,
        norm: Option<&Tensor>,
        updates: Option<&Tensor>,
        number: &Tensor,
    ) -> (Tensor, Vec<MonitoredValue>) {
        let windows: Vec<(EntryId, Tensor, &Tensor)> = self
            .slots
            .windows
            .iter()
            .zip([loss].into_iter().chain(norm))
            .map(|(&id, value)| (id, values.before(id).clone(), value))
            .collect();
        let [count, skipped, last] = values.all_of(self.slots.counts);
        let compared = count.ge(self.warmup.max(2) as f64);
        let none = Tensor::scalar(false);
        let over = windows.iter().fold(none.clone(), |any, (_, window, x)| {
            any.or(x.gt(&self.threshold(window, &count)))
        });
        let finite = windows.iter().fold(none, |any, (_, _, x)| any.or(x.is_finite().not())).not();
        let spike = compared.and(over).or(finite.not());
        let within = |condition: Tensor| {
            updates.map_or(condition.clone(), |updates| updates.and(&condition))
        };
        let skips = within(spike.clone());

        // A spike enters the window as the largest value that would have passed. One spike
        // therefore doesn't hide the next, and a loss that stays larger is not skipped forever.
        let enters = within(finite);
        for (id, window, value) in &windows {
            let value = compared.select(&value.minimum(&self.threshold(window, &count)), value);
            let position = Tensor::arange(DType::I32, window.size(0))
                .eq(&count.remainder(window.size(0) as f64));
            values.set(*id, position.and(&enters).select(&value, window));
        }
        let skipped = skips.select(&(&skipped + 1.0), &skipped);
        let last = skips.select(number, &last);
        let latest =
            [("skipped_steps", &skipped), ("last_skipped_step", &last)].map(|(name, value)| {
                MonitoredValue {
                    name: name.into(),
                    value: value.clone(),
                    belongs_to_group: false,
                    callback: "SpikeGuard",
                }
            });
        values.set_all(self.slots.counts, [enters.select(&(&count + 1.0), &count), skipped, last]);
        (within(spike.not()), latest.into())
    }

    /// The largest value that is not a spike: the mean of a window with `count` values, plus some
    /// deviations.
    fn threshold(&self, window: &Tensor, count: &Tensor) -> Tensor {
        let length = window.size(0);
        let is_set = Tensor::arange(DType::I32, length).lt(count);
        let set = |values: &Tensor| is_set.select(values, &values.zeros_like());
        let n = count.minimum(length as f64).to_dtype(DType::F32);
        let mean = set(window).sum_all() / n.maximum(1.0);
        // The squares of large differences overflow.
        let difference = global_norm(&[set(&(window - &mean))]);
        let deviation = difference / (n - 1.0).maximum(1.0).sqrt();
        &mean + deviation.maximum(&(mean.abs() * MIN_DEVIATION)) * self.deviations
    }
}
