//! Which tokens can be sampled, and with which probability: `temperature`, `top_k`, `top_p` and
//! `min_p`.

use fulmen_tensor::Tensor;

use super::GenerationConfig;

impl GenerationConfig {
    /// The logits `[rows, vocabulary]` that tokens are sampled from. Excluded tokens get −∞.
    pub(super) fn sampling_logits(&self, logits: &Tensor) -> Tensor {
        let mut logits = logits / self.temperature;
        let vocabulary = logits.size(-1);
        if (1..vocabulary).contains(&self.top_k) {
            let (largest, _) = logits.topk(self.top_k);
            let cutoff = largest.narrow(-1, self.top_k - 1, 1);
            logits = logits.masked_fill(logits.lt(cutoff), f64::NEG_INFINITY);
        }
        if self.top_p < 1.0 {
            logits = logits.masked_fill(outside_nucleus(&logits, self.top_p), f64::NEG_INFINITY);
        }
        if self.min_p > 0.0 {
            let probabilities = logits.softmax(-1);
            let cutoff = probabilities.max_keepdim(-1) * self.min_p;
            logits = logits.masked_fill(probabilities.lt(cutoff), f64::NEG_INFINITY);
        }
        logits
    }
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
    use fulmen_tensor::{Runtime, random};

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
