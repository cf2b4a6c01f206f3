//! The records of one epoch of a stream, fetched in order, and the handling of a stream that ends
//! too early.
//!
//! Out of scope: decoding the records. Only reading is done in order, by the worker that holds the
//! batch sampler.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fulmen_error::panicked;

use super::{config::Setup, on_error::OnError, source::EpochRequest};
use crate::stream::iterable::{Record, Records};
use crate::{Error, IterableDataset, Result};

/// After this number of consecutive errors, the loader gives up on a stream, even if it would
/// continue.
const MAX_FAILURES: usize = 1000;

/// Added to the epoch for each further pass over a stream, so that it does not equal a real epoch.
const PASS: u64 = 1 << 40;

/// How many records an epoch of a stream has, and who decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EpochLength {
    /// The stream's own length, which must be right.
    Known(usize),
    /// The length set by the user: a longer stream is not read to its end, a shorter one is
    /// repeated.
    Wanted(usize),
}

impl EpochLength {
    pub(crate) fn get(self) -> usize {
        match self {
            EpochLength::Known(count) | EpochLength::Wanted(count) => count,
        }
    }
}

/// A record, and the epoch of its random numbers.
pub(crate) struct FetchedRecord {
    pub(crate) record: Record,
    pub(crate) random_epoch: u64,
}

impl FetchedRecord {
    pub(crate) fn index(&self) -> u64 {
        self.record.index()
    }
}

/// The rest of an epoch of a stream.
pub(crate) struct StreamCursor {
    dataset: Arc<dyn IterableDataset>,
    length: EpochLength,
    request: EpochRequest,
    pass: u64,
    records: Option<Records>,
    /// The number of records read in this pass.
    read: usize,
    ended: bool,
    /// A record was skipped, so the stream cannot have as many records as it declared.
    broken: bool,
}

impl StreamCursor {
    pub(crate) fn new(
        dataset: Arc<dyn IterableDataset>,
        length: EpochLength,
        request: EpochRequest,
    ) -> StreamCursor {
        StreamCursor {
            dataset,
            length,
            request,
            pass: 0,
            records: None,
            read: 0,
            ended: false,
            broken: false,
        }
    }

    pub(crate) fn setup(&self) -> &Arc<Setup> {
        &self.request.setup
    }

    /// The next record; it must not be called again after an error. `None` if bad records are
    /// skipped and the stream has lost some of the records that it declared: the lost records are
    /// not replaced, since each of the others must come once in an epoch.
    pub(crate) fn fetch(&mut self) -> Result<Option<FetchedRecord>> {
        // Another pass may start only for padding.
        if self.pass > 0 && self.drops_records() {
            return Ok(None);
        }
        if let Some(record) = self.read_next()? {
            return Ok(Some(record));
        }
        self.check_short()?;
        if self.drops_records() {
            return Ok(None);
        }
        self.restart();
        self.padding_record().map(Some)
    }

    /// Reads a batch and drops it.
    pub(crate) fn skip_batch(&mut self, size: usize) -> Result<()> {
        for row in 0..size {
            if self.fetch()?.is_none() {
                if row == 0 {
                    self.padding_record()?;
                }
                break;
            }
        }
        Ok(())
    }

    /// A record for padding a batch that has no readable record. The stream is repeated if
    /// necessary.
    pub(crate) fn padding_record(&mut self) -> Result<FetchedRecord> {
        loop {
            if let Some(record) = self.read_next()? {
                return Ok(record);
            }
            self.check_short()?;
            self.restart();
        }
    }

    /// Checks, after the last record of an epoch, that a stream that declared its length has ended.
    pub(crate) fn check_end(&mut self) -> Result<()> {
        let EpochLength::Known(count) = self.length else { return Ok(()) };
        if self.broken || self.read_next()?.is_none() {
            return Ok(());
        }
        Err(Error::usage(format!(
            "the stream has more records than the {count} it promised for an epoch; correct the number, or check \
             whether records were added since it was opened. With num_samples({count}), the loader would read only \
             that many in each epoch"
        )))
    }

    /// The next record of this pass, if there is one.
    fn read_next(&mut self) -> Result<Option<FetchedRecord>> {
        let mut failures = 0;
        while !self.ended {
            if self.request.stop.load(Ordering::Relaxed) {
                return Err(Error::usage("the batches were dropped while the stream was read"));
            }
            let random_epoch = self.request.epoch.wrapping_add(self.pass.wrapping_mul(PASS));
            let error = match self.step(random_epoch)? {
                Some(Ok(record)) => {
                    self.read += 1;
                    return Ok(Some(FetchedRecord { record, random_epoch }));
                }
                None => {
                    self.ended = true;
                    continue;
                }
                Some(Err(error)) => error,
            };
            failures += 1;
            if self.setup().config.on_error == OnError::Fail || failures > MAX_FAILURES {
                return Err(error);
            }
            self.broken = true;
            self.setup().stats.bad.add(self.request.epoch, None, &error);
        }
        Ok(None)
    }

    /// Whether the epoch continues without the records that the stream could not read.
    fn drops_records(&self) -> bool {
        self.broken
            && self.setup().config.on_error == OnError::Skip
            && matches!(self.length, EpochLength::Known(_))
    }

    /// The stream's next record. The stream is user code and may panic.
    fn step(&mut self, random_epoch: u64) -> Result<Option<Result<Record>>> {
        let StreamCursor { records, dataset, .. } = self;
        let step = AssertUnwindSafe(|| {
            let records = match records {
                Some(records) => records,
                none => none.insert(dataset.records(random_epoch)?),
            };
            Ok(records.next())
        });
        catch_unwind(step).unwrap_or_else(|payload| Err(panicked("the stream panicked", payload)))
    }

    /// Checks whether the stream may end before the epoch does.
    fn check_short(&self) -> Result<()> {
        if self.read == 0 {
            let problem = if self.broken {
                "the stream cannot be read at all"
            } else {
                "the stream is empty"
            };
            let first = self
                .setup()
                .stats
                .bad
                .get()
                .first
                .into_iter()
                .next()
                .filter(|_| self.broken)
                .map_or(String::new(), |bad| format!("; the first error: {bad}"));
            return Err(Error::usage(format!(
                "{problem}: epoch {} needs {} records{first}",
                self.request.epoch,
                self.length.get()
            )));
        }
        if let (EpochLength::Known(count), false) = (self.length, self.broken) {
            return Err(Error::usage(format!(
                "the stream ended after {} records, but promised {count} for an epoch; were records deleted since it \
                 was opened? num_samples({}) would set the length of an epoch and repeat a shorter stream",
                self.read, self.read
            )));
        }
        Ok(())
    }

    fn restart(&mut self) {
        (self.pass, self.read, self.ended, self.records) = (self.pass + 1, 0, false, None);
    }
}
