//! Batches of several shapes: their content, number and order, and invalid options.

use std::collections::BTreeSet;

use expect_test::expect;
use fulmen_data::{
    Buckets, DType, DataLoader, DataLoaderBuilder, Dataset, Error, Field, HostBatch, OnError,
    Replicas, Result, Sample, SequentialSampler,
};

use crate::common::refused;

/// Sample `i` is `i` written `length(i)` times, then zeros to the end of the row, with noise and
/// its number as further fields.
struct Rows {
    count: usize,
    bad: fn(usize) -> bool,
}

fn length(index: usize) -> usize {
    1 + index * 7 % 10
}

impl Dataset for Rows {
    fn len(&self) -> usize {
        self.count
    }
    fn fields(&self) -> Vec<Field> {
        vec![
            Field::new("values", DType::I32, [10]),
            Field::new("noise", DType::F64, [2]),
            Field::new("pairs", DType::U8, [10, 2]),
        ]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        if (self.bad)(index) {
            return Err(Error::new("bad"));
        }
        sample.values_mut::<i32>(0)?[..length(index)].fill(index as i32);
        let noise = [sample.random().uniform(0.0, 1.0), index as f64];
        sample.write_slice(1, &noise)?;
        sample.field_mut(2)?[..2 * length(index)].fill(index as u8);
        Ok(())
    }
}

fn buckets(count: usize) -> Buckets {
    Buckets::new((0..count).map(length).collect::<Vec<_>>(), &[3, 6, 10]).unwrap()
}

fn loader(count: usize) -> DataLoaderBuilder {
    DataLoader::builder(Rows { count, bad: |_| false }).batch_size(4).buckets(buckets(count))
}

/// Epoch, index, bucket and numbers of a batch, after checking its content.
fn content(batch: Result<HostBatch>) -> (u64, usize, usize, Vec<i32>, Vec<f64>, Vec<f32>) {
    let batch = batch.unwrap();
    let width = [3, 6, 10][batch.bucket()];
    assert_eq!(batch.fields()[0].shape, [width]);
    assert_eq!(batch.fields()[2].shape, [width, 2]);
    let noise = batch.values::<f64>(1).unwrap();
    let numbers: Vec<i32> = noise.chunks(2).map(|noise| noise[1] as i32).collect();
    let values = batch.values::<i32>(0).unwrap();
    let pairs = batch.values::<u8>(2).unwrap();
    assert_eq!((values.len(), pairs.len()), (numbers.len() * width, numbers.len() * width * 2));
    for (row, &number) in numbers.iter().enumerate() {
        let length = length(number as usize);
        assert!(length <= width && (batch.bucket() == 0 || length > [3, 6][batch.bucket() - 1]));
        let expected: Vec<i32> = (0..width).map(|i| if i < length { number } else { 0 }).collect();
        assert_eq!(values[row * width..][..width], expected);
        assert!((0..2 * width).all(|i| i32::from(pairs[2 * row * width + i]) == expected[i / 2]));
    }
    (batch.epoch(), batch.index(), batch.bucket(), numbers, noise.to_vec(), batch.mask().to_vec())
}

#[test]
fn each_batch_is_of_one_bucket_and_each_epoch_has_as_many_of_each() {
    for (drop_last, batches, samples) in [(false, 27, 103), (true, 24, 96)] {
        let loader = loader(103).shuffle(true).seed(4).drop_last(drop_last).build().unwrap();
        assert_eq!(
            (loader.len(), loader.num_samples(), loader.pads()),
            (batches, samples, !drop_last)
        );
        assert_eq!(loader.shapes().len(), 3);
        assert_eq!(
            (loader.shapes()[0][0].to_string(), loader.shapes()[1][2].to_string()),
            ("values i32[3]".into(), "pairs u8[6, 2]".into())
        );
        assert_eq!(
            (&loader.shapes()[2][..], loader.shapes()[0][1].to_string()),
            (loader.fields(), "noise f64[2]".into())
        );
        let mut counts = BTreeSet::new();
        let mut orders = BTreeSet::new();
        for epoch in 0..6 {
            let batches: Vec<_> = loader.epoch(epoch).map(content).collect();
            assert_eq!(
                batches.iter().map(|batch| batch.1).collect::<Vec<_>>(),
                (0..loader.len()).collect::<Vec<_>>()
            );
            let count_in = |bucket| batches.iter().filter(|batch| batch.2 == bucket).count();
            counts.insert([count_in(0), count_in(1), count_in(2)]);
            orders.insert(batches.iter().map(|batch| batch.2).collect::<Vec<_>>());
            let real = batches
                .iter()
                .flat_map(|batch| batch.3.iter().zip(&batch.5))
                .filter(|(_, mask)| **mask == 1.0);
            let real: Vec<i32> = real.map(|(&number, _)| number).collect();
            assert_eq!(
                (real.len(), real.iter().collect::<BTreeSet<_>>().len()),
                (samples, samples)
            );
        }
        assert_eq!((counts.len(), orders.len()), (1, 6));
    }
}

#[test]
fn a_batch_comes_when_it_is_full_and_the_short_ones_at_the_end() {
    // Lengths 1 8 5 2 9 6 3 10 7 4 1 8: buckets 0 2 1 0 2 1 0 2 2 1 0 2.
    let batches: Vec<_> = loader(12).build().unwrap().epoch(0).map(content).collect();
    let actual: Vec<(usize, &[i32])> =
        batches.iter().map(|batch| (batch.2, &batch.3[..])).collect();
    assert_eq!(
        actual,
        [(2, &[1, 4, 7, 8][..]), (0, &[0, 3, 6, 10]), (1, &[2, 5, 9, 2]), (2, &[11, 11, 11, 11])]
    );
    assert_eq!(batches[3].5, [1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn the_number_of_workers_and_a_start_in_mid_epoch_change_nothing() {
    for on_error in [OnError::Skip, OnError::Replace] {
        let builder = || {
            let rows = Rows { count: 103, bad: |i| i % 9 == 4 };
            DataLoader::builder(rows)
                .batch_size(4)
                .buckets(buckets(103))
                .shuffle(true)
                .seed(8)
                .on_error(on_error)
        };
        let whole: Vec<_> = builder().build().unwrap().epochs(2..4, 0).map(content).collect();
        assert_eq!(whole.len(), 54);
        for workers in [1, 2, 7] {
            let loader = builder().num_workers(workers).build().unwrap();
            assert!(loader.epochs(2..4, 0).map(content).eq(whole.iter().cloned()));
            assert!(loader.epochs(2..4, 17).map(content).eq(whole[17..].iter().cloned()));
        }
    }
}

#[test]
fn processes_share_the_batches_of_a_bucket() {
    let part = |process_index| -> Vec<_> {
        let replicas = Replicas { devices: 2, num_processes: 2, process_index };
        let loader = loader(51).shuffle(true).build().unwrap().distributed(replicas).unwrap();
        loader.epoch(0).map(content).collect()
    };
    let first = part(0);
    let second = part(1);
    let whole: Vec<_> = loader(51).shuffle(true).build().unwrap().epoch(0).map(content).collect();
    assert_eq!((first.len(), second.len()), (whole.len(), whole.len()));
    for ((first, second), whole) in first.iter().zip(&second).zip(&whole) {
        assert_eq!([first.2, second.2], [whole.2; 2]);
        assert_eq!([&first.3[..], &second.3].concat(), whole.3);
        assert_eq!([&first.5[..], &second.5].concat(), whole.5);
    }
}

#[test]
fn buckets_that_cannot_be_are_refused() {
    refused(
        Buckets::new([1], &[]),
        expect!["the boundaries of buckets are []; they must ascend, starting from at least 1"],
    );
    refused(
        Buckets::new([1], &[4, 4]),
        expect!["the boundaries of buckets are [4, 4]; they must ascend, starting from at least 1"],
    );
    refused(
        Buckets::new([1], &[0, 4]),
        expect!["the boundaries of buckets are [0, 4]; they must ascend, starting from at least 1"],
    );
    refused(
        Buckets::new([1, 2, 5], &[2, 4]),
        expect![
            "sample 2 has the length 5, and the longest bucket is 4; add a longer one, or truncate the samples"
        ],
    );
    let rows = || DataLoader::builder(Rows { count: 5, bad: |_| false });
    refused(
        rows().buckets(buckets(6)).build(),
        expect!["the buckets were made for 6 samples, and the dataset has 5"],
    );
    refused(
        rows().buckets(Buckets::new([1; 5], &[4]).unwrap()).build(),
        expect![
            "no field has the first axis 4, the longest bucket: the dataset has values i32[10], noise f64[2], pairs \
             u8[10, 2]; declare the fields of varying length with that axis"
        ],
    );
    refused(
        rows().buckets(buckets(5).fields(["noise"])).build(),
        expect![
            "buckets vary the first axis of `noise`, so it must be a field whose first axis is 10, the length \
             of the longest bucket; the dataset has values i32[10], noise f64[2], pairs u8[10, 2]"
        ],
    );
    refused(
        rows().buckets(buckets(5).fields(["other"])).build(),
        expect![
            "buckets vary the first axis of `other`, so it must be a field whose first axis is 10, the length \
             of the longest bucket; the dataset has values i32[10], noise f64[2], pairs u8[10, 2]"
        ],
    );
    refused(
        rows().buckets(buckets(5)).sampler(SequentialSampler).build(),
        expect![
            "buckets need a dataset that is read in order or with shuffle(true): with a sampler or a stream, the \
             number of batches of a shape would differ from epoch to epoch"
        ],
    );
    refused(
        rows().buckets(buckets(5)).batch_size(4).drop_last(true).build(),
        expect![
            "no batch is left: no bucket has as many samples as the batch size 4, and drop_last(true) drops the rest; \
             use a smaller batch size, fewer buckets or drop_last(false)"
        ],
    );
    let only = rows().buckets(buckets(5).fields(["values"])).build().unwrap();
    assert_eq!(only.shapes()[0][2].to_string(), "pairs u8[10, 2]");
}

#[test]
fn the_description_tells_which_sample_is_in_which_bucket() {
    let text = |buckets: Buckets| {
        let rows = Rows { count: 5, bad: |_| false };
        DataLoader::builder(rows).buckets(buckets).build().unwrap().description()
    };
    assert_eq!(text(buckets(5)), text(buckets(5)));
    assert_ne!(text(buckets(5)), text(Buckets::new([1; 5], &[3, 6, 10]).unwrap()));
}
