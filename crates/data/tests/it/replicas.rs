//! Loaders whose batches are shared by several devices and processes: one process reads each sample
//! once, and the batches do not depend on the sharing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use expect_test::{Expect, expect};
use fulmen_data::{
    DType, DataLoader, DataLoaderBuilder, Dataset, Error, Field, HostBatch, Replica, Replicas,
    Result, Sample, Sampler,
};

use crate::common::{self, data};

fn processes(loader: &DataLoader, num_processes: usize, devices: usize) -> Vec<DataLoader> {
    (0..num_processes)
        .map(|process_index| {
            loader.distributed(Replicas { devices, num_processes, process_index }).unwrap()
        })
        .collect()
}

/// A batch, or several parts of it joined: the rows of both fields, and the mask.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rows {
    bytes: Vec<u8>,
    numbers: Vec<i32>,
    mask: Vec<f32>,
}

impl Rows {
    fn push(&mut self, part: &HostBatch) {
        assert_eq!(part.rows(), self.mask.len()..self.mask.len() + part.batch_size());
        assert_eq!(part.mask().iter().filter(|&&m| m == 1.0).count(), part.valid());
        self.bytes.extend(part.field_bytes(0).unwrap());
        self.numbers.extend(part.values::<i32>(1).unwrap());
        self.mask.extend(part.mask());
    }

    fn samples(&self) -> impl Iterator<Item = i32> {
        self.numbers
            .iter()
            .zip(&self.mask)
            .filter(|&(_, &mask)| mask == 1.0)
            .map(|(&number, _)| number)
    }
}

/// The global batches of some epochs from a batch on, joined from the parts of all processes.
fn global_batches(
    parts: &[DataLoader],
    epochs: std::ops::Range<u64>,
    start_batch: usize,
) -> Vec<Rows> {
    let mut streams: Vec<_> =
        parts.iter().map(|part| part.epochs(epochs.clone(), start_batch)).collect();
    let mut batches = Vec::new();
    loop {
        let round: Vec<Option<HostBatch>> =
            streams.iter_mut().map(|s| s.next().transpose().unwrap()).collect();
        if round.iter().all(Option::is_none) {
            return batches;
        }
        let mut rows = Rows::default();
        for part in &round {
            // All processes must end at the same batch.
            let part = part.as_ref().unwrap();
            assert_eq!(part.global_batch_size(), parts[0].batch_size());
            rows.push(part);
        }
        assert_eq!(rows.mask.len(), parts[0].batch_size());
        batches.push(rows);
    }
}

#[test]
fn every_sample_is_seen_exactly_once_an_epoch() {
    for len in [1, 7, 64, 1000] {
        for (batch_size, drop_last) in [(8, false), (24, false), (8, true)] {
            if drop_last && len < batch_size {
                continue;
            }
            for shuffle in [false, true] {
                let builder =
                    DataLoader::builder(data(len)).batch_size(batch_size).shuffle(shuffle).seed(3);
                let whole = builder.drop_last(drop_last).build().unwrap();
                let expected = if drop_last { len / batch_size * batch_size } else { len };
                for (devices, num_processes) in [(1, 1), (2, 1), (2, 2), (8, 1), (8, 2), (8, 8)] {
                    let parts = processes(&whole, num_processes, devices);
                    let context = format!(
                        "{len} samples, {batch_size}, {drop_last:?}, {devices}, {num_processes}"
                    );
                    let mut orders = Vec::new();
                    for epoch in 0..3 {
                        let batches = global_batches(&parts, epoch..epoch + 1, 0);
                        assert_eq!(batches.len(), whole.len(), "{context}");
                        let order: Vec<i32> = batches.iter().flat_map(Rows::samples).collect();
                        let mut sorted = order.clone();
                        sorted.sort_unstable();
                        sorted.dedup();
                        assert_eq!((order.len(), sorted.len()), (expected, expected), "{context}");
                        assert!(sorted.iter().all(|&sample| (0..len as i32).contains(&sample)));
                        if expected == len {
                            assert_eq!(sorted, (0..len as i32).collect::<Vec<_>>(), "{context}");
                        }
                        orders.push(order);
                    }
                    if shuffle && len > 1 {
                        assert!(
                            orders[0] != orders[1]
                                && orders[1] != orders[2]
                                && orders[0] != orders[2]
                        );
                    } else {
                        assert_eq!(orders[0], (0..expected as i32).collect::<Vec<_>>());
                    }
                    assert!(
                        parts
                            .iter()
                            .all(|part| part.num_samples() == expected
                                && part.pads() == whole.pads())
                    );
                }
            }
        }
    }
}

#[test]
fn the_global_batches_do_not_depend_on_the_sharing() {
    for (len, drop_last) in [(103, false), (103, true), (3, false), (64, true)] {
        let read = |devices, num_processes, workers| {
            let builder = DataLoader::builder(data(len))
                .batch_size(16)
                .shuffle(true)
                .seed(5)
                .drop_last(drop_last);
            let whole = builder.num_workers(workers).build().unwrap();
            let parts = processes(&whole, num_processes, devices);
            assert!(parts.iter().all(|part| part.description() == whole.description()));
            (global_batches(&parts, 0..2, 0), whole.len())
        };
        let (expected, batches) = read(1, 1, 0);
        assert_eq!(expected.len(), 2 * batches);
        for (devices, num_processes) in [(1, 1), (2, 1), (8, 1), (2, 2), (4, 2), (8, 8), (16, 16)] {
            for workers in [0, 1, 3] {
                let same = read(devices, num_processes, workers).0 == expected;
                assert!(
                    same,
                    "{len} samples, {drop_last:?}, {devices} devices, {num_processes}, {workers} workers"
                );
            }
        }
    }
}

/// Records which samples were read.
struct Recording {
    read: Arc<Mutex<Vec<usize>>>,
}

impl Dataset for Recording {
    fn len(&self) -> usize {
        20
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::I32, [])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        self.read.lock().unwrap().push(index);
        sample.write_value(0, index as i32)
    }
}

#[test]
fn a_process_reads_its_own_samples_and_what_pads_them() {
    for workers in [0, 1, 3] {
        let read = Arc::<Mutex<Vec<usize>>>::default();
        let data = Recording { read: Arc::clone(&read) };
        let whole = DataLoader::builder(data).batch_size(8).num_workers(workers).build().unwrap();
        let parts = processes(&whole, 4, 4);
        // The last batch has the samples 16 to 19: processes 0 and 1 get all of them, processes 2
        // and 3 none.
        let expected: [&[usize]; 4] = [
            &[0, 1, 8, 9, 16, 17],
            &[2, 3, 10, 11, 18, 19],
            &[4, 5, 12, 13, 16],
            &[6, 7, 14, 15, 16],
        ];
        for (part, expected) in parts.iter().zip(expected) {
            let batches: Vec<HostBatch> = part.epoch(0).collect::<Result<_>>().unwrap();
            let mut samples = std::mem::take(&mut *read.lock().unwrap());
            samples.sort_unstable();
            assert_eq!(samples, expected);
            assert_eq!(batches.len(), 3);
            let last = &batches[2];
            match part.replicas().process_index {
                0 => assert_eq!(
                    (last.values::<i32>(0).unwrap(), last.mask()),
                    (&[16, 17][..], &[1.0, 1.0][..])
                ),
                1 => assert_eq!(
                    (last.values::<i32>(0).unwrap(), last.mask()),
                    (&[18, 19][..], &[1.0, 1.0][..])
                ),
                _ => assert_eq!(
                    (last.values::<i32>(0).unwrap(), last.mask()),
                    (&[16, 16][..], &[0.0, 0.0][..])
                ),
            }
            assert_eq!(last.valid(), if part.replicas().process_index < 2 { 2 } else { 0 });
        }
        // Skipped batches are not read.
        let rest: Vec<HostBatch> = parts[3].epochs(0..1, 1).collect::<Result<_>>().unwrap();
        assert_eq!(rest.len(), 2);
        let mut samples = read.lock().unwrap().clone();
        samples.sort_unstable();
        assert_eq!(samples, [14, 15, 16]);
    }
}

#[test]
fn a_run_resumes_in_the_middle_of_an_epoch_with_another_number_of_processes() {
    let whole = DataLoader::builder(data(100))
        .batch_size(8)
        .shuffle(true)
        .seed(9)
        .num_workers(2)
        .build()
        .unwrap();
    let all = global_batches(&processes(&whole, 1, 1), 0..3, 0);
    assert_eq!(all.len(), 3 * 13);
    for (devices, num_processes) in [(1, 1), (8, 1), (8, 2), (8, 8)] {
        let parts = processes(&whole, num_processes, devices);
        for batch in [0, 1, 12, 13] {
            assert!(
                global_batches(&parts, 1..3, batch) == all[13 + batch..],
                "{num_processes}, from batch {batch}"
            );
        }
    }
}

/// Every replica reads its own range, backwards; the remainder is left out.
struct RangeSampler;

impl Sampler for RangeSampler {
    fn is_presharded(&self) -> bool {
        true
    }
    fn num_samples(&self, len: usize, replica: Replica) -> usize {
        len / replica.num_replicas
    }
    fn order(&self, epoch: u64, len: usize, replica: Replica) -> Vec<usize> {
        let count = self.num_samples(len, replica);
        let mut order: Vec<usize> =
            (replica.rank * count..(replica.rank + 1) * count).rev().collect();
        order.rotate_left(epoch as usize);
        order
    }
    fn describe(&self) -> String {
        "RangeSampler".to_owned()
    }
}

#[test]
fn a_final_sampler_is_not_divided_further() {
    let build = |workers, drop_last| {
        let builder =
            DataLoader::builder(data(41)).batch_size(12).sampler(RangeSampler).drop_last(drop_last);
        builder.num_workers(workers).build().unwrap()
    };
    for workers in [0, 1, 3] {
        let parts = processes(&build(workers, false), 4, 4);
        let batches = global_batches(&parts, 0..1, 0);
        // Ten samples per replica, three at a time.
        assert_eq!(
            (batches.len(), parts[0].len(), parts[0].num_samples(), parts[0].pads()),
            (4, 4, 40, true)
        );
        assert_eq!(batches[0].numbers, [9, 8, 7, 19, 18, 17, 29, 28, 27, 39, 38, 37]);
        assert_eq!(batches[3].numbers, [0, 0, 0, 10, 10, 10, 20, 20, 20, 30, 30, 30]);
        assert_eq!(batches[3].mask, [1.0, 0.0, 0.0].repeat(4));
        let mut samples: Vec<i32> = batches.iter().flat_map(Rows::samples).collect();
        samples.sort_unstable();
        assert_eq!(samples, (0..40).collect::<Vec<_>>());
        assert!(global_batches(&parts, 0..2, 2) == global_batches(&parts, 0..2, 0)[2..]);

        let dropped = processes(&build(workers, true), 4, 4);
        assert_eq!((dropped[0].len(), dropped[0].num_samples(), dropped[0].pads()), (3, 36, false));
        assert!(global_batches(&dropped, 0..1, 0) == batches[..3]);
    }
    let whole = build(0, false);
    assert_eq!(
        whole.description(),
        "41 of 41 samples, 4 batches of 12, RangeSampler (final, 1 replica)"
    );
    let parts = processes(&whole, 4, 4);
    assert_eq!(
        parts[1].description(),
        "40 of 41 samples, 4 batches of 12, RangeSampler (final, 4 replicas)"
    );
}

#[test]
fn a_sampler_that_is_not_final_is_divided_and_asked_once_an_epoch() {
    /// Every sample, in reverse order.
    struct ReverseSampler(Arc<AtomicUsize>, Arc<Mutex<Vec<Replica>>>);
    impl Sampler for ReverseSampler {
        fn order(&self, _: u64, len: usize, replica: Replica) -> Vec<usize> {
            self.0.fetch_add(1, Ordering::SeqCst);
            self.1.lock().unwrap().push(replica);
            (0..len).rev().collect()
        }
    }
    let calls = Arc::<AtomicUsize>::default();
    let replicas = Arc::<Mutex<Vec<Replica>>>::default();
    let sampler = ReverseSampler(Arc::clone(&calls), Arc::clone(&replicas));
    let whole = DataLoader::builder(data(16)).batch_size(8).sampler(sampler).build().unwrap();
    let batches = global_batches(&processes(&whole, 2, 8), 0..1, 0);
    assert_eq!(batches[0].numbers, [15, 14, 13, 12, 11, 10, 9, 8]);
    assert_eq!(batches[1].numbers, [7, 6, 5, 4, 3, 2, 1, 0]);
    // Once more in each process, for the order of another rank.
    assert_eq!(calls.load(Ordering::SeqCst), 4);
    let expected = [0, 1, 1, 0].map(|rank| Replica { num_replicas: 2, rank });
    assert_eq!(*replicas.lock().unwrap(), expected);
    assert!(whole.description().ends_with("ReverseSampler"), "{}", whole.description());
}

#[test]
fn a_sampler_that_divides_and_does_not_say_so_is_refused() {
    /// The result of PyTorch's DistributedSampler.
    struct StridedSampler;
    impl Sampler for StridedSampler {
        fn num_samples(&self, len: usize, replica: Replica) -> usize {
            len / replica.num_replicas
        }
        fn order(&self, _: u64, len: usize, replica: Replica) -> Vec<usize> {
            let count = self.num_samples(len, replica);
            (0..len).skip(replica.rank).step_by(replica.num_replicas).take(count).collect()
        }
        fn describe(&self) -> String {
            "StridedSampler".to_owned()
        }
    }
    let whole =
        DataLoader::builder(data(16)).batch_size(4).sampler(StridedSampler).build().unwrap();
    assert_eq!(whole.epoch(0).filter(Result::is_ok).count(), 4, "one replica has one order");
    for (index, other) in [(0, 1), (1, 0)] {
        let part = whole
            .distributed(Replicas { devices: 2, num_processes: 2, process_index: index })
            .unwrap();
        let error = part.epoch(0).next().unwrap().unwrap_err();
        let ranks = format!("for rank {index} of 2 replicas than for rank {other}");
        assert!(error.is_usage() && error.to_string().contains(&ranks), "{error}");
        assert!(error.to_string().contains("return true from"), "{error}");
    }
}

#[track_caller]
fn refused(
    builder: DataLoaderBuilder,
    devices: usize,
    num_processes: usize,
    process_index: usize,
    expect: Expect,
) {
    let replicas = Replicas { devices, num_processes, process_index };
    common::refused(builder.build().and_then(|loader| loader.distributed(replicas)), expect);
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let builder = || DataLoader::builder(data(100));
    refused(
        builder().batch_size(100),
        8,
        1,
        0,
        expect![
            "a batch size of 100 cannot be shared equally by 8 devices; the nearest that do are 96 and 104. The batch \
             size is that of all devices together; per_device_batch_size gives it for one"
        ],
    );
    refused(
        builder().batch_size(5),
        8,
        1,
        0,
        expect![
            "a batch size of 5 cannot be shared equally by 8 devices; the smallest that does is 8. The batch size is \
             that of all devices together; per_device_batch_size gives it for one"
        ],
    );
    refused(
        builder().batch_size(8),
        0,
        1,
        0,
        expect!["a loader for 0 devices of 1 process; there must be at least one of each"],
    );
    refused(
        builder().batch_size(8),
        1,
        0,
        0,
        expect!["a loader for 1 device of 0 processes; there must be at least one of each"],
    );
    refused(
        builder().batch_size(8),
        8,
        2,
        2,
        expect!["there is no process 2: the last of 2 processes is 1"],
    );
    refused(
        builder().batch_size(8),
        8,
        3,
        0,
        expect![
            "8 devices cannot be divided equally among 3 processes; pass the total number of devices of all processes"
        ],
    );
    refused(
        builder().per_device_batch_size(1),
        usize::MAX,
        1,
        0,
        expect!["a loader for 18446744073709551615 devices; at most 1048576 are possible"],
    );
    refused(
        builder().per_device_batch_size(1 << 57),
        1024,
        1,
        0,
        expect!["144115188075855872 samples on each of 1024 devices are too many to count"],
    );
    refused(
        builder().per_device_batch_size(20).drop_last(true),
        8,
        1,
        0,
        expect![
            "no batch is left: an epoch has 100 samples, fewer than the batch size 160, and drop_last(true) drops \
             them; use a smaller batch size or drop_last(false)"
        ],
    );
    refused(
        builder().batch_size(8).per_device_batch_size(4),
        1,
        1,
        0,
        expect![
            "batch_size(8), for all devices together, and per_device_batch_size(4) are mutually exclusive; set only one"
        ],
    );
    refused(
        builder().per_device_batch_size(0),
        1,
        1,
        0,
        expect!["the batch size is 0; it must be at least 1"],
    );
}

#[test]
fn replicas_that_disagree_are_refused() {
    /// Gives the remaining samples to the first ranks.
    struct UnevenSampler;
    impl Sampler for UnevenSampler {
        fn is_presharded(&self) -> bool {
            true
        }
        fn num_samples(&self, len: usize, replica: Replica) -> usize {
            (len + replica.num_replicas - 1 - replica.rank) / replica.num_replicas
        }
        fn order(&self, _: u64, len: usize, replica: Replica) -> Vec<usize> {
            (replica.rank..len).step_by(replica.num_replicas).collect()
        }
        fn describe(&self) -> String {
            "UnevenSampler".to_owned()
        }
    }
    let builder = || DataLoader::builder(data(7)).batch_size(4).sampler(UnevenSampler);
    refused(
        builder(),
        4,
        4,
        1,
        expect![
            "the sampler UnevenSampler takes 2 samples for rank 1 of 4 replicas and 1 for rank 3; all replicas must take the \
             same number, because they take the same number of steps"
        ],
    );
    // One replica agrees with itself, and four of them if the samples divide equally.
    assert_eq!(builder().build().unwrap().num_samples(), 7);
    let loader = DataLoader::builder(data(8)).batch_size(4).sampler(UnevenSampler).build().unwrap();
    assert_eq!(processes(&loader, 4, 4)[3].num_samples(), 8);
}

#[test]
fn sizes_are_the_global_ones_and_distributing_again_starts_afresh() {
    let sizes = |loader: &DataLoader| {
        (
            loader.batch_size(),
            loader.local_batch_size(),
            loader.per_device_batch_size(),
            loader.len(),
        )
    };
    let whole = DataLoader::builder(data(100)).per_device_batch_size(3).build().unwrap();
    assert_eq!(sizes(&whole), (3, 3, 3, 34));
    let replicas = Replicas { devices: 8, num_processes: 2, process_index: 1 };
    let part = whole.distributed(replicas).unwrap();
    assert_eq!((sizes(&part), part.replicas()), ((24, 12, 3, 5), replicas));
    assert_eq!(
        sizes(&part.distributed(Replicas { devices: 2, ..Replicas::default() }).unwrap()),
        (6, 6, 3, 17)
    );
    assert_eq!(sizes(&part.distributed(Replicas::default()).unwrap()), sizes(&whole));

    let whole = DataLoader::builder(data(100)).batch_size(24).build().unwrap();
    assert_eq!(sizes(&whole.distributed(replicas).unwrap()), (24, 12, 3, 5));
}

#[test]
fn a_sample_that_cannot_be_read_is_an_error_of_every_process_that_needs_it() {
    struct DamagedDataset;
    impl Dataset for DamagedDataset {
        fn len(&self) -> usize {
            6
        }
        fn fields(&self) -> Vec<Field> {
            vec![Field::new("x", DType::I32, [])]
        }
        fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
            if index == 4 {
                Err(Error::new("damaged"))
            } else {
                sample.write_value(0, index as i32)
            }
        }
    }
    let whole = DataLoader::builder(DamagedDataset).batch_size(4).build().unwrap();
    for part in processes(&whole, 2, 2) {
        // Sample 4 is the first of the second batch: process 0's own, and the padding of process 1.
        let batches: Vec<Result<HostBatch>> = part.epoch(0).collect();
        assert!(batches[0].is_ok());
        assert_eq!(batches[1].as_ref().unwrap_err().to_string(), "sample 4: damaged");
    }
}
