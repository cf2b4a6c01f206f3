//! Chooses a few padded lengths, so that there are few shapes to compile and little padding.
//!
//! Out of scope: batches of several shapes, which the loader makes.

use std::fmt;

use super::document_reader::in_order;
use fulmen_data::{Error, Result, Source};
use fulmen_durable::messages::quantity;

/// Padded lengths, and the padding that they cause. To make batches of these lengths, pass
/// `Buckets::new(&lengths, boundaries.lengths())` to a loader (see
/// [`Buckets`](fulmen_data::Buckets)).
///
/// ```
/// use fulmen_text::{BucketBoundaries, choose_boundaries};
///
/// let lengths = [3, 3, 4, 4, 4, 9, 10];
/// let best = choose_boundaries(&lengths, 2)?;
/// assert_eq!(best.lengths(), [4, 10]);
/// assert_eq!(best.to_string(), "2 lengths, 7.5 % padding: up to 4: 5 samples, 10.0 %; up to 10: 2 samples, 5.0 %");
/// assert!(best.padding_share() < BucketBoundaries::new(&lengths, &[10])?.padding_share());
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketBoundaries {
    lengths: Vec<usize>,
    /// For each boundary, the number of samples and the number of their tokens.
    counts: Vec<(u64, u64)>,
}

impl BucketBoundaries {
    /// Computes the padding of samples of these lengths. `boundaries` are the padded lengths.
    ///
    /// # Errors
    /// Boundaries that do not ascend from at least 1; a sample longer than the last boundary.
    pub fn new(lengths: &[usize], boundaries: &[usize]) -> Result<BucketBoundaries> {
        if boundaries.is_empty()
            || boundaries[0] == 0
            || boundaries.windows(2).any(|pair| pair[0] >= pair[1])
        {
            return Err(Error::usage(format!(
                "the boundaries {boundaries:?} do not ascend, starting from at least 1"
            )));
        }
        let mut counts = vec![(0u64, 0u64); boundaries.len()];
        for (index, &length) in lengths.iter().enumerate() {
            let bucket = boundaries.partition_point(|&boundary| boundary < length);
            let Some((samples, tokens)) = counts.get_mut(bucket) else {
                return Err(Error::usage(format!(
                    "sample {index} has {length} tokens, more than the last boundary, {}; add a longer one, or \
                     truncate the texts",
                    boundaries[boundaries.len() - 1]
                )));
            };
            *samples += 1;
            *tokens += length as u64;
        }
        Ok(BucketBoundaries { lengths: boundaries.to_vec(), counts })
    }

    /// The padded lengths, ascending.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The number of samples padded to each length.
    pub fn samples(&self) -> Vec<u64> {
        self.counts.iter().map(|(samples, _)| *samples).collect()
    }

    /// The fraction of padding among all positions; 0 if there are no samples.
    pub fn padding_share(&self) -> f64 {
        let padded: u128 = (0..self.lengths.len()).map(|bucket| self.padded(bucket)).sum();
        let tokens: u128 = self.counts.iter().map(|(_, tokens)| u128::from(*tokens)).sum();
        share(padded, tokens)
    }

    /// The number of positions in all samples of a bucket, including padding.
    fn padded(&self, bucket: usize) -> u128 {
        self.lengths[bucket] as u128 * u128::from(self.counts[bucket].0)
    }
}

fn share(padded: u128, tokens: u128) -> f64 {
    if padded == 0 { 0.0 } else { (padded - tokens) as f64 / padded as f64 }
}

impl fmt::Display for BucketBoundaries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {:.1} % padding:",
            quantity(self.lengths.len(), "length"),
            100.0 * self.padding_share()
        )?;
        for (bucket, (length, (samples, tokens))) in
            self.lengths.iter().zip(&self.counts).enumerate()
        {
            let separator = if bucket == 0 { "" } else { ";" };
            let share = 100.0 * share(self.padded(bucket), u128::from(*tokens));
            let samples = quantity(samples, "sample");
            write!(f, "{separator} up to {length}: {samples}, {share:.1} %")?;
        }
        Ok(())
    }
}

/// Chooses at most `count` padded lengths with the least padding. The last one is the length of the
/// longest sample.
///
/// The result is optimal. It is computed by dynamic programming over the `d` distinct lengths, in
/// `O(count · d log d)`. For multiples of a number, which suit a TPU, round the lengths up first:
/// `lengths.iter().map(|length| length.next_multiple_of(64))`.
///
/// # Errors
/// No samples, a count of 0, or only samples of length 0.
pub fn choose_boundaries(lengths: &[usize], count: usize) -> Result<BucketBoundaries> {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    if count == 0 || sorted.last().is_none_or(|&longest| longest == 0) {
        return Err(Error::usage(format!(
            "{count} boundaries were to be chosen for {} samples, the longest of which has {} tokens; each must be at \
             least 1",
            lengths.len(),
            sorted.last().unwrap_or(&0)
        )));
    }
    // The distinct lengths, each with the cumulative number of samples. A boundary at 0 is useless.
    let mut steps: Vec<(u64, u64)> = Vec::new();
    for (index, &length) in sorted.iter().enumerate() {
        match steps.last_mut() {
            Some((last, samples)) if *last == length.max(1) as u64 => *samples = index as u64 + 1,
            _ => steps.push((length.max(1) as u64, index as u64 + 1)),
        }
    }
    let chosen = cheapest(&steps, count.min(steps.len()));
    BucketBoundaries::new(lengths, &chosen)
}

/// The boundaries with the smallest sum of padded lengths. `steps` has the distinct lengths and the
/// cumulative numbers of samples.
fn cheapest(steps: &[(u64, u64)], count: usize) -> Vec<usize> {
    // costs[last] is the minimum for the samples up to `last`, with the number of boundaries added
    // so far and the last boundary at `last`.
    let mut costs: Vec<u128> =
        steps.iter().map(|(length, samples)| u128::from(*length) * u128::from(*samples)).collect();
    let mut predecessors: Vec<Vec<u32>> = Vec::new();
    for _ in 1..count {
        let mut row = Row {
            steps,
            costs: &costs,
            next: costs.clone(),
            previous: vec![u32::MAX; steps.len()],
        };
        row.solve(1..steps.len(), 0, steps.len() - 1);
        let Row { next, previous, .. } = row;
        costs = next;
        predecessors.push(previous);
    }
    let mut last = steps.len() - 1;
    let mut chosen = vec![steps[last].0 as usize];
    for previous in predecessors.iter().rev() {
        // Another boundary is added only if it reduces the padding.
        if previous[last] != u32::MAX {
            last = previous[last] as usize;
            chosen.push(steps[last].0 as usize);
        }
    }
    chosen.reverse();
    chosen
}

/// Computes the costs with one more boundary, for each position of the last boundary.
struct Row<'a> {
    steps: &'a [(u64, u64)],
    costs: &'a [u128],
    next: Vec<u128>,
    previous: Vec<u32>,
}

impl Row<'_> {
    /// For each last boundary in `range`, finds the best previous boundary, which is in
    /// `low..=high`. As the last boundary moves forward, the best previous one never moves back,
    /// because the costs satisfy the quadrangle inequality. The result in the middle of the range
    /// therefore bounds both halves.
    fn solve(&mut self, range: std::ops::Range<usize>, low: usize, high: usize) {
        if range.is_empty() {
            return;
        }
        let middle = range.start + range.len() / 2;
        let (length, samples) = self.steps[middle];
        let mut best = low;
        let mut lowest = u128::MAX;
        for previous in low..=high.min(middle - 1) {
            let cost = self.costs[previous]
                + u128::from(length) * u128::from(samples - self.steps[previous].1);
            if cost < lowest {
                (best, lowest) = (previous, cost);
            }
        }
        if lowest < self.next[middle] {
            (self.next[middle], self.previous[middle]) = (lowest, best as u32);
        }
        self.solve(range.start..middle, low, best);
        self.solve(middle + 1..range.end, best, high);
    }
}

/// Counts the tokens of each item with `threads` threads.
///
/// # Errors
/// The error of the first item that cannot be read.
pub fn token_lengths<S>(source: &S, threads: usize) -> Result<Vec<usize>>
where
    S: Source<Item: AsRef<[u32]>>,
{
    let mut lengths = Vec::with_capacity(source.len());
    in_order(
        source,
        threads,
        |item| item.as_ref().len(),
        |_, length| {
            lengths.push(length);
            Ok(())
        },
    )?;
    Ok(lengths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fulmen_data::SampleRng;

    /// The minimum over all choices of boundaries from the lengths.
    fn lowest_cost(lengths: &[usize], distinct: &[usize], count: usize) -> u128 {
        let mut best = u128::MAX;
        for choice in 0u32..1 << distinct.len() {
            let boundaries: Vec<usize> = (0..distinct.len())
                .filter(|bit| choice >> bit & 1 == 1)
                .map(|bit| distinct[bit])
                .collect();
            if boundaries.len() <= count && boundaries.last() == distinct.last() {
                best = best.min(positions(&BucketBoundaries::new(lengths, &boundaries).unwrap()));
            }
        }
        best
    }

    fn positions(boundaries: &BucketBoundaries) -> u128 {
        (0..boundaries.lengths.len()).map(|bucket| boundaries.padded(bucket)).sum()
    }

    #[test]
    fn the_choice_is_the_best_of_all() {
        let mut random = SampleRng::new(2, 0, 0);
        for round in 0..200 {
            let longest = random.in_range(1..12);
            let lengths: Vec<usize> = (0..random.in_range(1..40))
                // In every second round, the distribution is skewed like that of real texts.
                .map(|_| {
                    if round % 2 == 0 {
                        random.below(longest + 1)
                    } else {
                        longest / random.in_range(1..9)
                    }
                })
                .collect();
            let mut distinct: Vec<usize> = lengths.iter().map(|&length| length.max(1)).collect();
            distinct.sort_unstable();
            distinct.dedup();
            if lengths.iter().all(|&length| length == 0) {
                continue;
            }
            for count in 1..6 {
                let chosen = choose_boundaries(&lengths, count).unwrap();
                assert!(chosen.lengths().len() <= count);
                assert_eq!(
                    positions(&chosen),
                    lowest_cost(&lengths, &distinct, count),
                    "{lengths:?} into {count}"
                );
                assert_eq!(chosen.samples().iter().sum::<u64>(), lengths.len() as u64);
            }
        }
    }

    #[test]
    fn what_cannot_be_chosen_is_refused() {
        for (lengths, count) in [(&[][..], 2), (&[0, 0], 2), (&[3], 0)] {
            assert!(choose_boundaries(lengths, count).unwrap_err().is_usage());
        }
        for boundaries in [&[][..], &[0, 4], &[4, 4], &[4, 2]] {
            assert!(
                BucketBoundaries::new(&[1], boundaries)
                    .unwrap_err()
                    .to_string()
                    .contains("do not ascend")
            );
        }
        let error = BucketBoundaries::new(&[1, 9], &[4]).unwrap_err();
        assert!(error.to_string().contains("sample 1 has 9 tokens"), "{error}");
    }
}
