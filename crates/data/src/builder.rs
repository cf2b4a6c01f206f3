//! The choices that make a loader, and which of them cannot be.
//!
//! Not here: what depends on the devices and processes that share the batches (`loader`, `replicas`).

use std::sync::Arc;

use crate::loader::Core;
use crate::{DataLoader, Dataset, Error, Field, RandomSampler, Replicas, Result, Sampler, SequentialSampler};

/// More threads than this are a mistake, not a wish.
const MOST_WORKERS: usize = 1024;
/// How many batches may be asked for ahead.
const MOST_PREFETCH: usize = 1024;

/// What to do with the samples that are left over when the others have filled their batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LastBatch {
    /// Leave them out. Usual in training: shuffling leaves out others in each epoch.
    Drop,
    /// Give them a batch of their own, padded to the full size with copies of its first sample, and masked. Needed in
    /// evaluation.
    #[default]
    Pad,
}

/// A batch size in one of its two spellings.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BatchSize {
    Global(usize),
    PerDevice(usize),
}

/// The choices, checked as far as they do not depend on devices and processes.
pub(crate) struct Config {
    pub(crate) dataset: Arc<dyn Dataset>,
    /// Samples in the dataset.
    pub(crate) len: usize,
    pub(crate) fields: Vec<Field>,
    pub(crate) sampler: Box<dyn Sampler>,
    pub(crate) batch_size: BatchSize,
    pub(crate) last_batch: LastBatch,
    pub(crate) num_workers: usize,
    pub(crate) prefetch: usize,
    pub(crate) device_prefetch: usize,
}

/// The choices that make a [`DataLoader`]; every mistake in them is reported by [`build`](DataLoaderBuilder::build).
pub struct DataLoaderBuilder {
    dataset: Arc<dyn Dataset>,
    batch_size: Option<usize>,
    per_device_batch_size: Option<usize>,
    shuffle: bool,
    seed: u64,
    sampler: Option<Box<dyn Sampler>>,
    num_workers: usize,
    last_batch: LastBatch,
    prefetch: Option<usize>,
    device_prefetch: usize,
}

impl DataLoaderBuilder {
    pub(crate) fn new(dataset: Arc<dyn Dataset>) -> DataLoaderBuilder {
        DataLoaderBuilder {
            dataset,
            batch_size: None,
            per_device_batch_size: None,
            shuffle: false,
            seed: 0,
            sampler: None,
            num_workers: 0,
            last_batch: LastBatch::default(),
            prefetch: None,
            device_prefetch: 2,
        }
    }

    /// Samples in a batch, those of all devices together; 1 unless set.
    pub fn batch_size(mut self, samples: usize) -> Self {
        self.batch_size = Some(samples);
        self
    }

    /// Samples in a batch for one device, instead of [`batch_size`](DataLoaderBuilder::batch_size): the batch grows with
    /// the number of devices that share it ([`DataLoader::distributed`]).
    pub fn per_device_batch_size(mut self, samples: usize) -> Self {
        self.per_device_batch_size = Some(samples);
        self
    }

    /// Whether each epoch reads the samples in a random order of its own ([`RandomSampler`]); no unless set.
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// The seed of the shuffling; 0 unless set.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// An order of the user's own, instead of [`shuffle`](DataLoaderBuilder::shuffle).
    pub fn sampler(mut self, sampler: impl Sampler) -> Self {
        self.sampler = Some(Box::new(sampler));
        self
    }

    /// Threads that read batches ahead; with 0, the default, a batch is read when it is asked for.
    pub fn num_workers(mut self, threads: usize) -> Self {
        self.num_workers = threads;
        self
    }

    /// What to do with a short last batch; [`LastBatch::Pad`] unless set.
    pub fn last_batch(mut self, last_batch: LastBatch) -> Self {
        self.last_batch = last_batch;
        self
    }

    /// How many batches the workers may be ahead of the consumer, those that they are reading included; two a worker
    /// unless set. Without workers it has no effect.
    pub fn prefetch(mut self, batches: usize) -> Self {
        self.prefetch = Some(batches);
        self
    }

    /// How many batches [`DataLoader::prefetch_to`] keeps on the device ahead of the consumer; 2 unless set.
    pub fn device_prefetch(mut self, batches: usize) -> Self {
        self.device_prefetch = batches;
        self
    }

    /// The loader, for one device and process, or what is wrong with the choices.
    pub fn build(self) -> Result<DataLoader> {
        let batch_size = match (self.batch_size, self.per_device_batch_size) {
            (Some(global), Some(per_device)) => {
                return Err(Error::usage(format!(
                    "batch_size({global}), which is that of all devices together, and \
                     per_device_batch_size({per_device}) exclude each other; keep one of the two"
                )));
            }
            (None, Some(rows)) => BatchSize::PerDevice(rows),
            (global, None) => BatchSize::Global(global.unwrap_or(1)),
        };
        if let BatchSize::Global(0) | BatchSize::PerDevice(0) = batch_size {
            return Err(Error::usage("the batch size is 0; it must be at least 1"));
        }
        let len = self.dataset.len();
        if len == 0 {
            return Err(Error::usage("the dataset is empty; a loader needs at least one sample"));
        }
        if self.num_workers > MOST_WORKERS {
            return Err(Error::usage(format!(
                "num_workers is {}; more than {MOST_WORKERS} threads cannot help, the number of CPU cores is a good choice",
                self.num_workers
            )));
        }
        for (which, batches) in [("prefetch", self.prefetch.unwrap_or(1)), ("device_prefetch", self.device_prefetch)] {
            if batches == 0 {
                return Err(Error::usage(format!(
                    "{which} is 0; it must be at least 1, as the batch that is being made counts"
                )));
            }
            if batches > MOST_PREFETCH {
                return Err(Error::usage(format!(
                    "{which} is {batches}; more than {MOST_PREFETCH} batches ahead only take memory"
                )));
            }
        }
        let sampler: Box<dyn Sampler> = match (self.sampler, self.shuffle) {
            (Some(_), true) => {
                return Err(Error::usage("shuffle(true) and a sampler exclude each other; keep one of the two"));
            }
            (Some(sampler), false) => sampler,
            (None, true) => Box::new(RandomSampler::new(self.seed)),
            (None, false) => Box::new(SequentialSampler),
        };
        let prefetch = self.prefetch.unwrap_or(2 * self.num_workers);
        let config = Config {
            fields: self.dataset.fields(),
            dataset: self.dataset,
            len,
            sampler,
            batch_size,
            last_batch: self.last_batch,
            // A thread more than there are batches in flight would only wait.
            num_workers: self.num_workers.min(prefetch),
            prefetch,
            device_prefetch: self.device_prefetch,
        };
        Core::new(Arc::new(config), Replicas::default()).map(DataLoader::new)
    }
}
