//! [`GenerationConfig`]: how tokens are chosen, with the names of `generation_config.json`.
//!
//! Out of scope: reading the file (`folder.rs`), and what the settings do to scores (`processor.rs`
//! and `sampling.rs`).

use fulmen_tensor::{DType, Tensor};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::TokenBytes;

/// The number of new tokens if no setting gives one.
const DEFAULT_NEW_TOKENS: usize = 20;

/// How [`generate`](crate::generate()) chooses tokens; transformers' names and defaults.
///
/// ```
/// use fulmen_models::GenerationConfig;
/// let config = GenerationConfig {
///     max_new_tokens: Some(64),
///     repetition_penalty: 1.1,
///     no_repeat_ngram_size: 3,
///     eos_token_id: vec![2],
///     ..GenerationConfig::default()
/// };
/// assert_eq!(config.num_beams, 1);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct GenerationConfig {
    /// The maximum number of new tokens. It takes precedence over `max_length`. Without both, 20,
    /// or fewer if the model has no positions for them.
    pub max_new_tokens: Option<usize>,
    /// The maximum number of tokens of the prompt, its padding included, and the new ones together.
    /// In an encoder-decoder, the prompt is the decoder's: usually its first token.
    pub max_length: Option<usize>,
    /// The minimum number of new tokens: before that, no end token is chosen. It takes precedence
    /// over `min_length`.
    pub min_new_tokens: Option<usize>,
    /// The minimum number of tokens, counted as in `max_length`.
    pub min_length: usize,
    /// Whether to sample tokens instead of choosing the likeliest.
    pub do_sample: bool,
    /// The divisor of logits before sampling: values below 1 favor likely tokens.
    pub temperature: f64,
    /// Samples from this many of the likeliest tokens; 0 means from all.
    pub top_k: usize,
    /// Samples from the smallest set of likeliest tokens with this total probability.
    pub top_p: f64,
    /// Samples from tokens whose probability is at least this part of the likeliest one's.
    pub min_p: f64,
    /// The number of sequences for each prompt: sampled independently, or the best ones of a beam
    /// search.
    pub num_return_sequences: usize,
    /// The number of beams of a beam search; 1 disables it.
    pub num_beams: usize,
    /// The exponent of the length: a beam search divides a sequence's log-probability by this power
    /// of its length. Above 0, it prefers longer sequences.
    pub length_penalty: f64,
    /// Whether a beam search ends as soon as it has `num_beams` finished sequences, not only when
    /// none can become better.
    pub early_stopping: bool,
    /// The divisor of the scores of tokens that are in the sequence already; a negative score is
    /// multiplied by it. Above 1, it makes repetition less likely. The scores are logits, in a beam
    /// search log-probabilities. Padding does not count.
    pub repetition_penalty: f64,
    /// The length of token sequences that occur only once in the prompt and the new tokens; 0 means
    /// no limit. Padding does not count.
    pub no_repeat_ngram_size: usize,
    /// The length of token sequences that the new tokens do not share with the encoder's input; 0
    /// means no limit. For a model without an encoder, the prompt counts as its input.
    pub encoder_no_repeat_ngram_size: usize,
    /// The tokens that end a sequence.
    #[serde(deserialize_with = "one_or_many")]
    pub eos_token_id: Vec<i32>,
    /// Texts that end a sequence, with the token that completes one: also within a token, over several
    /// ones, and with the end of the prompt.
    #[serde(deserialize_with = "one_or_many")]
    pub stop_strings: Vec<String>,
    /// The bytes of the tokens, in which `stop_strings` are found: those of the model's tokenizer.
    /// Needed if there are any.
    #[serde(skip)]
    pub token_bytes: Option<TokenBytes>,
    /// The first new token, if the prompt is a single token: the target language in multilingual
    /// translators.
    pub forced_bos_token_id: Option<i32>,
    /// The last token at the maximum length, if the sequence has not ended before. Of several, the
    /// likeliest.
    #[serde(deserialize_with = "one_or_many")]
    pub forced_eos_token_id: Vec<i32>,
    /// Token sequences that are not generated: the last token of each does not follow the others.
    /// An end token alone is allowed even if it is listed.
    pub bad_words_ids: Vec<Vec<i32>>,
    /// Tokens that are not generated.
    pub suppress_tokens: Vec<i32>,
    /// Tokens that are not generated first, or directly after `forced_bos_token_id`.
    pub begin_suppress_tokens: Vec<i32>,
    /// Whether a beam search scales the probabilities of the remaining tokens to a sum of 1.
    pub renormalize_logits: bool,
    /// The padding token after the end of a sequence; the first end token if not given.
    pub pad_token_id: Option<i32>,
    /// The first token of the decoder in an encoder-decoder. It must be that of the model's config.
    pub decoder_start_token_id: Option<i32>,
    /// The seed of the samples. The same seed draws the same tokens.
    pub seed: u64,
}

impl Default for GenerationConfig {
    fn default() -> GenerationConfig {
        GenerationConfig {
            max_new_tokens: None,
            max_length: None,
            min_new_tokens: None,
            min_length: 0,
            do_sample: false,
            temperature: 1.0,
            top_k: 50,
            top_p: 1.0,
            min_p: 0.0,
            num_return_sequences: 1,
            num_beams: 1,
            length_penalty: 1.0,
            early_stopping: false,
            repetition_penalty: 1.0,
            no_repeat_ngram_size: 0,
            encoder_no_repeat_ngram_size: 0,
            eos_token_id: Vec::new(),
            stop_strings: Vec::new(),
            token_bytes: None,
            forced_bos_token_id: None,
            forced_eos_token_id: Vec::new(),
            bad_words_ids: Vec::new(),
            suppress_tokens: Vec::new(),
            begin_suppress_tokens: Vec::new(),
            renormalize_logits: false,
            pad_token_id: None,
            decoder_start_token_id: None,
            seed: 0,
        }
    }
}

impl GenerationConfig {
    /// What is wrong with the settings, if anything.
    pub(super) fn check(&self) -> Option<String> {
        if self.max_new_tokens == Some(0) || self.num_beams == 0 || self.num_return_sequences == 0 {
            return Some(
                "`max_new_tokens`, `num_beams` and `num_return_sequences` must be at least 1"
                    .into(),
            );
        }
        if self.repetition_penalty.is_nan() || self.repetition_penalty <= 0.0 {
            let penalty = self.repetition_penalty;
            return Some(format!("`repetition_penalty` must be above 0, not {penalty}"));
        }
        if self.bad_words_ids.iter().any(Vec::is_empty) {
            return Some("`bad_words_ids` has a list without tokens".into());
        }
        self.check_beams().or_else(|| self.check_sampling())
    }

    fn check_beams(&self) -> Option<String> {
        let GenerationConfig { num_beams, num_return_sequences: count, .. } = *self;
        match (num_beams, self.do_sample) {
            (2.., true) => Some(
                "a beam search draws nothing: set `num_beams` to 1, or `do_sample` to false".into(),
            ),
            (2.., false) if count > num_beams => Some(format!(
                "`num_return_sequences` is {count}, but a beam search with `num_beams` {num_beams} finds no more than \
                 that"
            )),
            (1, false) if count > 1 => Some(format!(
                "`num_return_sequences` is {count}, but there is one likeliest sequence: set `do_sample` to true, or \
                 `num_beams` to at least {count}"
            )),
            _ => None,
        }
    }

    fn check_sampling(&self) -> Option<String> {
        if !self.do_sample {
            return None;
        }
        if self.temperature.is_nan() || self.temperature <= 0.0 {
            return Some(format!(
                "`temperature` must be above 0, not {}; to choose the likeliest token, set `do_sample` to false",
                self.temperature
            ));
        }
        [("top_p", self.top_p), ("min_p", self.min_p)].into_iter().find_map(|(name, value)| {
            let is_probability = (0.0..=1.0).contains(&value);
            (!is_probability).then(|| format!("`{name}` must be from 0 to 1, not {value}"))
        })
    }

    /// What is wrong with the tokens of the settings, if anything, for a model with `vocabulary`
    /// tokens.
    pub(super) fn check_tokens(&self, vocabulary: usize) -> Option<String> {
        let bad = self.bad_words_ids.iter().flatten();
        let lists = [
            ("forced_bos_token_id", self.forced_bos_token_id.iter().collect::<Vec<_>>()),
            ("forced_eos_token_id", self.forced_eos_token_id.iter().collect()),
            ("bad_words_ids", bad.collect()),
        ];
        lists.into_iter().find_map(|(name, ids)| {
            let is_token = |id: i32| usize::try_from(id).is_ok_and(|id| id < vocabulary);
            let id = ids.into_iter().find(|&&id| !is_token(id))?;
            Some(format!(
                "`{name}` has the token {id}; the model has the tokens 0 to {}",
                vocabulary - 1
            ))
        })
    }

    /// The maximum number of new tokens after a prompt of `prompt` tokens. `positions` is the number
    /// of positions that the model was trained with.
    pub(super) fn new_tokens(
        &self,
        prompt: usize,
        positions: Option<usize>,
    ) -> Result<usize, String> {
        if let Some(new) = self.max_new_tokens {
            return Ok(new);
        }
        if let Some(length) = self.max_length {
            return length.checked_sub(prompt).filter(|&new| new > 0).ok_or_else(|| {
                format!(
                    "`max_length` is {length}, and the prompt has {prompt} tokens already; increase it, or set \
                     `max_new_tokens`"
                )
            });
        }
        let positions = positions.unwrap_or(usize::MAX);
        let rest = positions.checked_sub(prompt).filter(|&rest| rest > 0).ok_or_else(|| {
            format!(
                "the prompt has {prompt} tokens, and the model {positions} positions; set `max_new_tokens`"
            )
        })?;
        Ok(rest.min(DEFAULT_NEW_TOKENS))
    }

    /// The minimum number of new tokens after a prompt of `prompt` tokens.
    pub(super) fn min_tokens(&self, prompt: usize) -> usize {
        self.min_new_tokens.unwrap_or_else(|| self.min_length.saturating_sub(prompt))
    }

    /// The padding token after the end of a sequence.
    pub(super) fn padding(&self) -> f64 {
        f64::from(self.pad_token_id.or(self.eos_token_id.first().copied()).unwrap_or(0))
    }

    /// Whether each token ends its sequence.
    pub(super) fn ends(&self, tokens: &Tensor) -> Tensor {
        is_one_of(tokens, &self.eos_token_id)
    }
}

/// Where tokens are one of these.
pub(super) fn is_one_of(tokens: &Tensor, ids: &[i32]) -> Tensor {
    if ids.is_empty() {
        return Tensor::zeros(DType::Bool, tokens.shape());
    }
    tokens.unsqueeze(-1).eq(&Tensor::from_slice(ids, [ids.len()])).any(-1)
}

/// A value, or a list of them.
fn one_or_many<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(Vec::new()),
        Value::Array(values) => values.into_iter().map(serde_json::from_value).collect(),
        value => serde_json::from_value(value).map(|value| vec![value]),
    }
    .map_err(D::Error::custom)
}
