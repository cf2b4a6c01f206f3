//! Folds and splits, compared with scikit-learn's where it does not draw at random
//! (`reference/folds.py`), and mixtures.

use std::collections::BTreeSet;

use crate::common::{data, refused};
use expect_test::expect;
use fulmen_data::{
    ConcatDataset, DType, DataLoader, Dataset, Error, Field, Fingerprint, Fold, HostBatch, Items,
    MixSampler, MixStream, MixUntil, Replica, Result, Sampler, Stream, StreamItem, Subset,
    WeightedRandomSampler, group_k_fold, group_split, k_fold, stratified_k_fold, stratified_split,
};
use serde_json::Value;

fn reference(name: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("../reference/folds.json")).unwrap();
    all[name].as_array().unwrap().clone()
}

fn numbers(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect()
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

/// Checks the validation parts, and that the training parts are the rest.
#[track_caller]
fn check(folds: &[Fold], len: usize, expected: &Value) {
    let expected: Vec<Vec<usize>> = expected.as_array().unwrap().iter().map(numbers).collect();
    assert_eq!(folds.iter().map(|fold| fold.validation.clone()).collect::<Vec<_>>(), expected);
    check_partition(folds, len);
}

#[track_caller]
fn check_partition(folds: &[Fold], len: usize) {
    for fold in folds {
        assert!(fold.train.is_sorted() && fold.validation.is_sorted());
        let mut all = [&fold.train[..], &fold.validation].concat();
        all.sort_unstable();
        assert_eq!(all, (0..len).collect::<Vec<_>>());
    }
}

#[test]
fn folds_are_scikit_learns() {
    for case in reference("k_fold") {
        let len = number(&case["len"]);
        check(&k_fold(len, number(&case["folds"]), None).unwrap(), len, &case["validation"]);
    }
    for case in reference("stratified_k_fold") {
        let labels = numbers(&case["labels"]);
        let folds = stratified_k_fold(&labels, number(&case["folds"]), None).unwrap();
        check(&folds, labels.len(), &case["validation"]);
    }
    for case in reference("group_k_fold") {
        let groups = numbers(&case["groups"]);
        check(
            &group_k_fold(&groups, number(&case["folds"])).unwrap(),
            groups.len(),
            &case["validation"],
        );
    }
}

#[test]
fn shuffled_folds_differ_by_their_seed_alone_and_keep_sizes_and_classes() {
    let labels: Vec<usize> = (0..53).map(|i| i * i % 7).collect();
    let counts = |indices: &[usize]| {
        let mut counts = [0; 7];
        indices.iter().for_each(|&index| counts[labels[index]] += 1);
        counts
    };
    for seed in 0..5 {
        let folds = k_fold(53, 4, Some(seed)).unwrap();
        check_partition(&folds, 53);
        assert_eq!(
            folds.iter().map(|fold| fold.validation.len()).collect::<Vec<_>>(),
            [14, 13, 13, 13]
        );
        assert_eq!(folds, k_fold(53, 4, Some(seed)).unwrap());
        assert_ne!(folds, k_fold(53, 4, Some(seed + 1)).unwrap());
        let ordered = stratified_k_fold(&labels, 4, None).unwrap();
        let shuffled = stratified_k_fold(&labels, 4, Some(seed)).unwrap();
        check_partition(&shuffled, 53);
        assert_ne!(ordered, shuffled);
        for (a, b) in ordered.iter().zip(&shuffled) {
            assert_eq!(counts(&a.validation), counts(&b.validation));
        }
    }
}

#[test]
fn splits_have_the_counts_of_scikit_learns() {
    for case in reference("stratified_split") {
        let labels = numbers(&case["labels"]);
        let part = case["part"].as_f64().unwrap();
        let allowed: BTreeSet<Vec<usize>> =
            case["counts"].as_array().unwrap().iter().map(numbers).collect();
        let mut counts_seen = BTreeSet::new();
        let mut splits = BTreeSet::new();
        for seed in 0..50 {
            let split = stratified_split(&labels, part, seed).unwrap();
            check_partition(std::slice::from_ref(&split), labels.len());
            let mut counts = vec![0; 1 + labels.iter().max().unwrap()];
            split.validation.iter().for_each(|&index| counts[labels[index]] += 1);
            counts_seen.insert(counts);
            splits.insert(split.validation);
        }
        // The same counts are allowed where a tie is broken at random.
        assert_eq!(counts_seen, allowed);
        assert_eq!(splits.len(), 50);
    }
    for case in reference("group_split") {
        let groups = numbers(&case["groups"]);
        let part = case["part"].as_f64().unwrap();
        let mut drawn = BTreeSet::new();
        for seed in 0..50 {
            let split = group_split(&groups, part, seed).unwrap();
            check_partition(std::slice::from_ref(&split), groups.len());
            let groups_of = |indices: &[usize]| {
                indices.iter().map(|&index| groups[index]).collect::<BTreeSet<_>>()
            };
            let train = groups_of(&split.train);
            let validation = groups_of(&split.validation);
            assert!(train.is_disjoint(&validation));
            assert_eq!(validation.len(), number(&case["count"]));
            drawn.extend(validation);
        }
        assert_eq!(
            drawn.len(),
            1 + groups.iter().max().unwrap(),
            "each group validates for some seed"
        );
    }
}

#[test]
fn divisions_that_cannot_be_are_refused() {
    refused(k_fold(10, 1, None), expect!["k_fold: 1 fold; at least 2 are needed"]);
    refused(
        k_fold(3, 4, None),
        expect!["k_fold: 4 folds of 3 samples; each fold needs at least one"],
    );
    refused(
        group_k_fold(&[1, 1, 2], 3),
        expect!["group_k_fold: 3 folds of 2 groups; each fold needs at least one"],
    );
    refused(
        stratified_k_fold(&[1, 1, 2, 2, 3], 3, None),
        expect![
            "stratified_k_fold: 3 folds need a class with at least 3 samples, but the largest has 2; use fewer folds"
        ],
    );
    refused(
        stratified_split(&[1, 1, 2], 0.5, 0),
        expect![
            "stratified_split: sample 2 is the only one of its class; it cannot be on both sides"
        ],
    );
    refused(
        stratified_split(&[1, 1, 2, 2, 3, 3], 0.2, 0),
        expect![
            "stratified_split: with 2 of 6 samples for validation, one side has 2 samples, fewer than the 3 classes"
        ],
    );
    refused(
        group_split(&[1, 2], 1.5, 0),
        expect!["group_split: the validation fraction is 1.5; it must be between 0 and 1"],
    );
    refused(
        group_split(&[1, 1], 0.5, 0),
        expect!["group_split: 1 of 1 groups would validate; each side needs at least one"],
    );
    refused(
        group_split::<u8>(&[], f64::NAN, 0),
        expect!["group_split: the validation fraction is NaN; it must be between 0 and 1"],
    );
}

#[test]
fn a_fold_and_its_limits_are_datasets() {
    let read = |dataset: &dyn Dataset| {
        let all: Vec<usize> = (0..dataset.len()).collect();
        HostBatch::collate(dataset, &all).unwrap().values::<i32>(1).unwrap().to_vec()
    };
    let data = data(10);
    let [train, validation] = k_fold(10, 5, None).unwrap()[1].datasets(&data).unwrap();
    assert_eq!((read(&train), read(&validation)), (vec![0, 1, 4, 5, 6, 7, 8, 9], vec![2, 3]));
    assert_eq!(read(&train.skip(6)), [8, 9]);
    assert_eq!(read(&data.clone().skip(3).take(2)), [3, 4]);
    assert_eq!((data.clone().take(99).len(), data.clone().skip(99).len()), (10, 0));
    let fold = Fold { train: vec![10], validation: Vec::new() };
    assert!(fold.datasets(&data).unwrap_err().is_usage());
}

#[test]
fn a_mixture_of_datasets_draws_by_weights_and_repeats_nothing_too_early() {
    let sampler = MixSampler::new(&[1000, 30, 5], &[6.0, 4.0, 0.0], 5000, 3).unwrap();
    let order = |epoch| sampler.order(epoch, 1035, Replica::ONLY);
    let first = order(0);
    assert_eq!((first.len(), &first), (5000, &order(0)));
    assert_ne!(first, order(1));
    assert!(first.iter().all(|&index| index < 1030));
    let small: Vec<usize> = first.iter().copied().filter(|&index| index >= 1000).collect();
    // 2,000 expected with a standard deviation of 35.
    assert!((1860..2140).contains(&small.len()), "{}", small.len());
    let mut orders = BTreeSet::new();
    for pass in small.chunks_exact(30) {
        assert_eq!(pass.iter().collect::<BTreeSet<_>>().len(), 30);
        orders.insert(pass);
    }
    assert!(orders.len() > 60, "each pass has another order");
    // tests/reference/orders.py computed these values.
    assert_eq!(
        MixSampler::new(&[5, 3], &[1.0, 1.0], 12, 9).unwrap().order(2, 8, Replica::ONLY),
        PINNED_MIX
    );
    let sampler = WeightedRandomSampler::new(&[1.0, 0.0, 3.0, 2.0], 12, 9).unwrap();
    assert_eq!(sampler.order(2, 4, Replica::ONLY), PINNED_WEIGHTED);
}

const PINNED_MIX: [usize; 12] = [5, 7, 6, 0, 5, 4, 1, 7, 2, 6, 3, 2];
const PINNED_WEIGHTED: [usize; 12] = [2, 3, 2, 0, 2, 2, 2, 2, 3, 3, 2, 2];

#[test]
fn a_mixture_in_a_loader_is_the_same_for_all_workers_and_after_a_restore() {
    let builder = || {
        let both = ConcatDataset::new(vec![
            Box::new(data(50)),
            Box::new(Subset::new(data(9), [8, 7]).unwrap()),
        ])
        .unwrap();
        let sampler = both.mix(&[0.7, 0.3], 62, 5).unwrap();
        DataLoader::builder(both).sampler(sampler).batch_size(4)
    };
    let read = |loader: &DataLoader, start| -> Vec<Vec<i32>> {
        loader.epochs(1..3, start).map(|batch| batch.unwrap().values(1).unwrap().to_vec()).collect()
    };
    let whole = read(&builder().build().unwrap(), 0);
    assert_eq!(whole.len(), 32);
    for workers in [1, 2, 7] {
        let loader = builder().num_workers(workers).build().unwrap();
        assert_eq!(read(&loader, 0), whole);
        assert_eq!(read(&loader, 9), whole[9..]);
    }
}

#[test]
fn weights_that_cannot_be_are_refused() {
    refused(
        MixSampler::new(&[1, 2], &[1.0], 9, 0),
        expect!["MixSampler: 1 weight for 2 datasets; pass one for each"],
    );
    refused(
        MixSampler::new(&[1, 2], &[1.0, -1.0], 9, 0),
        expect!["MixSampler: weight 1 is -1; weights must be finite and not negative"],
    );
    refused(
        MixSampler::new(&[1, 0], &[1.0, 1.0], 9, 0),
        expect!["MixSampler: dataset 1 is empty; give it the weight 0 or leave it out"],
    );
    refused(
        MixSampler::new(&[1], &[0.0], 9, 0),
        expect!["MixSampler: the weights add up to 0; the sum must be positive and finite"],
    );
    refused(
        WeightedRandomSampler::new(&[f64::MAX, f64::MAX], 9, 0),
        expect![
            "WeightedRandomSampler: the weights add up to inf; the sum must be positive and finite"
        ],
    );
    refused(
        WeightedRandomSampler::balanced::<u8>(&[], 9, 0),
        expect![
            "WeightedRandomSampler: the weights add up to 0; the sum must be positive and finite"
        ],
    );
}

/// Numbers from `start` on, in a different order in each epoch.
struct Numbers {
    start: u64,
    count: u64,
}

impl Stream for Numbers {
    type Item = u64;
    fn len(&self) -> Option<usize> {
        Some(self.count as usize)
    }
    fn items(&self, epoch: u64) -> Result<Items<u64>> {
        let Numbers { start, count } = *self;
        Ok(Box::new((0..count).map(move |i| {
            let index = (i + epoch) % count;
            Ok(StreamItem { index, origin: String::new(), item: start + index })
        })))
    }
    fn fingerprint(&self, _: &mut Fingerprint) -> Result<()> {
        Ok(())
    }
}

fn mixture(counts: [u64; 2], weights: [f64; 2], until: MixUntil) -> MixStream<u64> {
    let stream = |i: usize| {
        Box::new(Numbers { start: 1000 * i as u64, count: counts[i] })
            as Box<dyn Stream<Item = u64>>
    };
    MixStream::new(vec![(stream(0), weights[0]), (stream(1), weights[1])], 7).unwrap().until(until)
}

fn drawn(stream: &impl Stream<Item = u64>, epoch: u64, count: usize) -> Vec<(u64, u64)> {
    let items = stream.items(epoch).unwrap().take(count);
    items.map(|item| item.map(|item| (item.index, item.item)).unwrap()).collect()
}

#[test]
fn a_mixture_of_streams_ends_as_it_should() {
    let first = mixture([500, 20], [0.5, 0.5], MixUntil::FirstEnds);
    let items = drawn(&first, 0, usize::MAX);
    assert_eq!((first.len(), items.iter().filter(|item| item.1 >= 1000).count()), (None, 20));
    assert!(items.len() < 80);
    assert_eq!(items, drawn(&first, 0, usize::MAX));
    assert_ne!(items, drawn(&first, 1, usize::MAX));

    let all = mixture([500, 20], [0.5, 0.5], MixUntil::AllEnd);
    let items = drawn(&all, 0, usize::MAX);
    assert_eq!(
        (all.len(), items.iter().map(|item| item.1).collect::<BTreeSet<_>>().len()),
        (Some(520), 520)
    );
    assert_eq!(
        items.iter().map(|item| item.0).collect::<BTreeSet<_>>().len(),
        520,
        "indices tell them apart"
    );
    let unweighted = mixture([500, 20], [0.5, 0.0], MixUntil::AllEnd);
    assert_eq!((unweighted.len(), drawn(&unweighted, 0, usize::MAX).len()), (Some(500), 500));

    let items = drawn(&mixture([500, 20], [0.9, 0.1], MixUntil::Never), 0, 4000);
    let small = items.iter().filter(|item| item.1 >= 1000).count();
    // 400 expected with a standard deviation of 19.
    assert!(items.len() == 4000 && (324..476).contains(&small), "{small}");
    assert_eq!(items.iter().map(|item| item.0).collect::<BTreeSet<_>>().len(), 4000);
    assert_eq!(drawn(&mixture([0, 0], [0.9, 0.1], MixUntil::Never), 0, 4000), []);
    assert_eq!(drawn(&mixture([0, 3], [0.9, 0.1], MixUntil::Never), 0, 10).len(), 10);
    refused(
        MixStream::<u64>::new(Vec::new(), 0),
        expect!["MixStream: the weights add up to 0; the sum must be positive and finite"],
    );
}

#[test]
fn a_mixture_of_streams_in_a_loader_is_the_same_for_all_workers_and_after_a_restore() {
    let builder = || {
        let stream = mixture([500, 20], [0.6, 0.4], MixUntil::Never)
            .map(|number| if number == 13 { Err(Error::new("thirteen")) } else { Ok(number) })
            .shuffle(16, 1);
        let samples =
            stream.into_dataset(vec![Field::new("x", DType::F64, [2])], |number, sample| {
                let noise = sample.random().uniform(0.0, 1.0);
                sample.write_slice(0, &[number as f64, noise])
            });
        DataLoader::from_stream(samples).num_samples(82).batch_size(8).seed(2)
    };
    let read = |loader: &DataLoader, start| -> Vec<std::result::Result<Vec<f64>, String>> {
        let text = |batch: Result<HostBatch>| match batch {
            Ok(batch) => Ok(batch.values(0).unwrap().to_vec()),
            Err(error) => Err(error.to_string()),
        };
        loader.epochs(1..3, start).map(text).collect()
    };
    let whole = read(&builder().build().unwrap(), 0);
    assert_eq!(whole.len(), 22);
    for workers in [1, 2, 7] {
        let loader = builder().num_workers(workers).build().unwrap();
        assert_eq!(read(&loader, 0), whole);
        assert_eq!(read(&loader, 7), whole[7..]);
    }
}
