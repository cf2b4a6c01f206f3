//! The state shared by a loader, its iterators and its threads, and the code that fills a batch.
//!
//! Out of scope: the options (`builder`), which batch comes next (`batch_sampler`), and the threads
//! (`workers`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fulmen_error::panicked;
use tracing::debug_span;

use super::{
    batch::HostBatch, collate::BatchBuffer, collate::Collator, config::BatchSize, config::Config,
    config::Setup, layout::Layout, pool::Pool, replicas::Replicas, replicas::ShardSpec,
    source::BatchSource, source::BatchTask, stats::Stats, stats::Stopwatch,
};
use crate::{Error, Field, Result};

pub(crate) struct Inner {
    pub(crate) source: Arc<dyn BatchSource>,
    pub(crate) setup: Arc<Setup>,
    memory: Arc<BatchMemory>,
    /// The number of samples of each shape, over all processes.
    counts: Vec<usize>,
    /// The limit on the batches of an epoch.
    limit: usize,
}

/// The number of samples of an endless epoch.
pub(crate) const ENDLESS: usize = usize::MAX;

/// The layouts and the memory of batches of `rows` rows.
struct BatchMemory {
    rows: usize,
    /// One per shape; at least one. The last is the largest.
    layouts: Vec<Arc<Layout>>,
    /// The bytes of the largest batch.
    largest: usize,
    pool: Pool,
}

/// Identifies a batch of a run.
#[derive(Clone, Copy)]
pub(crate) struct BatchId {
    pub(crate) epoch: u64,
    pub(crate) index: usize,
}

impl Inner {
    pub(crate) fn new(source: Arc<dyn BatchSource>, config: Config) -> Result<Inner> {
        Inner::assemble(
            source,
            Arc::new(config),
            Replicas::default(),
            Arc::default(),
            None,
            usize::MAX,
        )
    }

    /// The same loader for these devices and processes.
    pub(crate) fn distributed(&self, replicas: Replicas) -> Result<Inner> {
        self.with_replicas(replicas, Arc::clone(&self.setup.stats))
    }

    /// The same loader with separate statistics.
    pub(crate) fn with_own_stats(&self) -> Result<Inner> {
        self.with_replicas(self.setup.shard.replicas, Arc::default())
    }

    fn with_replicas(&self, replicas: Replicas, stats: Arc<Stats>) -> Result<Inner> {
        let config = Arc::clone(&self.setup.config);
        Inner::assemble(
            Arc::clone(&self.source),
            config,
            replicas,
            stats,
            Some(&self.memory),
            self.limit,
        )
    }

    /// The same loader with at most `batches` batches an epoch.
    pub(crate) fn limited(&self, batches: usize) -> Result<Inner> {
        let mut limited =
            self.with_replicas(self.setup.shard.replicas, Arc::clone(&self.setup.stats))?;
        limited.limit = self.limit.min(batches.max(1));
        Ok(limited)
    }

    /// How many batches are kept on the device ahead of the step.
    pub(crate) fn device_prefetch(&self) -> usize {
        self.setup.config.device_prefetch(self.memory.largest)
    }

    /// Whether an epoch has no end.
    pub(crate) fn is_endless(&self) -> bool {
        self.limit == usize::MAX && self.setup.shard.num_samples == ENDLESS
    }

    /// Assembles the state, and reuses `memory` if the batches have the same number of rows.
    fn assemble(
        source: Arc<dyn BatchSource>,
        config: Arc<Config>,
        replicas: Replicas,
        stats: Arc<Stats>,
        memory: Option<&Arc<BatchMemory>>,
        limit: usize,
    ) -> Result<Inner> {
        let replicas = replicas.check()?;
        let batch_size = match config.batch_size {
            BatchSize::Global(rows) => replicas.check_batch_size(rows).map(|()| rows)?,
            BatchSize::PerDevice(rows) => rows.checked_mul(replicas.devices).ok_or_else(|| {
                Error::usage(format!(
                    "{rows} samples on each of {} devices are too many to count",
                    replicas.devices
                ))
            })?,
        };
        let shard = ShardSpec::new(
            replicas,
            batch_size,
            source.num_samples(replicas)?,
            source.is_presharded(),
        );
        let rows = shard.local_batch_size();
        let memory = match memory.filter(|memory| memory.rows == rows) {
            Some(memory) => Arc::clone(memory),
            None => Arc::new(BatchMemory::new(source.shapes(), rows, &config)?),
        };
        let counts = source.samples_per_shape(shard.num_samples);
        let inner = Inner {
            source,
            setup: Arc::new(Setup { config, shard, stats }),
            memory,
            counts,
            limit,
        };
        inner.check()?;
        Ok(inner)
    }

    /// Checks that the loader has batches and that its processes can share them.
    fn check(&self) -> Result<()> {
        let Setup { config, shard, .. } = &*self.setup;
        if !config.ordered && shard.replicas.num_processes > 1 {
            return Err(Error::usage(
                "ordered(false) is for one process: several processes share each batch, so batches must come in order",
            ));
        }
        if self.batches() > 0 {
            return Ok(());
        }
        let batch_size = shard.batch_size;
        Err(Error::usage(match self.source.buckets() {
            Some(_) => format!(
                "no batch is left: no bucket has as many samples as the batch size {batch_size}, and drop_last(true) \
                 drops the rest; use a smaller batch size, fewer buckets or drop_last(false)"
            ),
            None => format!(
                "no batch is left: an epoch has {} samples, fewer than the batch size {batch_size}, and \
                 drop_last(true) drops them; use a smaller batch size or drop_last(false)",
                shard.global_samples()
            ),
        }))
    }

    /// The layout of the largest shape.
    pub(crate) fn layout(&self) -> &Layout {
        // There is one layout per shape, and at least one shape.
        &self.memory.layouts[self.memory.layouts.len() - 1]
    }

    /// Batches in an epoch.
    pub(crate) fn batches(&self) -> usize {
        let stride = self.setup.shard.stride();
        let drop_last = self.setup.config.drop_last;
        let batches =
            |count: &usize| if drop_last { count / stride } else { count.div_ceil(stride) };
        self.counts.iter().map(batches).sum::<usize>().min(self.limit)
    }

    /// Whether the samples of a shape leave a short batch.
    pub(crate) fn has_short_batch(&self) -> bool {
        self.counts
            .iter()
            .any(|&count| count != ENDLESS && !count.is_multiple_of(self.setup.shard.stride()))
    }

    /// Fills a batch. A panic of user code outside a sample, for example in a `Drop`, becomes the
    /// error of the batch, because the consumer waits for a result.
    pub(crate) fn fill(
        &self,
        id: BatchId,
        task: BatchTask,
        stop: &AtomicBool,
    ) -> Result<HostBatch> {
        catch_unwind(AssertUnwindSafe(|| self.try_fill(id, task, stop)))
            .unwrap_or_else(|payload| Err(panicked("filling a batch panicked", payload)))
    }

    fn try_fill(&self, id: BatchId, task: BatchTask, stop: &AtomicBool) -> Result<HostBatch> {
        let Setup { config, shard, stats } = &*self.setup;
        let BatchId { epoch, index } = id;
        let BatchTask { data, bucket } = task;
        let layout = &self.memory.layouts[bucket];
        let watch = Stopwatch::start();
        let _fill = debug_span!("batch", number = index).entered();
        let mut bytes = self.memory.pool.take()?;
        let buffer = BatchBuffer::new(&mut bytes, layout)?;
        let seed = config.seed;
        let on_error = config.on_error;
        let first_row = (epoch == 0 && index == 0).then(|| shard.rows().start);
        let valid = data.collate(&mut Collator {
            layout,
            buffer,
            seed,
            epoch,
            on_error,
            stats,
            stop,
            first_row,
        })?;
        self.memory.pool.remember(&bytes);
        stats.record_batch(valid, &watch);
        let layout = Arc::clone(layout);
        let rows = shard.rows();
        let global_batch_size = shard.batch_size;
        Ok(HostBatch { bytes, layout, rows, global_batch_size, valid, epoch, index, bucket })
    }
}

impl BatchMemory {
    fn new(shapes: &[Vec<Field>], rows: usize, config: &Config) -> Result<BatchMemory> {
        let layouts: Vec<_> = shapes
            .iter()
            .map(|fields| Layout::new(fields.clone(), rows).map(Arc::new))
            .collect::<Result<_>>()?;
        let largest = layouts.iter().map(|layout| layout.size()).max().unwrap_or(0);
        // Enough for all batches in flight: read ahead, on the device, and held by the consumer.
        // The batches of all buckets share it.
        let pool = Pool::new(
            largest,
            config.prefetch.saturating_add(config.device_prefetch(largest)).saturating_add(2),
        );
        Ok(BatchMemory { rows, layouts, largest, pool })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataLoader, TensorDataset};

    #[test]
    fn a_distributed_loader_keeps_the_memory_of_batches_of_the_same_size() {
        let data = TensorDataset::builder().array("x", [64], vec![0.5f32; 64]).build().unwrap();
        let loader = DataLoader::builder(data).batch_size(16).build().unwrap();
        let distributed = |devices, num_processes| {
            let replicas = Replicas { devices, num_processes, process_index: 0 };
            loader.inner.distributed(replicas).unwrap()
        };
        assert!(Arc::ptr_eq(&distributed(8, 1).memory, &loader.inner.memory));
        let half = distributed(8, 2);
        assert!(!Arc::ptr_eq(&half.memory, &loader.inner.memory));
        assert_eq!((half.layout().batch_size(), loader.inner.layout().batch_size()), (8, 16));
        assert!(Arc::ptr_eq(&half.setup.config, &loader.inner.setup.config));
        assert!(Arc::ptr_eq(&half.setup.stats, &loader.inner.setup.stats));
    }
}
