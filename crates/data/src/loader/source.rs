//! What the loader asks of its data, whether samples are read by index or come as a stream: the batches of an epoch one
//! after another, and their samples written into memory.
//!
//! Not here: the two implementations (`index_batches`, `stream_batches`).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{buckets::Buckets, collate::Collator, config::Setup, replicas::Replicas};
use crate::{Field, Result, Sampler};

/// Samples that can be put into batches.
pub(crate) trait BatchSource: Send + Sync {
    /// The fields of a batch in each shape that it can have; at least one. The last is the largest.
    fn shapes(&self) -> &[Vec<Field>];

    /// How many samples an epoch has: those of all processes, or those of this one where the samples are
    /// [presharded](BatchSource::is_presharded).
    fn num_samples(&self, replicas: Replicas) -> Result<usize>;

    /// How many of an epoch's `num_samples` have each of the shapes.
    fn samples_per_shape(&self, num_samples: usize) -> Vec<usize> {
        vec![num_samples]
    }

    /// Whether the sampler has divided the samples among the processes.
    fn is_presharded(&self) -> bool {
        false
    }

    /// Whether samples are read in the order in which they come, by one thread at a time.
    fn is_sequential(&self) -> bool {
        false
    }

    fn buckets(&self) -> Option<&Buckets> {
        None
    }

    /// How much there is to read: `10 samples`.
    fn total(&self) -> String;

    /// All that the order depends on, in a few words.
    fn describe(&self) -> String;

    /// Begins an epoch.
    fn epoch(&self, request: EpochRequest) -> Result<Box<dyn EpochBatches>>;
}

/// Which epoch is to be read.
pub(crate) struct EpochRequest {
    pub(crate) setup: Arc<Setup>,
    pub(crate) epoch: u64,
    /// The batch to begin with. Those before it are not collated.
    pub(crate) start_batch: usize,
    /// Set when the batches are no longer needed.
    pub(crate) stop: Arc<AtomicBool>,
}

/// The batches of one epoch, in their order.
pub(crate) trait EpochBatches: Send {
    /// What batch `index` is made of; called for one batch after another. Nothing is decoded yet.
    fn next(&mut self, index: usize) -> Result<BatchTask>;
}

/// What a batch is made of.
pub(crate) struct BatchTask {
    pub(crate) data: Box<dyn Collate>,
    /// Which of the source's shapes the batch has.
    pub(crate) bucket: usize,
}

/// The samples of a batch that are still to be decoded.
pub(crate) trait Collate: Send {
    /// Writes this process's samples into a batch and pads what is left; how many of its rows are samples.
    fn collate(self: Box<Self>, batch: &mut Collator<'_>) -> Result<usize>;
}

/// The options of a loader that only its source needs.
#[derive(Default)]
pub(crate) struct SourceOptions {
    pub(crate) seed: u64,
    pub(crate) shuffle: bool,
    pub(crate) sampler: Option<Box<dyn Sampler>>,
    pub(crate) num_samples: Option<usize>,
    pub(crate) buckets: Option<Buckets>,
}
