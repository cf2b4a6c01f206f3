//! [`generate`] continues a prompt with any model that predicts the next token ([`CausalLm`]). The
//! whole generation is one expression, with a loop on the device, so it is compiled once for each
//! shape of the prompt.

mod beam_search;
mod cache;
mod config;
mod prompt;

pub use cache::StaticCache;
pub use config::GenerationConfig;
pub use prompt::Prompt;

use fulmen_tensor::{DType, Refusal, Scope, Tensor, random, while_loop};

use crate::MODELS;

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
}

/// The tokens, i32 `[batch, max_new_tokens]`, that follow the prompts; after the end of a sequence,
/// padding.
///
/// Tokens are chosen as by transformers' `generate`: the likeliest token in each step, a sampled
/// one (`do_sample`), or the likeliest sequences of a beam search (`num_beams`). The loop ends
/// early once all sequences have ended.
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
/// let config = GenerationConfig { max_new_tokens: 5, ..GenerationConfig::default() };
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
        let ids = prompt.ids().live()?;
        if let Some(message) = config.check() {
            return Err(message.into());
        }
        let (length, new) = (ids.size(1), config.max_new_tokens);
        if let Some(max_positions) = model.max_positions().filter(|max_positions| length + new > *max_positions) {
            let message = format!(
                "a prompt of {length} tokens and {new} new ones exceed the {max_positions} positions of the model"
            );
            return Err(message.into());
        }
        let cache = model.empty_cache(ids.size(0), length + new).with_padding(prompt.padding().cloned());
        let (logits, cache) = model.next_token_logits(ids, &cache);
        logits.live()?;
        match config.num_beams {
            1 => token_by_token(model, logits, &cache, config),
            _ => beam_search::search(model, &logits, &cache, config),
        }
    })
}

/// Generates greedily or by sampling.
fn token_by_token<M: CausalLm + ?Sized>(
    model: &M,
    logits: Tensor,
    cache: &StaticCache,
    config: &GenerationConfig,
) -> Result<Tensor, Refusal> {
    let (batch, new) = (logits.size(0), config.max_new_tokens);
    let key = random::key(config.seed);
    let start: Vec<Tensor> = [
        Tensor::full(DType::I32, [batch, new], config.padding()),
        Tensor::zeros(DType::Bool, [batch]),
        Tensor::zeros(DType::I32, []),
        logits.to_dtype(DType::F32),
    ]
    .into_iter()
    .chain(cache.tensors())
    .collect();
    let line = Scope::line();
    let end = while_loop(
        &start.iter().collect::<Vec<_>>(),
        |carry| carry[2].lt(new as f64).and(carry[1].all(&[-1]).not()),
        |carry| {
            let _scope = MODELS.at(line);
            let [tokens, finished, step, logits, inner @ ..] = carry else { return Vec::new() };
            let logits = config.restrict(logits, step);
            let chosen = if config.do_sample {
                config.sample(&random::fold_in_tensor(&key, step.to_dtype(DType::U32)), &logits)
            } else {
                logits.argmax(-1)
            };
            let next = finished.select(&Tensor::full(DType::I32, [], config.padding()), &chosen);
            let column = next.unsqueeze(-1);
            let tokens = tokens
                .dynamic_update_slice(&column, &[Tensor::zeros(DType::I32, []), step.clone()]);
            let (logits, cache) = model.next_token_logits(&column, &cache.with_tensors(inner));
            let carry =
                [tokens, finished.or(config.ends(&next)), step + 1.0, logits.to_dtype(DType::F32)];
            carry.into_iter().chain(cache.tensors()).collect()
        },
    );
    Ok(end[0].live()?.clone())
}

#[cfg(all(test, feature = "gpt2"))]
mod tests {
    use super::*;
    use crate::Pretrained;
    use crate::gpt2::Gpt2;
    use crate::reference::folder;

    #[test]
    fn what_cannot_be_generated_says_why() {
        let model = Gpt2::from_folder(folder("gpt2")).unwrap_or_else(|e| panic!("{e}"));
        let refusal = |prompt: &Prompt, config: GenerationConfig| {
            generate(&model, prompt, &config)
                .fault()
                .map(|fault| fault.to_string())
                .unwrap_or_default()
        };
        let (prompt, plain) = (Prompt::new(&[[1, 2, 3]]), GenerationConfig::default());
        for (prompt, config, expected) in [
            (
                &prompt,
                GenerationConfig { max_new_tokens: 46, ..plain.clone() },
                "3 tokens and 46 new ones exceed the 48 positions",
            ),
            (
                &prompt,
                GenerationConfig { num_beams: 2, do_sample: true, ..plain.clone() },
                "a beam search draws nothing",
            ),
            (
                &prompt,
                GenerationConfig { temperature: 0.0, ..plain.clone() },
                "`temperature` must be above 0",
            ),
            (
                &prompt,
                GenerationConfig { bad_words_ids: vec![vec![1], vec![2, 3]], ..plain.clone() },
                "`bad_words_ids` has [2, 3]; only single tokens are supported",
            ),
            (&Prompt::new(&[vec![1], Vec::new()]), plain.clone(), "row 1 has no token"),
            (
                &Prompt::from(&Tensor::zeros(DType::I32, [4])),
                plain,
                "the ids i32[4] are not [batch, length]",
            ),
        ] {
            let text = refusal(prompt, config);
            assert!(text.contains(expected) && text.contains("generate/mod.rs"), "{text}");
        }
    }
}
