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
use crate::position::BatchPosition;
use crate::rules::epoch::{Epoch, to_counter};
use crate::rules::step_rule::StepRule;
use crate::rules::weight::weighted;

/// The dtype of sums and averages over many steps: at least f32, because smaller types would lose
/// small terms.
pub(crate) fn dtype(value: DType) -> DType {
    match value {
        DType::F64 | DType::C64 | DType::C128 => value,
        _ => DType::F32,
    }
}

/// Changes the number of batches per optimizer step at some epochs.
#[derive(Clone, Debug)]
pub(crate) struct Scheduling(pub(crate) Vec<(u64, u64)>);

impl StepRule for Scheduling {
    fn name(&self) -> &'static str {
        "accumulation"
    }

    fn scheduling(&self) -> Option<&[(u64, u64)]> {
        Some(&self.0)
    }
}

/// The number of batches per optimizer step, as pairs of a first epoch and a number. The epochs are
/// in ascending order and begin with 0.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Accumulation(Vec<(u64, u64)>);

impl Accumulation {
    /// Accumulates the same number of batches in all epochs.
    pub(crate) fn constant(every: u64) -> Accumulation {
        Accumulation(vec![(0, every.max(1))])
    }

    /// Accumulates by a schedule with ascending epochs. The number is 1 before the first of them.
    pub(crate) fn scheduled(scheduling: &[(u64, u64)]) -> Accumulation {
        let first = scheduling.first().filter(|(epoch, _)| *epoch > 0).map(|_| (0, 1));
        Accumulation(
            first
                .into_iter()
                .chain(scheduling.iter().map(|&(epoch, every)| (epoch, every.max(1))))
                .collect(),
        )
    }

    /// The number of batches per optimizer step in this epoch.
    pub(crate) fn every(&self, epoch: u64) -> u64 {
        self.0.iter().rev().find(|(from, _)| *from <= epoch).map_or(1, |(_, every)| *every)
    }

    /// Whether any step takes more than one batch.
    pub(crate) fn accumulates(&self) -> bool {
        self.0.iter().any(|(_, every)| *every > 1)
    }

    /// The optimizer steps in the first `batches` batches of an epoch.
    pub(crate) fn steps_of(&self, epoch: u64, batches: u64) -> u64 {
        batches.div_ceil(self.every(epoch))
    }

    /// The optimizer steps in the first `epochs` epochs, of `batches` batches each.
    pub(crate) fn steps(&self, epochs: u64, batches: u64) -> u64 {
        let ends = self.0.iter().skip(1).map(|(from, _)| *from).chain([u64::MAX]);
        let each = self.0.iter().zip(ends).map(|(&(from, every), end)| {
            end.min(epochs).saturating_sub(from).saturating_mul(batches.div_ceil(every))
        });
        each.fold(0, u64::saturating_add)
    }

    /// The position after this number of optimizer steps, in epochs of `batches` batches.
    pub(crate) fn position(&self, steps: u64, batches: u64) -> BatchPosition {
        let mut remaining = steps;
        let ends = self.0.iter().skip(1).map(|(from, _)| *from).chain([u64::MAX]);
        for (&(from, every), end) in self.0.iter().zip(ends) {
            let each = batches.div_ceil(every).max(1);
            if remaining / each < end - from {
                let epoch = from + remaining / each;
                let batch = (remaining % each).saturating_mul(every);
                return BatchPosition { epoch, batch };
            }
            remaining = remaining.saturating_sub((end - from).saturating_mul(each));
        }
        BatchPosition { epoch: u64::MAX, batch: 0 }
    }

    /// Like [`Accumulation::every`], on the device.
    fn every_on_device(&self, epoch: &Epoch) -> Tensor {
        let count = |every: u64| Tensor::full(DType::I32, [], to_counter(every));
        self.0.iter().skip(1).fold(count(self.every(0)), |every, &(from, next)| {
            epoch.number().ge(to_counter(from)).select(&count(next), &every)
        })
    }
}

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
    pub(crate) fn new(
        epoch: &Epoch,
        before: &Tensor,
        data: &Batch,
        accumulation: &Accumulation,
    ) -> Group {
        let count = data.mask().sum_all();
        let rest = match &accumulation.0[..] {
            [(_, every)] => epoch.batches_so_far().remainder(to_counter(*every)),
            _ => epoch.batches_so_far().remainder(accumulation.every_on_device(epoch)),
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

    /// The weight of the batches in the sums, for the next batch.
    pub(crate) fn next_total(&self) -> Tensor {
        self.group_complete.select(&self.total.zeros_like(), &self.total)
    }

    /// The number of finished groups, for the next batch.
    pub(crate) fn next_groups(&self, groups: &Tensor) -> Tensor {
        self.group_complete.select(&(groups + 1.0), groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_positions_match_a_loop() {
        for scheduling in [&[][..], &[(0, 3)], &[(2, 4)], &[(0, 2), (1, 5), (4, 1)]] {
            let accumulation = if scheduling.is_empty() {
                Accumulation::constant(1)
            } else {
                Accumulation::scheduled(scheduling)
            };
            for batches in [1, 4, 7] {
                let mut steps = 0;
                for epoch in 0..8 {
                    assert_eq!(
                        accumulation.steps(epoch, batches),
                        steps,
                        "{scheduling:?} {batches} {epoch}"
                    );
                    let every = scheduling
                        .iter()
                        .rfind(|(from, _)| *from <= epoch)
                        .map_or(1, |(_, every)| *every);
                    for batch in 0..batches {
                        if batch % every == 0 {
                            assert_eq!(
                                accumulation.position(steps, batches),
                                BatchPosition { epoch, batch },
                                "{scheduling:?} {batches}"
                            );
                            steps += 1;
                        }
                    }
                }
            }
        }
        // An endless loader, an endless run.
        let position = Accumulation::constant(2).position(5, u64::MAX);
        assert_eq!(position, BatchPosition { epoch: 0, batch: 10 });
        assert_eq!(Accumulation::constant(2).steps(u64::MAX, u64::MAX), u64::MAX);
    }
}
