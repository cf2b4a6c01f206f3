//! Gradient accumulation: the optimizer steps once for several batches, with the gradient of all their samples. Sums of
//! gradients lie in the training state, so that each batch runs the same program and a run can end within a group.
//!
//! A group ends after `accumulate_grad_batches` batches and with the epoch, as Lightning's do. A batch counts by its real
//! samples, so that a group is worth one batch as large, also the short one at the end of an epoch; Lightning divides
//! that by the whole number of batches.

use fulmen_tensor::{DType, Tensor};

use crate::Batch;
use crate::rules::epoch::{Epoch, counted};

/// The dtype of what is summed or averaged over many steps: at least f32, or small shares would vanish.
pub(crate) fn dtype(of: DType) -> DType {
    if of == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Optimizer steps of an epoch of so many batches.
pub(crate) fn steps_per_epoch(batches: u64, every: u64) -> u64 {
    batches.div_ceil(every.max(1))
}

/// A group of batches as one batch of it finds it.
pub(crate) struct Group {
    /// The samples of this batch, and of the group with it.
    count: Tensor,
    samples: Tensor,
    due: Tensor,
}

impl Group {
    /// Ends after so many batches, and with the epoch. `samples` are those that the sums of gradients hold.
    pub(crate) fn new(epoch: &Epoch, samples: &Tensor, data: &Batch, every: u64) -> Group {
        let count = data.mask().sum_all();
        let due = epoch.done().remainder(counted(every)).eq(0.0).or(epoch.ends());
        Group { samples: samples + &count, count, due }
    }

    /// Whether the group ends with this batch: a boolean scalar.
    pub(crate) fn due(&self) -> &Tensor {
        &self.due
    }

    /// The real samples of the group so far, at least 1: an f32 scalar.
    pub(crate) fn samples(&self) -> Tensor {
        self.samples.maximum(1.0)
    }

    /// The sum over the samples of the group so far, from that of the batches before and the mean over this batch.
    pub(crate) fn add(&self, sum: &Tensor, gradient: &Tensor) -> Tensor {
        sum + gradient.to_dtype(sum.dtype()) * self.count.to_dtype(sum.dtype())
    }

    /// The samples that the sums hold and the groups that have ended, for the next batch.
    pub(crate) fn next(&self, groups: &Tensor) -> [Tensor; 2] {
        [self.due.select(&self.samples.zeros_like(), &self.samples), self.due.select(&(groups + 1.0), groups)]
    }
}
