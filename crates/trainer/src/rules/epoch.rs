//! [`Epoch`]: the epoch counters of a step on the device, two tensors of the training state. They
//! exist only if something depends on the end of an epoch: groups of batches or evaluated
//! weights. `checkpoint` holds the host's count.

use fulmen_tensor::Tensor;

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

    /// The number of the epoch's batches up to this one: an i32 scalar.
    pub(crate) fn batches_so_far(&self) -> &Tensor {
        &self.done
    }

    /// The number of the epoch, from 0: an i32 scalar.
    pub(crate) fn number(&self) -> &Tensor {
        &self.epochs
    }

    /// Whether the epoch ends with this batch: a boolean scalar.
    pub(crate) fn ends(&self) -> &Tensor {
        &self.ends
    }

    /// The counters for the next batch.
    pub(crate) fn next(&self) -> [Tensor; 2] {
        let batch = self.ends.select(&self.done.zeros_like(), &self.done);
        [batch, self.ends.select(&(&self.epochs + 1.0), &self.epochs)]
    }
}
