//! Gradient accumulation: the optimizer steps once per group of batches, with the gradient over all
//! their samples. The sums of gradients are part of the training state. Each batch runs the same
//! program, and a run can end within a group.
//!
//! A group ends after `accumulate_grad_batches` batches and at the end of an epoch, as in
//! Lightning. Each batch is weighted by the weight that its loss brings, or by its real samples, so
//! that every group, even the short one at the end of an epoch, equals one large batch. Lightning
//! divides a short group by the full number of batches. The size of a group may change with the
//! epoch: the program computes it from the epoch's number, so nothing is compiled again.

use fulmen_tensor::{DType, Tensor};

use crate::Batch;
use crate::group_sizes::GroupSizes;
use crate::rules::epoch::{Epoch, to_counter};
use crate::rules::weight::weighted;

/// The state of a group of batches at one of its batches.
pub(crate) struct Group {
    /// The weight of this batch: its samples, or what the loss brings.
    count: Tensor,
    /// The weight of the group up to this batch.
    total: Tensor,
    /// Whether the loss brings its weight.
    is_weighted: bool,
    group_complete: Tensor,
}

impl Group {
    /// The group that this batch belongs to. It ends after the accumulated number of batches, and
    /// at the end of the epoch. `before` is the weight of the batches in the sums of gradients.
    pub(crate) fn new(epoch: &Epoch, before: &Tensor, data: &Batch, sizes: &GroupSizes) -> Group {
        let count = data.mask().sum_all();
        let rest = match sizes.pairs() {
            [(_, every)] => epoch.batches_so_far().remainder(to_counter(*every)),
            _ => epoch.batches_so_far().remainder(size_on_device(sizes, epoch)),
        };
        let group_complete = rest.eq(0.0).or(epoch.ends());
        Group { total: before + &count, count, is_weighted: false, group_complete }
    }

    /// The same group for a loss that brings the weight of this batch. `before` is the weight of
    /// the batches before it.
    pub(crate) fn weighted_by(&self, weight: &Tensor, before: &Tensor) -> Group {
        Group {
            count: weight.clone(),
            total: before + weight,
            is_weighted: true,
            group_complete: self.group_complete.clone(),
        }
    }

    /// Whether the group ends with this batch: a boolean scalar.
    pub(crate) fn group_complete(&self) -> &Tensor {
        &self.group_complete
    }

    /// The weight of the group so far, to divide by: an f32 scalar above 0.
    pub(crate) fn divisor(&self) -> Tensor {
        if self.is_weighted {
            self.total.gt(0.0).select(&self.total, &self.total.ones_like())
        } else {
            self.total.maximum(1.0)
        }
    }

    /// Adds the mean over this batch, times its weight, to the sum over the group.
    pub(crate) fn add(&self, sum: &Tensor, gradient: &Tensor) -> Tensor {
        let gradient = gradient.to_dtype(sum.dtype());
        if self.is_weighted {
            sum + weighted(&gradient, &self.count)
        } else {
            sum + gradient * self.count.to_dtype(sum.dtype())
        }
    }

    /// The sum over the group, for the next batch.
    pub(crate) fn next_sum(&self, sum: &Tensor) -> Tensor {
        self.group_complete.select(&sum.zeros_like(), sum)
    }

    /// The weight of the batches in the sums, for the next batch.
    pub(crate) fn next_total(&self) -> Tensor {
        self.next_sum(&self.total)
    }

    /// The number of finished groups, for the next batch.
    pub(crate) fn next_groups(&self, groups: &Tensor) -> Tensor {
        self.group_complete.select(&(groups + 1.0), groups)
    }
}

/// The number of batches per optimizer step in this epoch, on the device.
fn size_on_device(sizes: &GroupSizes, epoch: &Epoch) -> Tensor {
    let count = |every: u64| Tensor::full(DType::I32, [], to_counter(every));
    sizes.pairs().iter().skip(1).fold(count(sizes.every(0)), |every, &(from, next)| {
        epoch.number().ge(to_counter(from)).select(&count(next), &every)
    })
}
