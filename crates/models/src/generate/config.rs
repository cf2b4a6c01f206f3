//! [`GenerationConfig`]: how tokens are chosen, with the names of `generation_config.json`.

use std::path::Path;

use fulmen_tensor::{DType, Tensor, random};
use serde::{Deserialize, Deserializer, Serialize};

use crate::Result;
use crate::pretrained::{read_json, read_object};

/// How [`generate`](crate::generate()) chooses tokens; transformers' names and defaults.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct GenerationConfig {
    /// The maximum number of new tokens.
    pub max_new_tokens: usize,
    /// Whether to sample tokens instead of choosing the likeliest.
    pub do_sample: bool,
    /// The divisor of logits before sampling: values below 1 favor likely tokens.
    pub temperature: f64,
    /// Samples from this many of the likeliest tokens; 0 means from all.
    pub top_k: usize,
    /// Samples from the smallest set of likeliest tokens with this total probability.
    pub top_p: f64,
    /// The number of beams of a beam search; 1 disables it.
    pub num_beams: usize,
    /// The exponent of the length: a beam search divides a sequence's log-probability by this power
    /// of its length. Above 0, it prefers longer sequences.
    pub length_penalty: f64,
    /// Whether a beam search ends as soon as it has `num_beams` finished sequences, not only when
    /// none can become better.
    pub early_stopping: bool,
    /// The tokens that end a sequence.
    #[serde(deserialize_with = "one_or_many")]
    pub eos_token_id: Vec<i32>,
    /// The token in the last position of `max_new_tokens`, if the sequence has not ended before. Of
    /// several, the likeliest.
    #[serde(deserialize_with = "one_or_many")]
    pub forced_eos_token_id: Vec<i32>,
    /// Tokens that are never generated, each in its own list: `[[7], [8]]`. End tokens are allowed
    /// even if they are listed.
    pub bad_words_ids: Vec<Vec<i32>>,
    /// Whether a beam search scales the probabilities of the remaining tokens to a sum of 1.
    pub renormalize_logits: bool,
    /// The padding token after the end of a sequence; the first end token if not given.
    pub pad_token_id: Option<i32>,
    /// The first token of the decoder in an encoder-decoder.
    pub decoder_start_token_id: Option<i32>,
    /// The seed of the samples. The same seed draws the same tokens.
    pub seed: u64,
}

impl Default for GenerationConfig {
    fn default() -> GenerationConfig {
        GenerationConfig {
            max_new_tokens: 20,
            do_sample: false,
            temperature: 1.0,
            top_k: 50,
            top_p: 1.0,
            num_beams: 1,
            length_penalty: 1.0,
            early_stopping: false,
            eos_token_id: Vec::new(),
            forced_eos_token_id: Vec::new(),
            bad_words_ids: Vec::new(),
            renormalize_logits: false,
            pad_token_id: None,
            decoder_start_token_id: None,
            seed: 0,
        }
    }
}

/// Settings that would change the choice of tokens, each with its only supported value.
const FIXED_SETTINGS: [(&str, &str); 8] = [
    ("repetition_penalty", "1.0"),
    ("no_repeat_ngram_size", "0"),
    ("typical_p", "1.0"),
    ("num_beam_groups", "1"),
    ("penalty_alpha", "0.0"),
    ("suppress_tokens", "[]"),
    ("forced_bos_token_id", "null"),
    ("min_length", "0"),
];

impl GenerationConfig {
    /// Reads the `generation_config.json` of a folder or, if there is none, the corresponding keys
    /// of its `config.json`.
    ///
    /// # Errors
    /// Neither can be read; a setting is of a different type, or asks for an unsupported feature.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<GenerationConfig> {
        let path = folder.as_ref().join("generation_config.json");
        let file = if path.exists() { path } else { folder.as_ref().join("config.json") };
        let mut json = read_object(&file)?;
        json.retain(|_, value| !value.is_null());
        read_json(&json, &FIXED_SETTINGS).map_err(|e| e.in_file(&file))
    }

    /// What is wrong with the settings, if anything.
    pub(super) fn check(&self) -> Option<String> {
        if self.max_new_tokens == 0 || self.num_beams == 0 {
            return Some("`max_new_tokens` and `num_beams` must be at least 1".into());
        }
        if self.num_beams > 1 && self.do_sample {
            return Some(
                "a beam search draws nothing: set `num_beams` to 1, or `do_sample` to false".into(),
            );
        }
        if self.temperature.is_nan()
            || self.temperature <= 0.0
            || !(0.0..=1.0).contains(&self.top_p)
        {
            let Self { temperature, top_p, .. } = self;
            let message = format!(
                "`temperature` must be above 0 and `top_p` from 0 to 1, not {temperature} and {top_p}"
            );
            return Some(message);
        }
        let words = self.bad_words_ids.iter().find(|tokens| tokens.len() != 1);
        words.map(|tokens| {
            format!("`bad_words_ids` has {tokens:?}; only single tokens are supported")
        })
    }

    /// The padding token after the end of a sequence.
    pub(super) fn padding(&self) -> f64 {
        f64::from(self.pad_token_id.or(self.eos_token_id.first().copied()).unwrap_or(0))
    }

    /// Whether each token ends its sequence.
    pub(super) fn ends(&self, tokens: &Tensor) -> Tensor {
        is_one_of(tokens, &self.eos_token_id)
    }

    /// The logits or log-probabilities `[…, vocabulary]` of the token after `step` new ones, an i32
    /// scalar. Forbidden tokens get −∞.
    pub(super) fn restrict(&self, scores: &Tensor, step: &Tensor) -> Tensor {
        let tokens = Tensor::arange(DType::I32, scores.size(-1));
        let mut scores = scores.clone();
        let bad: Vec<i32> = self
            .bad_words_ids
            .concat()
            .into_iter()
            .filter(|id| !self.eos_token_id.contains(id))
            .collect();
        if !bad.is_empty() {
            scores = scores.masked_fill(is_one_of(&tokens, &bad), f64::NEG_INFINITY);
        }
        if !self.forced_eos_token_id.is_empty() {
            let forced = Tensor::full(DType::F32, tokens.shape(), f64::NEG_INFINITY)
                .masked_fill(is_one_of(&tokens, &self.forced_eos_token_id), 0.0);
            scores = step.ge(self.max_new_tokens as f64 - 1.0).select(&forced, &scores);
        }
        if self.renormalize_logits { scores.log_softmax(-1) } else { scores }
    }

    /// A token for each row of logits `[batch, vocabulary]`.
    pub(super) fn sample(&self, key: &Tensor, logits: &Tensor) -> Tensor {
        let mut logits = logits / self.temperature;
        let vocabulary = logits.size(-1);
        if (1..vocabulary).contains(&self.top_k) {
            let (largest, _) = logits.topk(self.top_k, -1, true);
            let cutoff = largest.narrow(-1, self.top_k - 1, 1);
            logits = logits.masked_fill(logits.lt(cutoff), f64::NEG_INFINITY);
        }
        if self.top_p < 1.0 {
            let (sorted, _) = logits.sort(-1, true);
            let probabilities = sorted.softmax(-1);
            let before = probabilities.cumsum(-1) - &probabilities;
            // The likeliest token always stays.
            let rank = Tensor::arange(DType::I32, vocabulary);
            let out = before.ge(self.top_p).and(rank.gt(0.0));
            let cutoff = sorted.masked_fill(out, f64::INFINITY).min_keepdim(&[-1]);
            logits = logits.masked_fill(logits.lt(cutoff), f64::NEG_INFINITY);
        }
        random::categorical(key, &logits, -1)
    }
}

/// Where tokens are one of these.
fn is_one_of(tokens: &Tensor, ids: &[i32]) -> Tensor {
    let none = Tensor::zeros(DType::Bool, tokens.shape());
    ids.iter().fold(none, |matches, &id| matches.or(tokens.eq(f64::from(id))))
}

/// A number, or a list of them.
fn one_or_many<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Vec<i32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Ids {
        One(i32),
        Many(Vec<i32>),
        None(()),
    }
    Ok(match Ids::deserialize(deserializer)? {
        Ids::One(id) => vec![id],
        Ids::Many(ids) => ids,
        Ids::None(()) => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use fulmen_tensor::Runtime;

    use super::*;

    #[test]
    fn what_is_drawn_is_among_the_likeliest() {
        // Probabilities of about 0.64, 0.24, 0.09 and 0.03, and a token that never comes.
        let logits = Tensor::from_slice(&[1.0f32, 3.0, 0.0, 2.0, f32::NEG_INFINITY], [5])
            .broadcast_to([500, 5]);
        let config = |top_k, top_p, temperature| GenerationConfig {
            top_k,
            top_p,
            temperature,
            ..Default::default()
        };
        let cases = [
            (config(0, 1.0, 1.0), vec![0, 1, 2, 3]),
            (config(2, 1.0, 1.0), vec![1, 3]),
            (config(0, 0.9, 1.0), vec![0, 1, 3]),
            (config(0, 0.0, 1.0), vec![1]),
            (config(0, 1.0, 0.01), vec![1]),
        ];
        let key = random::key(3);
        let samples: Vec<Tensor> =
            cases.iter().map(|(config, _)| config.sample(&key, &logits)).collect();
        let drawn = Runtime::global()
            .and_then(|runtime| runtime.eval_many(&samples.iter().collect::<Vec<_>>()));
        for ((config, expected), drawn) in cases.iter().zip(drawn.unwrap_or_else(|e| panic!("{e}")))
        {
            let mut drawn_ids = drawn.to_vec::<i32>().unwrap_or_else(|e| panic!("{e}"));
            drawn_ids.sort_unstable();
            drawn_ids.dedup();
            assert_eq!(&drawn_ids, expected, "{config:?}");
        }
    }

    #[test]
    fn a_file_says_how_and_what_is_not_built_is_refused() {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        let read = |file: &str, text: &str| {
            std::fs::write(folder.path().join(file), text).unwrap_or_else(|e| panic!("{e}"));
            GenerationConfig::from_folder(folder.path())
        };
        let config = read(
            "config.json",
            r#"{"model_type": "gpt2", "eos_token_id": 7, "pad_token_id": null}"#,
        );
        assert_eq!(config.map(|config| config.eos_token_id).unwrap_or_default(), [7]);
        let text =
            r#"{"eos_token_id": [1, 2], "do_sample": true, "temperature": 0.6, "top_k": null}"#;
        let config = read("generation_config.json", text).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((config.eos_token_id, config.top_k, config.temperature), (vec![1, 2], 50, 0.6));
        let text = read("generation_config.json", r#"{"repetition_penalty": 1.05}"#)
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default();
        assert!(
            text.ends_with(
                "generation_config.json: `repetition_penalty` is 1.05; only 1.0 is supported"
            ),
            "{text}"
        );
    }
}
