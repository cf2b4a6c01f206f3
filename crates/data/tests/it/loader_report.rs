//! A running loader: batches in any order, and its report.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::common::data;
use fulmen_data::{
    DType, DataLoader, Dataset, Error, Field, Fingerprint, HostBatch, Items, Replicas, Result,
    Sample, Stage, Stream, StreamItem, bench_loader,
};

/// 40 numbers. The first number of each epoch is read only after the last one.
struct DelayedFirstSample(Arc<(Mutex<Read>, Condvar)>);

/// Epochs and indices.
type Read = BTreeSet<(u64, usize)>;

impl Dataset for DelayedFirstSample {
    fn len(&self) -> usize {
        40
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("number", DType::I32, [])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        let (read, changed) = &*self.0;
        let epoch = sample.epoch();
        let mut read = read.lock().unwrap();
        read.insert((epoch, index));
        changed.notify_all();
        if index == 0 {
            let patience = Duration::from_secs(10);
            drop(
                changed
                    .wait_timeout_while(read, patience, |read| !read.contains(&(epoch, 39)))
                    .unwrap(),
            );
        }
        sample.write_value(0, index as i32)
    }
}

#[test]
fn batches_that_are_done_first_come_first_but_never_before_the_end_of_the_epoch_before() {
    let dataset = DelayedFirstSample(Arc::default());
    let loader = DataLoader::builder(dataset)
        .batch_size(4)
        .num_workers(2)
        .prefetch(3)
        .ordered(false)
        .build()
        .unwrap();
    let batches: Vec<HostBatch> = loader.epochs(0..3, 0).map(Result::unwrap).collect();
    assert_eq!(batches.len(), 30);
    for (epoch, batches) in batches.chunks(10).enumerate() {
        assert!(batches.iter().all(|batch| batch.epoch() == epoch as u64));
        let order: Vec<usize> = batches.iter().map(HostBatch::index).collect();
        // The last batch is started when at most three batches have not been taken yet, and the
        // first batch is finished after that.
        assert!(order[7..].contains(&0), "{order:?}");
        assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 10);
        for batch in batches {
            let first = 4 * batch.index() as i32;
            assert_eq!(batch.values::<i32>(0).unwrap(), [first, first + 1, first + 2, first + 3]);
        }
    }
}

#[test]
fn without_an_order_there_is_no_place_in_it() {
    for workers in [0, 2] {
        let builder = || DataLoader::builder(data(20)).batch_size(4).num_workers(workers);
        let loader = builder().ordered(false).build().unwrap();
        assert_ne!(loader.description(), builder().build().unwrap().description());
        let mut batches = loader.epochs(0..2, 1);
        let error = batches.next().unwrap().unwrap_err();
        assert!(
            error.is_usage()
                && error.to_string().starts_with("cannot start at batch 1: with ordered(false)")
        );
        assert!(batches.next().is_none());
        let replicas = Replicas { devices: 2, num_processes: 2, process_index: 0 };
        assert!(
            loader
                .distributed(replicas)
                .unwrap_err()
                .to_string()
                .starts_with("ordered(false) is for one process")
        );
    }
}

/// Samples that take a known time in each stage, and longest to decode.
struct StagedDataset;

const PAUSE: Duration = Duration::from_millis(1);

impl Dataset for StagedDataset {
    fn len(&self) -> usize {
        20
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("number", DType::I32, [])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        let start = Instant::now();
        sample.timed(Stage::Read, || std::thread::sleep(PAUSE));
        Stage::Transform.timed(|| std::thread::sleep(PAUSE));
        std::thread::sleep(PAUSE);
        // However long the pauses were on a busy machine.
        let number = sample.timed(Stage::Decode, || {
            std::thread::sleep(3 * start.elapsed());
            index as i32
        });
        sample.write_value(0, number)
    }
}

#[test]
fn a_report_counts_batches_samples_and_the_time_of_each_stage() {
    for workers in [0, 2] {
        let loader =
            DataLoader::builder(StagedDataset).batch_size(4).num_workers(workers).build().unwrap();
        assert_eq!((loader.report().batches, loader.report().slow_stage()), (0, None));
        assert!(loader.report().to_string().ends_with("too few batches to find the bottleneck"));
        assert_eq!(loader.epochs(0..2, 0).filter(Result::is_ok).count(), 10);
        let report = loader.report();
        assert_eq!(
            (report.num_workers, report.batches, report.samples, report.steps),
            (workers, 10, 40, 8)
        );
        let minimum = [40 * PAUSE, 120 * PAUSE, 40 * PAUSE];
        assert!(
            report.stages.iter().zip(minimum).all(|(stage, minimum)| stage.1 >= minimum),
            "{report}"
        );
        assert!(report.writing >= 40 * PAUSE);
        assert!(report.first_batch.unwrap() >= 4 * 6 * PAUSE);
        assert!(report.transfer.is_none());
        assert_eq!(report.slow_stage().unwrap().0, Some(Stage::Decode));
        assert!(report.bottleneck().contains("decode is the slow stage"), "{report}");
        loader.reset_report();
        assert_eq!((loader.report().batches, loader.report().waiting), (0, Duration::ZERO));
    }
}

#[test]
fn what_a_distributed_loader_does_is_in_the_report_of_the_one_it_came_from() {
    let loader = DataLoader::builder(data(16)).batch_size(4).build().unwrap();
    let part =
        loader.distributed(Replicas { devices: 2, num_processes: 2, process_index: 1 }).unwrap();
    assert_eq!(part.epoch(0).filter(Result::is_ok).count(), 4);
    assert_eq!((loader.report().batches, loader.report().samples), (4, 8));
}

#[test]
fn a_slow_consumer_is_not_input_bound() {
    let loader = DataLoader::builder(data(40)).batch_size(4).num_workers(1).build().unwrap();
    for batch in loader.epoch(0) {
        assert!(batch.is_ok());
        std::thread::sleep(10 * PAUSE);
    }
    let report = loader.report();
    assert!(report.busy >= 9 * 10 * PAUSE && report.waited_for_space > Duration::ZERO);
    assert!(report.host_queue.peak >= 1 && report.host_queue.peak <= report.host_queue.capacity);
}

#[test]
fn the_reading_of_a_stream_is_told_apart() {
    struct SlowStream;
    impl Stream for SlowStream {
        type Item = i32;
        fn len(&self) -> Option<usize> {
            Some(20)
        }
        fn items(&self, _: u64) -> Result<Items<i32>> {
            Ok(Box::new((0..20).map(|item| {
                std::thread::sleep(PAUSE);
                Ok(StreamItem { index: item as u64, origin: String::new(), item })
            })))
        }
        fn fingerprint(&self, _: &mut Fingerprint) -> Result<()> {
            Ok(())
        }
    }
    let stream = SlowStream.into_dataset(vec![Field::new("x", DType::I32, [])], |item, sample| {
        sample.write_value(0, item)
    });
    let loader = DataLoader::from_stream(stream).batch_size(4).num_workers(2).build().unwrap();
    assert_eq!(loader.epoch(0).filter(Result::is_ok).count(), 5);
    let report = loader.report();
    assert!(report.in_order >= 20 * PAUSE && report.stages[Stage::Read as usize].1 >= 20 * PAUSE);
    assert!(report.bottleneck().contains("reading the stream is the slow stage"), "{report}");
}

#[test]
fn a_bench_reads_an_epoch_and_leaves_the_loaders_own_report_alone() {
    let loader = DataLoader::builder(data(30)).batch_size(4).num_workers(2).build().unwrap();
    let bench = bench_loader(&loader).unwrap();
    assert_eq!((bench.batches, bench.samples, bench.bad_samples), (8, 30, 0));
    assert_eq!((bench.report.batches, loader.report().batches), (8, 0));
    assert!(bench.first_batch <= bench.elapsed && bench.samples_per_second() > 0.0);
    // Three times 64 bytes a batch: the triples, the numbers, the mask.
    assert_eq!(bench.bytes, 8 * 3 * 64);
    let text = bench.to_string();
    assert!(
        ["samples/s", "decode", "a sample", "2 workers on "].iter().all(|part| text.contains(part)),
        "{text}"
    );

    struct BrokenDataset;
    impl Dataset for BrokenDataset {
        fn len(&self) -> usize {
            1
        }
        fn fields(&self) -> Vec<Field> {
            Vec::new()
        }
        fn read(&self, _: usize, _: &mut Sample<'_>) -> Result<()> {
            Err(Error::new("broken"))
        }
    }
    let loader = DataLoader::builder(BrokenDataset).build().unwrap();
    assert_eq!(bench_loader(&loader).unwrap_err().to_string(), "sample 0: broken");
}
