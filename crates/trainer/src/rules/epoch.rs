//! [`Epoch`]: what a step on the device knows of its epoch, by two counters of the training state. They are there where
//! something hangs on the end of an epoch: groups of batches, or averages of weights. The host's count is not here but in
//! `checkpoint`.

use fulmen_tensor::Tensor;

/// A count as a number to compare with an i32 counter; more than it can count is never reached.
pub(crate) fn counted(count: u64) -> f64 {
    count.min(i32::MAX as u64) as f64
}

/// The epoch as one batch of it finds it.
pub(crate) struct Epoch {
    /// Batches with this one.
    done: Tensor,
    /// Epochs that have ended before this one.
    epochs: Tensor,
    ends: Tensor,
}

impl Epoch {
    /// Of the batch within its epoch and the epochs that have ended; an epoch has `batches` batches.
    pub(crate) fn new([batch, epochs]: [Tensor; 2], batches: u64) -> Epoch {
        let done = batch + 1.0;
        Epoch { epochs, ends: done.ge(counted(batches)), done }
    }

    /// Batches of the epoch with this one: an i32 scalar.
    pub(crate) fn done(&self) -> &Tensor {
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
