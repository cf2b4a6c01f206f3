//! How a batch is filled: samples read into its rows, bad ones dealt with, the rest padded.
//!
//! Not here: which samples these are (`plan`), and on which thread it happens (`workers`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::dataset::random::{Purpose, below, generator};
use crate::dataset::sample::Draw;
use crate::error::panicked;
use crate::loader::layout::Layout;
use crate::loader::monitor::Monitor;
use crate::loader::plan::Rows;
use crate::loader::pull::Drawn;
use crate::{Dataset, Error, OnError, Result, Sample};

/// How many samples are tried in the place of a bad one.
const TRIES: u64 = 8;

/// All that the filling of one batch needs to know, but for its memory.
pub(crate) struct Filling<'a> {
    pub(crate) dataset: Option<&'a dyn Dataset>,
    pub(crate) layout: &'a Layout,
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
    pub(crate) on_error: OnError,
    pub(crate) monitor: &'a Monitor,
    /// Ends it between two samples.
    pub(crate) stop: &'a AtomicBool,
}

impl Filling<'_> {
    /// Fills the memory of a batch, and says how many of its rows are samples.
    pub(crate) fn fill(&self, rows: Rows, memory: &mut [u8]) -> Result<usize> {
        let mut place = Place { memory, written: vec![false; self.layout.fields().len()] };
        let valid = match rows {
            Rows::Indices { order, range, first, others } => {
                self.indices(&mut place, (&order[range.clone()], range.start == first), order.get(first), &others)?
            }
            Rows::Records { records, has_first, others } => self.records(&mut place, records, has_first, others)?,
        };
        write_mask(self.layout, place.memory, valid);
        Ok(valid)
    }

    /// Reads the samples of this process, which have the batch's first one among them or not, and pads what is left.
    fn indices(
        &self,
        place: &mut Place<'_>,
        (samples, has_first): (&[usize], bool),
        first: Option<&usize>,
        others: &[usize],
    ) -> Result<usize> {
        let mut row = 0;
        for &index in samples {
            let written = self.read_index(place, row, index)?
                || (self.on_error == OnError::Substitute && self.read_another(place, row, others, index)?);
            row += usize::from(written);
        }
        if let Some(&first) = first.filter(|_| row < self.layout.batch_size()) {
            let from = if !has_first && self.read_index(place, row, first)? {
                // The batch's first sample is another process's; here it is read for the padding alone.
                row
            } else {
                if row == 0 {
                    // None could be read. What pads the batch then has no weight; it only must be a sample.
                    self.read_another(place, 0, others, first)?;
                }
                0
            };
            pad(self.layout, place.memory, from, row);
        }
        Ok(row)
    }

    /// Reads the records of this process. Where they are substituted each keeps its row; else those behind a bad one move
    /// up. What is left is padded.
    fn records(
        &self,
        place: &mut Place<'_>,
        records: Vec<Drawn>,
        has_first: bool,
        others: Vec<Drawn>,
    ) -> Result<usize> {
        let substitute = self.on_error == OnError::Substitute;
        let tried = records.len() + others.len();
        let (mut row, mut good, mut bad, mut last) = (0, Vec::new(), Vec::new(), None);
        for drawn in records {
            let index = drawn.record.index();
            match self.read_record(place, row, drawn)? {
                None => good.push(row),
                Some(error) => {
                    last = Some(error);
                    if !substitute {
                        continue;
                    }
                    bad.push((row, index));
                }
            }
            row += 1;
        }
        let full = row == self.layout.batch_size();
        let mut from = 0;
        if good.is_empty() || (!full && !has_first) {
            // Read for the padding, or for copies, alone; where all rows are taken, none of them could be read.
            let spare = if full { 0 } else { row };
            for drawn in others {
                let Some(error) = self.read_record(place, spare, drawn)? else {
                    from = spare;
                    if good.is_empty() {
                        good.push(spare);
                    }
                    break;
                };
                last = Some(error);
            }
        }
        if good.is_empty() {
            let last = last.map_or(String::new(), |error| format!("; the last error: {error}"));
            return Err(Error::usage(format!(
                "none of the {tried} records of a batch can be read, so that nothing can take their place{last}"
            )));
        }
        for (row, index) in bad {
            let mut random = generator(Purpose::Substitute, [self.seed, self.epoch, index]);
            copy(self.layout, place.memory, good[below(&mut random, good.len() as u64) as usize], row);
        }
        pad(self.layout, place.memory, from, row);
        Ok(row)
    }

    /// Reads another sample of the epoch, as the place of the bad one in it decides.
    fn read_another(&self, place: &mut Place<'_>, row: usize, others: &[usize], bad: usize) -> Result<bool> {
        let mut random = generator(Purpose::Substitute, [self.seed, self.epoch, bad as u64]);
        for _ in 0..TRIES {
            let index = others[below(&mut random, others.len() as u64) as usize];
            if self.read_index(place, row, index)? {
                return Ok(true);
            }
        }
        Err(Error::usage(format!(
            "neither sample {bad} can be read nor any of {TRIES} others that were drawn to take its place; something is \
             wrong with most of the data. {}",
            self.monitor.bad.get()
        )))
    }

    /// Whether the sample could be read; an error if that ends the batch.
    fn read_index(&self, place: &mut Place<'_>, row: usize, index: usize) -> Result<bool> {
        let Some(dataset) = self.dataset else {
            return Err(Error::usage("a stream has no samples by index; this is a bug in fulmen-data"));
        };
        let read = self.read(place, row, (self.epoch, index as u64), |sample| dataset.read(index, sample));
        let Err(error) = read? else { return Ok(true) };
        // A sample whose place cannot be told is still the bad one.
        let origin = catch_unwind(AssertUnwindSafe(|| dataset.origin(index))).unwrap_or(None);
        self.judge(error.at_sample(index as u64, origin)).map(|_| false)
    }

    /// The error, if the record could not be read and that does not end the batch.
    fn read_record(&self, place: &mut Place<'_>, row: usize, drawn: Drawn) -> Result<Option<Error>> {
        let Drawn { record, random_epoch } = drawn;
        let (index, origin) = (record.index(), record.origin().to_owned());
        match self.read(place, row, (random_epoch, index), |sample| record.write(sample))? {
            Ok(()) => Ok(None),
            Err(error) => self.judge(error.at_sample(index, Some(origin))).map(Some),
        }
    }

    /// Lets a user's code write a row. The outer error is of the loader: the batches are no longer wanted.
    fn read(
        &self,
        place: &mut Place<'_>,
        row: usize,
        (random_epoch, index): (u64, u64),
        write: impl FnOnce(&mut Sample<'_>) -> Result<()>,
    ) -> Result<Result<()>> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::usage("the batches were dropped while this one was read"));
        }
        let draw = Draw { seed: self.seed, epoch: self.epoch, random_epoch, index };
        let mut sample = Sample::new(self.layout, place.memory, row, &mut place.written, draw);
        // A panic leaves at most a half-written row behind, which is written again or thrown away.
        let written = catch_unwind(AssertUnwindSafe(|| write(&mut sample)))
            .unwrap_or_else(|payload| Err(panicked("the dataset panicked", payload)));
        Ok(written.and_then(|()| sample.check_complete()))
    }

    /// Counts a bad sample, or gives it back as the error of the batch.
    fn judge(&self, error: Error) -> Result<Error> {
        match self.on_error {
            OnError::Fail => Err(error),
            OnError::Skip | OnError::Substitute => {
                self.monitor.bad.add(self.epoch, error.index(), &error);
                Ok(error)
            }
        }
    }
}

/// The memory of a batch, and which fields of the current row are written.
struct Place<'a> {
    memory: &'a mut [u8],
    written: Vec<bool>,
}

/// Fills the rows from `valid` on with copies of row `from`.
///
/// Copies, not zeros: what a model makes of a real sample is finite, and so is its gradient. A zero that it divides by
/// would make the gradient NaN even under a mask of 0.
fn pad(layout: &Layout, memory: &mut [u8], from: usize, valid: usize) {
    for row in (valid..layout.batch_size()).filter(|&row| row != from) {
        copy(layout, memory, from, row);
    }
}

fn copy(layout: &Layout, memory: &mut [u8], from: usize, to: usize) {
    for field in 0..layout.fields().len() {
        let source = layout.row(field, from);
        if !source.is_empty() {
            memory.copy_within(source, layout.row(field, to).start);
        }
    }
}

fn write_mask(layout: &Layout, memory: &mut [u8], valid: usize) {
    for (row, place) in memory[layout.mask()].chunks_exact_mut(size_of::<f32>()).enumerate() {
        let real: f32 = if row < valid { 1.0 } else { 0.0 };
        place.copy_from_slice(&real.to_ne_bytes());
    }
}

/// Batch memory for the content of one batch.
pub(crate) fn memory(buffer: &mut Arc<fulmen_pjrt::HostBuffer>) -> Result<&mut [u8]> {
    match Arc::get_mut(buffer) {
        Some(memory) => Ok(memory),
        None => Err(Error::usage("a batch's memory is still in use; this is a bug in fulmen-data")),
    }
}
