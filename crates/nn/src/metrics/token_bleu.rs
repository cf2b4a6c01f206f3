//! [`TokenBleu`]: BLEU of token ids, counted on the device.

use fulmen_tensor::{AsTensor, DType, Tensor};

use super::labels::count_all;
use super::{Bleu, Metric, MetricState, Value};
use crate::library::live;

/// [`Bleu`] of token ids with one reference each, as part of a step: the output of a model is
/// compared on the device, over all devices and processes.
///
/// N-grams have up to four tokens. The tokens are the tokenizer's, so scores of different
/// tokenizers are not comparable. For scores of words, decode the texts and compare those.
///
/// ```
/// use fulmen_nn::metrics::TokenBleu;
/// use fulmen_tensor::Tensor;
///
/// // 0 ends a text.
/// let candidates = Tensor::from_slice(&[7i32, 3, 3, 9, 1, 0], [1, 6]);
/// let references = Tensor::from_slice(&[7i32, 3, 3, 9, 2, -100, -100], [1, 7]);
/// let bleu = TokenBleu::new([0]).update(&candidates, &references).eval()?.compute();
/// assert!((bleu.scalar().unwrap_or(0.0) - 0.6687).abs() < 1e-4);
/// # Ok::<(), fulmen_nn::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct TokenBleu {
    ends: Vec<i32>,
    smooth: bool,
}

/// The longest n-grams, in tokens.
const N_GRAM: usize = 4;

impl TokenBleu {
    /// Texts end before the first of these tokens, or before the first negative number.
    pub fn new(ends: impl Into<Vec<i32>>) -> TokenBleu {
        TokenBleu { ends: ends.into(), smooth: false }
    }

    /// Like [`Bleu::smooth`].
    pub fn smooth(mut self, smooth: bool) -> TokenBleu {
        self.smooth = smooth;
        self
    }

    /// The state of a batch: integers `[batch, length]` and their references `[batch, other
    /// length]`. Poisoned if shapes or dtypes are invalid.
    #[track_caller]
    pub fn update(&self, candidates: impl AsTensor, references: impl AsTensor) -> MetricState {
        MetricState::record(self.clone(), "TokenBleu", || {
            let candidates = candidates.as_tensor();
            let references = references.as_tensor();
            live(&[candidates, references])?;
            let is_token_matrix = |x: &Tensor| x.rank() == 2 && x.dtype().is_integer();
            if !is_token_matrix(candidates)
                || !is_token_matrix(references)
                || candidates.size(0) != references.size(0)
            {
                let candidates = candidates.ty();
                let references = references.ty();
                return Err(format!(
                    "needs integers [batch, length] and [batch, other length], got {candidates} and {references}"
                )
                .into());
            }
            Ok((vec![candidates.clone(), references.clone()], vec![candidates.size(0)]))
        })
    }

    /// True at the tokens before the end, for samples whose mask is true.
    fn inside(&self, ids: &Tensor, mask: &Tensor) -> Tensor {
        let ends = self.ends.iter().fold(ids.lt(0.0), |ends, &id| ends.or(ids.eq(f64::from(id))));
        ends.cumsum(1).eq(0.0).and(mask.unsqueeze(1))
    }
}

impl Metric for TokenBleu {
    fn statistics(&self, inputs: &[Tensor], mask: &Tensor) -> Vec<Tensor> {
        // Padded at the end, so that no text is shorter than an n-gram.
        let padded = inputs.iter().map(|ids| {
            let padding = Tensor::full(DType::I32, [ids.size(0), N_GRAM], -1.0);
            Tensor::concatenate(&[&ids.to_dtype(DType::I32), &padding], 1)
        });
        let [candidates, references] = &padded.collect::<Vec<_>>()[..] else { return Vec::new() };
        let [in_candidate, in_reference] =
            [candidates, references].map(|ids| self.inside(ids, mask));
        // Whether the n-grams of the candidate equal those that start at the positions of other
        // tokens.
        let same = |others: &Tensor, inside: &Tensor| {
            let equal = candidates.unsqueeze(2).eq(others.unsqueeze(1));
            equal.and(in_candidate.unsqueeze(2)).and(inside.unsqueeze(1))
        };
        let tokens = [same(references, &in_reference), same(candidates, &in_candidate)];
        let mut grams = tokens.clone();
        let mut matches = Vec::new();
        let mut possible = Vec::new();
        for n in 1..=N_GRAM {
            if n > 1 {
                for (grams, tokens) in grams.iter_mut().zip(&tokens) {
                    let [rows, columns] = [1, 2].map(|axis| tokens.size(axis) + 1 - n);
                    let last = tokens.narrow(1, n - 1, rows).narrow(2, n - 1, columns);
                    *grams = grams.narrow(1, 0, rows).narrow(2, 0, columns).and(last);
                }
            }
            let [reference_matches, candidate_matches] = &grams;
            let starts = candidate_matches.size(1);
            let position = Tensor::arange(DType::I32, starts);
            let earlier = position.unsqueeze(0).lt(position.unsqueeze(1));
            let count = |mask: &Tensor| mask.to_dtype(DType::I32).sum(2);
            // The third occurrence matches if the reference has three.
            let is_match = count(&candidate_matches.and(earlier)).lt(count(reference_matches));
            matches.push(count_all(&is_match));
            possible.push(count_all(&in_candidate.narrow(1, n - 1, starts)));
        }
        let stack = |counts: &[Tensor]| Tensor::stack(counts, 0);
        vec![
            stack(&matches),
            stack(&possible),
            stack(&[count_all(&in_candidate), count_all(&in_reference)]),
        ]
    }

    fn compute(&self, sums: &[Vec<f64>]) -> Value {
        let counts: Vec<Vec<u64>> =
            sums.iter().map(|sums| sums.iter().map(|&count| count as u64).collect()).collect();
        Value::Scalar(match &counts[..] {
            [matches, possible, lengths] => {
                Bleu::from_counts(matches, possible, lengths).smooth(self.smooth).compute()
            }
            _ => f64::NAN,
        })
    }
}
