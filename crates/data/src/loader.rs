//! The loader: a dataset, a batch size, an order, and how far to read ahead.
//!
//! Not here: the reading itself (`batch`, `workers`) and the transfer (`device`).

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fulmen_pjrt::{Client, Device};

use crate::batch::fill;
use crate::layout::Layout;
use crate::plan::Work;
use crate::pool::Pool;
use crate::{
    Dataset, DeviceBatches, Error, Field, HostBatch, HostBatches, RandomSampler, Result, Sampler, SequentialSampler,
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
    /// Give them a batch of their own, padded to the full size with copies of its first sample, and masked. Needed in evaluation.
    #[default]
    Pad,
}

/// Reads a dataset in batches of one size, epoch after epoch.
///
/// Cheap to clone. The batches of an epoch depend on the dataset, the sampler, the batch size and the epoch's number;
/// they do not depend on the number of workers or on how the epochs before were read.
///
/// ```
/// use fulmen_data::{DataLoader, LastBatch, TensorDataset};
///
/// let data = TensorDataset::builder().array("x", [10], (0..10).collect::<Vec<i32>>()).build()?;
/// let loader =
///     DataLoader::builder(data).batch_size(4).shuffle(true).seed(1).last_batch(LastBatch::Drop).num_workers(2).build()?;
/// assert_eq!(loader.len(), 2);
/// for batch in loader.epoch(0) {
///     assert_eq!(batch?.valid(), 4);
/// }
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone)]
pub struct DataLoader {
    core: Arc<Core>,
}

/// What the loader, its iterators and its threads share.
pub(crate) struct Core {
    dataset: Arc<dyn Dataset>,
    layout: Arc<Layout>,
    pool: Pool,
    pub(crate) sampler: Box<dyn Sampler>,
    /// Samples in the dataset.
    pub(crate) len: usize,
    /// Samples in an epoch.
    pub(crate) num_samples: usize,
    pub(crate) num_workers: usize,
    pub(crate) prefetch: usize,
    pub(crate) device_prefetch: usize,
    last_batch: LastBatch,
}

impl Core {
    pub(crate) fn batch_size(&self) -> usize {
        self.layout.batch_size()
    }

    /// Batches in an epoch.
    pub(crate) fn batches(&self) -> usize {
        match self.last_batch {
            LastBatch::Drop => self.num_samples / self.batch_size(),
            LastBatch::Pad => self.num_samples.div_ceil(self.batch_size()),
        }
    }

    pub(crate) fn fill(&self, work: &Work, stop: &AtomicBool) -> Result<HostBatch> {
        fill(&*self.dataset, &self.layout, &self.pool, work.samples(), (work.epoch, work.index), stop)
    }
}

impl DataLoader {
    /// Starts to describe a loader: batches of 1, in order, nothing read ahead, a short last batch padded.
    pub fn builder(dataset: impl Dataset) -> DataLoaderBuilder {
        DataLoaderBuilder {
            dataset: Arc::new(dataset),
            batch_size: 1,
            shuffle: false,
            seed: 0,
            sampler: None,
            num_workers: 0,
            last_batch: LastBatch::default(),
            prefetch: None,
            device_prefetch: 2,
        }
    }

    /// Batches in an epoch; at least one.
    #[expect(clippy::len_without_is_empty, reason = "a loader without a batch cannot be built")]
    pub fn len(&self) -> usize {
        self.core.batches()
    }

    /// Samples that an epoch reads; without those of a dropped last batch, with none of the padding.
    pub fn num_samples(&self) -> usize {
        self.core.num_samples.min(self.len().saturating_mul(self.batch_size()))
    }

    /// Rows of every batch.
    pub fn batch_size(&self) -> usize {
        self.core.batch_size()
    }

    /// The parts of a sample, without the batch axis and without the mask.
    pub fn fields(&self) -> &[Field] {
        self.core.layout.fields()
    }

    /// Whether the last batch of an epoch has padding in it.
    pub fn pads(&self) -> bool {
        self.core.last_batch == LastBatch::Pad && self.core.num_samples % self.batch_size() != 0
    }

    /// The batches of epoch `epoch`.
    pub fn epoch(&self, epoch: u64) -> HostBatches {
        self.epochs(epoch..epoch.saturating_add(1), 0)
    }

    /// The batches of several epochs, the first epoch from batch `start_batch` on. Reading ahead goes across the end of
    /// an epoch, so that the next one starts without a pause. Nothing is read of the batches before `start_batch`.
    pub fn epochs(&self, epochs: Range<u64>, start_batch: usize) -> HostBatches {
        HostBatches::new(Arc::clone(&self.core), epochs, start_batch)
    }

    /// The batches of epoch `epoch` from batch `start_batch` on, in the memory of a device: a thread keeps some of them
    /// there ahead of the consumer ([`device_prefetch`](DataLoaderBuilder::device_prefetch)).
    pub fn prefetch_to(&self, client: &Client, device: &Device, epoch: u64, start_batch: usize) -> DeviceBatches {
        self.epochs(epoch..epoch.saturating_add(1), start_batch).prefetch_to(client, device)
    }
}

impl fmt::Debug for DataLoader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields: Vec<String> = self.fields().iter().map(Field::to_string).collect();
        f.debug_struct("DataLoader")
            .field("num_samples", &self.num_samples())
            .field("batch_size", &self.batch_size())
            .field("len", &self.len())
            .field("last_batch", &self.core.last_batch)
            .field("num_workers", &self.core.num_workers)
            .field("fields", &fields)
            .finish()
    }
}

/// The choices that make a [`DataLoader`]; every mistake in them is reported by [`build`](DataLoaderBuilder::build).
pub struct DataLoaderBuilder {
    dataset: Arc<dyn Dataset>,
    batch_size: usize,
    shuffle: bool,
    seed: u64,
    sampler: Option<Box<dyn Sampler>>,
    num_workers: usize,
    last_batch: LastBatch,
    prefetch: Option<usize>,
    device_prefetch: usize,
}

impl DataLoaderBuilder {
    /// Samples in a batch; 1 unless set.
    pub fn batch_size(mut self, samples: usize) -> Self {
        self.batch_size = samples;
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

    /// The loader, or what is wrong with the choices.
    pub fn build(self) -> Result<DataLoader> {
        let batch_size = self.batch_size;
        if batch_size == 0 {
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
        if self.prefetch == Some(0) || self.device_prefetch == 0 {
            let which = if self.prefetch == Some(0) { "prefetch" } else { "device_prefetch" };
            return Err(Error::usage(format!(
                "{which} is 0; it must be at least 1, as the batch that is being made counts"
            )));
        }
        if self.prefetch.unwrap_or(1).max(self.device_prefetch) > MOST_PREFETCH {
            return Err(Error::usage(format!(
                "prefetch is {:?} and device_prefetch {}; more than {MOST_PREFETCH} batches ahead only take memory",
                self.prefetch, self.device_prefetch
            )));
        }
        let sampler: Box<dyn Sampler> = match (self.sampler, self.shuffle) {
            (Some(_), true) => {
                return Err(Error::usage("shuffle(true) and a sampler exclude each other; keep one of the two"));
            }
            (Some(sampler), false) => sampler,
            (None, true) => Box::new(RandomSampler::new(self.seed)),
            (None, false) => Box::new(SequentialSampler),
        };
        let num_samples = sampler.num_samples(len);
        if num_samples == 0 {
            return Err(Error::usage(format!("the sampler takes none of the dataset's {len} samples")));
        }
        if self.last_batch == LastBatch::Drop && num_samples < batch_size {
            return Err(Error::usage(format!(
                "no batch is left: an epoch has {num_samples} samples, fewer than the batch size {batch_size}, and \
                 LastBatch::Drop drops them; use a smaller batch size or LastBatch::Pad"
            )));
        }
        let layout = Arc::new(Layout::new(self.dataset.fields(), batch_size)?);
        let prefetch = self.prefetch.unwrap_or(2 * self.num_workers);
        // Enough for all that can be in flight at once: read ahead, on the device, and in the consumer's hands.
        let capacity = prefetch.saturating_add(self.device_prefetch).saturating_add(2);
        let mut core = Core {
            dataset: self.dataset,
            pool: Pool::new(layout.size(), capacity),
            layout,
            sampler,
            len,
            num_samples,
            num_workers: self.num_workers,
            prefetch,
            device_prefetch: self.device_prefetch,
            last_batch: self.last_batch,
        };
        // A thread more than there are batches in flight would only wait.
        core.num_workers = core.num_workers.min(core.prefetch);
        Ok(DataLoader { core: Arc::new(core) })
    }
}
