//! [`GradientAccumulationScheduler`]: changes the number of accumulated batches at given epochs.

use std::sync::Arc;

use crate::callbacks::callback::Callback;
use crate::rules::step_rule::StepRule;

/// Changes the number of batches over which gradients are accumulated, at given epochs. Each pair
/// holds an epoch, counted from 0, and the number of batches per optimizer step from that epoch on.
/// Before the first of these epochs, the optimizer steps after each batch.
///
/// The compiled step computes the number from the epoch, on the device; it isn't compiled again.
/// The gradient sums are in the training state from the beginning.
/// [`Plan::total_steps`](crate::Plan::total_steps), schedules and checkpoints take the changes into
/// account. This callback replaces the option `accumulate_grad_batches`.
///
/// ```
/// use fulmen_trainer::{Trainer, callbacks::GradientAccumulationScheduler};
/// // 1 batch a step in epochs 0 to 3, then 2, and 8 from epoch 6 on.
/// let builder = Trainer::builder().callback(GradientAccumulationScheduler::new([(4, 2), (6, 8)]));
/// ```
#[derive(Clone, Debug)]
pub struct GradientAccumulationScheduler {
    scheduling: Vec<(u64, u64)>,
}

impl GradientAccumulationScheduler {
    /// Takes pairs of an epoch and the number of batches per optimizer step from that epoch on.
    pub fn new(scheduling: impl IntoIterator<Item = (u64, u64)>) -> GradientAccumulationScheduler {
        let mut scheduling: Vec<_> = scheduling.into_iter().collect();
        scheduling.sort_unstable();
        GradientAccumulationScheduler { scheduling }
    }
}

impl Callback for GradientAccumulationScheduler {
    fn name(&self) -> &'static str {
        "GradientAccumulationScheduler"
    }

    fn config_error(&self) -> Option<String> {
        if self.scheduling.is_empty() {
            return Some(
                "its list is empty; add pairs of an epoch and a number of batches, such as (4, 2)"
                    .into(),
            );
        }
        if let Some((epoch, _)) = self.scheduling.iter().find(|(_, batches)| *batches == 0) {
            return Some(format!(
                "from epoch {epoch} on, a step must take at least 1 batch, not 0"
            ));
        }
        let duplicate = self.scheduling.windows(2).find(|pair| pair[0].0 == pair[1].0)?;
        Some(format!("epoch {} is listed twice; list it once", duplicate[0].0))
    }

    fn step_rule(&self) -> Option<Arc<dyn StepRule>> {
        Some(Arc::new(self.clone()))
    }
}

impl StepRule for GradientAccumulationScheduler {
    fn name(&self) -> &'static str {
        "batches_per_step"
    }

    fn scheduling(&self) -> Option<&[(u64, u64)]> {
        Some(&self.scheduling)
    }
}
