//! Batches on devices, transferred ahead of the consumer.
//!
//! Out of scope: reading batches.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use fulmen_error::panicked;
use fulmen_tensor::{DType, DeviceArray, Runtime, Sharding, TensorType};
use tracing::debug_span;

use super::of_loader;
use super::{batch::HostBatch, host_batches::HostBatches, stats::ConsumerTimer, stats::Stats};
use crate::{Error, Result};

/// A batch in the memory of a runtime's devices.
#[derive(Debug)]
pub struct DeviceBatch {
    /// The fields in the dataset's order, then the mask; the batch axis first.
    pub arrays: Vec<DeviceArray>,
    /// How many rows of this process are samples; they come first.
    pub valid: usize,
    /// The epoch of the batch.
    pub epoch: u64,
    /// The number of the batch in its epoch, from 0.
    pub index: usize,
    /// The index of the batch's shape in the loader's [`shapes`](crate::DataLoader::shapes); 0 if
    /// there is only one.
    pub bucket: usize,
}

impl HostBatch {
    /// Starts the transfer of the fields and the mask to the devices. The rows are split by
    /// `sharding`, or all of them go to each device with [`Sharding::replicated`]. A device that
    /// can read host memory in place copies nothing; a CPU can if its rows start at a multiple of
    /// 64 bytes. The memory then stays alive and unchanged as long as one of the devices needs it.
    ///
    /// # Errors
    /// The sharding splits an axis other than the first; it does not fit the batch size or the
    /// mesh; or it gives a device of this process rows that another process has read.
    pub fn to_devices(&self, runtime: &Runtime, sharding: &Sharding) -> Result<DeviceBatch> {
        self.moved(runtime, sharding).map_err(of_loader)
    }

    fn moved(&self, runtime: &Runtime, sharding: &Sharding) -> Result<DeviceBatch> {
        if sharding.axes().len() > 1 {
            return Err(Error::usage(format!(
                "the sharding {sharding} splits more than the rows of a batch; use one that splits only its first axis"
            )));
        }
        self.check_rows(runtime, sharding)?;
        let layout = self.layout();
        let fields = self.fields().iter().enumerate().map(|(i, field)| {
            (
                field.name.as_str(),
                layout.rows(i).start,
                layout.row(i, 0).len(),
                field.dtype,
                field.shape.as_slice(),
            )
        });
        let mask = ("the mask", layout.mask().start, size_of::<f32>(), DType::F32, &[][..]);
        let mut arrays = Vec::with_capacity(self.fields().len() + 1);
        for (name, start, row_bytes, dtype, shape) in fields.chain([mask]) {
            let ty = TensorType::new(dtype, [&[self.global_batch_size()], shape].concat());
            let array = runtime.assemble(&ty, sharding, |client, device, block| {
                let row = block.start[0] - self.rows().start;
                let offset = start + row * row_bytes;
                client.buffer_from_shared(
                    self.memory(),
                    offset,
                    dtype.element_type(),
                    &block.size,
                    device,
                )
            });
            arrays.push(array.map_err(|source| self.transfer_error(name, source))?);
        }
        Ok(DeviceBatch {
            arrays,
            valid: self.valid(),
            epoch: self.epoch(),
            index: self.index(),
            bucket: self.bucket(),
        })
    }

    /// Checks that the devices of this process need only the rows in this batch.
    fn check_rows(&self, runtime: &Runtime, sharding: &Sharding) -> Result<()> {
        let rows = self.rows();
        let mask = TensorType::new(DType::F32, [self.global_batch_size()]);
        let blocks = runtime
            .blocks(&mask, sharding)
            .map_err(|error| Error::usage(format!("a batch's mask: {error}")))?;
        for (device, block) in runtime.local_devices().zip(blocks) {
            let start = block.start[0];
            let end = block.start[0] + block.size[0];
            if start < rows.start || end > rows.end {
                return Err(Error::usage(format!(
                    "{device} needs the rows {start}..{end} by the sharding {sharding} over the mesh {}, and this \
                     process has read {}..{}; distribute the loader with Replicas::from_runtime",
                    runtime.mesh(),
                    rows.start,
                    rows.end
                )));
            }
        }
        Ok(())
    }

    fn transfer_error(&self, name: &str, source: fulmen_tensor::Error) -> Error {
        Error::runtime(
            format!(
                "moving {name} of batch {} of epoch {} to the device",
                self.index(),
                self.epoch()
            ),
            source,
        )
    }
}

/// Batches on devices, in order. Made by
/// [`DataLoader::prefetch_to`](crate::DataLoader::prefetch_to).
///
/// A thread transfers them and waits until they have arrived, so a batch that
/// [`next`](Iterator::next) returns is ready to use. Errors are returned as by [`HostBatches`].
/// Dropping the iterator ends its threads.
///
/// ```no_run
/// use fulmen_data::{DataLoader, TensorDataset};
/// use fulmen_tensor::{Accelerator, Devices, Runtime, Sharding};
///
/// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(4))?;
/// let data = TensorDataset::builder().array("x", [1000, 8], vec![0.5f32; 8000]).build()?;
/// let loader = DataLoader::builder(data).batch_size(100).build()?;
/// for batch in loader.prefetch_to(&runtime, &Sharding::new([Some("data")]), 0, 0) {
///     let batch = batch?;
///     assert_eq!(batch.arrays[0].ty().to_string(), "f32[100, 8]");
///     assert_eq!(batch.arrays[0].shards()[3].dims(), [25, 8]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DeviceBatches {
    batches: Option<Receiver<Result<DeviceBatch>>>,
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    /// The thread could not be started.
    failed: Option<Error>,
    /// Batches on the devices that the consumer has not taken yet.
    ready: Arc<AtomicUsize>,
    first: FirstBatch,
    /// The number of batches that the consumer has taken.
    delivered: u64,
    stats: Arc<Stats>,
    timer: Option<ConsumerTimer>,
}

/// The first batch in host memory, until the second one is taken.
type FirstBatch = Arc<Mutex<Option<HostBatch>>>;

impl DeviceBatches {
    /// The first of these batches in host memory, to inspect what the model is trained on. It is
    /// available after the first batch is taken and before the second, and can be taken only once.
    pub fn first_on_host(&mut self) -> Option<HostBatch> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        first.filter(|_| self.delivered == 1)
    }
}

impl HostBatches {
    /// Transfers these batches to devices ahead of the consumer, with their rows split by
    /// `sharding`.
    pub fn prefetch_to(mut self, runtime: &Runtime, sharding: &Sharding) -> DeviceBatches {
        let stop = self.stop_flag();
        let timer = self.take_timer();
        let stats = Arc::clone(&self.inner().setup.stats);
        // The thread holds one more while the channel is full.
        let (sender, receiver) = sync_channel(self.inner().device_prefetch() - 1);
        let runtime = runtime.clone();
        let sharding = sharding.clone();
        let ready = Arc::new(AtomicUsize::new(0));
        let first = FirstBatch::default();
        let thread_ready = Arc::clone(&ready);
        let thread_first = Arc::clone(&first);
        let thread = Builder::new()
            .name("fulmen-transfer".to_owned())
            .spawn(move || {
                transfer(self, &runtime, &sharding, &sender, &thread_ready, thread_first)
            })
            .map_err(|source| Error::usage(format!("cannot start the transfer thread: {source}")));
        let (thread, failed) = match thread {
            Ok(thread) => (Some(thread), None),
            Err(error) => (None, Some(error)),
        };
        DeviceBatches {
            batches: Some(receiver),
            thread,
            stop,
            failed,
            ready,
            first,
            delivered: 0,
            stats,
            timer,
        }
    }
}

/// The transfer thread. It ends after the last batch, or when the consumer is gone.
fn transfer(
    mut batches: HostBatches,
    runtime: &Runtime,
    sharding: &Sharding,
    sender: &SyncSender<Result<DeviceBatch>>,
    ready: &AtomicUsize,
    first: FirstBatch,
) {
    let stats = Arc::clone(&batches.inner().setup.stats);
    let mut first = Some(first);
    loop {
        let start = Instant::now();
        let Some(batch) = batches.next() else { return };
        let transfer_start = Instant::now();
        let device_batch = batch.and_then(|batch| {
            let _transfer = debug_span!("transfer", number = batch.index()).entered();
            let device_batch = batch.to_devices(runtime, sharding)?;
            for (i, array) in device_batch.arrays.iter().enumerate() {
                let name = batch.fields().get(i).map_or("the mask", |field| field.name.as_str());
                array.block_until_ready().map_err(|source| batch.transfer_error(name, source))?;
            }
            if let Some(first) = first.take() {
                *first.lock().unwrap_or_else(PoisonError::into_inner) = Some(batch);
            }
            Ok(device_batch)
        });
        let done = Instant::now();
        ready.fetch_add(1, Ordering::Relaxed);
        if sender.send(device_batch).is_err() {
            return;
        }
        let mut report = stats.report();
        let transfer = report.transfer.get_or_insert_default();
        transfer.batches += 1;
        transfer.waited_for_batches += transfer_start - start;
        transfer.busy += done - transfer_start;
        transfer.waited_for_space += done.elapsed();
    }
}

impl Iterator for DeviceBatches {
    type Item = Result<DeviceBatch>;

    fn next(&mut self) -> Option<Result<DeviceBatch>> {
        if let Some(error) = self.failed.take() {
            return Some(Err(of_loader(error)));
        }
        let batches = self.batches.as_ref()?;
        if self.delivered == 1 {
            self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        self.delivered += 1;
        self.stats
            .report()
            .transfer
            .get_or_insert_default()
            .queue
            .record(self.ready.load(Ordering::Relaxed));
        let wait = || batches.recv();
        let batch = match &mut self.timer {
            Some(timer) => timer
                .take(wait, |batch| batch.as_ref().ok()?.as_ref().ok().map(|batch| batch.index)),
            None => wait(),
        };
        if let Ok(batch) = batch {
            self.ready.fetch_sub(1, Ordering::Relaxed);
            return Some(batch.map_err(of_loader));
        }
        // The thread has ended, either after the last batch or in a panic. A panic must not look
        // like the end of the batches.
        self.batches = None;
        let payload = self.thread.take()?.join().err()?;
        Some(Err(of_loader(panicked("the transfer thread panicked", payload))))
    }
}

impl Drop for DeviceBatches {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The receiver is dropped first, so that a thread that waits to send gives up.
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for DeviceBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBatches").finish_non_exhaustive()
    }
}
