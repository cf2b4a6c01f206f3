//! [`SkipSpikes`]: skips steps whose loss or gradient norm is far above its values in the steps
//! before. The training state has the values of the latest steps, so the device can decide alone,
//! and a resumed run makes the same decisions.

use fulmen_tensor::{DType, Tensor};

use crate::rules::step_rule::{Candidate, StepInputs, StepRule, UpdatedStep};

/// The smallest deviation, as a share of the mean. Without this minimum, a rounding error in a
/// constant loss would count as a spike.
const MIN_DEVIATION: f64 = 1e-3;

/// The smallest scale of a window: zeros have no other.
const MIN_SCALE: f64 = 1e-30;

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

    /// The values of the latest steps, one row for each kind of value, the number of steps that
    /// were among them, the number of skipped steps, and the number of the last skipped step.
    fn init(&self) -> Vec<(&'static str, Tensor)> {
        let kinds = 1 + usize::from(self.gradients);
        let count = || Tensor::zeros(DType::I32, []);
        vec![
            ("window", Tensor::zeros(DType::F32, [kinds, self.window])),
            ("seen", count()),
            ("skipped", count()),
            ("last", count()),
        ]
    }

    fn inputs(&self) -> StepInputs {
        StepInputs { loss: true, grad_norm: self.gradients, update: false }
    }

    fn accepts(&self, step: &Candidate, state: &mut [Tensor]) -> Option<Tensor> {
        let [window, count, skipped, last] = state else { return None };
        let kinds: Vec<&Tensor> = step.loss.iter().chain(&step.grad_norm).collect();
        let threshold = self.threshold(window, count);
        let compared = count.ge(self.warmup.max(2) as f64);
        // For two values, reductions would cost more than all the rest.
        let mut over = Tensor::scalar(false);
        let mut finite = Tensor::scalar(true);
        for (value, threshold) in kinds.iter().zip(threshold.unbind(0)) {
            over = over.or(value.gt(&threshold));
            finite = finite.and(value.is_finite());
        }
        let spike = compared.and(over).or(finite.not());

        // A spike enters the window as the largest value that would have passed. One spike
        // therefore doesn't hide the next, and a loss that stays larger is not skipped forever.
        let values = Tensor::stack(&kinds, 0);
        let entry = compared.select(&values.minimum(&threshold), &values).unsqueeze(1);
        let position = count.remainder(self.window as f64);
        let entered = Tensor::arange(DType::I32, self.window).eq(&position).and(&finite);
        *window = entered.select(&entry, &*window);
        *skipped = spike.select(&(&*skipped + 1.0), &*skipped);
        *last = spike.select(&step.number, &*last);
        *count = finite.select(&(&*count + 1.0), &*count);
        Some(spike.not())
    }

    fn logged(&self, _: &UpdatedStep, state: &[Tensor]) -> Vec<(String, Tensor)> {
        let names = ["skipped_steps", "last_skipped_step"].map(str::to_owned);
        names.into_iter().zip(state.iter().skip(2).cloned()).collect()
    }
}

impl SkipSpikes {
    /// The largest value of each kind that is not a spike: the mean of its row, which has `count`
    /// values, plus some deviations.
    fn threshold(&self, window: &Tensor, count: &Tensor) -> Tensor {
        let is_set = Tensor::arange(DType::I32, self.window).lt(count);
        let sum = |values: &Tensor| is_set.select(values, &values.zeros_like()).sum(1);
        let n = count.minimum(self.window as f64).to_dtype(DType::F32);
        let mean = sum(window) / n.maximum(1.0);
        // The squares of large differences overflow, and those of small ones vanish. Their ratios to
        // a value of the window do neither.
        let scale = mean.abs().maximum(&window.index(1, 0).abs()).maximum(MIN_SCALE);
        let ratio = (window - mean.unsqueeze(1)) / scale.unsqueeze(1);
        let variance = sum(&(&ratio * &ratio)) / (n - 1.0).maximum(1.0);
        let deviation = variance.sqrt() * &scale;
        &mean + deviation.maximum(&(mean.abs() * MIN_DEVIATION)) * self.deviations
    }
}
