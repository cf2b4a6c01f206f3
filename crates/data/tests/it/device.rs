//! Batches on a real device of the CPU plugin: their content, their order, memory that is not
//! copied, and every way in which the iterator ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fulmen_data::{
    DType, DataLoader, Dataset, DeviceBatch, Error, Field, HostBatch, OnError, Result, Sample,
    TensorDataset,
};
use fulmen_pjrt::{Buffer, ElementType};
use fulmen_tensor::{Accelerator, Devices, Runtime, Sharding};

fn runtime() -> Runtime {
    Runtime::open(Accelerator::Cpu, &Devices::from(1)).unwrap()
}

fn rows() -> Sharding {
    Sharding::new([Some("data")])
}

fn read(buffer: &Buffer) -> Vec<u8> {
    buffer.read().unwrap().wait().unwrap().to_vec()
}

/// Fields of every dtype that a device supports, and a field without elements.
fn data(count: usize) -> TensorDataset {
    let numbers = || (0..2 * count).map(|i| i as u8);
    TensorDataset::builder()
        .array("f32", [count, 2], numbers().map(f32::from).collect::<Vec<_>>())
        .array(
            "bf16",
            [count, 2],
            numbers().map(|i| half::bf16::from_f32(f32::from(i))).collect::<Vec<_>>(),
        )
        .array("i64", [count, 1, 2], numbers().map(i64::from).collect::<Vec<_>>())
        .array("u8", [count, 2], numbers().collect::<Vec<_>>())
        .array("bool", [count, 2], numbers().map(|i| i % 2 == 1).collect::<Vec<_>>())
        .array("empty", [count, 0], [0f32; 0])
        .array("scalar", [count], (0..count as i32).collect::<Vec<_>>())
        .build()
        .unwrap()
}

fn same(device: &DeviceBatch, host: &HostBatch) {
    assert_eq!(
        (device.epoch, device.index, device.valid),
        (host.epoch(), host.index(), host.valid())
    );
    assert_eq!(device.arrays.len(), host.fields().len() + 1);
    for (i, field) in host.fields().iter().enumerate() {
        let buffer = &device.arrays[i].shards()[0];
        assert_eq!(buffer.element_type(), field.dtype.element_type());
        assert_eq!(buffer.dims(), [&[host.batch_size()], field.shape.as_slice()].concat());
        assert_eq!(read(buffer), host.field_bytes(i).unwrap(), "{field}");
    }
    let mask = &device.arrays[host.fields().len()].shards()[0];
    assert_eq!((mask.element_type(), mask.dims()), (ElementType::F32, &[host.batch_size()][..]));
    assert_eq!(read(mask), bytes_of(host.mask()));
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

#[test]
fn batches_arrive_as_they_are_on_the_host() {
    let runtime = runtime();
    for workers in [0, 2] {
        let loader = DataLoader::builder(data(50))
            .batch_size(8)
            .shuffle(true)
            .num_workers(workers)
            .build()
            .unwrap();
        // All batches are kept, so that each keeps its memory while the others are made.
        let moved: Vec<DeviceBatch> =
            loader.prefetch_to(&runtime, &rows(), 1, 0).collect::<Result<_>>().unwrap();
        assert_eq!(moved.len(), 7);
        for (moved, host) in moved.iter().zip(loader.epoch(1)) {
            same(moved, &host.unwrap());
        }
        // One batch is kept at a time, so that memory is reused.
        for (moved, host) in
            loader.epochs(1..4, 3).prefetch_to(&runtime, &rows()).zip(loader.epochs(1..4, 3))
        {
            same(&moved.unwrap(), &host.unwrap());
        }
    }
}

#[test]
fn the_cpu_reads_the_batch_in_place() {
    let runtime = runtime();
    let loader = DataLoader::builder(data(8)).batch_size(8).build().unwrap();
    let host = loader.epoch(0).next().unwrap().unwrap();
    let moved = host.to_devices(&runtime, &rows()).unwrap();
    for (i, buffer) in moved.arrays.iter().map(|a| &a.shards()[0]).take(5).enumerate() {
        assert_eq!(
            buffer.address().unwrap(),
            host.field_bytes(i).unwrap().as_ptr() as usize,
            "field {i}"
        );
    }
    assert_eq!(moved.arrays[7].shards()[0].address().unwrap(), host.mask().as_ptr() as usize);
    // The device keeps the memory alive after the host drops it, and other batches do not write
    // there.
    let expected = host.field_bytes(2).unwrap().to_vec();
    drop(host);
    for batch in loader.epochs(1..20, 0) {
        assert!(batch.is_ok());
    }
    assert_eq!(read(&moved.arrays[2].shards()[0]), expected);
}

/// Counts reads; sample 12 fails.
struct CountingDataset {
    read: Arc<AtomicUsize>,
    pause: Duration,
}

impl Dataset for CountingDataset {
    fn len(&self) -> usize {
        20
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::I32, [])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        self.read.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(self.pause);
        if index == 12 {
            return Err(Error::new("damaged"));
        }
        sample.write_value(0, index as i32)
    }
}

fn counting(pause: Duration) -> (CountingDataset, Arc<AtomicUsize>) {
    let read = Arc::<AtomicUsize>::default();
    (CountingDataset { read: Arc::clone(&read), pause }, read)
}

#[test]
fn as_many_batches_as_asked_for_are_ahead_and_no_more() {
    let runtime = runtime();
    let small = (None, 8);
    for (device_prefetch, ahead) in [(Some(1), 1), (Some(2), 2), (Some(3), 3), small] {
        let (data, read) = counting(Duration::ZERO);
        let mut loader = DataLoader::builder(data).batch_size(1);
        if let Some(batches) = device_prefetch {
            loader = loader.device_prefetch(batches);
        }
        let loader = loader.build().unwrap();
        let mut batches = loader.prefetch_to(&runtime, &rows(), 0, 0);
        for count in 0..3 {
            let patience = Instant::now();
            while read.load(Ordering::SeqCst) < count + ahead
                && patience.elapsed() < Duration::from_secs(10)
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_millis(30));
            assert_eq!(read.load(Ordering::SeqCst), count + ahead, "{count} taken, {ahead} ahead");
            assert!(batches.next().unwrap().is_ok());
        }
    }
}

#[test]
fn an_error_arrives_at_its_place_and_skipped_batches_are_not_read() {
    let runtime = runtime();
    for workers in [0, 2] {
        let (data, read) = counting(Duration::ZERO);
        let loader = DataLoader::builder(data).batch_size(4).num_workers(workers).build().unwrap();
        let batches: Vec<_> = loader.prefetch_to(&runtime, &rows(), 0, 2).collect();
        assert_eq!(batches.len(), 3);
        assert_eq!(batches[1].as_ref().unwrap_err().to_string(), "sample 12: damaged");
        assert_eq!(batches[1].as_ref().unwrap_err().sample_index(), Some(12));
        assert_eq!(batches[2].as_ref().unwrap().index, 4);
        // Batches 2 and 4 are read fully, batch 3 up to its error.
        assert_eq!(read.load(Ordering::SeqCst), 4 + 1 + 4);
    }
}

#[test]
fn a_panic_that_no_sample_is_blamed_for_arrives_as_an_error() {
    /// An error whose message panics.
    #[derive(Debug)]
    struct PanickingError;
    impl std::fmt::Display for PanickingError {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("no words")
        }
    }
    impl std::error::Error for PanickingError {}
    struct PanickingDataset;
    impl Dataset for PanickingDataset {
        fn len(&self) -> usize {
            6
        }
        fn fields(&self) -> Vec<Field> {
            vec![Field::new("x", DType::I32, [])]
        }
        fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
            if index == 3 {
                Err(Error::new(PanickingError))
            } else {
                sample.write_value(0, index as i32)
            }
        }
    }
    for workers in [0, 1, 7] {
        let builder = DataLoader::builder(PanickingDataset)
            .batch_size(2)
            .num_workers(workers)
            .on_error(OnError::Skip);
        let runtime = runtime();
        let loader = builder.build().unwrap();
        let batches: Vec<Result<DeviceBatch>> =
            loader.prefetch_to(&runtime, &rows(), 0, 0).collect();
        assert_eq!(
            batches.iter().map(Result::is_ok).collect::<Vec<_>>(),
            [true, false, true],
            "{workers} workers"
        );
        assert!(batches[1].as_ref().unwrap_err().is_panic());
    }
}

#[test]
fn a_consumer_that_stops_early_leaves_no_thread_behind_and_does_not_wait_long() {
    let runtime = runtime();
    for workers in [0, 1, 4] {
        for count in [0, 1, 2] {
            let (data, read) = counting(Duration::from_millis(20));
            let loader =
                DataLoader::builder(data).batch_size(4).num_workers(workers).build().unwrap();
            let mut batches = loader.epochs(0..u64::MAX, 0).prefetch_to(&runtime, &rows());
            for _ in 0..count {
                assert!(batches.next().unwrap().is_ok());
            }
            drop(batches);
            drop(loader);
            assert_eq!(Arc::strong_count(&read), 1, "{workers} workers, {count} taken");
        }
    }
}

#[test]
fn the_report_tells_what_the_transfer_did() {
    let loader = DataLoader::builder(data(20))
        .batch_size(4)
        .num_workers(1)
        .device_prefetch(2)
        .build()
        .unwrap();
    let batches = loader.epochs(0..2, 0).prefetch_to(&runtime(), &rows());
    for batch in batches {
        assert!(batch.is_ok());
        std::thread::sleep(Duration::from_millis(2));
    }
    let report = loader.report();
    let transfer = report.transfer.unwrap();
    assert_eq!((report.batches, report.steps, transfer.batches), (10, 8, 10));
    assert!(transfer.busy > Duration::ZERO && report.busy >= 8 * Duration::from_millis(2));
    assert!(transfer.queue.peak <= 2, "{report}");
}
