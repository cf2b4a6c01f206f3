//! The memory of one batch while samples are written into it: rows, copies of rows, padding and the
//! mask.
//!
//! Out of scope: which samples these are (`index_batches`, `stream_batches`), and which thread does
//! it (`workers`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chacha20::ChaCha8Rng;
use fulmen_error::panicked;
use fulmen_pjrt::HostBuffer;

use super::{layout::Layout, not_finite::NotFinite, on_error::OnError, stats::Stats};
use crate::dataset::random::{Purpose, generator};
use crate::dataset::sample::SampleKey;
use crate::{Error, Result, Sample};

/// Fills the memory of one batch.
pub(crate) struct Collator<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) buffer: BatchBuffer<'a>,
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
    pub(crate) on_error: OnError,
    pub(crate) stats: &'a Stats,
    /// If set, filling stops between two samples.
    pub(crate) stop: &'a AtomicBool,
    /// For the first batch of a training: the number of its first row among those of all
    /// processes.
    pub(crate) first_row: Option<usize>,
}

/// The memory of a batch, and the fields of the current row that are written.
pub(crate) struct BatchBuffer<'a> {
    memory: &'a mut [u8],
    written: Vec<bool>,
}

impl<'a> BatchBuffer<'a> {
    pub(crate) fn new(buffer: &'a mut Arc<HostBuffer>, layout: &Layout) -> Result<BatchBuffer<'a>> {
        match Arc::get_mut(buffer) {
            Some(memory) => Ok(BatchBuffer { memory, written: vec![false; layout.fields().len()] }),
            None => {
                Err(Error::usage("a batch's memory is still in use; this is a bug in fulmen-data"))
            }
        }
    }
}

impl Collator<'_> {
    /// Calls `write`, which is user code, to write the sample with this index into a row, with the
    /// random numbers of an epoch. The inner error is that of the sample. The outer error means
    /// that the batches are no longer wanted.
    pub(crate) fn write_row(
        &mut self,
        row: usize,
        index: u64,
        random_epoch: u64,
        write: impl FnOnce(&mut Sample<'_>) -> Result<()>,
    ) -> Result<Result<()>> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::usage("the batches were dropped while this one was read"));
        }
        let key = SampleKey { seed: self.seed, epoch: self.epoch, random_epoch, index };
        let BatchBuffer { memory, written } = &mut self.buffer;
        let mut sample = Sample::new(self.layout, memory, row, written, key);
        // After a panic, at most a half-written row is left, which is written again or dropped.
        let written = catch_unwind(AssertUnwindSafe(|| write(&mut sample)))
            .unwrap_or_else(|payload| Err(panicked("the dataset panicked", payload)));
        Ok(written.and_then(|()| sample.check_complete()))
    }

    /// Looks for NaN and infinity in a row of the first batch, which holds sample `sample`.
    pub(crate) fn check_first_batch(
        &self,
        row: usize,
        sample: u64,
        origin: impl FnOnce() -> Option<String>,
    ) {
        let Some(first) = self.first_row.filter(|_| self.stats.not_finite.get().is_none()) else {
            return;
        };
        let memory = &*self.buffer.memory;
        if let Some(found) = NotFinite::find(self.layout, memory, row, first, sample, origin) {
            // Another loader of the same data may have found it too.
            let _ = self.stats.not_finite.set(found);
        }
    }

    /// Counts a bad sample, or returns it as the error of the batch.
    pub(crate) fn count_bad(&self, error: Error) -> Result<Error> {
        if self.on_error == OnError::Fail {
            return Err(error);
        }
        self.stats.bad.add(self.epoch, error.index(), &error);
        Ok(error)
    }

    /// The random numbers that choose the replacement of a bad sample.
    pub(crate) fn replacement_random(&self, bad: u64) -> ChaCha8Rng {
        generator(Purpose::Replace, [self.seed, self.epoch, bad])
    }

    /// Fills the rows from `valid` on with copies of row `from`.
    ///
    /// The rows are copies instead of zeros because a model's output and gradient are finite for a
    /// real sample. For zeros, a division could give a NaN gradient even under a mask of 0.
    pub(crate) fn pad(&mut self, from: usize, valid: usize) {
        for row in (valid..self.layout.batch_size()).filter(|&row| row != from) {
            self.copy_row(from, row);
        }
    }

    pub(crate) fn copy_row(&mut self, from: usize, to: usize) {
        for field in 0..self.layout.fields().len() {
            let source = self.layout.row(field, from);
            if !source.is_empty() {
                self.buffer.memory.copy_within(source, self.layout.row(field, to).start);
            }
        }
    }

    pub(crate) fn write_mask(&mut self, valid: usize) {
        let mask = self.buffer.memory[self.layout.mask()].chunks_exact_mut(size_of::<f32>());
        for (row, bytes) in mask.enumerate() {
            let real: f32 = if row < valid { 1.0 } else { 0.0 };
            bytes.copy_from_slice(&real.to_ne_bytes());
        }
    }
}
