//! The queue of batches to read, over one epoch or several.
//!
//! Out of scope: which samples are in the batches (`index_batches`, `stream_batches`).

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fulmen_error::panicked;

use super::{
    inner::BatchId, inner::Inner, source::BatchTask, source::EpochBatches, source::EpochRequest,
    stats::Stopwatch,
};
use crate::{Error, Result};

/// The batches that are still to be read.
pub(crate) struct BatchSampler {
    inner: Arc<Inner>,
    stop: Arc<AtomicBool>,
    epochs: Range<u64>,
    /// The index of the next batch of epoch `epochs.start`.
    next: usize,
    /// Epoch `epochs.start`, if it has started.
    epoch: Option<Box<dyn EpochBatches>>,
    /// The number of batches that were returned, including errors.
    pub(crate) issued: u64,
}

impl BatchSampler {
    pub(crate) fn new(
        inner: Arc<Inner>,
        epochs: Range<u64>,
        start_batch: usize,
        stop: Arc<AtomicBool>,
    ) -> BatchSampler {
        BatchSampler { inner, stop, epochs, next: start_batch, epoch: None, issued: 0 }
    }

    /// Returns the next batch, or an error if it cannot be planned. After an error it returns
    /// `None`.
    pub(crate) fn next(&mut self) -> Option<Result<(BatchId, BatchTask)>> {
        let number = self.issued;
        // User code may panic here, for example in the `Drop` of a stream. Such a panic must not
        // end a thread that others wait for.
        let next = catch_unwind(AssertUnwindSafe(|| self.try_next()))
            .unwrap_or_else(|payload| Some(Err(panicked("planning a batch panicked", payload))))?;
        self.issued = number + 1;
        if next.is_err() {
            self.epochs = 0..0;
        }
        Some(next)
    }

    fn try_next(&mut self) -> Option<Result<(BatchId, BatchTask)>> {
        let batches = self.inner.batches();
        if self.next == batches && !self.epochs.is_empty() {
            self.epochs.start += 1;
            self.next = 0;
            self.epoch = None;
        }
        if self.epochs.is_empty() {
            return None;
        }
        let epoch = self.epochs.start;
        let index = self.next;
        if index >= batches {
            return Some(Err(Error::usage(format!(
                "cannot start at batch {index}: an epoch has {batches} batches"
            ))));
        }
        let watch = Stopwatch::start();
        let task = self.task(epoch, index);
        if self.inner.source.is_sequential() {
            self.inner.setup.stats.fetched_records(&watch);
        }
        self.next += 1;
        Some(task.map(|task| (BatchId { epoch, index }, task)))
    }

    fn task(&mut self, epoch: u64, index: usize) -> Result<BatchTask> {
        let open = match &mut self.epoch {
            Some(open) => open,
            empty => {
                let setup = Arc::clone(&self.inner.setup);
                let stop = Arc::clone(&self.stop);
                empty.insert(self.inner.source.epoch(EpochRequest {
                    setup,
                    epoch,
                    start_batch: index,
                    stop,
                })?)
            }
        };
        open.next(index)
    }
}
