//! Steps that are skipped because their loss or the length of their gradients is out of line with the steps before. The
//! values of the latest steps are part of the training state, so that the device decides and a resumed run decides alike.

use fulmen_tensor::{DType, Tensor};

use super::values::Values;
use crate::logs::Monitored;
use crate::state::{EntryId, SpikeSlots};

/// The least deviation, as a share of the mean: a loss that stays the same has none, and rounding is not a spike.
const LEAST_DEVIATION: f64 = 1e-3;

/// What a step is compared with.
pub(super) struct Spikes<'a> {
    slots: &'a SpikeSlots,
    warmup: u64,
    deviations: f64,
}

impl<'a> Spikes<'a> {
    pub(super) fn new(slots: &'a SpikeSlots, warmup: u64, deviations: f64) -> Spikes<'a> {
        Spikes { slots, warmup, deviations }
    }

    /// Decides whether the step of this number is skipped, by its loss and the length of its gradients, f32 scalars, of
    /// which there are as many as windows.
    /// `updates` says whether it is a step of the optimizer otherwise. Returns the new answer, and what is logged.
    pub(super) fn skip(
        &self,
        values: &mut Values,
        measured: [Option<&Tensor>; 2],
        updates: Option<&Tensor>,
        number: &Tensor,
    ) -> (Tensor, Vec<Monitored>) {
        let measured = measured.into_iter().flatten();
        let windows: Vec<(EntryId, Tensor, &Tensor)> = self
            .slots
            .windows
            .iter()
            .zip(measured)
            .map(|(&id, value)| (id, values.before(id).clone(), value))
            .collect();
        let [seen, skipped, last] = values.all_of(self.slots.counts);
        let compared = seen.ge(self.warmup.max(2) as f64);
        let none = Tensor::scalar(false);
        let over = windows.iter().fold(none.clone(), |any, (_, window, x)| any.or(x.gt(&self.most(window, &seen))));
        let finite = windows.iter().fold(none, |any, (_, _, x)| any.or(x.is_finite().not())).not();
        let spike = compared.and(over).or(finite.not());
        let within = |condition: Tensor| updates.map_or(condition.clone(), |updates| updates.and(&condition));
        let skips = within(spike.clone());

        // A spike enters as the largest value that would have passed: one of them hides no other, and a loss that
        // really is larger from now on is not skipped for ever.
        let enters = within(finite);
        for (id, window, value) in &windows {
            let value = compared.select(&value.minimum(&self.most(window, &seen)), value);
            let place = Tensor::arange(DType::I32, window.size(0)).eq(&seen.remainder(window.size(0) as f64));
            values.set(*id, place.and(&enters).select(&value, window));
        }
        let skipped = skips.select(&(&skipped + 1.0), &skipped);
        let last = skips.select(number, &last);
        let latest = [("skipped_steps", &skipped), ("last_skipped_step", &last)].map(|(name, value)| Monitored {
            name: name.into(),
            value: value.clone(),
            of_group: false,
            asked_by: "SpikeGuard",
        });
        values.set_all(self.slots.counts, [enters.select(&(&seen + 1.0), &seen), skipped, last]);
        (within(spike.not()), latest.into())
    }

    /// The largest value that is not a spike: the mean of a window with `seen` values, plus deviations.
    fn most(&self, window: &Tensor, seen: &Tensor) -> Tensor {
        let length = window.size(0);
        let there = Tensor::arange(DType::I32, length).lt(seen);
        let kept = |values: &Tensor| there.select(values, &values.zeros_like()).sum_all();
        let n = seen.minimum(length as f64).to_dtype(DType::F32);
        let mean = kept(window) / n.maximum(1.0);
        let off = window - &mean;
        let deviation = (kept(&(&off * &off)) / (n - 1.0).maximum(1.0)).sqrt();
        &mean + deviation.maximum(&(mean.abs() * LEAST_DEVIATION)) * self.deviations
    }
}
