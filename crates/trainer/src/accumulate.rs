//! Gradient accumulation: the optimizer steps once for several batches, with the gradient of all their samples. Sums of
//! gradients lie in the training state, so that each batch runs the same program and a run can end within a group.
//!
//! A group ends after `accumulate_grad_batches` batches and with the epoch, as Lightning's do. A batch counts by its real
//! samples, so that a group is worth one batch as large, also the short one at the end of an epoch; Lightning divides
//! that by the whole number of batches.

use fulmen_tensor::{DType, Tensor, TensorType};

use crate::epoch::{Epoch, counted};
use crate::{Batch, Error, Result};

/// The real samples that the sums hold: f32.
pub(crate) const SAMPLES: &str = "trainer/accumulated_samples";
/// Groups that have ended: i32.
pub(crate) const GROUPS: &str = "trainer/groups";

/// The prefix of sums of gradients.
pub(crate) const GRADIENTS: &str = "trainer/gradients/";

/// The name of the sum of a parameter's gradients, each times the samples of its batch.
pub(crate) fn buffer(parameter: &str) -> String {
    format!("{GRADIENTS}{parameter}")
}

/// The dtype of what is summed or averaged over many steps: at least f32, or small shares would vanish.
pub(crate) fn dtype(of: DType) -> DType {
    if of == DType::F64 { DType::F64 } else { DType::F32 }
}

/// What a sum begins with.
pub(crate) fn first(parameter: &TensorType) -> Tensor {
    Tensor::zeros(dtype(parameter.dtype), &parameter.shape)
}

/// The counters with their first values.
pub(crate) fn entries() -> Vec<(String, Tensor)> {
    let zero = |dtype| Tensor::zeros(dtype, []);
    vec![(SAMPLES.into(), zero(DType::F32)), (GROUPS.into(), zero(DType::I32))]
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
    /// Ends after so many batches, and with the epoch.
    pub(crate) fn new(epoch: Option<&Epoch>, samples: Option<&Tensor>, data: &Batch, every: u64) -> Result<Group> {
        let (Some(epoch), Some(samples)) = (epoch, samples) else {
            return Err(Error::usage("the training state has no counters for accumulated gradients"));
        };
        let count = data.mask().sum_all();
        let due = epoch.done().remainder(counted(every)).eq(0.0).or(epoch.ends());
        Ok(Group { samples: samples + &count, count, due })
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

    /// The counters for the next batch.
    pub(crate) fn next(&self, groups: Option<&Tensor>) -> Vec<(&'static str, Tensor)> {
        let mut next = vec![(SAMPLES, self.due.select(&self.samples.zeros_like(), &self.samples))];
        next.extend(groups.map(|groups| (GROUPS, self.due.select(&(groups + 1.0), groups))));
        next
    }
}
