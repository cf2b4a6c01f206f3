//! Datasets, samplers and consumers that misbehave: every fault is an `Err` in its position, and no
//! thread is left running.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fulmen_data::{
    DType, DataLoader, Dataset, Error, Field, Fingerprint, HostBatch, IterableDataset, OnError,
    Record, Records, Replica, Replicas, Result, Sample, Sampler,
};

/// 20 samples; some fail, panic or are left unwritten. Reads are counted.
struct FaultyDataset {
    read: Arc<AtomicUsize>,
    fault: fn(usize) -> Fault,
    pause: Duration,
}

enum Fault {
    None,
    Error,
    Panic,
    Forget,
}

impl FaultyDataset {
    fn new(fault: fn(usize) -> Fault) -> FaultyDataset {
        FaultyDataset { read: Arc::default(), fault, pause: Duration::ZERO }
    }
}

impl Dataset for FaultyDataset {
    fn len(&self) -> usize {
        20
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::I32, [])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        self.read.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(self.pause);
        match (self.fault)(index) {
            Fault::None => sample.write_value(0, index as i32),
            Fault::Error => Err(Error::new(format!("the image {index}.png is damaged"))),
            Fault::Panic => panic!("index {index} is cursed"),
            Fault::Forget => Ok(()),
        }
    }
}

/// The result of an epoch in batches of 3: the values or the error of each batch.
fn outcome(fault: fn(usize) -> Fault, workers: usize) -> Vec<std::result::Result<Vec<i32>, Error>> {
    let loader = DataLoader::builder(FaultyDataset::new(fault))
        .batch_size(3)
        .num_workers(workers)
        .build()
        .unwrap();
    loader
        .epoch(0)
        .map(|batch| batch.map(|batch| batch.values::<i32>(0).unwrap().to_vec()))
        .collect()
}

#[test]
fn an_error_arrives_at_its_place_and_the_batches_around_it_are_whole() {
    for workers in [0, 1, 2, 7] {
        let fault = |index| if index == 10 || index == 19 { Fault::Error } else { Fault::None };
        let batches = outcome(fault, workers);
        assert_eq!(batches.len(), 7);
        for (i, batch) in batches.into_iter().enumerate() {
            match batch {
                Ok(values) => {
                    assert_eq!(values, [3 * i as i32, 3 * i as i32 + 1, 3 * i as i32 + 2])
                }
                Err(error) => {
                    let sample = if i == 3 { 10 } else { 19 };
                    assert!(i == 3 || i == 6);
                    assert_eq!(error.sample_index(), Some(sample));
                    assert_eq!(
                        error.to_string(),
                        format!("sample {sample}: the image {sample}.png is damaged")
                    );
                }
            }
        }
    }
}

#[test]
fn a_panic_becomes_an_error_with_the_sample_and_the_message() {
    for workers in [0, 1, 3] {
        let batches = outcome(|index| if index == 4 { Fault::Panic } else { Fault::None }, workers);
        assert_eq!(batches.len(), 7);
        let error = batches[1].as_ref().unwrap_err();
        assert!(error.is_panic());
        assert_eq!(error.to_string(), "sample 4: the dataset panicked: index 4 is cursed");
        assert_eq!(batches.iter().filter(|batch| batch.is_ok()).count(), 6);
    }
}

#[test]
fn a_panic_on_every_sample_ends_the_epoch_with_an_error_a_batch() {
    let batches = outcome(|_| Fault::Panic, 4);
    assert_eq!(batches.len(), 7);
    assert!(batches.iter().all(|batch| batch.as_ref().is_err_and(Error::is_panic)));
}

#[test]
fn a_forgotten_field_is_an_error_and_never_an_older_batchs_value() {
    for workers in [0, 2] {
        let batches =
            outcome(|index| if index == 9 { Fault::Forget } else { Fault::None }, workers);
        let error = batches[3].as_ref().unwrap_err();
        assert!(error.is_field());
        assert!(
            error.to_string().starts_with("sample 9: Dataset::read did not write `x i32[]`"),
            "{error}"
        );
    }
}

#[test]
fn skipped_batches_are_not_read() {
    for workers in [0, 2] {
        let data = FaultyDataset::new(|index| if index < 15 { Fault::Panic } else { Fault::None });
        let read = Arc::clone(&data.read);
        let loader = DataLoader::builder(data).batch_size(3).num_workers(workers).build().unwrap();
        let batches: Vec<HostBatch> = loader.epochs(0..1, 5).collect::<Result<_>>().unwrap();
        assert_eq!(batches.len(), 2);
        assert_eq!(read.load(Ordering::SeqCst), 5);
    }
}

#[test]
fn the_workers_do_not_run_ahead_of_the_prefetch_window() {
    let data = FaultyDataset::new(|_| Fault::None);
    let read = Arc::clone(&data.read);
    let loader =
        DataLoader::builder(data).batch_size(2).num_workers(2).prefetch(2).build().unwrap();
    let mut batches = loader.epoch(0);
    assert!(batches.next().unwrap().is_ok());
    let patience = Instant::now();
    while read.load(Ordering::SeqCst) < 6 && patience.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(50));
    // The batch that was taken, and two batches ahead.
    assert_eq!(read.load(Ordering::SeqCst), 6);
}

#[test]
fn a_consumer_that_stops_early_leaves_no_thread_behind() {
    for count in 0..4 {
        let mut data = FaultyDataset::new(|_| Fault::None);
        data.pause = Duration::from_millis(1);
        let read = Arc::clone(&data.read);
        let loader =
            DataLoader::builder(data).batch_size(2).num_workers(4).prefetch(4).build().unwrap();
        let mut batches = loader.epochs(0..u64::MAX, 0);
        for _ in 0..count {
            assert!(batches.next().unwrap().is_ok());
        }
        drop(batches);
        drop(loader);
        // The threads held the dataset, and with it this counter.
        assert_eq!(Arc::strong_count(&read), 1, "after {count} batches");
    }
}

#[test]
fn dropping_does_not_wait_for_a_whole_batch() {
    let mut data = FaultyDataset::new(|_| Fault::None);
    data.pause = Duration::from_millis(500);
    let read = Arc::clone(&data.read);
    let loader = DataLoader::builder(data).batch_size(20).num_workers(2).build().unwrap();
    let batches = loader.epochs(0..9, 0);
    drop(batches);
    let read = read.load(Ordering::SeqCst);
    assert!(read < 20, "{read} samples were read");
}

/// A sampler whose order is computed by the given function.
struct FnSampler(Order);

type Order = fn(u64) -> Vec<usize>;

impl Sampler for FnSampler {
    fn order(&self, epoch: u64, _: usize, _: Replica) -> Vec<usize> {
        (self.0)(epoch)
    }
}

#[test]
fn a_sampler_that_lies_is_an_error_and_the_end() {
    let cases: [(Order, &str); 3] = [
        (
            |_| vec![1, 2],
            "the sampler's order for epoch 1 has 2 samples, but its num_samples says 20",
        ),
        (
            |_| (1..21).collect(),
            "the sampler's order for epoch 1 has the index 20 at position 19, but the dataset has 20 samples",
        ),
        (|epoch| panic!("no epoch {epoch}"), "the sampler panicked: no epoch 1"),
    ];
    for (order, message) in cases {
        for workers in [0, 3] {
            let builder = DataLoader::builder(FaultyDataset::new(|_| Fault::None))
                .batch_size(5)
                .sampler(FnSampler(order));
            let loader = builder.num_workers(workers).build().unwrap();
            let mut batches = loader.epochs(1..4, 0);
            assert_eq!(batches.next().unwrap().unwrap_err().to_string(), message);
            assert!(batches.next().is_none() && batches.next().is_none());
        }
    }
}

/// Runs work that might never end, with a time limit.
fn finishes<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(work()));
    receive.recv_timeout(Duration::from_secs(60)).expect("it hangs, or it panicked")
}

/// The result of one or two epochs: the first number or the error of each batch.
fn firsts(loader: DataLoader, start: usize) -> Vec<String> {
    finishes(move || {
        let text = |batch: Result<HostBatch>| match batch {
            Ok(batch) => batch.values::<i32>(0).unwrap()[0].to_string(),
            Err(error) => error.to_string(),
        };
        loader.epochs(0..2, start).map(text).collect()
    })
}

/// Six samples. The fourth cannot be read, and more user code panics after it.
struct PanickingDataset {
    message: bool,
}

/// An error whose message panics.
#[derive(Debug)]
struct PanickingError;

impl std::fmt::Display for PanickingError {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("no words")
    }
}

impl std::error::Error for PanickingError {}

impl Dataset for PanickingDataset {
    fn len(&self) -> usize {
        6
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::I32, [])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        match index {
            3 if self.message => Err(Error::new(PanickingError)),
            3 => Err(Error::new("torn")),
            _ => sample.write_value(0, index as i32),
        }
    }
    fn origin(&self, _: usize) -> Option<String> {
        if self.message { None } else { panic!("no origin") }
    }
}

#[test]
fn a_panic_where_an_error_is_told_is_an_error_and_no_hang() {
    for workers in [0, 1, 7] {
        let loader = |message, on_error| {
            let builder = DataLoader::builder(PanickingDataset { message })
                .batch_size(2)
                .num_workers(workers);
            builder.on_error(on_error).build().unwrap()
        };
        assert_eq!(
            firsts(loader(false, OnError::Fail), 0),
            ["0", "sample 3: torn", "4", "0", "sample 3: torn", "4"]
        );
        assert_eq!(firsts(loader(false, OnError::Skip), 0), ["0", "2", "4", "0", "2", "4"]);
        let panicked = "filling a batch panicked: no words";
        assert_eq!(
            firsts(loader(true, OnError::Skip), 0),
            ["0", panicked, "4", "0", panicked, "4"]
        );
    }
}

/// Panics when it is dropped.
struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        panic!("boom");
    }
}

/// Four records; either the records or the stream panic when they are dropped.
struct PanicOnDropDataset {
    records: bool,
}

impl IterableDataset for PanicOnDropDataset {
    fn len(&self) -> Option<usize> {
        Some(4)
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::I32, [])]
    }
    fn records(&self, _: u64) -> Result<Records> {
        let (of_stream, of_records) =
            if self.records { (None, true) } else { (Some(PanicOnDrop), false) };
        Ok(Box::new((0..4).map(move |i| {
            let _held = &of_stream;
            let bomb = of_records.then(|| PanicOnDrop);
            Ok(Record::new(i as u64, "", move |sample| {
                std::mem::forget(bomb);
                sample.write_value(0, i)
            }))
        })))
    }
    fn fingerprint(&self, _: &mut Fingerprint) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_panic_in_a_drop_is_an_error_and_the_end() {
    for workers in [0, 1, 7] {
        let loader = |records| {
            DataLoader::from_stream(PanicOnDropDataset { records })
                .batch_size(2)
                .num_workers(workers)
                .build()
                .unwrap()
        };
        let panicked = "planning a batch panicked: boom";
        // The stream is dropped when the next epoch begins, and a record when it is not needed.
        assert_eq!(firsts(loader(false), 0), ["0", "2", panicked]);
        assert_eq!(firsts(loader(true), 0), ["0", "2", "0", "2"]);
        assert_eq!(firsts(loader(true), 1), [panicked]);
    }
}

#[test]
fn a_panic_while_a_sampler_is_described_is_an_error() {
    /// A sampler with a different order for each rank, and no description.
    struct RankSampler;
    impl Sampler for RankSampler {
        fn order(&self, _: u64, len: usize, replica: Replica) -> Vec<usize> {
            (0..len).map(|i| (i + replica.rank) % len).collect()
        }
        fn describe(&self) -> String {
            panic!("speechless")
        }
    }
    for workers in [0, 1, 7] {
        let builder = DataLoader::builder(FaultyDataset::new(|_| Fault::None))
            .batch_size(4)
            .sampler(RankSampler);
        let loader = builder.num_workers(workers).build().unwrap();
        let part = loader
            .distributed(Replicas { devices: 2, num_processes: 2, process_index: 0 })
            .unwrap();
        assert_eq!(firsts(part, 0), ["planning a batch panicked: speechless"]);
    }
}
