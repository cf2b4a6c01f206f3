//! Splits into training and validation samples: k folds, splits that keep groups together, splits
//! that keep class proportions.
//!
//! The rules and names are scikit-learn's; random draws come from this crate's generator. Out of
//! scope: a plain random split (`subset`), and the order in which a loader reads (`sampler`).

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use fulmen_durable::messages::quantity;

use crate::dataset::random::{Purpose, permutation, shuffle};
use crate::{Dataset, Error, Result, Subset};

/// The indices of the samples to train on and to validate with, both in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fold {
    /// The samples to train on.
    pub train: Vec<usize>,
    /// The samples to validate with.
    pub validation: Vec<usize>,
}

impl Fold {
    /// The two parts of a dataset: `[train, validation]`. Wrap a dataset that is expensive to clone
    /// in an [`Arc`](std::sync::Arc).
    ///
    /// # Errors
    /// The dataset is shorter than the list from which the fold was made.
    pub fn datasets<D: Dataset + Clone>(&self, dataset: &D) -> Result<[Subset<D>; 2]> {
        Ok([
            Subset::new(dataset.clone(), &*self.train)?,
            Subset::new(dataset.clone(), &*self.validation)?,
        ])
    }

    fn from_predicate(len: usize, validates: impl Fn(usize) -> bool) -> Fold {
        let (validation, train) = (0..len).partition(|&index| validates(index));
        Fold { train, validation }
    }

    /// Makes `folds` folds. Sample `i` is a validation sample in fold `fold_of[i]` and a training
    /// sample in all others.
    fn from_assignment(folds: usize, fold_of: &[usize]) -> Vec<Fold> {
        (0..folds)
            .map(|fold| Fold::from_predicate(fold_of.len(), |index| fold_of[index] == fold))
            .collect()
    }
}

/// Divides samples into `folds` parts of nearly equal length and makes one fold per part, which
/// validates with this part and trains on the others (`KFold`). With a seed, the parts are random;
/// without one, each part is a range of consecutive samples.
///
/// ```
/// use std::sync::Arc;
/// use fulmen_data::{Dataset, TensorDataset, k_fold};
///
/// let data = Arc::new(TensorDataset::builder().array("x", [10], [0u8; 10]).build()?);
/// for fold in k_fold(data.len(), 3, Some(42))? {
///     let [train, validation] = fold.datasets(&data)?;
///     assert_eq!(train.len() + validation.len(), 10);
/// }
/// # Ok::<(), fulmen_data::Error>(())
/// ```
///
/// # Errors
/// Fewer than two folds, or fewer samples than folds.
pub fn k_fold(len: usize, folds: usize, seed: Option<u64>) -> Result<Vec<Fold>> {
    check_folds("k_fold", folds, len, "samples")?;
    let order = match seed {
        Some(seed) => permutation(Purpose::Folds, seed, 0, len),
        None => (0..len).collect(),
    };
    let mut fold_of = vec![0; len];
    let size = len / folds;
    let longer = len % folds;
    for (position, index) in order.into_iter().enumerate() {
        // The first `longer` folds have one sample more.
        let longer_len = longer * (size + 1);
        fold_of[index] = if position < longer_len {
            position / (size + 1)
        } else {
            longer + (position - longer_len) / size
        };
    }
    Ok(Fold::from_assignment(folds, &fold_of))
}

/// Like [`k_fold`], but each fold keeps the class proportions as closely as possible
/// (`StratifiedKFold`). `labels` has the class of each sample.
///
/// ```
/// use fulmen_data::stratified_k_fold;
///
/// let labels = [0, 0, 0, 0, 1, 1];
/// let folds = stratified_k_fold(&labels, 2, Some(1))?;
/// let ones = folds[0].validation.iter().filter(|&&index| labels[index] == 1).count();
/// assert_eq!((folds[0].validation.len(), ones), (3, 1));
/// # Ok::<(), fulmen_data::Error>(())
/// ```
///
/// # Errors
/// Fewer than two folds; no class with enough samples for each fold.
pub fn stratified_k_fold<L: Eq + Hash>(
    labels: &[L],
    folds: usize,
    seed: Option<u64>,
) -> Result<Vec<Fold>> {
    check_folds("stratified_k_fold", folds, labels.len(), "samples")?;
    let classes = class_indices(labels);
    let members = members(&classes);
    if let Some(largest) = members.iter().map(Vec::len).max().filter(|&largest| largest < folds) {
        return Err(Error::usage(format!(
            "stratified_k_fold: {folds} folds need a class with at least {folds} samples, but the largest has \
             {largest}; use fewer folds"
        )));
    }
    let mut sorted = classes;
    sorted.sort_unstable();
    // Dealing the samples to the folds in turn, sorted by class, gives each fold its share of each
    // class.
    let mut shares = vec![vec![0; members.len()]; folds];
    for (position, class) in sorted.into_iter().enumerate() {
        shares[position % folds][class] += 1;
    }
    let mut fold_of = vec![0; labels.len()];
    for (class, members) in members.iter().enumerate() {
        let mut dealt: Vec<usize> =
            (0..folds).flat_map(|fold| vec![fold; shares[fold][class]]).collect();
        if let Some(seed) = seed {
            shuffle(Purpose::Folds, [seed, class as u64, members.len() as u64], &mut dealt);
        }
        members.iter().zip(dealt).for_each(|(&index, fold)| fold_of[index] = fold);
    }
    Ok(Fold::from_assignment(folds, &fold_of))
}

/// Divides samples into folds of nearly equal length so that no group is in two of them
/// (`GroupKFold`). `groups` has the group of each sample: a patient, a speaker, the image that
/// several crops come from. The groups are assigned in order of size, the largest first, each to
/// the fold that has the fewest samples at that point.
///
/// ```
/// use fulmen_data::group_k_fold;
///
/// let speakers = ["ada", "ada", "bea", "cid", "cid", "cid"];
/// let folds = group_k_fold(&speakers, 2)?;
/// assert_eq!((&folds[0].validation[..], &folds[1].validation[..]), (&[3, 4, 5][..], &[0, 1, 2][..]));
/// # Ok::<(), fulmen_data::Error>(())
/// ```
///
/// # Errors
/// Fewer than two folds, or fewer groups than folds.
pub fn group_k_fold<G: Ord>(groups: &[G], folds: usize) -> Result<Vec<Fold>> {
    let mut members_by_group: BTreeMap<&G, Vec<usize>> = BTreeMap::new();
    groups
        .iter()
        .enumerate()
        .for_each(|(index, group)| members_by_group.entry(group).or_default().push(index));
    check_folds("group_k_fold", folds, members_by_group.len(), "groups")?;
    let mut by_size: Vec<Vec<usize>> = members_by_group.into_values().collect();
    by_size.sort_by_key(Vec::len);
    let mut sizes = vec![0; folds];
    let mut fold_of = vec![0; groups.len()];
    for members in by_size.into_iter().rev() {
        let lightest = (0..folds).min_by_key(|&fold| sizes[fold]).unwrap_or(0);
        sizes[lightest] += members.len();
        members.into_iter().for_each(|index| fold_of[index] = lightest);
    }
    Ok(Fold::from_assignment(folds, &fold_of))
}

/// Divides samples at random so that no group is on both sides (`GroupShuffleSplit`). `validation`
/// is the fraction of the *groups* that validate, from 0 to 1; their number is rounded up.
///
/// ```
/// use fulmen_data::group_split;
///
/// let patients = [7, 7, 3, 9, 9, 3, 4];
/// let split = group_split(&patients, 0.25, 42)?;
/// assert!(split.validation.iter().all(|&v| split.train.iter().all(|&t| patients[t] != patients[v])));
/// # Ok::<(), fulmen_data::Error>(())
/// ```
///
/// # Errors
/// A fraction outside 0 to 1, or one that leaves a side without a group.
pub fn group_split<G: Ord>(groups: &[G], validation: f64, seed: u64) -> Result<Fold> {
    let mut numbers: BTreeMap<&G, usize> = groups.iter().map(|group| (group, 0)).collect();
    numbers.values_mut().enumerate().for_each(|(number, slot)| *slot = number);
    let count = validation_count("group_split", validation, numbers.len(), "groups")?;
    let mut validates = vec![false; numbers.len()];
    permutation(Purpose::Folds, seed, 1, numbers.len())[..count]
        .iter()
        .for_each(|&group| validates[group] = true);
    Ok(Fold::from_predicate(groups.len(), |index| {
        numbers.get(&groups[index]).is_some_and(|&group| validates[group])
    }))
}

/// Divides samples at random, keeping the class proportions on both sides as closely as possible
/// (`train_test_split` with `stratify`). `validation` is the fraction of the samples that validate,
/// from 0 to 1; their number is rounded up.
///
/// ```
/// use fulmen_data::stratified_split;
///
/// let labels = ["cat", "dog", "dog", "cat", "dog", "dog", "dog", "cat", "dog"];
/// let split = stratified_split(&labels, 1.0 / 3.0, 42)?;
/// assert_eq!(split.validation.iter().filter(|&&index| labels[index] == "cat").count(), 1);
/// assert_eq!(split.validation.len(), 3);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
///
/// # Errors
/// A fraction outside 0 to 1; a class with a single sample; a side with fewer samples than there
/// are classes.
pub fn stratified_split<L: Eq + Hash>(labels: &[L], validation: f64, seed: u64) -> Result<Fold> {
    let count = validation_count("stratified_split", validation, labels.len(), "samples")?;
    let members = members(&class_indices(labels));
    if let Some(alone) = members.iter().find(|members| members.len() < 2) {
        return Err(Error::usage(format!(
            "stratified_split: sample {} is the only one of its class; it cannot be on both sides",
            alone.first().copied().unwrap_or(0)
        )));
    }
    let smaller = count.min(labels.len() - count);
    if smaller < members.len() {
        return Err(Error::usage(format!(
            "stratified_split: with {count} of {} samples for validation, one side has {smaller} samples, fewer than \
             the {} classes",
            labels.len(),
            members.len()
        )));
    }
    // The share of each class is rounded down. The remaining samples go to the classes with the
    // largest remainders; ties are broken at random.
    let share = |class: usize| members[class].len() as u128 * count as u128;
    let len = labels.len() as u128;
    let mut counts: Vec<usize> =
        (0..members.len()).map(|class| (share(class) / len) as usize).collect();
    let mut by_loss = permutation(Purpose::Folds, seed, 2, members.len());
    by_loss.sort_by_key(|&class| std::cmp::Reverse(share(class) % len));
    let missing = count - counts.iter().sum::<usize>();
    by_loss[..missing].iter().for_each(|&class| counts[class] += 1);
    let mut validates = vec![false; labels.len()];
    for (class, mut members) in members.into_iter().enumerate() {
        shuffle(Purpose::Folds, [seed, 3 + class as u64, members.len() as u64], &mut members);
        members[..counts[class]].iter().for_each(|&index| validates[index] = true);
    }
    Ok(Fold::from_predicate(labels.len(), |index| validates[index]))
}

fn check_folds(name: &str, folds: usize, len: usize, noun: &str) -> Result<()> {
    if folds < 2 {
        return Err(Error::usage(format!(
            "{name}: {}; at least 2 are needed",
            quantity(folds, "fold")
        )));
    }
    if folds > len {
        return Err(Error::usage(format!(
            "{name}: {folds} folds of {len} {noun}; each fold needs at least one"
        )));
    }
    Ok(())
}

fn validation_count(name: &str, part: f64, len: usize, noun: &str) -> Result<usize> {
    if !(part > 0.0 && part < 1.0) {
        return Err(Error::usage(format!(
            "{name}: the validation fraction is {part}; it must be between 0 and 1"
        )));
    }
    let count = (part * len as f64).ceil() as usize;
    if count > 0 && count < len {
        Ok(count)
    } else {
        Err(Error::usage(format!(
            "{name}: {count} of {len} {noun} would validate; each side needs at least one"
        )))
    }
}

/// A number for each label, in order of first appearance.
fn class_indices<L: Eq + Hash>(labels: &[L]) -> Vec<usize> {
    let mut numbers = HashMap::new();
    labels
        .iter()
        .map(|label| {
            let next = numbers.len();
            *numbers.entry(label).or_insert(next)
        })
        .collect()
}

/// The samples of each class.
fn members(classes: &[usize]) -> Vec<Vec<usize>> {
    let mut members = vec![Vec::new(); classes.iter().max().map_or(0, |&class| class + 1)];
    classes.iter().enumerate().for_each(|(index, &class)| members[class].push(index));
    members
}
