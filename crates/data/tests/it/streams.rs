//! Streams: their order and content, starting in the middle, several processes, and streams that
//! fail.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use expect_test::expect;
use fulmen_data::{
    DType, DataLoader, DataLoaderBuilder, Deferred, Error, Field, Fingerprint, HostBatch, Items,
    IterableDataset, MixStream, MixUntil, OnError, Replicas, Result, Stream, StreamItem,
};

use crate::common::refused;

/// The numbers from `start` on, with a count of reads.
#[derive(Clone)]
struct Numbers {
    start: u64,
    count: usize,
    knows_length: bool,
    read: Arc<AtomicUsize>,
    fault: fn(u64) -> Option<Error>,
}

impl Numbers {
    fn new(count: usize) -> Numbers {
        Numbers { start: 0, count, knows_length: true, read: Arc::default(), fault: |_| None }
    }
    fn unknown(count: usize) -> Numbers {
        Numbers { knows_length: false, ..Numbers::new(count) }
    }
}

impl Stream for Numbers {
    type Item = u64;
    fn len(&self) -> Option<usize> {
        self.knows_length.then_some(self.count)
    }
    fn items(&self, _epoch: u64) -> Result<Items<u64>> {
        let Numbers { start, read, fault, .. } = self.clone();
        Ok(Box::new((0..self.count as u64).map(move |index| {
            read.fetch_add(1, Ordering::SeqCst);
            match fault(index) {
                None => Ok(StreamItem {
                    index,
                    origin: format!("number {}", start + index),
                    item: start + index,
                }),
                Some(error) => Err(error),
            }
        })))
    }
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("numbers", self.count.to_le_bytes());
        Ok(())
    }
}

/// Each item as a number and two random numbers.
fn samples(stream: impl Stream<Item = u64>) -> impl IterableDataset {
    let fields = vec![Field::new("number", DType::I64, []), Field::new("noise", DType::F64, [2])];
    stream.into_dataset(fields, |number, sample| {
        let noise = [sample.random().uniform(0.0, 1.0), sample.random().normal()];
        sample.write_value(0, number as i64)?;
        sample.write_slice(1, &noise)
    })
}

fn numbers(batch: &HostBatch) -> Vec<i64> {
    batch.values(0).unwrap().to_vec()
}

type Content = (u64, usize, Vec<i64>, Vec<f64>, Vec<f32>);

fn content(batch: Result<HostBatch>) -> Content {
    let batch = batch.unwrap();
    (
        batch.epoch(),
        batch.index(),
        numbers(&batch),
        batch.values(1).unwrap().to_vec(),
        batch.mask().to_vec(),
    )
}

/// Work that takes uneven time, so that the workers get out of step.
fn dawdle(number: u64) -> Result<u64> {
    if number.is_multiple_of(5) {
        std::thread::sleep(Duration::from_micros(200 * (number % 7)));
    }
    Ok(number)
}

fn shuffled(count: usize) -> DataLoaderBuilder {
    DataLoader::from_stream(samples(Numbers::new(count).map(dawdle).shuffle(20, 3)))
        .batch_size(4)
        .seed(9)
}

#[test]
fn the_number_of_workers_changes_nothing_nor_does_a_start_in_mid_epoch() {
    let whole: Vec<Content> = shuffled(103).build().unwrap().epochs(2..5, 0).map(content).collect();
    assert_eq!(whole.len(), 3 * 26);
    for workers in [1, 2, 7] {
        let loader = shuffled(103).num_workers(workers).build().unwrap();
        assert!(loader.epochs(2..5, 0).map(content).eq(whole.iter().cloned()), "{workers} workers");
        for start in [1, 13, 25, 26] {
            let rest: Vec<Content> = loader.epochs(2..5, start).map(content).collect();
            assert!(rest == whole[start..], "{workers} workers from batch {start}");
        }
    }
    // Each epoch has all samples, in a different order and with different noise.
    for epoch in whole.chunks(26) {
        let mut all: Vec<i64> = epoch.iter().flat_map(|batch| batch.2.clone()).collect();
        all.truncate(103);
        all.sort_unstable();
        assert_eq!(all, (0..103).collect::<Vec<_>>());
    }
    assert_ne!(whole[0].2, whole[26].2);
    let noise = |epoch: usize, number: i64| {
        let rows =
            whole[26 * epoch..].iter().flat_map(|batch| batch.2.iter().zip(batch.3.chunks(2)));
        { rows }.find(|&(&other, _)| other == number).unwrap().1.to_vec()
    };
    assert_ne!(noise(0, 17), noise(1, 17));
    assert_ne!(noise(0, 17), noise(0, 18));
    let other: Vec<Content> =
        shuffled(103).seed(10).build().unwrap().epoch(2).map(content).collect();
    assert_eq!(other[0].2, whole[0].2);
    assert_ne!(other[0].3, whole[0].3);
}

#[test]
fn a_start_in_mid_epoch_decodes_nothing_of_what_was_before() {
    let decoded = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&decoded);
    let mapped = Numbers::new(20).map(move |number| {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(number)
    });
    let loader = DataLoader::from_stream(samples(mapped)).batch_size(4).build().unwrap();
    assert_eq!(
        loader.epochs(0..1, 3).map(|batch| numbers(&batch.unwrap())).collect::<Vec<_>>()[1],
        [16, 17, 18, 19]
    );
    assert_eq!(decoded.load(Ordering::SeqCst), 8);
}

#[test]
fn workers_map_at_the_same_time() {
    let meeting = Arc::new((Mutex::new((0, 0)), Condvar::new()));
    let map_meeting = Arc::clone(&meeting);
    let mapped = Numbers::new(8).map(move |number| {
        let (inside, changed) = &*map_meeting;
        let mut now = inside.lock().unwrap();
        now.0 += 1;
        now.1 = now.1.max(now.0);
        changed.notify_all();
        // Ends immediately if two are inside, as they should be.
        let patience = Duration::from_secs(10);
        let (mut now, _) = changed.wait_timeout_while(now, patience, |now| now.1 < 2).unwrap();
        now.0 -= 1;
        Ok(number)
    });
    let loader =
        DataLoader::from_stream(samples(mapped)).batch_size(2).num_workers(2).build().unwrap();
    assert_eq!(loader.epoch(0).filter(Result::is_ok).count(), 4);
    assert_eq!(meeting.0.lock().unwrap().1, 2);
}

#[test]
fn several_processes_each_write_their_rows_of_the_same_batches() {
    let whole: Vec<Content> = shuffled(22).build().unwrap().epoch(1).map(content).collect();
    let part = |process_index| -> Vec<HostBatch> {
        let replicas = Replicas { devices: 4, num_processes: 2, process_index };
        shuffled(22)
            .num_workers(2)
            .build()
            .unwrap()
            .distributed(replicas)
            .unwrap()
            .epoch(1)
            .map(Result::unwrap)
            .collect()
    };
    let first = part(0);
    let second = part(1);
    assert_eq!((first.len(), second.len()), (6, 6));
    for (i, (_, _, all, noise, mask)) in whole.iter().enumerate() {
        assert_eq!([numbers(&first[i]), numbers(&second[i])].concat(), *all);
        assert_eq!(
            [first[i].values::<f64>(1).unwrap(), second[i].values(1).unwrap()].concat(),
            *noise
        );
        assert_eq!([first[i].mask(), second[i].mask()].concat(), *mask);
    }
    assert_eq!((first[5].valid(), second[5].valid()), (2, 0));
}

#[test]
fn num_samples_cuts_a_longer_stream_and_begins_a_shorter_one_anew() {
    let read = |count, num_samples| -> Vec<Content> {
        let stream = samples(Numbers::unknown(count).shuffle(4, 1));
        let loader =
            DataLoader::from_stream(stream).num_samples(num_samples).batch_size(5).build().unwrap();
        assert_eq!(loader.num_samples(), num_samples);
        loader.epoch(0).map(content).collect()
    };
    let flat =
        |batches: &[Content]| batches.iter().flat_map(|batch| batch.2.clone()).collect::<Vec<_>>();
    let whole = read(10, 10);
    let cut = read(100, 10);
    let longer = read(10, 20);
    assert!(flat(&cut).iter().all(|&number| number < 14));
    assert_eq!(flat(&longer)[..10], flat(&whole)[..]);
    let mut next_epoch = flat(&longer)[10..].to_vec();
    assert_ne!(next_epoch, flat(&whole), "another order");
    next_epoch.sort_unstable();
    assert_eq!(next_epoch, (0..10).collect::<Vec<_>>());
    let noise = |batches: &[Content], number: i64| -> Vec<Vec<f64>> {
        let rows = batches.iter().flat_map(|batch| batch.2.iter().zip(batch.3.chunks(2)));
        rows.filter(|(other, _)| **other == number).map(|(_, noise)| noise.to_vec()).collect()
    };
    let two = noise(&longer, 7);
    assert_eq!(two.len(), 2);
    assert_ne!(two[0], two[1], "other random numbers");
}

#[test]
fn an_endless_stream_is_read_no_further_than_it_must_and_dropping_it_leaves_no_thread() {
    for workers in [0, 2] {
        let stream = Numbers::unknown(usize::MAX);
        let read = Arc::clone(&stream.read);
        let builder = DataLoader::from_stream(samples(stream)).num_samples(1 << 40).batch_size(2);
        let loader = builder.num_workers(workers).prefetch(2).build().unwrap();
        let mut batches = loader.epochs(0..u64::MAX, 0);
        assert_eq!(numbers(&batches.next().unwrap().unwrap()), [0, 1]);
        assert_eq!(numbers(&batches.next().unwrap().unwrap()), [2, 3]);
        drop(batches);
        assert!(read.load(Ordering::SeqCst) <= 8);
        drop(loader);
        assert_eq!(Arc::strong_count(&read), 1);
    }
}

#[track_caller]
fn items(stream: impl Stream<Item = u64>, epoch: u64) -> Vec<(u64, u64)> {
    stream
        .items(epoch)
        .unwrap()
        .map(|item| item.map(|item| (item.index, item.item)).unwrap())
        .collect()
}

#[test]
fn chains_count_on_and_limits_cut() {
    let from = |start, count| Numbers { start, ..Numbers::new(count) };
    let chain = from(0, 3).chain(from(70, 2)).chain(from(80, 1));
    assert_eq!((chain.len(), chain.describe().matches(", then ").count()), (Some(6), 2));
    assert_eq!(items(chain, 0), [(0, 0), (1, 1), (2, 2), (3, 70), (4, 71), (5, 80)]);
    assert_eq!(from(0, 3).chain(Numbers::unknown(1)).len(), None);
    assert_eq!(
        (from(0, 9).take(4).len(), from(0, 9).skip(4).len(), from(0, 3).skip(4).len()),
        (Some(4), Some(5), Some(0))
    );
    assert_eq!(items(from(0, 9).skip(2).take(3), 0), [(2, 2), (3, 3), (4, 4)]);
    assert_eq!(items(from(0, 2).take(0), 0), []);
    // Errors are not items.
    let faulty = Numbers { fault: |i| (i < 2).then(|| Error::new("gone")), ..Numbers::new(9) };
    let first = faulty.clone().take(3);
    let rest = faulty.skip(3);
    let indices = |items: Items<Deferred<u64>>| {
        items.filter_map(|item| Some(item.ok()?.index)).collect::<Vec<u64>>()
    };
    assert_eq!(
        (indices(first.deferred(0).unwrap()), indices(rest.deferred(0).unwrap())),
        (vec![2, 3, 4], vec![5, 6, 7, 8])
    );
    // All items have different indices, although the first items are left out.
    assert_eq!(items(from(0, 4).skip(2).chain(from(70, 2)), 0), [(2, 2), (3, 3), (4, 70), (5, 71)]);
    // Shuffling the first part does not change where the second one starts counting.
    let indices: Vec<u64> =
        items(from(0, 5).shuffle(5, 0).chain(from(70, 2)), 0).iter().map(|item| item.0).collect();
    assert_eq!(indices[5..], [5, 6]);
}

#[test]
fn items_go_on_behind_an_error_whatever_was_put_after_the_stream() {
    let torn = || {
        let lost = |i| (i == 3).then(|| Error::new("lost"));
        Numbers { fault: lost, ..Numbers::new(10) }
            .map(|n| if n == 5 { Err(Error::new("torn")) } else { Ok(n) })
    };
    let mix =
        MixStream::new(vec![(Box::new(torn()) as Box<dyn Stream<Item = u64>>, 1.0)], 1).unwrap();
    let streams: [Box<dyn Stream<Item = u64>>; 6] = [
        Box::new(torn()),
        Box::new(torn().shuffle(1, 0)),
        Box::new(torn().chain(Numbers::new(0))),
        Box::new(torn().take(9)),
        Box::new(torn().skip(0)),
        Box::new(mix.until(MixUntil::AllEnd)),
    ];
    for stream in streams {
        let (good, bad): (Vec<_>, Vec<_>) = stream.items(0).unwrap().partition(Result::is_ok);
        let good: Vec<u64> = good.into_iter().map(|item| item.unwrap().item).collect();
        assert_eq!((good, bad.len()), (vec![0, 1, 2, 4, 6, 7, 8, 9], 2), "{}", stream.describe());
    }
}

#[test]
fn a_shuffle_buffer_moves_an_item_forward_by_at_most_its_length() {
    let order = |buffer, seed, epoch| items(Numbers::new(200).shuffle(buffer, seed), epoch);
    for buffer in [1, 2, 10, 199, 200, 1000] {
        let shuffled = order(buffer, 5, 0);
        assert!(
            shuffled.iter().enumerate().all(|(position, item)| item.0 < (position + buffer) as u64)
        );
        let mut all: Vec<u64> = shuffled.iter().map(|item| item.1).collect();
        all.sort_unstable();
        assert_eq!(all, (0..200).collect::<Vec<_>>());
    }
    assert!(order(1, 5, 0).is_sorted());
    assert_ne!(order(10, 5, 0), order(10, 5, 1));
    assert_ne!(order(10, 5, 0), order(10, 6, 0));
    assert_eq!(order(10, 5, 7), order(10, 5, 7));
    // Another order would be the order of another run. tests/reference/orders.py computed these
    // values.
    let pinned: Vec<u64> = order(10, 5, 0).iter().map(|item| item.1).collect();
    assert_eq!(pinned[..12], [9, 5, 8, 2, 12, 13, 10, 16, 3, 6, 15, 1]);
    let digest = pinned.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, number| {
        (hash ^ number).wrapping_mul(0x0100_0000_01b3)
    });
    assert_eq!(digest, 0xc63e_9f95_5e33_5ab9);
    let error = Numbers::new(3).shuffle(0, 1).items(0).err().unwrap();
    assert!(
        error.is_usage() && error.to_string().contains("a shuffle buffer needs at least 1 item")
    );
}

#[test]
fn a_shuffle_buffer_as_long_as_the_stream_gives_every_permutation() {
    let mut counts = std::collections::BTreeMap::new();
    for epoch in 0..6000 {
        *counts.entry(items(Numbers::new(3).shuffle(3, 1), epoch)).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 6);
    let chi_squared: f64 =
        counts.values().map(|&count| f64::from(count - 1000).powi(2) / 1000.0).sum();
    // With 5 degrees of freedom, one of a thousand values is above 20.5.
    assert!(chi_squared < 20.5, "{chi_squared}");
}

/// The result of an epoch: each batch as its numbers or its error.
fn outcome(
    stream: impl Stream<Item = u64>,
    on_error: OnError,
    workers: usize,
) -> (Vec<String>, DataLoader) {
    let builder = DataLoader::from_stream(samples(stream))
        .batch_size(3)
        .on_error(on_error)
        .num_workers(workers);
    let loader = builder.build().unwrap();
    let text = |batch: Result<HostBatch>| match batch {
        Ok(batch) => format!("{:?} {:?}", numbers(&batch), batch.mask()),
        Err(error) => error.to_string(),
    };
    (loader.epochs(0..2, 0).map(text).collect(), loader)
}

#[test]
fn a_record_that_cannot_be_decoded_fails_is_skipped_or_replaced() {
    let torn = || {
        Numbers::new(7).map(|n| {
            if n == 4 {
                Err(Error::new("torn"))
            } else if n == 5 {
                panic!("5")
            } else {
                Ok(n)
            }
        })
    };
    for workers in [0, 1, 2, 7] {
        let (batches, _) = outcome(torn(), OnError::Fail, workers);
        assert_eq!(
            batches[..3],
            ["[0, 1, 2] [1.0, 1.0, 1.0]", "sample 4 (number 4): torn", "[6, 6, 6] [1.0, 0.0, 0.0]"]
        );
        assert_eq!(batches[3..], batches[..3]);
        let (batches, loader) = outcome(torn(), OnError::Skip, workers);
        assert_eq!(batches[1], "[3, 3, 3] [1.0, 0.0, 0.0]");
        assert!(loader.pads());
        let bad = loader.bad_samples();
        assert_eq!((bad.count, bad.first.len()), (4, 2));
        let mut messages: Vec<_> =
            bad.first.iter().map(|bad| (bad.index, bad.message.as_str())).collect();
        messages.sort_unstable();
        assert_eq!(messages[0], (Some(4), "sample 4 (number 4): torn"));
        assert_eq!(messages[1], (Some(5), "sample 5 (number 5): the dataset panicked: 5"));
        let (batches, _) = outcome(torn(), OnError::Replace, workers);
        assert_eq!(batches[1], "[3, 3, 3] [1.0, 1.0, 1.0]");
    }
}

#[test]
fn a_batch_of_which_no_record_can_be_decoded_is_an_error() {
    let torn = || {
        Numbers::new(9)
            .map(|n| if n / 3 == 1 { Err(Error::new(format!("torn {n}"))) } else { Ok(n) })
    };
    for on_error in [OnError::Skip, OnError::Replace] {
        let (batches, _) = outcome(torn(), on_error, 2);
        assert_eq!(
            batches[1],
            "none of the 3 records of a batch can be read, so they cannot be replaced; the last error: \
             sample 5 (number 5): torn 5"
        );
        assert_eq!((batches.len(), &*batches[2]), (6, "[6, 7, 8] [1.0, 1.0, 1.0]"));
    }
}

#[test]
fn a_stream_that_breaks_ends_the_run_or_goes_on_behind_the_gap() {
    let broken = |fault| Numbers { fault, ..Numbers::new(7) };
    // A stream that continues after an unreadable record has one record too few.
    let gap = |i| (i == 4).then(|| Error::new("shard 4 is cut off"));
    for workers in [0, 2] {
        let (batches, _) = outcome(broken(gap), OnError::Fail, workers);
        assert_eq!(batches, ["[0, 1, 2] [1.0, 1.0, 1.0]", "shard 4 is cut off"]);
        let (batches, loader) = outcome(broken(gap), OnError::Skip, workers);
        assert_eq!(
            batches[..3],
            ["[0, 1, 2] [1.0, 1.0, 1.0]", "[3, 5, 6] [1.0, 1.0, 1.0]", "[0, 0, 0] [0.0, 0.0, 0.0]"]
        );
        let (substituted, _) = outcome(broken(gap), OnError::Replace, workers);
        assert_eq!(substituted[1..3], ["[3, 5, 6] [1.0, 1.0, 1.0]", "[0, 0, 0] [1.0, 0.0, 0.0]"]);
        assert_eq!((loader.bad_samples().count, loader.bad_samples().first[0].index), (2, None));
        let (batches, _) =
            outcome(broken(|_| Some(Error::new("no network"))), OnError::Skip, workers);
        assert_eq!(
            batches,
            [
                "the stream cannot be read at all: epoch 0 needs 7 records; the first error: no network"
            ]
        );
        let (batches, _) =
            outcome(broken(|i| if i == 5 { panic!("gone") } else { None }), OnError::Skip, workers);
        assert_eq!(batches, ["[0, 1, 2] [1.0, 1.0, 1.0]", "the stream panicked: gone"]);
    }
}

#[test]
fn a_substitute_takes_the_row_of_the_record_that_cannot_be_decoded() {
    let torn = || {
        Numbers::new(8).map(|n| if [1, 4].contains(&n) { Err(Error::new("torn")) } else { Ok(n) })
    };
    let loader = DataLoader::from_stream(samples(torn()))
        .batch_size(4)
        .on_error(OnError::Replace)
        .build()
        .unwrap();
    let batches: Vec<Vec<i64>> = loader.epoch(0).map(|batch| numbers(&batch.unwrap())).collect();
    let expected = [[0, -1, 2, 3], [-1, 5, 6, 7]];
    for (batch, expected) in batches.iter().zip(expected) {
        for (row, (&number, expected_number)) in batch.iter().zip(expected).enumerate() {
            match expected_number {
                -1 => assert!(
                    expected.contains(&number),
                    "row {row} of {batch:?} is a copy of another"
                ),
                _ => assert_eq!(number, expected_number, "row {row} of {batch:?}"),
            }
        }
    }
}

/// A stream that loses a shard of nine records in the middle and has some records that cannot be
/// decoded.
fn battered() -> impl Stream<Item = u64> {
    let lost = |i| (20..29).contains(&i).then(|| Error::new("the shard is gone"));
    Numbers { fault: lost, ..Numbers::new(50) }
        .map(|n| if n % 7 == 3 { Err(Error::new("torn")) } else { dawdle(n) })
}

#[test]
fn bad_records_change_nothing_about_workers_and_starts_in_mid_epoch() {
    for on_error in [OnError::Skip, OnError::Replace] {
        let loader = |workers: usize| {
            let builder =
                DataLoader::from_stream(samples(battered().shuffle(6, 2))).batch_size(4).seed(5);
            builder.on_error(on_error).num_workers(workers).build().unwrap()
        };
        let whole: Vec<Content> = loader(0).epochs(1..3, 0).map(content).collect();
        assert_eq!(whole.len(), 2 * 13);
        if on_error == OnError::Skip {
            // Each readable record comes once, and the remaining batches are padding.
            let real = |batch: &Content| batch.4.iter().filter(|&&mask| mask == 1.0).count();
            let mut numbers: Vec<i64> =
                whole[..13].iter().flat_map(|batch| batch.2[..real(batch)].to_vec()).collect();
            numbers.sort_unstable();
            let expected: Vec<i64> =
                (0..50).filter(|n| !(20..29).contains(n) && n % 7 != 3).collect();
            assert_eq!(numbers, expected);
            assert_eq!((real(&whole[11]), real(&whole[12])), (0, 0));
        }
        for workers in [0, 1, 2, 7] {
            let loader = loader(workers);
            for start in [0, 1, 5, 11, 12, 13] {
                let rest: Vec<Content> = loader.epochs(1..3, start).map(content).collect();
                assert!(
                    rest == whole[start..],
                    "{on_error:?}, {workers} workers from batch {start}"
                );
            }
        }
    }
}

#[test]
fn processes_lose_none_of_a_stream_but_the_bad_records() {
    let whole = |on_error| {
        let builder = DataLoader::from_stream(samples(battered())).batch_size(8).num_workers(2);
        builder.on_error(on_error).build().unwrap()
    };
    for (on_error, count) in
        [(OnError::Skip, 1), (OnError::Skip, 2), (OnError::Skip, 8), (OnError::Replace, 8)]
    {
        let parts = (0..count).map(|process_index| {
            let loader = whole(on_error).distributed(Replicas {
                devices: 8,
                num_processes: count,
                process_index,
            });
            loader.unwrap().epoch(0).map(content).collect::<Vec<_>>()
        });
        let parts: Vec<Vec<Content>> = parts.collect();
        assert!(parts.iter().all(|part| part.len() == 7), "{on_error:?}, {count} processes");
        let mut real: Vec<i64> = parts
            .iter()
            .flatten()
            .flat_map(|batch| batch.2.iter().zip(&batch.4))
            .filter(|(_, mask)| **mask == 1.0)
            .map(|(number, _)| *number)
            .collect();
        real.sort_unstable();
        match on_error {
            OnError::Skip => {
                let expected: Vec<i64> =
                    (0..50).filter(|n| !(20..29).contains(n) && n % 7 != 3).collect();
                assert_eq!(real, expected, "{count} processes");
            }
            // Each row is a sample, in every process.
            _ => assert_eq!(real.len(), 50),
        }
    }
}

#[test]
fn a_process_whose_own_records_are_all_bad_pads_with_those_of_others() {
    let torn = || Numbers::new(4).map(|n| if n == 2 { Err(Error::new("torn")) } else { Ok(n) });
    // The second batch is [bad, good]. The first process has the bad record, and the second process
    // would use it as padding.
    for (process_index, expected) in [(0, (vec![3], vec![0.0])), (1, (vec![3], vec![1.0]))] {
        let loader = DataLoader::from_stream(samples(torn()))
            .batch_size(2)
            .on_error(OnError::Skip)
            .build()
            .unwrap();
        let part =
            loader.distributed(Replicas { devices: 2, num_processes: 2, process_index }).unwrap();
        let batch = part.epoch(0).nth(1).unwrap().unwrap();
        assert_eq!((numbers(&batch), batch.mask().to_vec()), expected);
    }
    // A short batch with only one bad record cannot be read, here as in one process.
    let short = || Numbers::new(3).map(|n| if n == 2 { Err(Error::new("torn")) } else { Ok(n) });
    for num_processes in [1, 2] {
        let loader = DataLoader::from_stream(samples(short()))
            .batch_size(2)
            .on_error(OnError::Skip)
            .build()
            .unwrap();
        for process_index in 0..num_processes {
            let part =
                loader.distributed(Replicas { devices: 2, num_processes, process_index }).unwrap();
            let error = part.epoch(0).nth(1).unwrap().unwrap_err().to_string();
            assert!(error.starts_with("none of the 1 records of a batch can be read"), "{error}");
        }
    }
}

#[test]
fn whatever_can_be_read_of_a_batch_pads_the_rows_of_a_process() {
    // The last four of 32 records are good, far after those of the first process.
    let torn = || Numbers::new(32).map(|n| if n < 28 { Err(Error::new("torn")) } else { Ok(n) });
    for (process_index, mask) in [(0, vec![0.0; 16]), (1, [vec![1.0; 4], vec![0.0; 12]].concat())] {
        let loader = DataLoader::from_stream(samples(torn()))
            .batch_size(32)
            .on_error(OnError::Skip)
            .build()
            .unwrap();
        let part =
            loader.distributed(Replicas { devices: 2, num_processes: 2, process_index }).unwrap();
        let batch = part.epoch(0).next().unwrap().unwrap();
        assert_eq!((numbers(&batch)[0], batch.mask()), (28, &mask[..]));
    }
}

/// Declares another number of items than it has.
struct WrongLengthStream(usize, Numbers);

impl Stream for WrongLengthStream {
    type Item = u64;
    fn len(&self) -> Option<usize> {
        Some(self.0)
    }
    fn items(&self, epoch: u64) -> Result<Items<u64>> {
        self.1.items(epoch)
    }
    fn fingerprint(&self, _: &mut Fingerprint) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_stream_longer_than_it_said_is_an_error() {
    for workers in [0, 2] {
        for (promised, failing_batch) in [(6, 1), (7, 2)] {
            let (batches, _) =
                outcome(WrongLengthStream(promised, Numbers::new(9)), OnError::Fail, workers);
            assert_eq!(batches.len(), failing_batch + 1);
            assert_eq!(
                batches[failing_batch],
                format!(
                    "the stream has more records than the {promised} it promised for an epoch; correct the number, or check whether records were added since it was opened. With num_samples({promised}), the loader would read only that many in each epoch"
                )
            );
        }
        let builder = DataLoader::from_stream(samples(WrongLengthStream(7, Numbers::new(9))))
            .batch_size(3)
            .num_workers(workers);
        // The last batch is dropped, so the end of the stream is never reached.
        assert_eq!(
            builder.drop_last(true).build().unwrap().epoch(0).filter(Result::is_ok).count(),
            2
        );
        let builder = DataLoader::from_stream(samples(WrongLengthStream(7, Numbers::new(9))))
            .batch_size(3)
            .num_workers(workers);
        assert_eq!(
            builder.num_samples(7).build().unwrap().epoch(0).filter(Result::is_ok).count(),
            3
        );
    }
}

#[test]
fn a_stream_shorter_than_it_said_is_an_error() {
    let (batches, _) = outcome(WrongLengthStream(9, Numbers::new(7)), OnError::Fail, 2);
    assert_eq!(batches.len(), 3);
    assert_eq!(
        batches[2],
        "the stream ended after 7 records, but promised 9 for an epoch; were records deleted since it was opened? num_samples(7) would set the length of an epoch and repeat a shorter stream"
    );
}

#[test]
fn choices_that_do_not_fit_a_stream_are_refused() {
    let builder = |stream: Numbers| DataLoader::from_stream(samples(stream)).batch_size(4);
    refused(
        builder(Numbers::unknown(8)).build(),
        expect![[
            r#"the length of the stream is unknown; set num_samples, the length of an epoch, or endless, for one epoch that never ends"#
        ]],
    );
    refused(
        builder(Numbers::new(0)).build(),
        expect!["the stream is empty; a loader needs at least one sample"],
    );
    refused(
        builder(Numbers::new(8)).num_samples(0).build(),
        expect!["num_samples is 0; an epoch needs at least one sample"],
    );
    refused(
        builder(Numbers::new(8)).shuffle(true).build(),
        expect![
            "a stream has no random access, so shuffle(true) and samplers do not work; use Stream::shuffle(buffer, \
             seed), which shuffles within a buffer"
        ],
    );
    refused(
        builder(Numbers::new(3)).drop_last(true).build(),
        expect![
            "no batch is left: an epoch has 3 samples, fewer than the batch size 4, and drop_last(true) drops them; \
             use a smaller batch size or drop_last(false)"
        ],
    );
    let loader = builder(Numbers::unknown(0)).num_samples(8).build().unwrap();
    let error = loader.epoch(0).next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the stream is empty: epoch 0 needs 8 records");
}

#[test]
fn a_description_tells_what_the_order_and_the_samples_depend_on() {
    let loader = shuffled(103).on_error(OnError::Skip).build().unwrap();
    let description = loader.description();
    assert!(description.starts_with(
        "103 of 103 records, 26 batches of 4, it::streams::Numbers, shuffled (buffer 20, seed 3)"
    ));
    assert!(description.ends_with(", seed 9, on_error Skip"), "{description}");
}
