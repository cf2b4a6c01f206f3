//! The choices that make a loader, and which of them cannot be.
//!
//! Not here: what depends on the devices and processes that share the batches (`data_loader`, `replicas`).

use std::sync::Arc;

use crate::loader::buckets::Buckets;
use crate::loader::data_loader::Core;
use crate::loader::pull::EpochLength;
use crate::{
    DataLoader, Dataset, Error, Field, IterableDataset, OnError, RandomSampler, Replicas, Result, Sampler,
    SequentialSampler,
};

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

/// Where the samples come from.
pub(crate) enum Data {
    Map {
        dataset: Arc<dyn Dataset>,
        /// Samples in the dataset.
        len: usize,
        sampler: Box<dyn Sampler>,
    },
    Stream {
        dataset: Arc<dyn IterableDataset>,
        length: EpochLength,
    },
}

/// Where the samples come from, as the user gave it.
enum Given {
    Map(Arc<dyn Dataset>),
    Stream(Arc<dyn IterableDataset>),
}

/// The choices, checked as far as they do not depend on devices and processes.
pub(crate) struct Config {
    pub(crate) data: Data,
    /// The fields, for each bucket; one where there are no buckets.
    pub(crate) shapes: Vec<Vec<Field>>,
    pub(crate) buckets: Option<Buckets>,
    pub(crate) batch_size: BatchSize,
    /// Of the samples' random numbers; of the order too, where that is `shuffled`.
    pub(crate) seed: u64,
    pub(crate) shuffled: bool,
    pub(crate) on_error: OnError,
    pub(crate) ordered: bool,
    pub(crate) last_batch: LastBatch,
    pub(crate) num_workers: usize,
    pub(crate) prefetch: usize,
    pub(crate) device_prefetch: usize,
}

/// The choices that make a [`DataLoader`]; every mistake in them is reported by [`build`](DataLoaderBuilder::build).
pub struct DataLoaderBuilder {
    given: Given,
    num_samples: Option<usize>,
    on_error: OnError,
    ordered: bool,
    buckets: Option<Buckets>,
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
    pub(crate) fn of_dataset(dataset: Arc<dyn Dataset>) -> DataLoaderBuilder {
        DataLoaderBuilder::new(Given::Map(dataset))
    }

    pub(crate) fn of_stream(dataset: Arc<dyn IterableDataset>) -> DataLoaderBuilder {
        DataLoaderBuilder::new(Given::Stream(dataset))
    }

    fn new(given: Given) -> DataLoaderBuilder {
        DataLoaderBuilder {
            given,
            num_samples: None,
            on_error: OnError::default(),
            ordered: true,
            buckets: None,
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

    /// Samples in an epoch of a stream, where the stream does not know it or where epochs are to have another length
    /// (WebDataset's `with_epoch`). Every epoch begins with the stream's beginning: of a longer stream the rest is not read
    /// in this epoch, so let the stream's order differ from epoch to epoch; a shorter one begins anew within the epoch, as
    /// often as is needed, in another order and with other random numbers. Only for streams; an epoch of a dataset has as
    /// many samples as its sampler takes.
    pub fn num_samples(mut self, samples: usize) -> Self {
        self.num_samples = Some(samples);
        self
    }

    /// What to do with a sample that cannot be read; [`OnError::Fail`] unless set. [`DataLoader::bad_samples`] tells which
    /// they were.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Samples of different length in batches of a few shapes, one for each bucket. A batch is of samples of one bucket; it
    /// comes as soon as the order of the epoch has filled it, and the short last ones of all buckets at the end, as
    /// [`last_batch`](DataLoaderBuilder::last_batch) says. Only for datasets that are read in order or
    /// [shuffled](DataLoaderBuilder::shuffle), so that each epoch has as many batches of each shape.
    pub fn buckets(mut self, buckets: Buckets) -> Self {
        self.buckets = Some(buckets);
        self
    }

    /// Whether the batches come in their order; yes unless set. If not, the one that is done first comes first, so that a
    /// slow one holds nobody up. Then only the set of an epoch's batches is fixed, and what is in each: two runs differ, one
    /// cannot be resumed in the middle of an epoch, and several processes cannot share the batches.
    pub fn ordered(mut self, ordered: bool) -> Self {
        self.ordered = ordered;
        self
    }

    /// Whether each epoch reads the samples in a random order of its own ([`RandomSampler`]); no unless set. A stream is
    /// shuffled by [`Stream::shuffle`](crate::Stream::shuffle) instead.
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// The seed of the shuffling, and of the samples' random numbers ([`Sample::random`](crate::Sample::random)); 0 unless
    /// set.
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

    /// How many batches the workers, all together, may be ahead of the consumer, those that they are reading included; two a
    /// worker unless set, and at least one a worker. PyTorch's `prefetch_factor` is that of each worker instead. Without
    /// workers it has no effect.
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
        let prefetch = self.prefetch.unwrap_or(2 * self.num_workers);
        if prefetch < self.num_workers {
            return Err(Error::usage(format!(
                "prefetch({prefetch}) leaves no batch for some of the {workers} workers, each of which reads a batch of its \
                 own; it counts the batches of all workers together, unlike PyTorch's prefetch_factor: set at least \
                 {workers}, or leave it out for {}",
                2 * self.num_workers,
                workers = self.num_workers
            )));
        }
        let (fields, shuffled) = match &self.given {
            Given::Map(dataset) => (dataset.fields(), self.shuffle),
            Given::Stream(dataset) => (dataset.fields(), false),
        };
        let shapes = match &self.buckets {
            Some(buckets) => buckets.shapes(&fields)?,
            None => vec![fields],
        };
        if self.buckets.is_some() && (self.sampler.is_some() || matches!(self.given, Given::Stream(_))) {
            return Err(Error::usage(
                "buckets are for datasets that are read in order or with shuffle(true): with a sampler or of a stream, the \
                 number of batches of a shape would differ from epoch to epoch",
            ));
        }
        if let (Some(buckets), Given::Map(dataset)) = (&self.buckets, &self.given) {
            buckets.check_len(dataset.len())?;
        }
        let config = Config {
            shapes,
            buckets: self.buckets,
            batch_size,
            seed: self.seed,
            shuffled,
            on_error: self.on_error,
            ordered: self.ordered,
            last_batch: self.last_batch,
            num_workers: self.num_workers,
            prefetch,
            device_prefetch: self.device_prefetch,
            data: match self.given {
                Given::Map(dataset) => {
                    if self.num_samples.is_some() {
                        return Err(Error::usage(
                            "num_samples is for streams; the length of a dataset's epoch is its own, or its sampler's",
                        ));
                    }
                    map_data(dataset, self.sampler, self.shuffle.then_some(self.seed))?
                }
                Given::Stream(dataset) => {
                    if self.shuffle || self.sampler.is_some() {
                        return Err(Error::usage(
                            "a stream cannot be read in any order, so that shuffle(true) and samplers are not for it; \
                             Stream::shuffle(buffer, seed) shuffles within a buffer",
                        ));
                    }
                    stream_data(dataset, self.num_samples)?
                }
            },
        };
        Core::new(Arc::new(config), Replicas::default(), Arc::default()).map(DataLoader::new)
    }
}

fn map_data(dataset: Arc<dyn Dataset>, sampler: Option<Box<dyn Sampler>>, shuffle: Option<u64>) -> Result<Data> {
    let len = dataset.len();
    if len == 0 {
        return Err(Error::usage("the dataset is empty; a loader needs at least one sample"));
    }
    let sampler: Box<dyn Sampler> = match (sampler, shuffle) {
        (Some(_), Some(_)) => {
            return Err(Error::usage("shuffle(true) and a sampler exclude each other; keep one of the two"));
        }
        (Some(sampler), None) => sampler,
        (None, Some(seed)) => Box::new(RandomSampler::new(seed)),
        (None, None) => Box::new(SequentialSampler),
    };
    Ok(Data::Map { dataset, len, sampler })
}

fn stream_data(dataset: Arc<dyn IterableDataset>, wanted: Option<usize>) -> Result<Data> {
    let length = match (wanted, dataset.len()) {
        (Some(0), _) => return Err(Error::usage("num_samples is 0; an epoch needs at least one sample")),
        (_, Some(0)) => return Err(Error::usage("the stream is empty; a loader needs at least one sample")),
        (Some(wanted), _) => EpochLength::Wanted(wanted),
        (None, Some(known)) => EpochLength::Known(known),
        (None, None) => {
            return Err(Error::usage(
                "how many samples the stream has is not known without reading it; set num_samples, the length of an epoch",
            ));
        }
    };
    Ok(Data::Stream { dataset, length })
}
