//! Batches of a dataset whose samples are read by index, in the order of a sampler.
//!
//! Out of scope: batches of a stream (`stream_batches`).

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fulmen_durable::messages::quantity;
use fulmen_error::panicked;

use super::{
    batch::HostBatch, buckets::Buckets, buckets::Span, collate::BatchBuffer, collate::Collator,
    layout::Layout, on_error::OnError, pool::Pool, replicas::Replica, replicas::Replicas,
    replicas::ShardSpec, source::BatchSource, source::BatchTask, source::Collate,
    source::EpochBatches, source::EpochRequest, source::Origins, source::SourceOptions,
    stats::Stats,
};
use crate::dataset::random::below;
use crate::{Dataset, Error, Field, RandomSampler, Result, Sampler, SequentialSampler};

/// How many samples are tried as the replacement of a bad one.
const MAX_ATTEMPTS: u64 = 8;

/// How many samples before it is read a sample is announced to the dataset. This is enough to hide
/// the latency of memory for samples of a few hundred bytes, and few enough for the samples to stay
/// in the processor's L1 cache.
const PREFETCH_SAMPLES: usize = 4;

/// A dataset and the order in which its samples are read.
pub(crate) struct IndexBatches {
    dataset: Arc<dyn Dataset>,
    /// Samples in the dataset.
    len: usize,
    shapes: Vec<Vec<Field>>,
    sampler: Box<dyn Sampler>,
    buckets: Option<Buckets>,
    /// The samples of each bucket.
    members: Vec<Arc<Vec<usize>>>,
}

impl IndexBatches {
    pub(crate) fn new(dataset: Arc<dyn Dataset>, options: SourceOptions) -> Result<IndexBatches> {
        let SourceOptions { seed, shuffle, sampler, num_samples, buckets } = options;
        let fields = dataset.fields();
        let len = dataset.len();
        let (shapes, members) = match &buckets {
            Some(buckets) => {
                let shapes = buckets.shapes(&fields)?;
                if sampler.is_some() {
                    return Err(buckets.conflict_error());
                }
                buckets.check_len(len)?;
                (shapes, buckets.members())
            }
            None => (vec![fields], Vec::new()),
        };
        if num_samples.is_some() {
            return Err(Error::usage(
                "num_samples is only for streams; the dataset or its sampler decides the length of an epoch",
            ));
        }
        if len == 0 {
            return Err(Error::usage("the dataset is empty; a loader needs at least one sample"));
        }
        let sampler: Box<dyn Sampler> = match sampler {
            Some(_) if shuffle => {
                return Err(Error::usage(
                    "shuffle(true) and a sampler are mutually exclusive; set only one",
                ));
            }
            Some(sampler) => sampler,
            None if shuffle => Box::new(RandomSampler::new(seed)),
            None => Box::new(SequentialSampler),
        };
        Ok(IndexBatches { dataset, len, shapes, sampler, buckets, members })
    }

    /// The order of an epoch, validated: a sampler is user code.
    fn order(&self, epoch: u64, shard: &ShardSpec) -> Result<Vec<usize>> {
        let order_of = |replica| {
            catch_unwind(AssertUnwindSafe(|| self.sampler.order(epoch, self.len, replica)))
                .map_err(|payload| panicked("the sampler panicked", payload))
        };
        let replica = shard.replicas.replica();
        let order = order_of(replica)?;
        if let Some(other) = shard.rank_to_compare()
            && order_of(other)? != order
        {
            return Err(Error::usage(format!(
                "the sampler {} gives a different order for rank {} of {} replicas than for rank {}, so each process \
                 would take its part of a different order and samples would be lost; if it divides the samples \
                 itself, return true from `is_presharded`; otherwise give all ranks the same order",
                self.sampler.describe(),
                replica.rank,
                replica.num_replicas,
                other.rank
            )));
        }
        let count = order.len();
        let expected = shard.num_samples;
        if count != expected {
            return Err(Error::usage(format!(
                "the sampler's order for epoch {epoch} has {count} samples, but its num_samples says {expected}"
            )));
        }
        if let Some(position) = order.iter().position(|&index| index >= self.len) {
            return Err(Error::usage(format!(
                "the sampler's order for epoch {epoch} has the index {} at position {position}, but the dataset has {} \
                 samples",
                order[position], self.len
            )));
        }
        Ok(order)
    }
}

impl BatchSource for IndexBatches {
    fn shapes(&self) -> &[Vec<Field>] {
        &self.shapes
    }

    /// The number of samples that the sampler takes. All replicas must agree on it; otherwise one
    /// would wait for the others forever.
    fn num_samples(&self, replicas: Replicas) -> Result<usize> {
        let len = self.len;
        let count = self.sampler.num_samples(len, replicas.replica());
        for replica in Replica::all(replicas.num_processes) {
            let other_count = self.sampler.num_samples(len, replica);
            if other_count != count {
                return Err(Error::usage(format!(
                    "the sampler {} takes {count} samples for rank {} of {} replicas and {other_count} for rank {}; all \
                     replicas must take the same number, because they take the same number of steps",
                    self.sampler.describe(),
                    replicas.process_index,
                    replica.num_replicas,
                    replica.rank
                )));
            }
        }
        if count == 0 {
            return Err(Error::usage(format!(
                "the sampler takes none of the dataset's {len} samples"
            )));
        }
        Ok(count)
    }

    fn samples_per_shape(&self, num_samples: usize) -> Vec<usize> {
        match &self.buckets {
            Some(_) => self.members.iter().map(|members| members.len()).collect(),
            None => vec![num_samples],
        }
    }

    fn is_presharded(&self) -> bool {
        self.sampler.is_presharded()
    }

    fn buckets(&self) -> Option<&Buckets> {
        self.buckets.as_ref()
    }

    fn total(&self) -> String {
        quantity(self.len, "sample")
    }

    fn describe(&self) -> String {
        self.sampler.describe()
    }

    fn origins(&self, shard: &ShardSpec) -> Result<Option<Origins>> {
        if self.buckets.is_some() || shard.is_presharded {
            return Ok(None);
        }
        let order = self.order(0, shard)?;
        let dataset = Arc::clone(&self.dataset);
        if order.first().and_then(|&first| origin(&*dataset, first)).is_none() {
            return Ok(None);
        }
        Ok(Some(Box::new(
            order.into_iter().map(move |index| origin(&*dataset, index).unwrap_or_default()),
        )))
    }

    fn epoch(&self, request: EpochRequest) -> Result<Box<dyn EpochBatches>> {
        let EpochRequest { setup, epoch, .. } = request;
        let shard = &setup.shard;
        let order = self.order(epoch, &setup.shard)?;
        let stride = shard.stride();
        let (order, spans) = match &self.buckets {
            Some(buckets) => {
                let (order, spans) = buckets.batches(&order, stride, setup.config.drop_last);
                (order, Some(spans))
            }
            None => (order, None),
        };
        let order = Arc::new(order);
        let candidates =
            if self.members.is_empty() { vec![Arc::clone(&order)] } else { self.members.clone() };
        let dataset = Arc::clone(&self.dataset);
        let rows = shard.rows_of_order();
        Ok(Box::new(IndexEpoch { dataset, order, stride, spans, candidates, rows }))
    }
}

/// The order of an epoch and its division into batches.
struct IndexEpoch {
    dataset: Arc<dyn Dataset>,
    order: Arc<Vec<usize>>,
    stride: usize,
    /// With buckets: the samples of each batch. Otherwise batches follow each other in the order.
    spans: Option<Vec<Span>>,
    /// For each bucket, the samples that may replace a bad one.
    candidates: Vec<Arc<Vec<usize>>>,
    /// This process's rows of a batch.
    rows: Range<usize>,
}

impl EpochBatches for IndexEpoch {
    fn next(&mut self, index: usize) -> Result<BatchTask> {
        let start = index.saturating_mul(self.stride);
        let span = match &self.spans {
            Some(spans) => spans.get(index).copied(),
            None => Some(Span {
                start,
                end: start.saturating_add(self.stride).min(self.order.len()),
                bucket: 0,
            }),
        };
        let Some(Span { start, end, bucket }) = span else {
            return Err(Error::usage(
                "an epoch has fewer batches than planned; this is a bug in fulmen-data",
            ));
        };
        // A process may have no samples of a short batch.
        let samples = start.saturating_add(self.rows.start).min(end)
            ..start.saturating_add(self.rows.end).min(end);
        let order = Arc::clone(&self.order);
        let rows = IndexRows {
            order,
            samples,
            first: start,
            candidates: Arc::clone(&self.candidates[bucket]),
        };
        Ok(BatchTask {
            data: Box::new(IndexTask { dataset: Arc::clone(&self.dataset), rows }),
            bucket,
        })
    }
}

struct IndexTask {
    dataset: Arc<dyn Dataset>,
    rows: IndexRows,
}

impl Collate for IndexTask {
    fn collate(self: Box<Self>, batch: &mut Collator<'_>) -> Result<usize> {
        self.rows.collate(&*self.dataset, batch)
    }
}

/// The samples in this process's part of a batch.
struct IndexRows {
    order: Arc<Vec<usize>>,
    /// The positions of this process's samples in the order.
    samples: Range<usize>,
    /// The position of the batch's first sample, which pads it.
    first: usize,
    candidates: Arc<Vec<usize>>,
}

impl IndexRows {
    fn collate(&self, dataset: &dyn Dataset, batch: &mut Collator<'_>) -> Result<usize> {
        let mut row = 0;
        let samples = &self.order[self.samples.clone()];
        for (position, &index) in samples.iter().enumerate() {
            if let Some(&later) = samples.get(position + PREFETCH_SAMPLES) {
                // Only a hint: if it panics, the sample is still read.
                let _ = catch_unwind(AssertUnwindSafe(|| dataset.prefetch(later, batch.epoch)));
            }
            let written = read(dataset, batch, row, index)?
                || (batch.on_error == OnError::Replace
                    && self.read_another(dataset, batch, row, index)?);
            row += usize::from(written);
        }
        if row < batch.layout.batch_size()
            && let Some(&first) = self.order.get(self.first)
        {
            let from = if self.samples.start != self.first && read(dataset, batch, row, first)? {
                // The batch's first sample belongs to another process; here it is read only for the
                // padding.
                row
            } else {
                if row == 0 {
                    // No sample could be read. Padding has no weight, but it must be a valid
                    // sample.
                    self.read_another(dataset, batch, 0, first)?;
                }
                0
            };
            batch.pad(from, row);
        }
        batch.write_mask(row);
        Ok(row)
    }

    /// Reads another sample of the epoch, chosen by the index of the bad one.
    fn read_another(
        &self,
        dataset: &dyn Dataset,
        batch: &mut Collator<'_>,
        row: usize,
        bad: usize,
    ) -> Result<bool> {
        let mut random = batch.replacement_random(bad as u64);
        for _ in 0..MAX_ATTEMPTS {
            let index = self.candidates[below(&mut random, self.candidates.len() as u64) as usize];
            if read(dataset, batch, row, index)? {
                return Ok(true);
            }
        }
        Err(Error::usage(format!(
            "neither sample {bad} nor any of {MAX_ATTEMPTS} random replacements can be read; most of the data is damaged. {}",
            batch.stats.bad.get()
        )))
    }
}

/// Where a sample comes from. A sample has values even if its origin cannot be found.
fn origin(dataset: &dyn Dataset, index: usize) -> Option<String> {
    catch_unwind(AssertUnwindSafe(|| dataset.origin(index))).unwrap_or(None)
}

/// Reads a sample into a row and returns whether it could be read. An error ends the batch.
fn read(dataset: &dyn Dataset, batch: &mut Collator<'_>, row: usize, index: usize) -> Result<bool> {
    let read =
        batch.write_row(row, index as u64, batch.epoch, |sample| dataset.read(index, sample))?;
    let origin = || origin(dataset, index);
    let Err(error) = read else {
        batch.check_first_batch(row, index as u64, origin);
        return Ok(true);
    };
    batch.count_bad(error.at_sample(index as u64, origin())).map(|_| false)
}

impl HostBatch {
    /// Reads some samples into a batch of exactly that size, without a loader.
    ///
    /// ```
    /// use fulmen_data::{HostBatch, TensorDataset};
    ///
    /// let data = TensorDataset::builder().array("x", [3], [7i32, 8, 9]).build()?;
    /// assert_eq!(HostBatch::collate(&data, &[2, 0])?.values::<i32>(0)?, [9, 7]);
    /// # Ok::<(), fulmen_data::Error>(())
    /// ```
    pub fn collate(dataset: &dyn Dataset, samples: &[usize]) -> Result<HostBatch> {
        HostBatch::collate_epoch(dataset, samples, 0, 0)
    }

    /// Like [`collate`](HostBatch::collate), with the random numbers of a loader with this seed in
    /// this epoch.
    pub fn collate_epoch(
        dataset: &dyn Dataset,
        samples: &[usize],
        seed: u64,
        epoch: u64,
    ) -> Result<HostBatch> {
        let len = dataset.len();
        if let Some(outside) = samples.iter().find(|&&sample| sample >= len) {
            return Err(Error::usage(format!(
                "there is no sample {outside}; the dataset has {len}"
            )));
        }
        let layout = Arc::new(Layout::new(dataset.fields(), samples.len())?);
        let mut bytes = Pool::new(layout.size(), 0).take()?;
        let mut collator = Collator {
            layout: &layout,
            buffer: BatchBuffer::new(&mut bytes, &layout)?,
            seed,
            epoch,
            on_error: OnError::Fail,
            stats: &Stats::default(),
            stop: &AtomicBool::new(false),
            first_row: None,
        };
        let order = Arc::new(samples.to_vec());
        let rows = IndexRows {
            order: Arc::clone(&order),
            samples: 0..order.len(),
            first: 0,
            candidates: order,
        };
        let valid = rows.collate(dataset, &mut collator)?;
        let rows = 0..samples.len();
        let global_batch_size = samples.len();
        Ok(HostBatch { bytes, layout, rows, global_batch_size, valid, epoch, index: 0, bucket: 0 })
    }
}
