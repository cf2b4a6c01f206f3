//! Gradient accumulation: the optimizer steps once for several batches, with the gradient of all their samples. Sums of
//! gradients lie in the training state, so that each batch runs the same program and a run can end within a group.
//!
//! A group ends after `accumulate_grad_batches` batches and with the epoch, as Lightning's do. A batch counts by its real
//! samples, so that a group is worth one batch as large, also the short one at the end of an epoch; Lightning divides
//! that by the whole number of batches.

use fulmen_tensor::{DType, Tensor, TensorType};

use crate::{Batch, Error, Result};

/// The number of the batch within its epoch, from 0: i32.
pub(crate) const BATCH: &str = "trainer/batch";
/// The real samples that the sums hold: f32.
pub(crate) const SAMPLES: &str = "trainer/accumulated_samples";
/// Groups that have ended: i32.
pub(crate) const GROUPS: &str = "trainer/groups";

/// The name of the sum of a parameter's gradients, each times the samples of its batch.
pub(crate) fn buffer(parameter: &str) -> String {
    format!("trainer/gradients/{parameter}")
}

/// What a sum begins with: at least f32, whatever the parameter is.
pub(crate) fn first(parameter: &TensorType) -> Tensor {
    let dtype = if parameter.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    Tensor::zeros(dtype, &parameter.shape)
}

/// The counters with their first values.
pub(crate) fn entries() -> Vec<(String, Tensor)> {
    let zero = |dtype| Tensor::zeros(dtype, []);
    vec![(BATCH.into(), zero(DType::I32)), (SAMPLES.into(), zero(DType::F32)), (GROUPS.into(), zero(DType::I32))]
}

/// Optimizer steps of an epoch of so many batches.
pub(crate) fn steps_per_epoch(batches: u64, every: u64) -> u64 {
    batches.div_ceil(every.max(1))
}

/// A group of batches as one batch of it finds it.
pub(crate) struct Group {
    batch: Tensor,
    /// The samples of this batch, and of the group with it.
    count: Tensor,
    samples: Tensor,
    ends_epoch: Tensor,
    due: Tensor,
}

impl Group {
    pub(crate) fn new(batch: Option<&Tensor>, samples: Option<&Tensor>, data: &Batch) -> Result<Group> {
        let (Some(batch), Some(samples)) = (batch, samples) else {
            return Err(Error::usage("the training state has no counters for accumulated gradients"));
        };
        let count = data.mask().sum_all();
        let due = Tensor::scalar(true);
        Ok(Group { batch: batch.clone(), samples: samples + &count, count, ends_epoch: due.clone(), due })
    }

    /// Ends after so many batches, and with the epoch.
    pub(crate) fn up_to(mut self, every: u64, batches: u64) -> Group {
        let limit = |count: u64| count.min(i32::MAX as u64) as f64;
        let done = &self.batch + 1.0;
        self.ends_epoch = done.ge(limit(batches));
        self.due = done.remainder(limit(every)).eq(0.0).or(&self.ends_epoch);
        self
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
        let batch = &self.batch + 1.0;
        let mut next = vec![
            (BATCH, self.ends_epoch.select(&batch.zeros_like(), &batch)),
            (SAMPLES, self.due.select(&self.samples.zeros_like(), &self.samples)),
        ];
        next.extend(groups.map(|groups| (GROUPS, self.due.select(&(groups + 1.0), groups))));
        next
    }
}
