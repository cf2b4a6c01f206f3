//! [`GradientAccumulationScheduler`]: accumulates gradients over another number of batches from some epochs on.

use crate::StepPart;
use crate::callbacks::callback::Callback;

/// Accumulates gradients over another number of batches from some epochs on: pairs of an epoch, counted from 0, and the
/// batches for which the optimizer steps once. Before the first of these epochs it steps for each batch.
///
/// The step takes the number from the epoch, on the device: nothing is compiled for it. The sums of gradients are in the
/// training state from the beginning. [`Plan::total_steps`](crate::Plan::total_steps), schedules and checkpoints know the
/// steps of all epochs. It takes the place of the option `accumulate_grad_batches`.
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
    /// The number of batches a step, from each of these epochs on.
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

    fn refusal(&self) -> Option<String> {
        if self.scheduling.is_empty() {
            return Some("it has no epoch; give pairs of an epoch and a number of batches, such as (4, 2)".into());
        }
        if let Some((epoch, _)) = self.scheduling.iter().find(|(_, every)| *every == 0) {
            return Some(format!("from epoch {epoch} on, a step must take at least 1 batch, not 0"));
        }
        let twice = self.scheduling.windows(2).find(|pair| pair[0].0 == pair[1].0)?;
        Some(format!("epoch {} is given twice; give one number of batches for it", twice[0].0))
    }

    fn step_part(&self) -> Option<StepPart> {
        Some(StepPart::Accumulation { scheduling: self.scheduling.clone() })
    }
}
