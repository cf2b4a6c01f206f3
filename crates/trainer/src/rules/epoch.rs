//! [`Epoch`]: the epoch counters of a step on the device, two tensors of the training state. They
//! exist only if something depends on the end of an epoch: steps of several batches or
//! evaluated weights. `checkpoint` holds the host's count.

use fulmen_tensor::{DType, Tensor};

use crate::batches_per_step::BatchesPerStep;

/// Converts a count to a number that can be compared with an i32 counter. The counter never reaches
/// a count above `i32::MAX`.
pub(crate) fn to_counter(count: u64) -> f64 {
    count.min(i32::MAX as u64) as f64
}

/// The epoch as seen by one of its batches.
pub(crate) struct Epoch {
    /// The number of batches up to this one.
    done: Tensor,
    /// The number of finished epochs.
    epochs: Tensor,
    ends: Tensor,
}

impl Epoch {
    /// Takes the index of the batch and the number of finished epochs. An epoch has `batches`
    /// batches.
    pub(crate) fn new(batch: Tensor, epochs: Tensor, batches: u64) -> Epoch {
        let done = batch + 1.0;
        Epoch { epochs, ends: done.ge(to_counter(batches)), done }
    }

    /// The number of the epoch, from 0: an i32 scalar.
    pub(crate) fn number(&self) -> &Tensor {
        &self.epochs
    }

    /// Whether the epoch ends with this batch: a boolean scalar.
    pub(crate) fn ends(&self) -> &Tensor {
        &self.ends
    }

    /// Whether a step of several batches ends with this one: a boolean scalar. The program computes
    /// the number of batches from the epoch, so it is not compiled again where the number changes.
    pub(crate) fn ends_step(&self, batches: &BatchesPerStep) -> Tensor {
        let rest = match batches.pairs() {
            [(_, every)] => self.done.remainder(to_counter(*every)),
            _ => self.done.remainder(self.number_of_batches(batches)),
        };
        rest.eq(0.0).or(&self.ends)
    }

    /// The number of batches per step in this epoch.
    fn number_of_batches(&self, batches: &BatchesPerStep) -> Tensor {
        let count = |every: u64| Tensor::full(DType::I32, [], to_counter(every));
        batches.pairs().iter().skip(1).fold(count(batches.every(0)), |every, &(from, next)| {
            self.epochs.ge(to_counter(from)).select(&count(next), &every)
        })
    }

    /// The counters for the next batch.
    pub(crate) fn next(&self) -> [Tensor; 2] {
        let batch = self.ends.select(&self.done.zeros_like(), &self.done);
        [batch, self.ends.select(&(&self.epochs + 1.0), &self.epochs)]
    }
}
