//! Weighted orders: some datasets, or some samples, are read more often than others.
//!
//! Out of scope: streams, which a sampler cannot order (`stream`).

use fulmen_durable::messages::quantity;

use crate::dataset::random::{Purpose, generator, shuffle, unit};
use crate::{Error, Replica, Result, Sampler};

/// Weighted random draws.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    weights: Vec<f64>,
    /// The cumulative weights.
    sums: Vec<f64>,
}

impl Weights {
    /// Makes the weights of `count` items. `noun` names the items in messages.
    pub(crate) fn new(name: &str, weights: &[f64], count: usize, noun: &str) -> Result<Weights> {
        if weights.len() != count {
            return Err(Error::usage(format!(
                "{name}: {} for {count} {noun}; pass one for each",
                quantity(weights.len(), "weight")
            )));
        }
        if let Some(index) = weights.iter().position(|weight| !weight.is_finite() || *weight < 0.0)
        {
            return Err(Error::usage(format!(
                "{name}: weight {index} is {}; weights must be finite and not negative",
                weights[index]
            )));
        }
        let mut sum = 0.0;
        let sums: Vec<f64> = weights
            .iter()
            .map(|weight| {
                sum += weight;
                sum
            })
            .collect();
        if sum > 0.0 && sum.is_finite() {
            Ok(Weights { weights: weights.to_vec(), sums })
        } else {
            Err(Error::usage(format!(
                "{name}: the weights add up to {sum}; the sum must be positive and finite"
            )))
        }
    }

    /// The index that a number in `[0, 1)` selects.
    pub(crate) fn draw(&self, unit: f64) -> usize {
        let total = self.sums.last().copied().unwrap_or(0.0);
        let index = self.sums.partition_point(|&sum| sum <= unit * total);
        // The index can be too large only if the product is rounded up to the total.
        index.min(self.weights.iter().rposition(|&weight| weight > 0.0).unwrap_or(0))
    }

    pub(crate) fn get(&self) -> &[f64] {
        &self.weights
    }
}

/// Mixes the parts of a [`ConcatDataset`](crate::ConcatDataset): the weights decide which part each
/// sample of an epoch comes from.
///
/// Within a part, all samples are read once before any of them is read again. They are then read in
/// a different order. Each epoch starts with a new order. The order depends only on the seed and
/// the epoch.
///
/// ```
/// use fulmen_data::{ConcatDataset, DataLoader, TensorDataset};
///
/// let part = |value: u8, count: usize| TensorDataset::builder().array("x", [count], vec![value; count]).build();
/// let both = ConcatDataset::new(vec![Box::new(part(0, 1000)?), Box::new(part(1, 10)?)])?;
/// let sampler = both.mix(&[0.5, 0.5], 400, 42)?;
/// let loader = DataLoader::builder(both).sampler(sampler).batch_size(400).build()?;
/// let batch = loader.epoch(0).next().ok_or("no batch")??;
/// let ones = batch.values::<u8>(0)?.iter().filter(|&&x| x == 1).count();
/// assert!((150..250).contains(&ones));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MixSampler {
    lengths: Vec<usize>,
    weights: Weights,
    num_samples: usize,
    seed: u64,
}

impl MixSampler {
    /// A sampler for consecutive parts of these lengths, with a weight for each part. An epoch has
    /// `num_samples` samples. The weights need not add up to 1.
    ///
    /// # Errors
    /// The number of weights differs from the number of parts; weights that are negative, infinite
    /// or all 0; an empty part with a positive weight.
    pub fn new(
        lengths: &[usize],
        weights: &[f64],
        num_samples: usize,
        seed: u64,
    ) -> Result<MixSampler> {
        let weights = Weights::new("MixSampler", weights, lengths.len(), "datasets")?;
        if let Some(part) =
            (0..lengths.len()).find(|&part| lengths[part] == 0 && weights.get()[part] > 0.0)
        {
            return Err(Error::usage(format!(
                "MixSampler: dataset {part} is empty; give it the weight 0 or leave it out"
            )));
        }
        if lengths.iter().try_fold(0usize, |sum, &len| sum.checked_add(len)).is_none() {
            return Err(Error::usage("MixSampler: the datasets have too many samples to count"));
        }
        Ok(MixSampler { lengths: lengths.to_vec(), weights, num_samples, seed })
    }
}

impl Sampler for MixSampler {
    fn num_samples(&self, _len: usize, _: Replica) -> usize {
        self.num_samples
    }

    fn order(&self, epoch: u64, _len: usize, _: Replica) -> Vec<usize> {
        let starts: Vec<usize> = self
            .lengths
            .iter()
            .scan(0, |end, len| Some(std::mem::replace(end, *end + len)))
            .collect();
        // The samples of each part that remain in its current pass, and the number of passes.
        let mut remaining: Vec<(Vec<usize>, u64)> = vec![(Vec::new(), 0); self.lengths.len()];
        let mut random = generator(Purpose::Mix, [self.seed, epoch, u64::MAX]);
        let mut order = Vec::with_capacity(self.num_samples);
        while order.len() < self.num_samples {
            let part = self.weights.draw(unit(&mut random));
            let (rest, passes) = &mut remaining[part];
            if rest.is_empty() {
                *rest = (starts[part]..starts[part] + self.lengths[part]).collect();
                shuffle(Purpose::Mix, [self.seed, epoch, (part as u64) << 40 | *passes], rest);
                *passes += 1;
            }
            order.extend(rest.pop());
        }
        order
    }

    fn describe(&self) -> String {
        let weights = self.weights.get();
        format!("MixSampler(lengths {:?}, weights {weights:?}, seed {})", self.lengths, self.seed)
    }
}

/// Draws each sample of an epoch by its own weight, with replacement (PyTorch's
/// `WeightedRandomSampler`). Use it to make rare classes as frequent as others.
///
/// ```
/// use fulmen_data::{Replica, Sampler, WeightedRandomSampler};
///
/// let labels = [0, 0, 0, 0, 0, 0, 0, 1];
/// let sampler = WeightedRandomSampler::balanced(&labels, 1000, 7)?;
/// let order = sampler.order(0, labels.len(), Replica::ONLY);
/// let ones = order.iter().filter(|&&index| labels[index] == 1).count();
/// assert!((400..600).contains(&ones));
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WeightedRandomSampler {
    weights: Weights,
    num_samples: usize,
    seed: u64,
}

impl WeightedRandomSampler {
    /// A sampler with a weight for each sample of the dataset; an epoch draws `num_samples` of
    /// them.
    ///
    /// # Errors
    /// Weights that are negative, infinite or all 0.
    pub fn new(weights: &[f64], num_samples: usize, seed: u64) -> Result<WeightedRandomSampler> {
        let weights = Weights::new("WeightedRandomSampler", weights, weights.len(), "samples")?;
        Ok(WeightedRandomSampler { weights, num_samples, seed })
    }

    /// A sampler that draws all classes equally often. `labels` has the class of each sample.
    ///
    /// # Errors
    /// No labels.
    pub fn balanced<L: Eq + std::hash::Hash>(
        labels: &[L],
        num_samples: usize,
        seed: u64,
    ) -> Result<WeightedRandomSampler> {
        let mut counts = std::collections::HashMap::new();
        labels.iter().for_each(|label| *counts.entry(label).or_insert(0u32) += 1);
        let weights: Vec<f64> = labels.iter().map(|label| 1.0 / f64::from(counts[label])).collect();
        WeightedRandomSampler::new(&weights, num_samples, seed)
    }
}

impl Sampler for WeightedRandomSampler {
    fn num_samples(&self, _len: usize, _: Replica) -> usize {
        self.num_samples
    }

    fn order(&self, epoch: u64, _len: usize, _: Replica) -> Vec<usize> {
        let mut random =
            generator(Purpose::Weighted, [self.seed, epoch, self.weights.get().len() as u64]);
        (0..self.num_samples).map(|_| self.weights.draw(unit(&mut random))).collect()
    }

    fn describe(&self) -> String {
        let weights = self.weights.get();
        // The list of all weights would be too long; a position-weighted sum detects most changes.
        let check: f64 =
            weights.iter().enumerate().map(|(index, weight)| weight * (index + 1) as f64).sum();
        format!(
            "WeightedRandomSampler({} weights, check {check:e}, seed {})",
            weights.len(),
            self.seed
        )
    }
}
