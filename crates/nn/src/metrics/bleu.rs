//! [`Bleu`], counted on the host, for sequences of any length.

use std::collections::HashMap;
use std::hash::Hash;

/// BLEU of a corpus (Papineni et al. 2002): the geometric mean of the precisions of n-grams with up
/// to four tokens, clipped by their counts in the references, times a penalty for candidates
/// shorter than the closest reference.
///
/// Tokens can be anything that can be compared: words, or token ids from a model. The score is
/// between 0 and 1.
///
/// ```
/// use fulmen_nn::metrics::Bleu;
///
/// let words = |text: &'static str| text.split(' ').collect::<Vec<_>>();
/// let mut bleu = Bleu::new();
/// bleu.update(&words("the cat is on the mat"), &[words("there is a cat on the mat"), words("a cat is on the mat")]);
/// assert!((bleu.compute() - 0.7598).abs() < 1e-4);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Bleu {
    smooth: bool,
    n_gram: usize,
    /// For each n-gram length that occurs in a candidate: the matching n-grams, and all of them.
    matches: Vec<u64>,
    possible: Vec<u64>,
    candidate: u64,
    reference: u64,
}

impl Bleu {
    /// With n-grams of up to four tokens, without smoothing.
    pub fn new() -> Bleu {
        Bleu {
            smooth: false,
            n_gram: 4,
            matches: Vec::new(),
            possible: Vec::new(),
            candidate: 0,
            reference: 0,
        }
    }

    /// A score with these counts: `matches` and `possible` by n-gram length, and the lengths of all
    /// candidates and of their references.
    pub(super) fn from_counts(matches: &[u64], possible: &[u64], lengths: &[u64]) -> Bleu {
        let length = |index: usize| lengths.get(index).copied().unwrap_or(0);
        let candidate = length(0);
        let reference = length(1);
        let matches = matches.to_vec();
        let possible = possible.to_vec();
        Bleu { smooth: false, n_gram: matches.len(), matches, possible, candidate, reference }
    }

    /// The longest n-grams, at least 1. Resets all counts.
    pub fn n_gram(self, n: usize) -> Bleu {
        Bleu { smooth: self.smooth, n_gram: n.max(1), ..Bleu::new() }
    }

    /// Whether to add 1 to both counts of n-grams longer than one token (Lin and Och 2004), for
    /// short texts without matches of long n-grams.
    pub fn smooth(mut self, smooth: bool) -> Bleu {
        self.smooth = smooth;
        self
    }

    /// Makes room for the counts of n-grams of up to `longest` tokens.
    fn extend_to(&mut self, longest: usize) {
        let longest = longest.max(self.matches.len());
        self.matches.resize(longest, 0);
        self.possible.resize(longest, 0);
    }

    /// Counts a candidate and its references. Without a reference, nothing is counted.
    pub fn update<T: Eq + Hash, R: AsRef<[T]>>(&mut self, candidate: &[T], references: &[R]) {
        let length = candidate.len() as u64;
        let lengths = references.iter().map(|reference| reference.as_ref().len() as u64);
        // Among equally close references, the shorter one.
        let Some(closest) = lengths.min_by_key(|&other| (other.abs_diff(length), other)) else {
            return;
        };
        self.candidate += length;
        self.reference += closest;
        let longest = self.n_gram.min(candidate.len());
        self.extend_to(longest);
        for n in 1..=longest {
            let mut max_counts: HashMap<&[T], u64> = HashMap::new();
            for reference in references {
                for (gram, count) in grams(reference.as_ref(), n) {
                    let max = max_counts.entry(gram).or_default();
                    *max = count.max(*max);
                }
            }
            for (gram, count) in grams(candidate, n) {
                self.matches[n - 1] += count.min(max_counts.get(gram).copied().unwrap_or(0));
                self.possible[n - 1] += count;
            }
        }
    }

    /// Adds the counts of another score, for n-gram lengths that both count.
    pub fn merge(&mut self, other: &Bleu) {
        self.extend_to(self.n_gram.min(other.matches.len()));
        for (own, other) in
            [(&mut self.matches, &other.matches), (&mut self.possible, &other.possible)]
        {
            own.iter_mut().zip(other).for_each(|(own, other)| *own += other);
        }
        self.candidate += other.candidate;
        self.reference += other.reference;
    }

    /// The score of all counts; 0 if some n-gram length has no match.
    pub fn compute(&self) -> f64 {
        // N-grams longer than any candidate count as 0 of 0, which smoothing makes 1 of 1.
        if self.matches.is_empty() || self.matches.len() < self.n_gram && !self.smooth {
            return 0.0;
        }
        let mut log = 0.0;
        for (n, (&matches, &possible)) in self.matches.iter().zip(&self.possible).enumerate() {
            let smoothing = if self.smooth && n > 0 { 1.0 } else { 0.0 };
            if matches as f64 + smoothing == 0.0 {
                return 0.0;
            }
            log += ((matches as f64 + smoothing) / (possible as f64 + smoothing)).ln()
                / self.n_gram as f64;
        }
        let candidate = self.candidate as f64;
        let reference = self.reference as f64;
        let penalty = if candidate > reference { 0.0 } else { 1.0 - reference / candidate };
        (log + penalty).exp()
    }
}

impl Default for Bleu {
    fn default() -> Bleu {
        Bleu::new()
    }
}

/// The n-grams of a text and their counts.
fn grams<T: Eq + Hash>(text: &[T], n: usize) -> HashMap<&[T], u64> {
    let mut counts = HashMap::new();
    for gram in text.windows(n) {
        *counts.entry(gram).or_default() += 1;
    }
    counts
}
