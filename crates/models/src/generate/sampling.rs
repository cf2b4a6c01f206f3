//! Which tokens can be sampled, and with which probability: `temperature`, `top_k`, `top_p` and
//! `min_p`.

use fulmen_tensor::{DType, Tensor};

use super::GenerationConfig;

impl GenerationConfig {
    /// The logits `[rows, vocabulary]` that tokens are sampled from. Excluded tokens get −∞.
    pub(super) fn sampling_logits(&self, logits: &Tensor) -> Tensor {
        let mut logits = logits / self.temperature;
        let vocabulary = logits.size(-1);
        if (1..vocabulary).contains(&self.top_k) {
            let (largest, likeliest) = logits.topk(self.top_k);
            let cutoff = largest.narrow(-1, self.top_k - 1, 1);
            let excluded = logits.lt(cutoff).and(is_listed(&likeliest, vocabulary).not());
            logits = logits.masked_fill(excluded, f64::NEG_INFINITY);
        }
        if self.top_p < 1.0 {
            logits = logits.masked_fill(outside_nucleus(&logits, self.top_p), f64::NEG_INFINITY);
        }
        if self.min_p > 0.0 {
            let probabilities = logits.softmax(-1);
            let cutoff = probabilities.max_keepdim(-1) * self.min_p;
            let likeliest = logits.argmax_keepdim(-1);
            let excluded = probabilities.lt(cutoff).and(is_listed(&likeliest, vocabulary).not());
            logits = logits.masked_fill(excluded, f64::NEG_INFINITY);
        }
        logits
    }
}

/// Which tokens of the vocabulary are in lists i32 `[rows, count]`, whose tokens differ: bool
/// `[rows, vocabulary]`. The likeliest tokens remain by their number: XLA may compute a logit again
/// and round it below the cutoff.
fn is_listed(tokens: &Tensor, vocabulary: usize) -> Tensor {
    let ones = Tensor::ones(DType::F32, tokens.shape());
    Tensor::zeros(DType::F32, [tokens.size(0), vocabulary]).scatter_add(1, tokens, ones).gt(0.0)
}

/// The unlikeliest tokens, which have a total probability of at most 1 − `top_p`. The likeliest one
/// is never among them. Of equally likely tokens, some can be among them and others not.
fn outside_nucleus(logits: &Tensor, top_p: f64) -> Tensor {
    let (sorted, order) = logits.sort(-1, false);
    let cumulative = sorted.softmax(-1).cumsum(-1);
    let last = logits.size(-1) - 1;
    let rank = order.argsort(-1, false);
    cumulative.le(1.0 - top_p).gather(-1, &rank).and(rank.lt(last as f64))
}

#[cfg(test)]
mod tests {
    use fulmen_tensor::{Literal, Runtime, random};

    use super::*;

    #[test]
    fn what_is_drawn_is_among_the_likeliest() {
        // Probabilities of about 0.64, 0.24, 0.09 and 0.03, and a token that never comes.
        let logits = Tensor::from_slice(&[1.0f32, 3.0, 0.0, 2.0, f32::NEG_INFINITY], [5])
            .broadcast_to([500, 5]);
        let plain = GenerationConfig { top_k: 0, ..Default::default() };
        let cases = [
            (plain.clone(), vec![0, 1, 2, 3]),
            (GenerationConfig { top_k: 2, ..plain.clone() }, vec![1, 3]),
            (GenerationConfig { top_p: 0.9, ..plain.clone() }, vec![0, 1, 3]),
            (GenerationConfig { top_p: 0.0, ..plain.clone() }, vec![1]),
            (GenerationConfig { temperature: 0.01, ..plain.clone() }, vec![1]),
            (GenerationConfig { min_p: 0.3, ..plain.clone() }, vec![1, 3]),
            (GenerationConfig { min_p: 1.0, ..plain }, vec![1]),
        ];
        let key = random::key(3);
        let samples: Vec<Tensor> = cases
            .iter()
            .map(|(config, _)| random::categorical(&key, config.sampling_logits(&logits), -1))
            .collect();
        let drawn = Runtime::global().and_then(|runtime| runtime.eval_many(&samples));
        for ((config, expected), drawn) in cases.iter().zip(drawn.unwrap_or_else(|e| panic!("{e}")))
        {
            let mut drawn_ids = drawn.to_vec::<i32>().unwrap_or_else(|e| panic!("{e}"));
            drawn_ids.sort_unstable();
            drawn_ids.dedup();
            assert_eq!(&drawn_ids, expected, "{config:?}");
        }
    }

    /// XLA rounds these logits differently in different loops, so that the last token that should
    /// remain, or all of them, were below a cutoff computed from the same logits.
    #[test]
    fn as_many_tokens_remain_although_logits_are_computed_again() {
        let mut counts = Vec::new();
        let mut expected = Vec::new();
        for dims in [[24, 4, 4], [24, 7, 6], [16, 4, 8]] {
            let count: usize = dims.iter().product();
            let numbers: Vec<f32> = (0..count).map(|i| ((i * 7) as f32 * 0.618).sin()).collect();
            let x = Tensor::from_slice(&numbers, dims);
            let y = (&x - x.mean_keepdim(0)) / (x.var_keepdim(0) + 0.1).sqrt();
            for columns in [dims[1] * dims[2], dims[2]] {
                let logits = y.reshape([count / columns, columns]);
                let plain = GenerationConfig { top_k: 0, ..Default::default() };
                let likeliest = |top_k| GenerationConfig { top_k, ..plain.clone() };
                let min_p = GenerationConfig { min_p: 1.0, ..plain.clone() };
                for (config, remaining) in [(likeliest(1), 1.0), (likeliest(3), 3.0), (min_p, 1.0)]
                {
                    let left = config.sampling_logits(&logits).is_finite().to_dtype(DType::F32);
                    counts.push(left.sum(-1));
                    expected.push(vec![remaining]);
                }
            }
        }
        let actual = Runtime::global().and_then(|runtime| runtime.eval_many(&counts));
        // The counts of tokens in the rows of each case.
        let numbers = |count: &Literal| {
            let mut numbers = count.to_f64();
            numbers.sort_by(f64::total_cmp);
            numbers.dedup();
            numbers
        };
        let actual: Vec<Vec<f64>> =
            actual.unwrap_or_else(|e| panic!("{e}")).iter().map(numbers).collect();
        assert_eq!(actual, expected);
    }

    #[test]
    fn of_equally_likely_tokens_as_many_remain_as_in_transformers() {
        // TopPLogitsWarper of transformers 5.23 keeps 2 of 4 equal tokens for 0.5, and 3 for 0.6.
        let logits = Tensor::from_slice(&[0.0f32; 4], [1, 4]);
        for (top_p, expected) in [(0.5, 2), (0.6, 3)] {
            let config = GenerationConfig { top_p, ..Default::default() };
            let left = config.sampling_logits(&logits).eval().unwrap_or_else(|e| panic!("{e}"));
            let left = left.to_vec::<f32>().unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(left.iter().filter(|x| x.is_finite()).count(), expected, "{top_p}");
        }
    }
}
