//! Batches: their number, size and content, and invalid options.

use expect_test::expect;
use fulmen_data::{DataLoader, HostBatch, Replica, Sampler, Subset};

use crate::common::{data, refused};

fn batches(loader: &DataLoader, epoch: u64) -> Vec<HostBatch> {
    loader.epoch(epoch).collect::<Result<_, _>>().unwrap()
}

#[test]
fn a_short_last_batch_is_padded_with_its_first_sample_and_masked() {
    let loader = DataLoader::builder(data(10)).batch_size(4).build().unwrap();
    assert_eq!(
        (loader.len(), loader.num_samples(), loader.batch_size(), loader.pads()),
        (3, 10, 4, true)
    );
    // Three epochs, so that the memory of a full batch is reused for the short one.
    for epoch in 0..3 {
        let mut count = 0;
        for (index, batch) in loader.epoch(epoch).enumerate() {
            let batch = batch.unwrap();
            count += batch.valid();
            assert_eq!((batch.index(), batch.epoch(), batch.batch_size()), (index, epoch, 4));
            if index < 2 {
                let first = 4 * index as i32;
                assert_eq!(
                    batch.values::<i32>(1).unwrap(),
                    [first, first + 1, first + 2, first + 3]
                );
                assert_eq!((batch.mask(), batch.valid()), (&[1.0; 4][..], 4));
            } else {
                assert_eq!(batch.values::<i32>(1).unwrap(), [8, 9, 8, 8]);
                assert_eq!(
                    batch.field_bytes(0).unwrap(),
                    [24, 25, 26, 27, 28, 29, 24, 25, 26, 24, 25, 26]
                );
                assert_eq!((batch.mask(), batch.valid()), (&[1.0, 1.0, 0.0, 0.0][..], 2));
            }
        }
        assert_eq!(count, 10);
    }
}

#[test]
fn a_short_last_batch_is_dropped() {
    let loader = DataLoader::builder(data(10)).batch_size(4).drop_last(true).build().unwrap();
    assert_eq!((loader.len(), loader.num_samples(), loader.pads()), (2, 8, false));
    assert_eq!(batches(&loader, 0).iter().map(HostBatch::valid).collect::<Vec<_>>(), [4, 4]);
}

#[test]
fn nothing_is_padded_where_the_batches_come_out_even() {
    let loader = DataLoader::builder(data(8)).batch_size(4).build().unwrap();
    assert_eq!((loader.len(), loader.num_samples(), loader.pads()), (2, 8, false));
}

#[test]
fn a_batch_larger_than_the_dataset_is_one_padded_batch() {
    let loader = DataLoader::builder(data(3)).batch_size(128).build().unwrap();
    let all = batches(&loader, 0);
    assert_eq!((all.len(), all[0].valid(), loader.pads()), (1, 3, true));
    assert_eq!(all[0].mask().iter().sum::<f32>(), 3.0);
}

#[test]
fn every_field_starts_at_a_multiple_of_64() {
    let loader = DataLoader::builder(data(7)).batch_size(7).build().unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    let starts = [
        batch.field_bytes(0).unwrap().as_ptr(),
        batch.field_bytes(1).unwrap().as_ptr(),
        batch.mask().as_ptr().cast(),
    ];
    assert!(starts.iter().all(|&start| (start as usize).is_multiple_of(64)), "{starts:?}");
}

#[test]
fn memory_is_used_again_unless_someone_holds_it() {
    let loader = DataLoader::builder(data(10)).batch_size(1).build().unwrap();
    let address = |batch: &HostBatch| batch.field_bytes(0).unwrap().as_ptr() as usize;
    let mut addresses: Vec<usize> = loader.epoch(0).map(|batch| address(&batch.unwrap())).collect();
    addresses.dedup();
    assert_eq!(addresses.len(), 1);
    // Held batches keep their content.
    let held_batches = batches(&loader, 0);
    let numbers: Vec<i32> =
        held_batches.iter().map(|batch| batch.values::<i32>(1).unwrap()[0]).collect();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
}

#[test]
fn an_epoch_can_start_in_the_middle_and_several_follow_without_a_seam() {
    let loader = DataLoader::builder(data(10)).batch_size(4).shuffle(true).build().unwrap();
    let number = |batch: &HostBatch| batch.values::<i32>(1).unwrap().to_vec();
    let expected: Vec<_> = (3..6)
        .flat_map(|epoch| batches(&loader, epoch))
        .skip(2)
        .map(|batch| number(&batch))
        .collect();
    let stream: Vec<_> = loader.epochs(3..6, 2).map(|batch| batch.unwrap()).collect();
    assert_eq!(stream.iter().map(number).collect::<Vec<_>>(), expected);
    let positions: Vec<_> = stream.iter().map(|batch| (batch.epoch(), batch.index())).collect();
    assert_eq!(positions, [(3, 2), (4, 0), (4, 1), (4, 2), (5, 0), (5, 1), (5, 2)]);
    // The next epoch starts directly after the end of an epoch.
    assert_eq!(loader.epochs(3..5, 3).count(), 3);
    assert_eq!(loader.epochs(3..4, 3).count(), 0);
    let mut past_end = loader.epochs(3..5, 4);
    let error = past_end.next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "cannot start at batch 4: an epoch has 3 batches");
    assert!(past_end.next().is_none());
}

#[test]
fn choices_that_cannot_be_are_refused() {
    struct EmptySampler;
    impl Sampler for EmptySampler {
        fn num_samples(&self, _: usize, _: Replica) -> usize {
            0
        }
        fn order(&self, _: u64, _: usize, _: Replica) -> Vec<usize> {
            Vec::new()
        }
    }
    let builder = || DataLoader::builder(data(10)).batch_size(4);
    refused(builder().batch_size(0).build(), expect!["the batch size is 0; it must be at least 1"]);
    let empty = Subset::new(data(1), []).unwrap();
    refused(
        DataLoader::builder(empty).build(),
        expect!["the dataset is empty; a loader needs at least one sample"],
    );
    refused(
        builder().batch_size(11).drop_last(true).build(),
        expect![
            "no batch is left: an epoch has 10 samples, fewer than the batch size 11, and drop_last(true) drops them; \
             use a smaller batch size or drop_last(false)"
        ],
    );
    refused(
        builder().batch_size(usize::MAX).build(),
        expect![
            "a batch of 18446744073709551615 samples does not fit into this machine's address space; choose a smaller \
             batch size"
        ],
    );
    refused(
        builder().num_workers(100_000).build(),
        expect![
            "num_workers is 100000; more than 1024 threads cannot help; use about one per CPU core"
        ],
    );
    refused(
        builder().num_workers(1).prefetch(0).build(),
        expect![
            "prefetch is 0; it must be at least 1, because the batch that is being read counts"
        ],
    );
    refused(
        builder().num_workers(8).prefetch(2).build(),
        expect![
            "prefetch(2) leaves no batch for some of the 8 workers, and each reads one at a time; it counts the \
             batches of all workers together, unlike PyTorch's prefetch_factor: set at least 8, or leave it out for 16"
        ],
    );
    refused(
        builder().device_prefetch(0).build(),
        expect![
            "device_prefetch is 0; it must be at least 1, because the batch that is being read counts"
        ],
    );
    refused(
        builder().shuffle(true).sampler(EmptySampler).build(),
        expect!["shuffle(true) and a sampler are mutually exclusive; set only one"],
    );
    refused(
        builder().sampler(EmptySampler).build(),
        expect!["the sampler takes none of the dataset's 10 samples"],
    );
}

#[test]
fn memory_that_is_not_there_is_an_error_of_the_batch() {
    let loader = DataLoader::builder(data(10)).batch_size(1 << 58).build().unwrap();
    let error = loader.epoch(0).next().unwrap().unwrap_err();
    assert!(error.is_runtime(), "{error}");
    assert!(error.to_string().contains("bytes for a batch"), "{error}");
}
