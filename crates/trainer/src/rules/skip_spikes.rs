//! [`SkipSpikes`]: skips steps whose loss or gradient norm is far above its values in the steps
//! before. The training state has the values of the latest steps, so the device can decide alone,
//! and a resumed run makes the same decisions.

use fulmen_tensor::internal::global_norm;
use fulmen_tensor::{DType, Tensor};

use crate::rules::step_rule::{Candidate, StepInputs, StepRule, UpdatedStep};

/// The smallest deviation, as a share of the mean. Without this minimum, a rounding error in a
/// constant loss would count as a spike.
const MIN_DEVIATION: f64 = 1e-3;

/// Skips steps whose loss is an outlier.
#[derive(Debug)]
pub(crate) struct SkipSpikes {
    /// Whether to check the gradient norm too.
    pub(crate) gradients: bool,
    /// The number of earlier steps to compare with.
    pub(crate) window: usize,
    /// The number of steps before the first one that can be skipped.
    pub(crate) warmup: u64,
    /// The number of standard deviations above the mean that make an outlier.
    pub(crate) deviations: f64,
}

impl StepRule for SkipSpikes {
    fn name(&self) -> &'static str {
        "spikes"
    }

    /// The values of the latest steps, the number of steps that were among them, the number of
    /// skipped steps, and the number of the last skipped step.
    fn init(&self) -> Vec<(&'static str, Tensor)> {
        let window = || Tensor::zeros(DType::F32, [self.window]);
        let count = || Tensor::zeros(DType::I32, []);
        let mut state = vec![("losses", window())];
        if self.gradients {
            state.push(("grad_norms", window()));
        }
        state.extend([("seen", count()), ("skipped", count()), ("last", count())]);
        state
    }

    fn inputs(&self) -> StepInputs {
        StepInputs { loss: true, grad_norm: self.gradients, update: false }
    }

    fn accepts(&self, step: &Candidate, state: &mut [Tensor]) -> Option<Tensor> {
        let values = step.loss.iter().chain(&step.grad_norm);
        let (windows, counts) = state.split_at_mut(1 + usize::from(self.gradients));
        let [count, skipped, last] = counts else { return None };
        let compared = count.ge(self.warmup.max(2) as f64);
        let mut over = Tensor::scalar(false);
        let mut not_finite = Tensor::scalar(false);
        for (value, window) in values.clone().zip(&*windows) {
            over = over.or(value.gt(&self.threshold(window, count)));
            not_finite = not_finite.or(value.is_finite().not());
        }
        let finite = not_finite.not();
        let spike = compared.and(over).or(not_finite);

        // A spike enters the window as the largest value that would have passed. One spike
        // therefore doesn't hide the next, and a loss that stays larger is not skipped forever.
        for (value, window) in values.zip(windows) {
            let value = compared.select(&value.minimum(&self.threshold(window, count)), value);
            let position = Tensor::arange(DType::I32, window.size(0))
                .eq(&count.remainder(window.size(0) as f64));
            *window = position.and(&finite).select(&value, &*window);
        }
        *skipped = spike.select(&(&*skipped + 1.0), &*skipped);
        *last = spike.select(&step.number, &*last);
        *count = finite.select(&(&*count + 1.0), &*count);
        Some(spike.not())
    }

    fn logged(&self, _: &UpdatedStep, state: &[Tensor]) -> Vec<(String, Tensor)> {
        let names = ["skipped_steps", "last_skipped_step"].map(str::to_owned);
        let counts = &state[state.len().saturating_sub(2)..];
        names.into_iter().zip(counts.iter().cloned()).collect()
    }
}

impl SkipSpikes {
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
