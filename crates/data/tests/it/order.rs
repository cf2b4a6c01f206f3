//! The order of the samples: what it depends on, and what it does not.

use fulmen_data::{
    DataLoader, Dataset, Field, HostBatch, RandomSampler, Replica, Result, Sample, Sampler,
    TensorDataset,
};

#[test]
fn the_random_order_never_changes_between_releases() {
    let order = |seed, epoch, len| RandomSampler::new(seed).order(epoch, len, Replica::ONLY);
    assert_eq!(order(0, 0, 10), PINNED[0]);
    assert_eq!(order(0, 1, 10), PINNED[1]);
    assert_eq!(order(42, 0, 10), PINNED[2]);
    assert_eq!(order(u64::MAX, u64::MAX, 10), PINNED[3]);
    // A digest of a longer one.
    let digest = order(7, 3, 60_000).iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &index| {
        (hash ^ index as u64).wrapping_mul(0x0100_0000_01b3)
    });
    assert_eq!(digest, PINNED_DIGEST);
}

/// Computed by a second implementation of ChaCha8 and of the shuffle, in another language.
const PINNED: [[usize; 10]; 4] = [
    [6, 5, 8, 9, 2, 1, 3, 7, 4, 0],
    [7, 1, 8, 4, 5, 9, 3, 2, 0, 6],
    [3, 0, 9, 8, 4, 2, 6, 7, 1, 5],
    [4, 3, 8, 0, 2, 7, 9, 6, 1, 5],
];
const PINNED_DIGEST: u64 = 0xc819_22cd_a273_4cfb;

#[test]
fn the_random_order_is_a_permutation_of_any_length() {
    for len in [0, 1, 2, 3, 100, 4097] {
        let mut order = RandomSampler::new(5).order(9, len, Replica::ONLY);
        order.sort_unstable();
        assert_eq!(order, (0..len).collect::<Vec<_>>());
    }
}

#[test]
fn every_permutation_is_equally_likely() {
    // 24 permutations of 4, 24,000 epochs: 1,000 expected of each, with a standard deviation of
    // about 31.
    let mut counts = std::collections::BTreeMap::new();
    for epoch in 0..24_000 {
        *counts.entry(RandomSampler::new(1).order(epoch, 4, Replica::ONLY)).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 24);
    let chi_squared: f64 =
        counts.values().map(|&count| f64::from(count - 1000).powi(2) / 1000.0).sum();
    // 23 degrees of freedom: above 49.7 in one of a thousand.
    assert!(chi_squared < 49.7, "{chi_squared}");
}

#[test]
fn seed_epoch_and_length_each_change_the_order() {
    let order = |seed, epoch, len| RandomSampler::new(seed).order(epoch, len, Replica::ONLY);
    assert_ne!(order(1, 0, 50), order(2, 0, 50));
    assert_ne!(order(1, 0, 50), order(1, 1, 50));
    // Not seed + epoch, nor any other simple combination of the two.
    assert_ne!(order(1, 2, 50), order(2, 1, 50));
    let shorter: Vec<usize> = order(1, 0, 50).into_iter().filter(|&i| i < 49).collect();
    assert_ne!(shorter, order(1, 0, 49));
}

/// Takes longer for some samples than for others, so that the workers get out of step.
struct UnevenDataset(TensorDataset);

impl Dataset for UnevenDataset {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn fields(&self) -> Vec<Field> {
        self.0.fields()
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        if index.is_multiple_of(5) {
            std::thread::sleep(std::time::Duration::from_micros(300 * (index as u64 % 7)));
        }
        self.0.read(index, sample)
    }
}

fn content(batch: HostBatch) -> (u64, usize, usize, Vec<u8>, Vec<i32>, Vec<f32>) {
    let bytes = batch.field_bytes(0).unwrap().to_vec();
    (
        batch.epoch(),
        batch.index(),
        batch.valid(),
        bytes,
        batch.values(1).unwrap().to_vec(),
        batch.mask().to_vec(),
    )
}

#[test]
fn the_number_of_workers_changes_nothing() {
    let count = 103;
    let read = |workers, prefetch| -> Vec<_> {
        let data = TensorDataset::builder()
            .array("bytes", [count, 5], (0..5 * count).map(|i| i as u8).collect::<Vec<_>>())
            .array("number", [count], (0..count as i32).collect::<Vec<_>>())
            .build()
            .unwrap();
        let builder = DataLoader::builder(UnevenDataset(data))
            .batch_size(4)
            .shuffle(true)
            .seed(11)
            .num_workers(workers);
        let loader =
            if prefetch > 0 { builder.prefetch(prefetch) } else { builder }.build().unwrap();
        let epochs = (0..2).flat_map(|epoch| loader.epoch(epoch));
        epochs.chain(loader.epochs(2..4, 0)).map(|batch| content(batch.unwrap())).collect()
    };
    let expected = read(0, 0);
    assert_eq!(expected.len(), 4 * 26);
    for (workers, prefetch) in [(1, 0), (2, 0), (7, 0), (7, 7), (2, 100), (1, 1)] {
        assert!(read(workers, prefetch) == expected, "{workers} workers, prefetch {prefetch}");
    }
}
