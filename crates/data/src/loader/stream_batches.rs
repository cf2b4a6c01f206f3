//! Batches of a stream, whose records are read in order and decoded by any thread.
//!
//! Out of scope: reading the records (`stream_cursor`), and batches of a dataset that is read by
//! index (`index_batches`).

use std::sync::Arc;

use fulmen_durable::messages::quantity;

use super::{
    collate::Collator, inner::ENDLESS, on_error::OnError, replicas::Replicas, source::BatchSource,
    source::BatchTask, source::Collate, source::EpochBatches, source::EpochRequest,
    source::SourceOptions, stream_cursor::EpochLength, stream_cursor::FetchedRecord,
    stream_cursor::StreamCursor,
};
use crate::dataset::random::below;
use crate::{Error, Field, IterableDataset, Result};

/// A stream, and the number of records in an epoch.
pub(crate) struct StreamBatches {
    dataset: Arc<dyn IterableDataset>,
    length: EpochLength,
    /// The one shape that all batches have.
    shapes: [Vec<Field>; 1],
}

impl StreamBatches {
    pub(crate) fn new(
        dataset: Arc<dyn IterableDataset>,
        options: SourceOptions,
    ) -> Result<StreamBatches> {
        let SourceOptions { shuffle, sampler, num_samples, buckets, .. } = options;
        if let Some(buckets) = buckets {
            return Err(buckets.conflict_error());
        }
        if shuffle || sampler.is_some() {
            return Err(Error::usage(
                "a stream has no random access, so shuffle(true) and samplers do not work; use \
                 Stream::shuffle(buffer, seed), which shuffles within a buffer",
            ));
        }
        let length = match (num_samples, dataset.len()) {
            (Some(0), _) => {
                return Err(Error::usage("num_samples is 0; an epoch needs at least one sample"));
            }
            (_, Some(0)) => {
                return Err(Error::usage(
                    "the stream is empty; a loader needs at least one sample",
                ));
            }
            (Some(count), _) => EpochLength::Wanted(count),
            (None, Some(count)) => EpochLength::Known(count),
            (None, None) => {
                return Err(Error::usage(
                    "the length of the stream is unknown; set num_samples, the length of an epoch, or endless, for \
                     one epoch that never ends",
                ));
            }
        };
        let shapes = [dataset.fields()];
        Ok(StreamBatches { dataset, length, shapes })
    }
}

impl BatchSource for StreamBatches {
    fn shapes(&self) -> &[Vec<Field>] {
        &self.shapes
    }

    fn num_samples(&self, _: Replicas) -> Result<usize> {
        Ok(self.length.get())
    }

    fn is_sequential(&self) -> bool {
        true
    }

    fn total(&self) -> String {
        match self.length.get() {
            ENDLESS => "an endless stream".to_owned(),
            records => quantity(records, "record"),
        }
    }

    fn describe(&self) -> String {
        self.dataset.describe()
    }

    fn epoch(&self, request: EpochRequest) -> Result<Box<dyn EpochBatches>> {
        let start_batch = request.start_batch;
        let stride = request.setup.shard.stride();
        let mut cursor = StreamCursor::new(Arc::clone(&self.dataset), self.length, request);
        for _ in 0..start_batch {
            cursor.skip_batch(stride)?;
        }
        Ok(Box::new(cursor))
    }
}

impl EpochBatches for StreamCursor {
    fn next(&mut self, index: usize) -> Result<BatchTask> {
        let setup = Arc::clone(self.setup());
        let stride = setup.shard.stride();
        let own_rows = setup.shard.rows_of_order();
        let first = index.saturating_mul(stride);
        let count = setup.shard.num_samples.saturating_sub(first).min(stride);
        let own_rows = own_rows.start.min(count)..own_rows.end.min(count);
        // With `Fail`, every sample is readable, and the batch's first one pads a short batch, as
        // it does in a single process. Otherwise any sample of the batch may be needed as padding:
        // a batch with a readable record must not fail in any process.
        let first_only = setup.config.on_error == OnError::Fail;
        let mut records = Vec::with_capacity(own_rows.len());
        let mut padding_candidates = Vec::new();
        let mut read = 0;
        while read < count
            && let Some(record) = self.fetch()?
        {
            if own_rows.contains(&read) {
                records.push(record);
            } else if padding_candidates.is_empty() || !first_only {
                padding_candidates.push(record);
            }
            read += 1;
        }
        if read == 0 {
            padding_candidates.push(self.padding_record()?);
        }
        if first + count == setup.shard.num_samples {
            self.check_end()?;
        }
        Ok(BatchTask {
            data: Box::new(StreamTask {
                records,
                has_first: own_rows.start == 0,
                padding_candidates,
            }),
            bucket: 0,
        })
    }
}

/// The records in a process's part of a batch.
struct StreamTask {
    records: Vec<FetchedRecord>,
    /// Whether the batch's first record is in `records`.
    has_first: bool,
    /// Records of the batch outside `records`. The first readable one pads the batch if `records`
    /// has no readable one or does not have the batch's first record.
    padding_candidates: Vec<FetchedRecord>,
}

impl Collate for StreamTask {
    /// If bad records are replaced, each keeps its row. Otherwise the records after a bad one move
    /// up.
    fn collate(self: Box<Self>, batch: &mut Collator<'_>) -> Result<usize> {
        let StreamTask { records, has_first, padding_candidates } = *self;
        let substitute = batch.on_error == OnError::Replace;
        let record_count = records.len() + padding_candidates.len();
        let mut row = 0;
        let mut good = Vec::new();
        let mut bad = Vec::new();
        let mut last = None;
        for record in records {
            let index = record.index();
            match read(batch, row, record)? {
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
        let full = row == batch.layout.batch_size();
        let mut from = 0;
        if good.is_empty() || (!full && !has_first) {
            // These records only pad the batch or replace bad ones. If all rows are taken, none of
            // them is readable.
            let padding_row = if full { 0 } else { row };
            for record in padding_candidates {
                let Some(error) = read(batch, padding_row, record)? else {
                    from = padding_row;
                    if good.is_empty() {
                        good.push(padding_row);
                    }
                    break;
                };
                last = Some(error);
            }
        }
        if good.is_empty() {
            let last = last.map_or(String::new(), |error| format!("; the last error: {error}"));
            return Err(Error::usage(format!(
                "none of the {record_count} records of a batch can be read, so they cannot be replaced{last}"
            )));
        }
        for (row, index) in bad {
            let mut random = batch.replacement_random(index);
            batch.copy_row(good[below(&mut random, good.len() as u64) as usize], row);
        }
        batch.pad(from, row);
        batch.write_mask(row);
        Ok(row)
    }
}

/// Reads a record into a row. Returns `None` if it could be read, or its error if the batch can
/// continue without it.
fn read(batch: &mut Collator<'_>, row: usize, fetched: FetchedRecord) -> Result<Option<Error>> {
    let FetchedRecord { record, random_epoch } = fetched;
    let index = record.index();
    let origin = record.origin().to_owned();
    match batch.write_row(row, index, random_epoch, |sample| record.write(sample))? {
        Ok(()) => {
            batch.check_first_batch(row, index, || Some(origin));
            Ok(None)
        }
        Err(error) => batch.count_bad(error.at_sample(index, Some(origin))).map(Some),
    }
}
