//! The loader's interface to its data, read by index or as a stream: the batches of an epoch in
//! order, and their samples written into memory.
//!
//! Out of scope: the two implementations (`index_batches`, `stream_batches`).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{
    buckets::Buckets, collate::Collator, config::Setup, replicas::Replicas, replicas::ShardSpec,
};
use crate::{Field, Result, Sampler};

/// Where samples come from, one after the other. The text of an unknown origin is empty.
pub(crate) type Origins = Box<dyn Iterator<Item = String> + Send>;

/// Samples that can be put into batches.
pub(crate) trait BatchSource: Send + Sync {
    /// The fields of a batch in each of its shapes; at least one. The last is the largest.
    fn shapes(&self) -> &[Vec<Field>];

    /// The number of samples in an epoch: of all processes, or only of this one if the samples are
    /// [presharded](BatchSource::is_presharded).
    fn num_samples(&self, replicas: Replicas) -> Result<usize>;

    /// How many of the `num_samples` samples of an epoch have each shape.
    fn samples_per_shape(&self, num_samples: usize) -> Vec<usize> {
        vec![num_samples]
    }

    /// Whether the sampler has divided the samples among the processes.
    fn is_presharded(&self) -> bool {
        false
    }

    /// Whether samples are read in order, by one thread at a time.
    fn is_sequential(&self) -> bool {
        false
    }

    fn buckets(&self) -> Option<&Buckets> {
        None
    }

    /// The amount of data, for messages: `10 samples`.
    fn total(&self) -> String;

    /// Everything that the order depends on, in a few words.
    fn describe(&self) -> String;

    /// Where each sample of epoch 0 comes from, in the order of the batches of all processes
    /// together, if that is known.
    fn origins(&self, _shard: &ShardSpec) -> Result<Option<Origins>> {
        Ok(None)
    }

    /// Begins an epoch.
    fn epoch(&self, request: EpochRequest) -> Result<Box<dyn EpochBatches>>;
}

/// The epoch to read.
pub(crate) struct EpochRequest {
    pub(crate) setup: Arc<Setup>,
    pub(crate) epoch: u64,
    /// The first batch. Earlier ones are not collated.
    pub(crate) start_batch: usize,
    /// Set when the batches are no longer needed.
    pub(crate) stop: Arc<AtomicBool>,
}

/// The batches of one epoch, in order.
pub(crate) trait EpochBatches: Send {
    /// The content of batch `index`, not decoded yet. Called for the batches in order.
    fn next(&mut self, index: usize) -> Result<BatchTask>;
}

/// The content of a batch.
pub(crate) struct BatchTask {
    pub(crate) data: Box<dyn Collate>,
    /// The index of the batch's shape.
    pub(crate) bucket: usize,
}

/// The samples of a batch, not decoded yet.
pub(crate) trait Collate: Send {
    /// Writes this process's samples into a batch and pads the rest; returns how many rows are
    /// samples.
    fn collate(self: Box<Self>, batch: &mut Collator<'_>) -> Result<usize>;
}

/// The options that only the source of the samples needs.
#[derive(Default)]
pub(crate) struct SourceOptions {
    pub(crate) seed: u64,
    pub(crate) shuffle: bool,
    pub(crate) sampler: Option<Box<dyn Sampler>>,
    pub(crate) num_samples: Option<usize>,
    pub(crate) buckets: Option<Buckets>,
}
