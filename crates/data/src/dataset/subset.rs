//! Parts of a dataset: a subset of its samples, a random split, and the concatenation of datasets.
//!
//! Out of scope: the order in which a loader reads (`sampler`).

use std::ops::Range;
use std::sync::Arc;

use crate::dataset::random::{Purpose, permutation};
use crate::{Dataset, Error, Field, Fingerprint, MixSampler, Result, Sample};

/// Some samples of another dataset, in the order of `indices`; an index may appear more than once.
#[derive(Clone, Debug)]
pub struct Subset<D> {
    dataset: D,
    indices: Vec<usize>,
}

impl<D: Dataset> Subset<D> {
    /// The samples `indices` of `dataset`; an error if one of them does not exist.
    pub fn new(dataset: D, indices: impl Into<Vec<usize>>) -> Result<Subset<D>> {
        let indices = indices.into();
        let len = dataset.len();
        match indices.iter().position(|&index| index >= len) {
            None => Ok(Subset { dataset, indices }),
            Some(position) => Err(Error::usage(format!(
                "index {} (at position {position} of a Subset) is not in the dataset, which has {len} samples",
                indices[position]
            ))),
        }
    }

    /// The samples in a range, which must lie within the dataset.
    pub(crate) fn range(dataset: D, range: Range<usize>) -> Subset<D> {
        Subset { dataset, indices: range.collect() }
    }

    /// The indices of these samples in the other dataset.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn fields(&self) -> Vec<Field> {
        self.dataset.fields()
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        match self.indices.get(index) {
            Some(&original) => self.dataset.read(original, sample),
            None => Err(Error::usage(format!(
                "there is no sample {index}; the subset has {}",
                self.indices.len()
            ))),
        }
    }

    fn prefetch(&self, index: usize, epoch: u64) {
        if let Some(&original) = self.indices.get(index) {
            self.dataset.prefetch(original, epoch);
        }
    }

    fn origin(&self, index: usize) -> Option<String> {
        self.dataset.origin(*self.indices.get(index)?)
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        let indices: Vec<u8> =
            self.indices.iter().flat_map(|&index| (index as u64).to_le_bytes()).collect();
        fingerprint.add("subset", indices);
        self.dataset.fingerprint(fingerprint)
    }
}

/// Splits a dataset at random into parts of the given lengths, which must add up to its length.
///
/// The split depends only on the seed and the dataset's length.
///
/// ```
/// use fulmen_data::{Dataset, TensorDataset, random_split};
///
/// let data = TensorDataset::builder().array("x", [10], [0u8; 10]).build()?;
/// let [train, validation] = random_split(data, [8, 2], 42)?;
/// assert_eq!((train.len(), validation.len()), (8, 2));
/// # Ok::<(), fulmen_data::Error>(())
/// ```
pub fn random_split<D: Dataset, const N: usize>(
    dataset: D,
    lengths: [usize; N],
    seed: u64,
) -> Result<[Subset<Arc<D>>; N]> {
    let len = dataset.len();
    let total = lengths.iter().try_fold(0usize, |sum, &part| sum.checked_add(part));
    if total != Some(len) {
        let total = total.map_or("too many to count".to_owned(), |total| total.to_string());
        return Err(Error::usage(format!(
            "random_split: the lengths {lengths:?} add up to {total}, but the dataset has {len} samples"
        )));
    }
    let dataset = Arc::new(dataset);
    let order = permutation(Purpose::Split, seed, 0, len);
    let mut rest = order.as_slice();
    Ok(lengths.map(|length| {
        let (part, after) = rest.split_at(length);
        rest = after;
        Subset { dataset: Arc::clone(&dataset), indices: part.to_vec() }
    }))
}

/// Several datasets with the same fields, one after another.
pub struct ConcatDataset {
    parts: Vec<Box<dyn Dataset>>,
    /// The end of each part.
    ends: Vec<usize>,
    fields: Vec<Field>,
}

impl ConcatDataset {
    /// Concatenates datasets. An error if there are none, or if their fields differ.
    pub fn new(parts: Vec<Box<dyn Dataset>>) -> Result<ConcatDataset> {
        let Some(first) = parts.first() else {
            return Err(Error::usage("a ConcatDataset needs at least one dataset"));
        };
        let fields = first.fields();
        let mut ends = Vec::with_capacity(parts.len());
        let mut end = 0usize;
        for (i, part) in parts.iter().enumerate() {
            let part_fields = part.fields();
            if part_fields != fields {
                let list = |fields: &[Field]| {
                    fields.iter().map(Field::to_string).collect::<Vec<_>>().join(", ")
                };
                return Err(Error::field(format!(
                    "dataset {i} of a ConcatDataset has the fields ({}), but dataset 0 has ({}); they must be equal",
                    list(&part_fields),
                    list(&fields)
                )));
            }
            end = end.checked_add(part.len()).ok_or_else(|| {
                Error::usage("the datasets of a ConcatDataset have too many samples to count")
            })?;
            ends.push(end);
        }
        Ok(ConcatDataset { parts, ends, fields })
    }
}

impl ConcatDataset {
    /// A sampler that mixes the datasets; see [`MixSampler`].
    ///
    /// # Errors
    /// Those of [`MixSampler::new`].
    pub fn mix(&self, weights: &[f64], num_samples: usize, seed: u64) -> Result<MixSampler> {
        let lengths: Vec<usize> = self.parts.iter().map(|part| part.len()).collect();
        MixSampler::new(&lengths, weights, num_samples, seed)
    }

    /// The dataset that contains sample `index`, and the index there.
    fn part(&self, index: usize) -> Option<(&dyn Dataset, usize)> {
        let part = self.ends.partition_point(|&end| end <= index);
        let start = if part == 0 { 0 } else { self.ends[part - 1] };
        self.parts.get(part).map(|dataset| (&**dataset, index - start))
    }
}

impl Dataset for ConcatDataset {
    fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn fields(&self) -> Vec<Field> {
        self.fields.clone()
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        match self.part(index) {
            Some((dataset, index)) => dataset.read(index, sample),
            None => Err(Error::usage(format!(
                "there is no sample {index}; the datasets have {}",
                self.len()
            ))),
        }
    }

    fn prefetch(&self, index: usize, epoch: u64) {
        if let Some((dataset, index)) = self.part(index) {
            dataset.prefetch(index, epoch);
        }
    }

    fn origin(&self, index: usize) -> Option<String> {
        let (dataset, index) = self.part(index)?;
        dataset.origin(index)
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("concat", (self.parts.len() as u64).to_le_bytes());
        self.parts.iter().try_for_each(|part| part.fingerprint(fingerprint))
    }
}
