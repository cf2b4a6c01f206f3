//! The options of a loader, and their validation.
//!
//! Out of scope: options that depend on the devices and processes that share the batches (`inner`,
//! `replicas`) or on the kind of data (`index_batches`, `stream_batches`).

use std::sync::Arc;

use super::of_loader;
use super::{
    buckets::Buckets, config::BatchSize, config::Config, data_loader::DataLoader,
    index_batches::IndexBatches, inner::Inner, on_error::OnError, source::BatchSource,
    source::SourceOptions, stream_batches::StreamBatches,
};
use crate::{Dataset, Error, IterableDataset, Result, Sampler};

/// A larger number of threads is certainly a mistake.
const MAX_WORKERS: usize = 1024;
/// The largest number of batches to read ahead.
const MAX_PREFETCH: usize = 1024;

/// Creates the source of batches once all options are known.
type OpenSource = dyn FnOnce(SourceOptions) -> Result<Arc<dyn BatchSource>> + Send + Sync;

/// The options of a [`DataLoader`]. [`build`](DataLoaderBuilder::build) reports every mistake in
/// them.
/// ```
/// use fulmen_data::{DataLoader, TensorDataset};
///
/// let data = TensorDataset::builder().array("x", [100], vec![0.5f32; 100]).build()?;
/// let loader = DataLoader::builder(data)
///     .batch_size(32)
///     .shuffle(true)
///     .seed(7)
///     .drop_last(true)
///     .num_workers(2)
///     .build()?;
/// assert_eq!(loader.len(), 3);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[must_use]
pub struct DataLoaderBuilder {
    open: Box<OpenSource>,
    options: SourceOptions,
    config: Config,
    batch_size: Option<usize>,
    per_device_batch_size: Option<usize>,
    prefetch: Option<usize>,
}

impl DataLoaderBuilder {
    pub(crate) fn from_dataset(dataset: Arc<dyn Dataset>) -> DataLoaderBuilder {
        DataLoaderBuilder::new(Box::new(|options| {
            Ok(Arc::new(IndexBatches::new(dataset, options)?))
        }))
    }

    pub(crate) fn from_stream(dataset: Arc<dyn IterableDataset>) -> DataLoaderBuilder {
        DataLoaderBuilder::new(Box::new(|options| {
            Ok(Arc::new(StreamBatches::new(dataset, options)?))
        }))
    }

    fn new(open: Box<OpenSource>) -> DataLoaderBuilder {
        let options = SourceOptions::default();
        let config = Config::default();
        DataLoaderBuilder {
            open,
            options,
            config,
            batch_size: None,
            per_device_batch_size: None,
            prefetch: None,
        }
    }

    /// Samples per batch, for all devices together; 1 unless set.
    pub fn batch_size(mut self, samples: usize) -> DataLoaderBuilder {
        self.batch_size = Some(samples);
        self
    }

    /// Samples per batch and device, instead of [`batch_size`](DataLoaderBuilder::batch_size): the
    /// batch grows with the number of devices that share it ([`DataLoader::distributed`]).
    pub fn per_device_batch_size(mut self, samples: usize) -> DataLoaderBuilder {
        self.per_device_batch_size = Some(samples);
        self
    }

    /// Samples in an epoch of a stream, if the stream does not know its length or epochs should
    /// have a different length (WebDataset's `with_epoch`). Every epoch starts at the beginning of
    /// the stream. The rest of a longer stream is not read, so let the stream's order differ from
    /// epoch to epoch. A shorter stream is repeated within the epoch, each time in a different
    /// order and with other random numbers. Only for streams; the sampler of a dataset decides how
    /// many samples an epoch has.
    pub fn num_samples(mut self, samples: usize) -> DataLoaderBuilder {
        self.options.num_samples = Some(samples);
        self
    }

    /// Makes an epoch endless: a stream that ends is repeated, in a different order and with other
    /// random numbers. A Trainer then needs its own limit, such as `max_steps`.
    ///
    /// ```
    /// use fulmen_data::{DataLoader, Field, Fingerprint, Items, Result, Stream, StreamItem};
    ///
    /// struct Numbers;
    ///
    /// impl Stream for Numbers {
    ///     type Item = i32;
    ///     fn len(&self) -> Option<usize> {
    ///         None
    ///     }
    ///     fn items(&self, _epoch: u64) -> Result<Items<i32>> {
    ///         Ok(Box::new((0..).map(|item| Ok(StreamItem { index: item as u64, origin: format!("number {item}"), item }))))
    ///     }
    ///     fn fingerprint(&self, _: &mut Fingerprint) -> Result<()> {
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let numbers = Numbers.into_dataset(vec![Field::new("x", fulmen_data::DType::I32, [])], |x, sample| sample.write_value(0, x));
    /// let loader = DataLoader::from_stream(numbers).endless().batch_size(2).build()?;
    /// assert!(loader.is_endless());
    /// let third = loader.epoch(0).nth(2).ok_or("no batch")??;
    /// assert_eq!(third.values::<i32>(0)?, [4, 5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn endless(self) -> DataLoaderBuilder {
        self.num_samples(super::inner::ENDLESS)
    }

    /// What to do with a sample that cannot be read; [`OnError::Fail`] unless set.
    /// [`DataLoader::bad_samples`] lists these samples.
    pub fn on_error(mut self, on_error: OnError) -> DataLoaderBuilder {
        self.config.on_error = on_error;
        self
    }

    /// Batches samples of different lengths in a few shapes, one per bucket. All samples of a batch
    /// are from one bucket; a batch is returned as soon as the samples read so far fill it. Short
    /// batches of all buckets come at the end, unless they are dropped
    /// ([`drop_last`](DataLoaderBuilder::drop_last)). Only for datasets that are read in order or
    /// [shuffled](DataLoaderBuilder::shuffle), so that each epoch has the same number of batches of
    /// each shape.
    pub fn buckets(mut self, buckets: Buckets) -> DataLoaderBuilder {
        self.options.buckets = Some(buckets);
        self
    }

    /// Whether the batches come in a fixed order; on unless set. If it is off, the consumer gets
    /// each batch as soon as it is finished, and a slow batch does not delay the others. Each batch
    /// of an epoch still has the same samples, but two runs get the batches in different orders, a
    /// run cannot be resumed within an epoch, and several processes cannot share the batches.
    pub fn ordered(mut self, ordered: bool) -> DataLoaderBuilder {
        self.config.ordered = ordered;
        self
    }

    /// Whether each epoch reads the samples in a new random order
    /// ([`RandomSampler`](crate::RandomSampler)); off unless set. To shuffle a stream, use
    /// [`Stream::shuffle`](crate::Stream::shuffle).
    pub fn shuffle(mut self, shuffle: bool) -> DataLoaderBuilder {
        self.options.shuffle = shuffle;
        self
    }

    /// The seed of the shuffling and of the samples' random numbers
    /// ([`Sample::random`](crate::Sample::random)); 0 unless set.
    pub fn seed(mut self, seed: u64) -> DataLoaderBuilder {
        self.options.seed = seed;
        self
    }

    /// A custom order, instead of [`shuffle`](DataLoaderBuilder::shuffle).
    pub fn sampler(mut self, sampler: impl Sampler) -> DataLoaderBuilder {
        self.options.sampler = Some(Box::new(sampler));
        self
    }

    /// Threads that read batches ahead. With 0, the default, a batch is read when it is requested.
    pub fn num_workers(mut self, threads: usize) -> DataLoaderBuilder {
        self.config.num_workers = threads;
        self
    }

    /// Whether to drop the samples that do not fill a batch (PyTorch's `drop_last`); off unless
    /// set. If it is off, these samples form a last batch, which is padded to the full size with
    /// copies of its first sample and masked. Leave it off for evaluation. Training usually drops
    /// these samples, since shuffling leaves out different ones in each epoch.
    pub fn drop_last(mut self, drop_last: bool) -> DataLoaderBuilder {
        self.config.drop_last = drop_last;
        self
    }

    /// Declares that batches may end with padding, even if those of this loader do not. A step for
    /// such a loader also takes smaller batches that are made during training
    /// (`TrainStep::batch`), and, as for each padded loader, its loss must use the mask. Off unless
    /// set.
    pub fn padded(mut self, padded: bool) -> DataLoaderBuilder {
        self.config.padded = padded;
        self
    }

    /// How many batches all workers together may be ahead of the consumer, including those they are
    /// reading; two per worker unless set, and at least one per worker. PyTorch's `prefetch_factor`
    /// counts per worker instead. Without workers it has no effect.
    pub fn prefetch(mut self, batches: usize) -> DataLoaderBuilder {
        self.prefetch = Some(batches);
        self
    }

    /// How many batches [`DataLoader::prefetch_to`] keeps on the device ahead of the consumer.
    /// Unless set, 2, or of small batches up to 8 that take at most 1 MiB together.
    pub fn device_prefetch(mut self, batches: usize) -> DataLoaderBuilder {
        self.config.device_prefetch = Some(batches);
        self
    }

    /// Builds the loader for one device and process, or reports what is wrong with the options.
    pub fn build(self) -> Result<DataLoader> {
        self.checked().map_err(of_loader)
    }

    fn checked(self) -> Result<DataLoader> {
        let batch_size = match (self.batch_size, self.per_device_batch_size) {
            (Some(global), Some(per_device)) => {
                return Err(Error::usage(format!(
                    "batch_size({global}), for all devices together, and per_device_batch_size({per_device}) are \
                     mutually exclusive; set only one"
                )));
            }
            (None, Some(rows)) => BatchSize::PerDevice(rows),
            (global, None) => BatchSize::Global(global.unwrap_or(1)),
        };
        if let BatchSize::Global(0) | BatchSize::PerDevice(0) = batch_size {
            return Err(Error::usage("the batch size is 0; it must be at least 1"));
        }
        let workers = self.config.num_workers;
        if workers > MAX_WORKERS {
            return Err(Error::usage(format!(
                "num_workers is {workers}; more than {MAX_WORKERS} threads cannot help; use about one per CPU core"
            )));
        }
        for (which, batches) in [
            ("prefetch", self.prefetch.unwrap_or(1)),
            ("device_prefetch", self.config.device_prefetch.unwrap_or(1)),
        ] {
            if batches == 0 {
                return Err(Error::usage(format!(
                    "{which} is 0; it must be at least 1, because the batch that is being read counts"
                )));
            }
            if batches > MAX_PREFETCH {
                return Err(Error::usage(format!(
                    "{which} is {batches}; more than {MAX_PREFETCH} batches ahead only take memory"
                )));
            }
        }
        let prefetch = self.prefetch.unwrap_or(2 * workers);
        if prefetch < workers {
            return Err(Error::usage(format!(
                "prefetch({prefetch}) leaves no batch for some of the {workers} workers, and each reads one at a \
                 time; it counts the batches of all workers together, unlike PyTorch's prefetch_factor: set at least \
                 {workers}, or leave it out for {}",
                2 * workers
            )));
        }
        let DataLoaderBuilder { open, options, config, .. } = self;
        let seed = options.seed;
        let shuffled = options.shuffle;
        Inner::new(open(options)?, Config { batch_size, seed, shuffled, prefetch, ..config })
            .map(DataLoader::new)
    }
}
