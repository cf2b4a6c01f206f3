//! The order in which an epoch reads the samples.
//!
//! Not here: batches. A sampler knows neither the batch size nor the workers, so neither can change the order.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Decides which samples an epoch reads, and in which order.
///
/// ```
/// use fulmen_data::{DataLoader, Sampler, TensorDataset};
///
/// /// Every second sample, from the back.
/// struct Backwards;
///
/// impl Sampler for Backwards {
///     fn num_samples(&self, len: usize) -> usize {
///         len.div_ceil(2)
///     }
///     fn order(&self, _epoch: u64, len: usize) -> Vec<usize> {
///         (0..len).rev().step_by(2).collect()
///     }
/// }
///
/// let data = TensorDataset::builder().array("x", [5], [0u8, 1, 2, 3, 4]).build()?;
/// let loader = DataLoader::builder(data).batch_size(3).sampler(Backwards).build()?;
/// let batch = loader.epoch(0).next().ok_or("no batch")??;
/// assert_eq!(batch.values::<u8>(0)?, [4, 2, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Sampler: Send + Sync + 'static {
    /// The indices that epoch `epoch` reads from a dataset of `len` samples: [`num_samples`](Sampler::num_samples) of
    /// them, each below `len`. It must be the same for the same arguments, or a run cannot be resumed.
    fn order(&self, epoch: u64, len: usize) -> Vec<usize>;

    /// How many samples an epoch reads from a dataset of `len` samples; all of them unless said otherwise.
    fn num_samples(&self, len: usize) -> usize {
        len
    }
}

/// Reads the samples in the order they have.
#[derive(Clone, Copy, Debug, Default)]
pub struct SequentialSampler;

impl Sampler for SequentialSampler {
    fn order(&self, _epoch: u64, len: usize) -> Vec<usize> {
        (0..len).collect()
    }
}

/// Reads every sample once, in an order that is new in each epoch.
///
/// The order depends on the seed, the epoch and the number of samples, and on nothing else. It is the same on every
/// machine and stays the same in later releases.
///
/// ```
/// use fulmen_data::{RandomSampler, Sampler};
///
/// let sampler = RandomSampler::new(7);
/// assert_eq!(sampler.order(0, 100), RandomSampler::new(7).order(0, 100));
/// assert_ne!(sampler.order(0, 100), sampler.order(1, 100));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RandomSampler {
    seed: u64,
}

impl RandomSampler {
    /// A sampler with this seed.
    pub fn new(seed: u64) -> RandomSampler {
        RandomSampler { seed }
    }
}

impl Sampler for RandomSampler {
    fn order(&self, epoch: u64, len: usize) -> Vec<usize> {
        permutation(Purpose::Epoch, self.seed, epoch, len)
    }
}

/// What a permutation is for. Different purposes give unrelated permutations for the same seed.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    Epoch = 1,
    Split = 2,
}

/// A permutation of `0..len`, uniform over all of them as far as ChaCha8 can tell.
///
/// Fisher-Yates is written out here, and not taken from a crate, because a crate may change how it draws.
pub(crate) fn permutation(purpose: Purpose, seed: u64, epoch: u64, len: usize) -> Vec<usize> {
    let mut key = [0u8; 32];
    for (place, word) in key.chunks_exact_mut(8).zip([seed, epoch, len as u64, purpose as u64]) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let mut random = ChaCha8Rng::from_seed(key);
    let mut order: Vec<usize> = (0..len).collect();
    for last in (1..len).rev() {
        let other = below(&mut random, last as u64 + 1) as usize;
        order.swap(last, other);
    }
    order
}

/// A number below `bound`, each with the same probability (Lemire's multiplication with rejection).
fn below(random: &mut impl RngCore, bound: u64) -> u64 {
    loop {
        let product = u128::from(random.next_u64()) * u128::from(bound);
        // The low half counts how far into its bucket the draw fell; the first 2^64 mod bound of each are one too many.
        if product as u64 >= bound.wrapping_neg() % bound {
            return (product >> 64) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_rejected_where_they_would_be_unfair() {
        /// Hands out the given words in turn.
        struct Words(Vec<u64>);
        impl RngCore for Words {
            fn next_u32(&mut self) -> u32 {
                self.next_u64() as u32
            }
            fn next_u64(&mut self) -> u64 {
                self.0.remove(0)
            }
            fn fill_bytes(&mut self, _: &mut [u8]) {}
        }
        // 2^64 mod 3 = 1: of the 2^64 words exactly one, 0, has to go.
        assert_eq!(below(&mut Words(vec![0, u64::MAX]), 3), 2);
        assert_eq!(below(&mut Words(vec![1]), 3), 0);
        // 2^64 mod 2^63+1 = 2^63-1: almost every second word has to go.
        let bound = (1 << 63) + 1;
        assert_eq!(below(&mut Words(vec![0, 2, u64::MAX]), bound), bound - 1);
    }
}
