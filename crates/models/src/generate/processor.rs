//! [`LogitsProcessor`]: what the settings make of the scores of the next token, before one is
//! chosen. All of it is tensor operations over the tokens so far, so that every step is the same
//! program.

use std::collections::BTreeMap;

use fulmen_tensor::{DType, Tensor};

use super::config::is_one_of;
use super::{EncoderTokens, GenerationConfig};

/// The settings, with the lengths and the tokens that they refer to.
#[derive(Clone)]
pub(super) struct LogitsProcessor<'c> {
    pub(super) config: &'c GenerationConfig,
    /// The number of tokens in the prompt, with padding.
    pub(super) prompt: usize,
    /// The maximum number of new tokens.
    pub(super) new: usize,
    /// The number of padding tokens at the front of each row, i32 `[rows]`.
    pub(super) padding: Option<Tensor>,
    /// The tokens that an encoder read, with the mask of those that are not padding.
    pub(super) encoder: EncoderTokens,
}

/// The tokens so far.
struct History<'t> {
    /// The prompt, the new tokens, and room for those to come: i32 `[rows, length]`.
    tokens: &'t Tensor,
    /// Which of them are neither padding nor still to come, bool `[rows, length]`.
    is_known: Tensor,
    /// The number of tokens so far, with padding, an i32 scalar.
    length: Tensor,
    vocabulary: usize,
}

impl<'c> LogitsProcessor<'c> {
    /// The scores of the next token, f32 `[rows, vocabulary]`, of logits or log-probabilities of
    /// this shape. Excluded tokens get −∞. `tokens`, i32 `[rows, prompt + new]`, has the prompt and
    /// `step` new tokens, an i32 scalar.
    ///
    /// The order is that of transformers.
    pub(super) fn scores(&self, logits: &Tensor, tokens: &Tensor, step: &Tensor) -> Tensor {
        let config = self.config;
        let history = self.history(tokens, step, logits.size(-1));
        let mut scores = self.without_repetition(logits, &history);
        scores = self.without_bad_words(&scores, &history);
        scores = self.with_forced_tokens(&scores, step);
        let tokens = Tensor::arange(DType::I32, history.vocabulary);
        if !config.suppress_tokens.is_empty() {
            scores = exclude(&scores, Some(is_one_of(&tokens, &config.suppress_tokens)));
        }
        if !config.begin_suppress_tokens.is_empty() {
            let first = if self.forces_first() { 1.0 } else { 0.0 };
            let suppressed = is_one_of(&tokens, &config.begin_suppress_tokens);
            scores = exclude(&scores, Some(suppressed.and(step.eq(first))));
        }
        if config.do_sample {
            scores = config.sampling_logits(&scores);
        }
        if config.renormalize_logits { scores.log_softmax(-1) } else { scores }
    }

    fn history<'t>(&self, tokens: &'t Tensor, step: &Tensor, vocabulary: usize) -> History<'t> {
        let length = step + self.prompt as f64;
        let position = Tensor::arange(DType::I32, tokens.size(1));
        let mut is_known = position.lt(&length).broadcast_to(tokens.shape());
        if let Some(padding) = &self.padding {
            is_known = is_known.and(position.ge(padding.unsqueeze(-1)));
        }
        History { tokens, is_known, length, vocabulary }
    }

    /// The scores after `repetition_penalty`, `no_repeat_ngram_size` and
    /// `encoder_no_repeat_ngram_size`.
    fn without_repetition(&self, scores: &Tensor, history: &History<'_>) -> Tensor {
        let config = self.config;
        let mut scores = scores.clone();
        if config.repetition_penalty != 1.0 {
            let penalty = config.repetition_penalty;
            let penalized = scores.lt(0.0).select(&(&scores * penalty), &(&scores / penalty));
            let occurs = occurrences(history.tokens, &history.is_known, history.vocabulary);
            scores = occurs.select(&penalized, &scores);
        }
        let read = (history.tokens, &history.is_known);
        scores = exclude(&scores, history.repeats(config.no_repeat_ngram_size, read));
        let EncoderTokens { ids, mask } = &self.encoder;
        exclude(&scores, history.repeats(config.encoder_no_repeat_ngram_size, (ids, mask)))
    }

    /// The scores after `bad_words_ids`.
    fn without_bad_words(&self, scores: &Tensor, history: &History<'_>) -> Tensor {
        let GenerationConfig { bad_words_ids, eos_token_id, .. } = self.config;
        let mut by_length: BTreeMap<usize, Vec<i32>> = BTreeMap::new();
        for word in bad_words_ids {
            let is_end = matches!(word[..], [id] if eos_token_id.contains(&id));
            if !is_end {
                by_length.entry(word.len()).or_default().extend(word);
            }
        }
        by_length.iter().fold(scores.clone(), |scores, (&length, words)| {
            exclude(&scores, history.completions(words, length))
        })
    }

    /// The scores after `min_new_tokens`, `min_length`, and the tokens that are forced.
    fn with_forced_tokens(&self, scores: &Tensor, step: &Tensor) -> Tensor {
        let config = self.config;
        let tokens = Tensor::arange(DType::I32, scores.size(-1));
        let mut scores = scores.clone();
        let min = config.min_tokens(self.prompt);
        if min > 0 && !config.eos_token_id.is_empty() {
            scores = exclude(&scores, Some(config.ends(&tokens).and(step.lt(min as f64))));
        }
        let only = |ids: &[i32]| {
            Tensor::full(DType::F32, tokens.shape(), f64::NEG_INFINITY)
                .masked_fill(is_one_of(&tokens, ids), 0.0)
        };
        if let Some(first) = config.forced_bos_token_id.filter(|_| self.forces_first()) {
            scores = step.eq(0.0).select(&only(&[first]), &scores);
        }
        if !config.forced_eos_token_id.is_empty() {
            let is_last = step.ge(self.new as f64 - 1.0);
            scores = is_last.select(&only(&config.forced_eos_token_id), &scores);
        }
        scores
    }

    /// Whether the first new token is forced.
    fn forces_first(&self) -> bool {
        self.prompt == 1 && self.config.forced_bos_token_id.is_some()
    }

    /// This processor for the rows that `f` makes of tensors with a row for each sequence.
    pub(super) fn map_rows(&self, f: impl Fn(&Tensor) -> Tensor) -> LogitsProcessor<'c> {
        let EncoderTokens { ids, mask } = &self.encoder;
        let encoder = EncoderTokens { ids: f(ids), mask: f(mask) };
        LogitsProcessor { padding: self.padding.as_ref().map(&f), encoder, ..self.clone() }
    }
}

impl History<'_> {
    /// The last `count` tokens, i32 `[rows, count]`, and whether the sequence has that number,
    /// bool `[rows, 1]`. `None` if no sequence is ever that long.
    fn last(&self, count: usize) -> Option<(Tensor, Tensor)> {
        let [rows, length] = [0, 1].map(|axis| self.tokens.size(axis));
        if count > length {
            return None;
        }
        // If there are fewer tokens, the slice begins at 0 and includes tokens to come.
        let start = [Tensor::zeros(DType::I32, []), &self.length - count as f64];
        let slice = |x: &Tensor| x.dynamic_slice(&start, &[rows, count]);
        Some((slice(self.tokens), slice(&self.is_known).all_keepdim(-1)))
    }

    /// The tokens that would repeat `size` consecutive tokens of `read`, bool `[rows, vocabulary]`.
    /// `read` has tokens i32 `[rows, length]`, and which of them count.
    fn repeats(&self, size: usize, read: (&Tensor, &Tensor)) -> Option<Tensor> {
        let (tokens, is_token) = read;
        let windows = (tokens.size(1) + 1).checked_sub(size).filter(|&windows| windows > 0)?;
        let prefix_len = size.checked_sub(1)?;
        let end = tokens.narrow(1, prefix_len, windows);
        let mut matches = is_token.narrow(1, prefix_len, windows);
        if prefix_len > 0 {
            let (prefix, exists) = self.last(prefix_len)?;
            matches = matches.and(exists);
            for i in 0..prefix_len {
                let is_equal = tokens.narrow(1, i, windows).eq(prefix.narrow(1, i, 1));
                matches = matches.and(is_equal).and(is_token.narrow(1, i, windows));
            }
        }
        Some(occurrences(&end, &matches, self.vocabulary))
    }

    /// The last tokens of those words whose other tokens are the last ones of the sequence, bool
    /// `[rows, vocabulary]` or `[vocabulary]`. `words` are all of this length.
    fn completions(&self, words: &[i32], length: usize) -> Option<Tensor> {
        let prefix_len = length - 1;
        if prefix_len == 0 {
            return Some(is_one_of(&Tensor::arange(DType::I32, self.vocabulary), words));
        }
        let words = Tensor::from_slice(words, [words.len() / length, length]);
        let (prefix, exists) = self.last(prefix_len)?;
        let is_equal = prefix.unsqueeze(1).eq(words.narrow(1, 0, prefix_len));
        let matches = is_equal.all(-1).and(exists);
        let ends = words.index(1, prefix_len as isize).broadcast_to(matches.shape());
        Some(occurrences(&ends, &matches, self.vocabulary))
    }
}

/// Which tokens of the vocabulary are among `tokens`, i32 `[rows, count]`, where the mask is true:
/// bool `[rows, vocabulary]`.
fn occurrences(tokens: &Tensor, mask: &Tensor, vocabulary: usize) -> Tensor {
    // An encoder can have more tokens than the decoder.
    let counts = mask.and(tokens.lt(vocabulary as f64)).to_dtype(DType::F32);
    Tensor::zeros(DType::F32, [tokens.size(0), vocabulary])
        .scatter_add(1, tokens.minimum(vocabulary as f64 - 1.0), counts)
        .gt(0.0)
}

/// The scores, with −∞ where the mask is true.
fn exclude(scores: &Tensor, mask: Option<Tensor>) -> Tensor {
    mask.map_or_else(|| scores.clone(), |mask| scores.masked_fill(mask, f64::NEG_INFINITY))
}
