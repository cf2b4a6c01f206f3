//! Random numbers for one sample in one epoch, for example for its augmentation.
//!
//! Out of scope: the order of the samples (`sampler`), and random numbers on the device
//! (`fulmen_tensor::random`).

use std::ops::Range;

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

/// Random numbers that depend only on a seed, an epoch and a sample's index.
///
/// They do not depend on threads, machines or the draws of other samples, and stay the same in
/// [`Sample::random`](crate::Sample::random) returns those of the current sample.
///
/// ```
/// use fulmen_data::SampleRng;
///
/// let draws = |index| {
///     let mut random = SampleRng::new(7, 0, index);
///     (random.uniform(0.08, 1.0), random.below(10), random.bernoulli(0.5))
/// };
/// assert_eq!(draws(3), draws(3));
/// assert_ne!(draws(3), draws(4));
/// ```
#[derive(Debug)]
pub struct SampleRng(ChaCha8Rng);

/// The copy draws the same numbers.
impl Clone for SampleRng {
    fn clone(&self) -> SampleRng {
        let mut copy = ChaCha8Rng::from_seed(self.0.get_seed());
        copy.set_word_pos(self.0.get_word_pos());
        SampleRng(copy)
    }
}

impl SampleRng {
    /// The random numbers of sample `index` in epoch `epoch`.
    pub fn new(seed: u64, epoch: u64, index: u64) -> SampleRng {
        SampleRng(generator(Purpose::Sample, [seed, epoch, index]))
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A uniform number in `[low, high)`; `low` if the two are equal.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * unit(&mut self.0)
    }

    /// A uniform integer from 0 to `bound - 1`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        below(&mut self.0, bound as u64) as usize
    }

    /// A uniform integer in the range; its start if the range is empty.
    pub fn in_range(&mut self, range: Range<usize>) -> usize {
        range.start + self.below(range.len())
    }

    /// Shuffles the values uniformly.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        shuffle_by(&mut self.0, values);
    }

    /// True with this probability.
    pub fn bernoulli(&mut self, probability: f64) -> bool {
        self.uniform(0.0, 1.0) < probability
    }

    /// A draw from the normal distribution with mean 0 and variance 1 (Box and Muller's transform).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform(0.0, 1.0)).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform(0.0, 1.0)).cos()
    }
}

/// What random numbers are used for. Different purposes give unrelated numbers for the same seed.
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "hidden: it is shared with the crates that read formats")]
pub enum Purpose {
    Epoch = 1,
    Split = 2,
    Sample = 3,
    Shuffle = 4,
    Mix = 5,
    Replace = 6,
    Folds = 7,
    Weighted = 8,
    Shards = 16,
    ShardOrder = 17,
}

/// A generator that depends on the purpose and three numbers.
pub fn generator(purpose: Purpose, numbers: [u64; 3]) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    let words = numbers.into_iter().chain([purpose as u64]);
    for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// A uniform permutation of `0..len`, generated with ChaCha8.
pub fn permutation(purpose: Purpose, seed: u64, epoch: u64, len: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    shuffle(purpose, [seed, epoch, len as u64], &mut order);
    order
}

/// Shuffles the values uniformly.
pub fn shuffle<T>(purpose: Purpose, numbers: [u64; 3], values: &mut [T]) {
    shuffle_by(&mut generator(purpose, numbers), values);
}

/// The Fisher–Yates shuffle. It is implemented here because a crate may change how it draws.
fn shuffle_by<T>(random: &mut impl Rng, values: &mut [T]) {
    for last in (1..values.len()).rev() {
        let other = below(random, last as u64 + 1) as usize;
        values.swap(last, other);
    }
}

/// A number in `[0, 1)` with 53 random bits, the precision of an `f64`.
pub fn unit(random: &mut impl Rng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// A uniform number below `bound` (Lemire's multiplication with rejection); 0 if `bound` is 0.
pub fn below(random: &mut impl Rng, bound: u64) -> u64 {
    if bound == 0 {
        return 0;
    }
    loop {
        let product = u128::from(random.next_u64()) * u128::from(bound);
        // The low half is the offset of the draw in its bucket. The first 2^64 mod bound offsets
        // are rejected.
        if product as u64 >= bound.wrapping_neg() % bound {
            return (product >> 64) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use chacha20::rand_core::TryRng;

    use super::*;

    #[test]
    fn a_copy_draws_the_same_numbers() {
        let mut random = SampleRng::new(1, 2, 3);
        // More than one block of the generator, and not a whole number of blocks.
        for drawn in 0..41 {
            let mut copy = random.clone();
            let numbers = [copy.next_u64(), copy.next_u64()];
            assert_eq!(random.clone().next_u64(), numbers[0], "after {drawn}");
            assert_eq!(random.next_u64(), numbers[0], "after {drawn}");
        }
    }

    #[test]
    fn draws_are_rejected_where_they_would_be_unfair() {
        /// Returns the given words in turn.
        struct Words(Vec<u64>);
        impl TryRng for Words {
            type Error = Infallible;
            fn try_next_u32(&mut self) -> Result<u32, Infallible> {
                Ok(self.0.remove(0) as u32)
            }
            fn try_next_u64(&mut self) -> Result<u64, Infallible> {
                Ok(self.0.remove(0))
            }
            fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), Infallible> {
                Ok(())
            }
        }
        // 2^64 mod 3 = 1: exactly one of the 2^64 words, 0, is rejected.
        assert_eq!(below(&mut Words(vec![0, u64::MAX]), 3), 2);
        assert_eq!(below(&mut Words(vec![1]), 3), 0);
        // 2^64 mod 2^63+1 = 2^63-1: almost every second word is rejected.
        let bound = (1 << 63) + 1;
        assert_eq!(below(&mut Words(vec![0, 2, u64::MAX]), bound), bound - 1);
    }
}
