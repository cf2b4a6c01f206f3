//! Samples of a dataset that cannot be read: failing, skipping and replacing them.

use std::path::PathBuf;

use fulmen_data::{
    DType, DataLoader, DataLoaderBuilder, Dataset, Error, Field, HostBatch, OnError, Replica,
    Replicas, Result, Sample, Sampler,
};

/// The numbers below `count`, each with noise; some cannot be read.
struct NoisyNumbers {
    count: usize,
    bad: fn(usize) -> bool,
}

impl Dataset for NoisyNumbers {
    fn len(&self) -> usize {
        self.count
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("number", DType::I64, []), Field::new("noise", DType::F64, [])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        sample.write_value(0, index as i64)?;
        if (self.bad)(index) {
            match index % 3 {
                0 => panic!("page {index} burns"),
                1 => return Err(Error::new("torn")),
                // Forgets to write the noise.
                _ => return Ok(()),
            }
        }
        let noise = sample.random().uniform(0.0, 1.0);
        sample.write_value(1, noise)
    }
    fn origin(&self, index: usize) -> Option<String> {
        Some(format!("book.txt, page {index}"))
    }
}

fn torn(count: usize, bad: fn(usize) -> bool) -> DataLoaderBuilder {
    DataLoader::builder(NoisyNumbers { count, bad }).batch_size(4)
}

type Content = (Vec<i64>, Vec<f64>, Vec<f32>);

fn content(batch: Result<HostBatch>) -> Content {
    let batch = batch.unwrap();
    let valid = batch.mask().iter().filter(|&&weight| weight == 1.0).count();
    assert_eq!(
        (valid, batch.mask()[..valid].iter().all(|&weight| weight == 1.0)),
        (batch.valid(), true)
    );
    (batch.values(0).unwrap().to_vec(), batch.values(1).unwrap().to_vec(), batch.mask().to_vec())
}

#[test]
fn skipped_samples_leave_padding_behind() {
    let loader = torn(10, |i| i == 1 || i == 8).on_error(OnError::Skip).build().unwrap();
    let batches: Vec<Content> = loader.epoch(0).map(content).collect();
    let rows: Vec<_> =
        batches.iter().map(|batch| (batch.0.as_slice(), batch.2.as_slice())).collect();
    assert_eq!(
        rows,
        [
            (&[0, 2, 3, 0][..], &[1.0, 1.0, 1.0, 0.0][..]),
            (&[4, 5, 6, 7], &[1.0; 4]),
            (&[9, 9, 9, 9], &[1.0, 0.0, 0.0, 0.0])
        ]
    );
    // Nothing half-written is visible.
    assert_eq!(batches[0].1[3], batches[0].1[0]);
    let loader = torn(8, |_| false).on_error(OnError::Skip).drop_last(true).build().unwrap();
    assert!(loader.pads(), "a batch may have padding at any time");
    assert!(!torn(8, |_| false).on_error(OnError::Replace).build().unwrap().pads());
}

#[test]
fn a_batch_of_bad_samples_is_padding_alone() {
    let loader = torn(12, |i| (4..8).contains(&i)).on_error(OnError::Skip).build().unwrap();
    let batches: Vec<Content> = loader.epoch(0).map(content).collect();
    assert_eq!(batches[1].2, [0.0; 4]);
    let padding = batches[1].0[0];
    assert!(batches[1].0.iter().all(|&number| number == padding) && !(4..8).contains(&padding));
    assert_eq!((batches[0].0[3], batches[2].0[0]), (3, 8));
}

#[test]
fn substitutes_are_other_samples_of_the_epoch() {
    let bad = |i: usize| i.is_multiple_of(5);
    let loader = torn(40, bad).shuffle(true).seed(3).on_error(OnError::Replace).build().unwrap();
    let clean = torn(40, |_| false).shuffle(true).seed(3).build().unwrap();
    let mut replaced = 0;
    let mut substitutes = std::collections::BTreeSet::new();
    for epoch in 0..5 {
        for (batch, whole) in loader.epoch(epoch).map(content).zip(clean.epoch(epoch).map(content))
        {
            assert_eq!(batch.2, [1.0; 4]);
            for row in 0..4 {
                if bad(whole.0[row] as usize) {
                    replaced += 1;
                    substitutes.insert(batch.0[row]);
                    assert!(!bad(batch.0[row] as usize));
                } else {
                    assert_eq!((batch.0[row], batch.1[row]), (whole.0[row], whole.1[row]))
                }
            }
        }
    }
    assert_eq!(replaced, 40);
    assert!(substitutes.len() > 10, "one is drawn for each: {substitutes:?}");
}

#[test]
fn the_substitute_is_of_those_that_the_sampler_takes() {
    struct FirstHalfSampler;
    impl Sampler for FirstHalfSampler {
        fn num_samples(&self, len: usize, _: Replica) -> usize {
            len / 2
        }
        fn order(&self, _: u64, len: usize, _: Replica) -> Vec<usize> {
            (0..len / 2).collect()
        }
    }
    let loader = torn(40, |i| i % 4 == 1)
        .sampler(FirstHalfSampler)
        .on_error(OnError::Replace)
        .build()
        .unwrap();
    let read: Vec<i64> = loader.epochs(0..9, 0).flat_map(|batch| content(batch).0).collect();
    assert!(read.iter().all(|&number| number < 20));
}

#[test]
fn the_number_of_workers_and_a_start_in_mid_epoch_change_nothing() {
    for on_error in [OnError::Skip, OnError::Replace] {
        let builder = || torn(101, |i| i % 7 == 3).shuffle(true).seed(5).on_error(on_error);
        let first = builder().build().unwrap();
        let whole: Vec<Content> = first.epochs(1..3, 0).map(content).collect();
        assert!(first.bad_samples().count >= 28);
        for workers in [1, 2, 7] {
            let loader = builder().num_workers(workers).build().unwrap();
            assert!(loader.epochs(1..3, 0).map(content).eq(whole.iter().cloned()));
            assert_eq!(loader.bad_samples().count, first.bad_samples().count);
            assert_eq!(loader.bad_samples().first.len(), 14);
            assert!(loader.epochs(1..3, 11).map(content).eq(whole[11..].iter().cloned()));
        }
    }
}

#[test]
fn bad_samples_are_counted_with_index_origin_and_message() {
    let loader = torn(30, |i| i < 3).on_error(OnError::Skip).num_workers(2).build().unwrap();
    assert_eq!(loader.bad_samples().count, 0);
    let part = loader.distributed(Replicas { devices: 2, ..Replicas::default() }).unwrap();
    assert_eq!(part.epochs(4..6, 0).filter(Result::is_ok).count(), 16);
    let bad = loader.bad_samples();
    assert_eq!((bad.count, bad.first.len()), (6, 3));
    let expected = [
        "sample 0 (book.txt, page 0): the dataset panicked: page 0 burns",
        "sample 1 (book.txt, page 1): torn",
        "sample 2 (book.txt, page 2): Dataset::read did not write `noise f64[]`; it must write every field that \
         Dataset::fields names",
    ];
    for (i, bad) in bad.first.iter().enumerate() {
        assert_eq!(
            (bad.index, bad.epoch, bad.origin.as_deref(), bad.count),
            (Some(i as u64), 4, Some(&*format!("book.txt, page {i}")), 2)
        );
        assert_eq!(bad.message, expected[i]);
    }
    assert_eq!(
        bad.to_string(),
        format!(
            "samples could not be read 6 times; the first 3 of them\n  {}",
            expected.join("\n  ")
        )
    );
}

#[test]
fn data_of_which_next_to_nothing_can_be_read_is_an_error() {
    for on_error in [OnError::Skip, OnError::Replace] {
        let loader = torn(1000, |i| i % 3 == 1 || i > 0).on_error(on_error).build().unwrap();
        let batches: Vec<Result<HostBatch>> = loader.epoch(0).collect();
        let error = batches[100].as_ref().unwrap_err().to_string();
        assert!(error.contains("nor any of 8 random replacements"), "{error}");
        assert!(
            error.contains("samples could not be read ") && error.contains("of them\n  sample "),
            "{error}"
        );
    }
}

#[test]
fn processes_skip_each_for_itself() {
    let part = |process_index| {
        let replicas = Replicas { devices: 2, num_processes: 2, process_index };
        let loader = torn(10, |i| [0, 6, 7].contains(&i)).on_error(OnError::Skip).build().unwrap();
        loader.distributed(replicas).unwrap().epoch(0).map(content).collect::<Vec<_>>()
    };
    let first = part(0);
    let second = part(1);
    let rows = |part: &[Content]| {
        part.iter().map(|batch| (batch.0.clone(), batch.2.clone())).collect::<Vec<_>>()
    };
    assert_eq!(
        rows(&first),
        [(vec![1, 1], vec![1.0, 0.0]), (vec![4, 5], vec![1.0; 2]), (vec![8, 9], vec![1.0; 2])]
    );
    // The second batch has no readable sample: it is padded with its first sample. So is the last
    // one.
    assert_eq!(
        rows(&second),
        [(vec![2, 3], vec![1.0; 2]), (vec![4, 4], vec![0.0; 2]), (vec![8, 8], vec![0.0; 2])]
    );
}

#[test]
fn a_file_deleted_during_the_epoch_is_one_bad_sample() {
    /// One number per file.
    struct Files(PathBuf);
    impl Dataset for Files {
        fn len(&self) -> usize {
            8
        }
        fn fields(&self) -> Vec<Field> {
            vec![Field::new("number", DType::I64, []), Field::new("noise", DType::F64, [])]
        }
        fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
            let text = std::fs::read_to_string(self.0.join(format!("{index}.txt")))?;
            sample.write_value(0, text.parse::<i64>().map_err(Error::new)?)?;
            sample.write_value(1, 0.0f64)
        }
        fn origin(&self, index: usize) -> Option<String> {
            Some(format!("{index}.txt"))
        }
    }
    for (on_error, expected) in [(OnError::Fail, None), (OnError::Skip, Some([4, 5, 7, 4]))] {
        let folder = tempfile::tempdir().unwrap();
        (0..8).for_each(|i| {
            std::fs::write(folder.path().join(format!("{i}.txt")), i.to_string()).unwrap()
        });
        let loader = DataLoader::builder(Files(folder.path().to_owned()))
            .batch_size(4)
            .on_error(on_error)
            .build()
            .unwrap();
        let mut batches = loader.epoch(0);
        assert_eq!(content(batches.next().unwrap()).0, [0, 1, 2, 3]);
        std::fs::remove_file(folder.path().join("6.txt")).unwrap();
        let batch = batches.next().unwrap();
        match expected {
            Some(rows) => assert_eq!(content(batch).0, rows),
            None => assert!(batch.unwrap_err().to_string().starts_with("sample 6 (6.txt): ")),
        }
    }
}
