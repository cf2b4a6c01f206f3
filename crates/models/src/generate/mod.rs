//! [`generate`] continues a prompt with any model that predicts the next token ([`CausalLm`]). The
//! whole generation is one expression, with a loop on the device, so it is compiled once for each
//! shape of the prompt.

mod beam_search;
mod cache;
mod config;
mod folder;
mod processor;
mod prompt;
mod sampling;
mod stop_strings;
#[cfg(all(test, feature = "decoder", feature = "gpt2", feature = "marian", feature = "t5"))]
mod tests;

pub use cache::StaticCache;
pub use config::GenerationConfig;
pub use prompt::Prompt;
pub use stop_strings::TokenBytes;

use fulmen_nn::axes::without_rule;
use fulmen_tensor::{DType, Refusal, Scope, Tensor, Tree, random, while_loop};

use crate::MODELS;
use processor::LogitsProcessor;
use stop_strings::StopStrings;

/// A model that predicts the next token: a decoder, or the decoder of an encoder-decoder for some
/// input.
pub trait CausalLm {
    /// A cache for `batch` sequences of up to `max_len` tokens, with none in it.
    fn empty_cache(&self, batch: usize, max_len: usize) -> StaticCache;

    /// The logits `[batch, vocabulary]` of the token after `ids`, and the cache extended by `ids`.
    /// `ids`, i32 `[batch, count]`, follow the tokens in the cache.
    fn next_token_logits(&self, ids: &Tensor, cache: &StaticCache) -> (Tensor, StaticCache);

    /// The maximum number of tokens in a sequence; `None` if there is no limit.
    fn max_positions(&self) -> Option<usize>;

    /// The number of positions that the model was trained with, where a generation without a given
    /// length ends; `None` if there is no limit.
    fn trained_positions(&self) -> Option<usize> {
        self.max_positions()
    }

    /// What the encoder read; `None` if the model has no encoder.
    fn encoder_tokens(&self) -> Option<EncoderTokens> {
        None
    }

    /// The first token of the decoder; `None` if the model has no encoder.
    fn decoder_start_token(&self) -> Option<i32> {
        None
    }
}

/// The tokens that an encoder read.
#[derive(Clone, Debug)]
pub struct EncoderTokens {
    /// The tokens, i32 `[batch, length]`.
    pub ids: Tensor,
    /// Which of them are not padding, bool `[batch, length]`.
    pub mask: Tensor,
}

/// The tokens, i32 `[batch · num_return_sequences, new]`, that follow the prompts; after the end of
/// a sequence, padding. The sequences of a prompt are consecutive, in a beam search the best first.
///
/// Tokens are chosen as by transformers' `generate`: the likeliest token in each step, a sampled
/// one (`do_sample`), or the likeliest sequences of a beam search (`num_beams`). The number of new
/// tokens is that of [`GenerationConfig::max_new_tokens`]. The loop ends early once all sequences
/// have ended.
///
/// Poisoned if a setting is out of its range, or if the prompt and the new tokens exceed the
/// positions of the model.
///
/// ```
/// use fulmen_models::gpt2::{Config, Gpt2};
/// use fulmen_models::{GenerationConfig, Pretrained, Prompt, generate};
/// use fulmen_nn::Module;
///
/// let model = Gpt2::new(Config { vocab_size: 50, n_positions: 16, n_embd: 8, n_layer: 1, n_head: 2, ..Config::default() })?;
/// model.initialize(0);
/// model.eval();
/// let config = GenerationConfig { max_new_tokens: Some(5), ..GenerationConfig::default() };
/// let tokens = generate(&model, &Prompt::new(&[vec![1, 2, 3], vec![7]]), &config).eval()?;
/// assert_eq!(tokens.ty().to_string(), "i32[2, 5]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn generate<M: CausalLm + ?Sized>(
    model: &M,
    prompt: &Prompt,
    config: &GenerationConfig,
) -> Tensor {
    MODELS.record("generate", || {
        // A step has a single token of each sequence.
        without_rule("length", || {
            let start = Start::new(model, prompt, config)?;
            match config.num_beams {
                1 => start.repeated(config.num_return_sequences).token_by_token(),
                _ => Ok(start.repeated(config.num_beams).beam_search()?.tokens),
            }
        })
    })
}

/// A generation after the model has read the prompt.
struct Start<'a, M: ?Sized> {
    model: &'a M,
    processor: LogitsProcessor<'a>,
    /// The prompt and room for the new tokens, i32 `[rows, prompt + new]`.
    tokens: Tensor,
    /// The logits of the first new token, f32 `[rows, vocabulary]`.
    logits: Tensor,
    cache: StaticCache,
    /// The search for stop strings, if there are any.
    stops: Option<StopStrings>,
    /// The state of the search, i32 `[rows]`.
    stop_state: Tensor,
}

impl<'a, M: CausalLm + ?Sized> Start<'a, M> {
    fn new(model: &'a M, prompt: &Prompt, config: &'a GenerationConfig) -> Result<Self, Refusal> {
        let ids = prompt.ids().live()?;
        if let Some(message) = config.check() {
            return Err(message.into());
        }
        let batch = ids.size(0);
        let length = ids.size(1);
        let new = config.new_tokens(length, model.trained_positions())?;
        if let Some(max_positions) = model.max_positions().filter(|&max| length + new > max) {
            let message = format!(
                "a prompt of {length} tokens and {new} new ones exceed the {max_positions} positions of the model"
            );
            return Err(message.into());
        }
        let start_tokens = (config.decoder_start_token_id, model.decoder_start_token());
        if let (Some(given), Some(own)) = start_tokens
            && given != own
        {
            let message = format!(
                "`decoder_start_token_id` is {given}, but {own} in the model's config; give both the same value"
            );
            return Err(message.into());
        }
        let padding = prompt.padding().cloned();
        let cache = model.empty_cache(batch, length + new).with_padding(padding.clone());
        let (logits, cache) = model.next_token_logits(ids, &cache);
        if let Some(message) = config.check_tokens(logits.live()?.size(-1)) {
            return Err(message.into());
        }
        let stops =
            StopStrings::new(&config.stop_strings, config.token_bytes.as_ref(), logits.size(-1))?;
        let stop_state = match &stops {
            Some(stops) => stops.start(prompt),
            None => Tensor::zeros(DType::I32, [batch]),
        };
        let encoder = model.encoder_tokens().unwrap_or_else(|| tokens_of(prompt));
        let room = Tensor::full(DType::I32, [batch, new], config.padding());
        Ok(Start {
            model,
            processor: LogitsProcessor { config, prompt: length, new, padding, encoder },
            tokens: Tensor::concatenate(&[ids, &room], 1),
            logits: logits.to_dtype(DType::F32),
            cache,
            stops,
            stop_state,
        })
    }

    /// The start of a generation with each row `count` times.
    fn repeated(self, count: usize) -> Self {
        if count == 1 {
            return self;
        }
        let repeat = |rows: &Tensor| rows.repeat_interleave(count, 0);
        Start {
            model: self.model,
            processor: self.processor.map_rows(repeat),
            tokens: repeat(&self.tokens),
            logits: repeat(&self.logits),
            cache: self.cache.map_rows(repeat),
            stops: self.stops,
            stop_state: repeat(&self.stop_state),
        }
    }

    /// Generates greedily or by sampling.
    fn token_by_token(self) -> Result<Tensor, Refusal> {
        let Start { model, processor, tokens, logits, cache, stops, stop_state } = self;
        let config = processor.config;
        let rows = tokens.size(0);
        let key = random::key(config.seed);
        let finished = Tensor::zeros(DType::Bool, [rows]);
        let step = Tensor::zeros(DType::I32, []);
        let start = Generated { tokens, finished, step, logits, stop_state, cache };
        let line = Scope::line();
        let end = while_loop(
            start,
            |state| state.step.lt(processor.new as f64).and(state.finished.all(-1).not()),
            |state| {
                let _scope = MODELS.at(line);
                let Generated { tokens, finished, step, logits, stop_state, cache } = state;
                let scores = processor.scores(&logits, &tokens, &step);
                let chosen = if config.do_sample {
                    let key = random::fold_in_tensor(&key, step.to_dtype(DType::U32));
                    random::categorical(&key, &scores, -1)
                } else {
                    scores.argmax(-1)
                };
                let next =
                    finished.select(&Tensor::full(DType::I32, [], config.padding()), &chosen);
                let column = next.unsqueeze(-1);
                let position = &step + processor.prompt as f64;
                let tokens = tokens
                    .dynamic_update_slice(&column, &[Tensor::zeros(DType::I32, []), position]);
                let (logits, cache) = model.next_token_logits(&column, &cache);
                let (stop_state, ends) = ends_after(config, stops.as_ref(), &stop_state, &next);
                Generated {
                    tokens,
                    finished: finished.or(ends),
                    step: step + 1.0,
                    logits: logits.to_dtype(DType::F32),
                    stop_state,
                    cache,
                }
            },
        );
        Ok(end.tokens.live()?.narrow(1, processor.prompt, processor.new))
    }
}

/// What a loop over tokens carries.
#[derive(Tree)]
struct Generated {
    /// The prompts and the new tokens, i32 `[rows, prompt + new]`.
    tokens: Tensor,
    /// Which sequences have ended, bool `[rows]`.
    finished: Tensor,
    /// The number of new tokens, an i32 scalar.
    step: Tensor,
    /// The next-token logits, f32 `[rows, vocabulary]`.
    logits: Tensor,
    /// The states of the search for stop strings, i32 `[rows]`.
    stop_state: Tensor,
    cache: StaticCache,
}

/// The state of the search for stop strings after one more token of each sequence, and whether the
/// sequences end with it.
fn ends_after(
    config: &GenerationConfig,
    stops: Option<&StopStrings>,
    state: &Tensor,
    token: &Tensor,
) -> (Tensor, Tensor) {
    let ends = config.ends(token);
    match stops {
        Some(stops) => {
            let (state, stopped) = stops.advance(state, token);
            (state, ends.or(stopped))
        }
        None => (state.clone(), ends),
    }
}

/// The prompt as the input of a model without an encoder.
fn tokens_of(prompt: &Prompt) -> EncoderTokens {
    let ids = prompt.ids();
    let padding =
        prompt.padding().cloned().unwrap_or_else(|| Tensor::zeros(DType::I32, [ids.size(0)]));
    let mask = Tensor::arange(DType::I32, ids.size(1)).ge(padding.unsqueeze(-1));
    EncoderTokens { ids: ids.clone(), mask }
}
