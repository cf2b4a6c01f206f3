//! The loader: a dataset, a batch size, an order, and the devices and processes that share the
//! batches.
//!
//! Out of scope: the options (`builder`), the reading itself (`inner`, `workers`) and the transfer
//! (`device`).

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use fulmen_durable::messages::quantity;
use fulmen_files::cores;
use fulmen_tensor::{Runtime, Sharding};

use super::of_loader;
use super::{
    buckets::Buckets, builder::DataLoaderBuilder, config::Config, config::Setup,
    device::DeviceBatches, host_batches::HostBatches, inner::Inner, on_error::BadSamples,
    on_error::OnError, replicas::Replicas, report::LoaderReport,
};
use crate::{Dataset, Field, IterableDataset, Result};

/// Reads a dataset in batches of one size, epoch after epoch.
///
/// Cheap to clone. The batches of an epoch depend on the dataset, the sampler, the batch size and
/// the epoch's number. They do not depend on the number of workers, on the devices and processes
/// that share them, or on how earlier epochs were read. Only the replacement of samples that cannot
/// be read may depend on the number of processes ([`OnError`]).
///
/// ```
/// use fulmen_data::{DataLoader, TensorDataset};
///
/// let data = TensorDataset::builder().array("x", [10], (0..10).collect::<Vec<i32>>()).build()?;
/// let loader =
///     DataLoader::builder(data).batch_size(4).shuffle(true).seed(1).drop_last(true).num_workers(2).build()?;
/// assert_eq!(loader.len(), 2);
/// for batch in loader.epoch(0) {
///     assert_eq!(batch?.valid(), 4);
/// }
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone)]
pub struct DataLoader {
    pub(super) inner: Arc<Inner>,
}

impl DataLoader {
    pub(crate) fn new(inner: Inner) -> DataLoader {
        DataLoader { inner: Arc::new(inner) }
    }

    /// Starts a loader with the defaults: batches of one sample, in order, without reading ahead,
    /// and with a padded last batch.
    pub fn builder(dataset: impl Dataset) -> DataLoaderBuilder {
        DataLoaderBuilder::from_dataset(Arc::new(dataset))
    }

    /// Starts a loader for a stream; [`Stream::into_dataset`] makes its dataset.
    ///
    /// If the stream declares a length, an epoch has this number of samples, and it is an error if
    /// the stream has more or fewer. If the stream does not declare one, or to change the length of
    /// epochs, set [`num_samples`](DataLoaderBuilder::num_samples). One worker at a time reads the
    /// stream, in order; all of them decode records. To start in the middle of an epoch, the loader
    /// reads the earlier records and drops them undecoded. If several processes share the batches,
    /// each process reads the whole stream and decodes its own rows of each batch. [`OnError`]
    /// describes what happens if a stream fails in only one of them.
    ///
    /// ```
    /// use fulmen_data::{DType, DataLoader, Field, IterableDataset, Record, Records, Result};
    ///
    /// struct Countdown;
    ///
    /// impl IterableDataset for Countdown {
    ///     fn len(&self) -> Option<usize> {
    ///         Some(5)
    ///     }
    ///     fn fields(&self) -> Vec<Field> {
    ///         vec![Field::new("x", DType::I32, [])]
    ///     }
    ///     fn records(&self, _epoch: u64) -> Result<Records> {
    ///         let record = |i: i32| Record::new(i as u64, format!("number {i}"), move |sample| sample.write_value(0, 5 - i));
    ///         Ok(Box::new((0..5).map(move |i| Ok(record(i)))))
    ///     }
    ///     fn fingerprint(&self, _: &mut fulmen_data::Fingerprint) -> Result<()> {
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let loader = DataLoader::from_stream(Countdown).batch_size(2).build()?;
    /// let read: Vec<Vec<i32>> = loader.epochs(0..1, 1).map(|batch| Ok(batch?.values(0)?.to_vec())).collect::<Result<_>>()?;
    /// assert_eq!(read, [[3, 2], [1, 1]]);
    /// # Ok::<(), fulmen_data::Error>(())
    /// ```
    ///
    /// [`Stream::into_dataset`]: crate::Stream::into_dataset
    pub fn from_stream(dataset: impl IterableDataset) -> DataLoaderBuilder {
        DataLoaderBuilder::from_stream(Arc::new(dataset))
    }

    /// Returns this loader with batches that are shared by several devices, or by the devices of
    /// several processes. The `Trainer` calls it for its devices.
    ///
    /// The batches and their order stay the same; only the rows that this process reads change.
    /// Each sample is read by exactly one process, and all processes have the same number of
    /// batches. A loader that was distributed before can be distributed again.
    ///
    /// ```
    /// use fulmen_data::{DataLoader, Replicas, TensorDataset};
    ///
    /// let data = TensorDataset::builder().array("x", [1000], vec![0.5f32; 1000]).build()?;
    /// let loader = DataLoader::builder(data.clone()).batch_size(64).build()?;
    /// let part = loader.distributed(Replicas { devices: 8, num_processes: 2, process_index: 0 })?;
    /// assert_eq!((part.len(), part.batch_size(), part.local_batch_size()), (loader.len(), 64, 32));
    ///
    /// let loader = DataLoader::builder(data).per_device_batch_size(10).build()?;
    /// let part = loader.distributed(Replicas { devices: 8, ..Replicas::default() })?;
    /// assert_eq!((loader.batch_size(), part.batch_size()), (10, 80));
    /// # Ok::<(), fulmen_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// A batch size that the devices cannot share equally; a process index out of range; processes
    /// with different numbers of devices; a sampler whose replicas do not agree on the number of
    /// samples.
    pub fn distributed(&self, replicas: Replicas) -> Result<DataLoader> {
        if replicas == self.replicas() {
            return Ok(self.clone());
        }
        self.inner.distributed(replicas).map(DataLoader::new).map_err(of_loader)
    }

    /// Returns this loader with epochs that end after their first `batches` batches (at least one),
    /// or earlier if an epoch has fewer.
    ///
    /// ```
    /// use fulmen_data::{DataLoader, TensorDataset};
    ///
    /// let data = TensorDataset::builder().array("x", [1000], vec![0.5f32; 1000]).build()?;
    /// let loader = DataLoader::builder(data).batch_size(100).build()?;
    /// assert_eq!((loader.limited(3)?.len(), loader.limited(3)?.num_samples(), loader.limited(30)?.len()), (3, 300, 10));
    /// # Ok::<(), fulmen_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`distributed`](DataLoader::distributed).
    pub fn limited(&self, batches: usize) -> Result<DataLoader> {
        self.inner.limited(batches).map(DataLoader::new).map_err(of_loader)
    }

    /// Whether an epoch never ends ([`endless`](DataLoaderBuilder::endless)).
    pub fn is_endless(&self) -> bool {
        self.inner.is_endless()
    }

    /// The devices and processes that share the batches.
    pub fn replicas(&self) -> Replicas {
        self.inner.setup.shard.replicas
    }

    /// The number of batches in an epoch, the same in every process; at least one. For an
    /// [endless](DataLoader::is_endless) loader, it is a number that is never reached.
    #[expect(clippy::len_without_is_empty, reason = "a loader without a batch cannot be built")]
    pub fn len(&self) -> usize {
        self.inner.batches()
    }

    /// The number of samples that all processes together read in an epoch, without padding and
    /// without a dropped last batch.
    pub fn num_samples(&self) -> usize {
        self.inner.setup.shard.global_samples().min(self.len().saturating_mul(self.batch_size()))
    }

    /// The number of rows of every batch, for all devices and processes together.
    pub fn batch_size(&self) -> usize {
        self.inner.setup.shard.batch_size
    }

    /// The number of rows of every batch that this process reads.
    pub fn local_batch_size(&self) -> usize {
        self.inner.layout().batch_size()
    }

    /// This process's rows of a batch.
    #[doc(hidden)]
    pub fn local_rows(&self) -> std::ops::Range<usize> {
        self.inner.setup.shard.rows()
    }

    /// The number of rows of every batch per device.
    pub fn per_device_batch_size(&self) -> usize {
        self.batch_size() / self.replicas().devices
    }

    /// The fields of a sample, without the batch axis and without the mask. With
    /// [buckets](DataLoaderBuilder::buckets), the fields have the length of the longest bucket.
    pub fn fields(&self) -> &[Field] {
        self.inner.layout().fields()
    }

    /// The fields of a sample in each shape that batches have: one shape, or one per bucket with
    /// [buckets](DataLoaderBuilder::buckets). [`HostBatch::bucket`](crate::HostBatch::bucket) is an
    /// index into this list.
    pub fn shapes(&self) -> &[Vec<Field>] {
        self.inner.source.shapes()
    }

    /// Whether a batch may have padding: the last one of an epoch or a bucket, or any batch if bad
    /// samples are skipped ([`OnError::Skip`]) or the loader was made so
    /// ([`padded`](DataLoaderBuilder::padded)).
    pub fn pads(&self) -> bool {
        let Config { drop_last, on_error, padded, .. } = self.config();
        *padded || (!*drop_last && self.inner.has_short_batch()) || *on_error == OnError::Skip
    }

    /// The buckets, if they are set.
    pub fn buckets(&self) -> Option<&Buckets> {
        self.inner.source.buckets()
    }

    /// Whether the batches come in order ([`ordered`](DataLoaderBuilder::ordered)). If not, a run
    /// cannot be resumed within an epoch.
    pub fn is_ordered(&self) -> bool {
        self.config().ordered
    }

    /// What happens to a sample that cannot be read.
    pub fn on_error(&self) -> OnError {
        self.config().on_error
    }

    /// The samples that could not be read so far, by this loader and by those
    /// [distributed](DataLoader::distributed) from it. They are counted only with [`OnError::Skip`]
    /// and [`OnError::Replace`]; with [`OnError::Fail`] each is the error of its batch.
    ///
    /// ```
    /// use fulmen_data::{DType, DataLoader, Dataset, Error, Field, OnError, Result, Sample};
    ///
    /// struct Torn;
    ///
    /// impl Dataset for Torn {
    ///     fn len(&self) -> usize {
    ///         4
    ///     }
    ///     fn fields(&self) -> Vec<Field> {
    ///         vec![Field::new("x", DType::I32, [])]
    ///     }
    ///     fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
    ///         if index == 1 { Err(Error::new("the page is torn")) } else { sample.write_value(0, index as i32) }
    ///     }
    ///     fn origin(&self, index: usize) -> Option<String> {
    ///         Some(format!("page {index}"))
    ///     }
    /// }
    ///
    /// let loader = DataLoader::builder(Torn).batch_size(4).on_error(OnError::Skip).build()?;
    /// let batch = loader.epoch(0).next().ok_or("no batch")??;
    /// assert_eq!(batch.values::<i32>(0)?, [0, 2, 3, 0]);
    /// assert_eq!(batch.mask(), [1.0, 1.0, 1.0, 0.0]);
    /// assert_eq!(loader.bad_samples().count, 1);
    /// assert_eq!(loader.bad_samples().first[0].message, "sample 1 (page 1): the page is torn");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bad_samples(&self) -> BadSamples {
        self.inner.setup.stats.bad.get()
    }

    /// Where each sample of epoch 0 comes from, in the order in which all processes together read
    /// them: its file, and its place there if the file has several samples. An unknown one is empty.
    ///
    /// `None` if the first sample's is unknown ([`Dataset::origin`](crate::Dataset::origin)); for
    /// streams, buckets and samplers that divide the samples themselves; and if bad samples are left
    /// out or replaced, or batches come in no particular order.
    ///
    /// ```
    /// use fulmen_data::{DType, DataLoader, Dataset, Field, Result, Sample};
    ///
    /// struct Pages;
    ///
    /// impl Dataset for Pages {
    ///     fn len(&self) -> usize {
    ///         3
    ///     }
    ///     fn fields(&self) -> Vec<Field> {
    ///         vec![Field::new("x", DType::I32, [])]
    ///     }
    ///     fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
    ///         sample.write_value(0, index as i32)
    ///     }
    ///     fn origin(&self, index: usize) -> Option<String> {
    ///         Some(format!("page {index}"))
    ///     }
    /// }
    ///
    /// let loader = DataLoader::builder(Pages).batch_size(2).build()?;
    /// let origins: Vec<String> = loader.origins()?.into_iter().flatten().collect();
    /// assert_eq!(origins, ["page 0", "page 1", "page 2"]);
    /// # Ok::<(), fulmen_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// A sampler with an invalid order.
    pub fn origins(&self) -> Result<Option<Box<dyn Iterator<Item = String> + Send>>> {
        let Setup { config, shard, .. } = &*self.inner.setup;
        if config.on_error != OnError::Fail || !config.ordered || self.is_endless() {
            return Ok(None);
        }
        self.inner.source.origins(shard).map_err(of_loader)
    }

    /// The first NaN or infinity in the first batch of epoch 0, if that batch was read and has one:
    /// its field, its row and where its sample comes from. The values of a stream's or a sampler's
    /// other batches are not searched.
    ///
    /// ```
    /// use fulmen_data::{DataLoader, TensorDataset};
    ///
    /// let data = TensorDataset::builder().array("x", [3], [7.0f32, f32::NAN, 9.0]).build()?;
    /// let loader = DataLoader::builder(data).batch_size(3).build()?;
    /// assert_eq!(loader.not_finite_in_first_batch(), None);
    /// loader.epoch(0).next().ok_or("no batch")??;
    /// assert_eq!(
    ///     loader.not_finite_in_first_batch().as_deref(),
    ///     Some("field `x` in row 1 of the first batch is NaN (sample 1)")
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn not_finite_in_first_batch(&self) -> Option<String> {
        self.inner.setup.stats.not_finite.get().map(ToString::to_string)
    }

    /// Whether the sampler has divided the samples among the processes
    /// ([`Sampler::is_presharded`](crate::Sampler::is_presharded)).
    pub fn is_presharded(&self) -> bool {
        self.inner.setup.shard.is_presharded
    }

    /// Everything that the batches of an epoch depend on except the samples themselves, in one
    /// line: the dataset's length, the number of batches and their size, the sampler. Loaders with
    /// different descriptions cannot be used in one training run. The description is the same in
    /// every process.
    ///
    /// ```
    /// use fulmen_data::{DataLoader, TensorDataset};
    ///
    /// let data = TensorDataset::builder().array("x", [10], vec![0.5f32; 10]).build()?;
    /// let loader = DataLoader::builder(data).batch_size(4).shuffle(true).seed(7).build()?;
    /// assert_eq!(loader.description(), "10 of 10 samples, 3 batches of 4, RandomSampler(seed 7)");
    /// # Ok::<(), fulmen_data::Error>(())
    /// ```
    pub fn description(&self) -> String {
        let Setup { config, shard, .. } = &*self.inner.setup;
        let source = &self.inner.source;
        let samples = self.num_samples();
        let batches = self.len();
        let size = self.batch_size();
        let total = source.total();
        let order = source.describe();
        let batches = quantity(batches, "batch");
        let mut text = if self.is_endless() {
            format!("{total}, batches of {size}, {order}")
        } else {
            format!("{samples} of {total}, {batches} of {size}, {order}")
        };
        // If the loader shuffles, the description of the order already includes this seed.
        if config.seed != 0 && !config.shuffled {
            text.push_str(&format!(", seed {}", config.seed));
        }
        if let Some(buckets) = source.buckets() {
            text.push_str(&format!(", {}", buckets.describe()));
        }
        if !config.ordered {
            text.push_str(", unordered");
        }
        if config.on_error != OnError::Fail {
            text.push_str(&format!(", on_error {:?}", config.on_error));
        }
        if shard.is_presharded {
            text.push_str(&format!(
                " (final, {})",
                quantity(shard.replicas.num_processes, "replica")
            ));
        }
        text
    }

    /// Where the time went since the loader was built, including the loaders that were
    /// [distributed](DataLoader::distributed) from it: busy and waiting threads, the waiting
    /// consumer, the depths of the queues. The last line says whether the data is too slow, why,
    /// and what to do.
    ///
    /// ```
    /// use fulmen_data::{DataLoader, TensorDataset};
    ///
    /// let data = TensorDataset::builder().array("x", [100], vec![0.5f32; 100]).build()?;
    /// let loader = DataLoader::builder(data).batch_size(10).build()?;
    /// for batch in loader.epoch(0) {
    ///     batch?;
    ///     std::thread::sleep(std::time::Duration::from_millis(1));
    /// }
    /// let report = loader.report();
    /// assert_eq!((report.batches, report.samples, report.steps), (10, 100, 9));
    /// println!("{report}");
    /// # Ok::<(), fulmen_data::Error>(())
    /// ```
    pub fn report(&self) -> LoaderReport {
        let Config { num_workers, prefetch, .. } = *self.config();
        let mut report = self.inner.setup.stats.report().clone();
        report.num_workers = num_workers;
        report.cores = cores();
        report.sequential = self.inner.source.is_sequential();
        report.host_queue.capacity = prefetch;
        report.transfer = report.transfer.filter(|transfer| transfer.batches > 0);
        if let Some(transfer) = &mut report.transfer {
            transfer.queue.capacity = self.inner.device_prefetch();
        }
        report
    }

    /// Resets [`report`](DataLoader::report). Bad samples stay counted.
    pub fn reset_report(&self) {
        *self.inner.setup.stats.report() = LoaderReport::new();
    }

    /// The same loader with a separate report.
    pub(crate) fn with_own_report(&self) -> Result<DataLoader> {
        self.inner.with_own_stats().map(DataLoader::new).map_err(of_loader)
    }

    fn config(&self) -> &Config {
        &self.inner.setup.config
    }

    /// The batches of epoch `epoch`.
    pub fn epoch(&self, epoch: u64) -> HostBatches {
        self.epochs(epoch..epoch.saturating_add(1), 0)
    }

    /// The batches of several epochs, the first epoch from batch `start_batch` on. Reading ahead
    /// continues across the end of an epoch, so the next one starts without a pause. A stream has
    /// to read the records of the batches before `start_batch`, but does not decode them.
    pub fn epochs(&self, epochs: Range<u64>, start_batch: usize) -> HostBatches {
        HostBatches::new(Arc::clone(&self.inner), epochs, start_batch)
    }

    /// The batches of epoch `epoch` from batch `start_batch` on, in device memory, with their rows
    /// split by `sharding`. A thread transfers some of them ahead of the consumer
    /// ([`device_prefetch`](DataLoaderBuilder::device_prefetch)).
    pub fn prefetch_to(
        &self,
        runtime: &Runtime,
        sharding: &Sharding,
        epoch: u64,
        start_batch: usize,
    ) -> DeviceBatches {
        self.epochs(epoch..epoch.saturating_add(1), start_batch).prefetch_to(runtime, sharding)
    }
}

impl fmt::Debug for DataLoader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields: Vec<String> = self.fields().iter().map(Field::to_string).collect();
        f.debug_struct("DataLoader")
            .field("num_samples", &self.num_samples())
            .field("batch_size", &self.batch_size())
            .field("len", &self.len())
            .field("drop_last", &self.config().drop_last)
            .field("description", &self.description())
            .field("replicas", &self.replicas())
            .field("num_workers", &self.config().num_workers)
            .field("fields", &fields)
            .finish()
    }
}
