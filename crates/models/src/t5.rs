//! T5: transformers' `T5ForConditionalGeneration`, Raffel et al. 2019; also T5 1.1 and Flan-T5.
//!
//! An encoder reads a text; a decoder writes another, with attention to its own tokens and to the
//! encoder's output. Positions are encoded by a bias on the attention scores for each range of
//! distances, which all layers of a stack share.

mod config;

use fulmen_nn::attention::{Attention, KeyValueCache};
use fulmen_nn::{Dropout, Embedding, Init, Linear, Module, Parameter, RmsNorm, Visit};
use fulmen_tensor::{AsTensor, DType, Refusal, Tensor};
use serde_json::{Map, Value};

use crate::attention::{Span, attend, split_heads, tokens};
use crate::encoder_decoder::{Decoding, EncoderDecoder, KeysValues, Memory};
use crate::layers::{LayerOptions, run_layers};
use crate::{Activation, MODELS, Pretrained, Result, StaticCache, error};

pub use config::Config;

/// T5 with its head.
///
/// ```
/// use fulmen_models::t5::{Config, T5};
/// use fulmen_models::{GenerationConfig, Pretrained, generate};
/// use fulmen_nn::Module;
/// use fulmen_tensor::{DType, Tensor};
///
/// let config = Config { vocab_size: 50, d_model: 8, d_kv: 4, d_ff: 16, num_layers: 1, num_heads: 2, ..Config::default() };
/// let model = T5::new(config)?;
/// model.initialize(0);
/// model.eval();
/// let ids = Tensor::zeros(DType::I32, [4, 16]);
/// let decoder_ids = Tensor::zeros(DType::I32, [4, 6]);
/// assert_eq!(model.forward(&ids, None, &decoder_ids).ty().to_string(), "f32[4, 6, 50]");
///
/// let decoding = model.decoding(&ids, None);
/// let config = GenerationConfig { max_new_tokens: Some(3), ..GenerationConfig::default() };
/// assert_eq!(generate(&decoding, &decoding.start(), &config).ty().to_string(), "i32[4, 3]");
/// # Ok::<(), fulmen_models::Error>(())
/// ```
#[derive(Module)]
pub struct T5 {
    /// The tokens' embedding, `[vocabulary, features]`.
    pub shared: Embedding,
    /// The encoder.
    pub encoder: Stack,
    /// The decoder.
    pub decoder: Stack,
    /// The output projection from features to logits, `[vocabulary, features]`.
    pub lm_head: Linear,
    /// Whether the backward pass recomputes each block, for a fraction of the memory; initially
    /// false.
    pub gradient_checkpointing: bool,
    /// Whether equal blocks run as one scan. The program then compiles as fast as with a single
    /// one. Initially false. Generation with a cache
    /// runs the blocks in sequence.
    pub scan_layers: bool,
    #[module(skip)]
    config: Config,
}

/// An encoder or a decoder.
#[derive(Module)]
pub struct Stack {
    /// The token embedding, the same as [`T5::shared`].
    pub embed_tokens: Embedding,
    /// The blocks.
    pub block: Vec<Block>,
    /// The last normalization.
    pub final_layer_norm: RmsNorm,
    dropout: Dropout,
    #[module(skip)]
    buckets: RelativePositionBuckets,
}

/// The ranges of distances that share a bias.
struct RelativePositionBuckets {
    /// Whether tokens to the right have their own ranges.
    bidirectional: bool,
    /// The range of each distance, from 0 to the largest.
    ranges: Vec<i32>,
    /// The number of ranges for one direction.
    count: usize,
}

/// Self-attention, in a decoder cross-attention to the encoder's output, and a feed-forward
/// network. transformers calls them `layer.0`, `layer.1` and so on.
pub struct Block {
    /// Self-attention.
    pub self_attention: SelfAttention,
    /// The normalization before self-attention.
    pub self_norm: RmsNorm,
    /// Attention to the encoder's tokens, and the normalization before it.
    pub cross_attention: Option<(SelfAttention, RmsNorm)>,
    /// The network.
    pub dense: Dense,
    /// The normalization before the network.
    pub dense_norm: RmsNorm,
    dropout: Dropout,
}

impl Module for Block {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.child("layer.0.SelfAttention", &self.self_attention);
        visit.child("layer.0.layer_norm", &self.self_norm);
        let mut last = 1;
        if let Some((attention, norm)) = &self.cross_attention {
            visit.child("layer.1.EncDecAttention", attention);
            visit.child("layer.1.layer_norm", norm);
            last = 2;
        }
        visit.child(&format!("layer.{last}.DenseReluDense"), &self.dense);
        visit.child(&format!("layer.{last}.layer_norm"), &self.dense_norm);
        visit.child("dropout", &self.dropout);
    }
}

/// Attention without biases and without a factor on the scores.
#[derive(Module)]
pub struct SelfAttention {
    /// `[heads·width, features]`.
    pub q: Linear,
    /// `[heads·width, features]`.
    pub k: Linear,
    /// `[heads·width, features]`.
    pub v: Linear,
    /// `[features, heads·width]`.
    pub o: Linear,
    /// In the first block of a stack: the bias of each range of distances, `[ranges, heads]`.
    pub relative_attention_bias: Option<Embedding>,
    dropout: Dropout,
    heads: usize,
}

/// The network of a block: `wo(activation(wi(x)))`, or `wo(activation(wi_0(x))·wi_1(x))`.
#[derive(Module)]
pub struct Dense {
    /// `[inner, features]`.
    pub wi: Option<Linear>,
    /// `[inner, features]`.
    pub wi_0: Option<Linear>,
    /// `[inner, features]`.
    pub wi_1: Option<Linear>,
    /// `[features, inner]`.
    pub wo: Linear,
    dropout: Dropout,
    #[module(skip)]
    activation: Activation,
}

impl SelfAttention {
    fn new(config: &Config, first: bool) -> SelfAttention {
        let Config { d_model, d_kv, num_heads: heads, .. } = *config;
        let inner = heads * d_kv;
        let std = (d_model as f64).powf(-0.5);
        let bias = first.then(|| {
            let bias = Embedding::new(config.relative_attention_num_buckets, heads);
            bias.weight.set_init(Init::normal(0.0, config.initializer_factor * std));
            bias
        });
        SelfAttention {
            q: config
                .linear(d_model, inner, std * (d_kv as f64).powf(-0.5))
                .with_axes("heads", "embed"),
            k: config.linear(d_model, inner, std).with_axes("heads", "embed"),
            v: config.linear(d_model, inner, std).with_axes("heads", "embed"),
            o: config.linear(inner, d_model, (inner as f64).powf(-0.5)).with_axes("embed", "heads"),
            relative_attention_bias: bias,
            dropout: Dropout::new(config.dropout_rate),
            heads,
        }
    }

    fn attention(&self) -> Attention {
        Attention::new().scale(1.0).dropout(&self.dropout)
    }

    /// Keys and values of these tokens, each `[batch, heads, length, width]`.
    fn keys_values(&self, x: &Tensor) -> KeysValues {
        let project = |layer: &Linear| split_heads(&layer.forward(x), self.heads);
        KeysValues { keys: project(&self.k), values: project(&self.v) }
    }

    /// Attention of the tokens to each other, with the bias `[…, count, keys]` on the scores.
    fn forward(
        &self,
        x: &Tensor,
        bias: &Tensor,
        cache: Option<&KeyValueCache>,
    ) -> (Tensor, Option<KeyValueCache>) {
        let q = split_heads(&self.q.forward(x), self.heads);
        let KeysValues { keys, values } = self.keys_values(x);
        let (attended, cache) = attend(self.attention().mask(bias), &q, &keys, &values, cache);
        (tokens(self.o.forward(attended), "embed"), cache)
    }

    /// Attention to the encoder's tokens.
    fn forward_cross(&self, x: &Tensor, memory: &Memory, layer: usize, has_cache: bool) -> Tensor {
        let q = split_heads(&self.q.forward(x), self.heads);
        let keys_values =
            memory.keys_values(layer, has_cache, |features| self.keys_values(features));
        let attention = match memory.mask() {
            Some(mask) => self.attention().mask(hide(&Tensor::zeros(x.dtype(), []), mask)),
            None => self.attention(),
        };
        tokens(self.o.forward(memory.attend(attention, &q, &keys_values)), "embed")
    }
}

/// The bias of scores where `mask` is true, else the lowest number, as in transformers: a token that
/// sees no other gets the mean of all. With −∞, it would get zeros.
fn hide(bias: &Tensor, mask: &Tensor) -> Tensor {
    let (bias, lowest) = match bias.dtype() {
        DType::Bf16 => (bias.clone(), (2.0_f64.powi(-7) - 2.0) * 2.0_f64.powi(127)),
        // The lowest f16 is not far below scores.
        DType::F16 => (bias.to_dtype(DType::F32), f64::from(f32::MIN)),
        _ => (bias.clone(), f64::from(f32::MIN)),
    };
    mask.select(&bias, &Tensor::full(bias.dtype(), [], lowest))
}

impl Dense {
    fn new(config: &Config) -> Result<Dense> {
        let (activation, gated) = config.activation()?;
        let Config { d_model, d_ff, .. } = *config;
        let inner = |present: bool| {
            present.then(|| {
                let linear = config.linear(d_model, d_ff, (d_model as f64).powf(-0.5));
                linear.with_axes("mlp", "embed")
            })
        };
        Ok(Dense {
            wi: inner(!gated),
            wi_0: inner(gated),
            wi_1: inner(gated),
            wo: config.linear(d_ff, d_model, (d_ff as f64).powf(-0.5)).with_axes("embed", "mlp"),
            dropout: Dropout::new(config.dropout_rate),
            activation,
        })
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let apply =
            |layer: &Option<Linear>| layer.as_ref().map(|layer| tokens(layer.forward(x), "mlp"));
        let hidden = apply(&self.wi)
            .or_else(|| apply(&self.wi_0))
            .map(|hidden| self.activation.forward(&hidden));
        let hidden = match (hidden, apply(&self.wi_1)) {
            (Some(hidden), Some(other)) => hidden * other,
            (Some(hidden), None) => hidden,
            (None, _) => x.clone(),
        };
        tokens(self.wo.forward(self.dropout.forward(hidden)), "embed")
    }
}

impl RelativePositionBuckets {
    fn new(config: &Config, bidirectional: bool) -> RelativePositionBuckets {
        let count = config.relative_attention_num_buckets / if bidirectional { 2 } else { 1 };
        let exact = count / 2;
        let max_distance = config.relative_attention_max_distance;
        // In f32, as transformers computes it: a distance at the border of two ranges is in the
        // same one.
        let rate = (count - exact) as f32;
        let ranges = (0..=max_distance).map(|distance| {
            if distance < exact {
                return distance as i32;
            }
            let times = (distance as f32 / exact as f32).ln()
                / (max_distance as f64 / exact as f64).ln() as f32;
            ((exact as f32 + times * rate) as i32).min(count as i32 - 1)
        });
        RelativePositionBuckets { bidirectional, ranges: ranges.collect(), count }
    }

    /// The range of each key from each query, integers `[count, keys]`.
    fn ranges(&self, span: &Span) -> Tensor {
        let distance = Tensor::arange(DType::I32, span.keys) - &span.queries;
        let max_distance = self.ranges.len() as f64 - 1.0;
        let ranges = Tensor::from_slice(&self.ranges, [self.ranges.len()]);
        if self.bidirectional {
            let after = distance.gt(0.0).to_dtype(DType::I32) * self.count as f64;
            return ranges.take(0, distance.abs().clamp(0.0, max_distance)) + after;
        }
        ranges.take(0, (-distance).clamp(0.0, max_distance))
    }
}

impl Stack {
    fn new(config: &Config, shared: &Embedding, is_decoder: bool) -> Result<Stack> {
        let layers =
            if is_decoder { config.num_decoder_layers } else { None }.unwrap_or(config.num_layers);
        let block = |number: usize| {
            Ok(Block {
                self_attention: SelfAttention::new(config, number == 0),
                self_norm: config.norm(),
                cross_attention: is_decoder
                    .then(|| (SelfAttention::new(config, false), config.norm())),
                dense: Dense::new(config)?,
                dense_norm: config.norm(),
                dropout: Dropout::new(config.dropout_rate),
            })
        };
        Ok(Stack {
            embed_tokens: shared.clone(),
            block: (0..layers).map(block).collect::<Result<_>>()?,
            final_layer_norm: config.norm(),
            dropout: Dropout::new(config.dropout_rate),
            buckets: RelativePositionBuckets::new(config, !is_decoder),
        })
    }

    /// The features of tokens. Each token sees those where `mask` is true, and the encoder's output
    /// in `memory`.
    fn forward(
        &self,
        ids: &Tensor,
        span: &Span,
        mask: Option<&Tensor>,
        memory: Option<&Memory>,
        cache: Option<&StaticCache>,
        options: LayerOptions,
    ) -> (Tensor, Option<StaticCache>) {
        let first = self
            .block
            .first()
            .and_then(|block| block.self_attention.relative_attention_bias.as_ref());
        let Some(first) = first else {
            return (self.final_layer_norm.forward(self.embed_tokens.forward(ids)), None);
        };
        let bias = first.forward(self.buckets.ranges(span)).permute([2, 0, 1]);
        let bias = match mask {
            Some(mask) => hide(&bias, mask),
            None => bias,
        };
        let x = self.dropout.forward(tokens(self.embed_tokens.forward(ids), "embed"));
        let is_first = |block: &Block| block.self_attention.relative_attention_bias.is_some();
        let (x, cache) = run_layers(x, &self.block, cache, options, is_first, |i, x, cache| {
            let block = &self.block[i];
            let has_cache = cache.is_some();
            let dropout = |x: Tensor| block.dropout.forward(x);
            let (attended, cache) =
                block.self_attention.forward(&block.self_norm.forward(x), &bias, cache);
            let mut x = x + dropout(attended);
            if let (Some((attention, norm)), Some(memory)) = (&block.cross_attention, memory) {
                let attended = attention.forward_cross(&norm.forward(&x), memory, i, has_cache);
                x = x + dropout(attended);
            }
            let transformed = block.dense.forward(&block.dense_norm.forward(&x));
            (x + dropout(transformed), cache)
        });
        (self.dropout.forward(self.final_layer_norm.forward(x)), cache)
    }
}

impl T5 {
    /// The logits `[batch, decoder length, vocabulary]` of the token after each of `decoder_ids`,
    /// integers `[batch, decoder length]`, given `ids`, integers `[batch, length]`.
    /// `attention_mask`, of the shape of `ids`, is 0 for padding.
    ///
    /// Poisoned if the shapes do not fit.
    #[track_caller]
    pub fn forward(
        &self,
        ids: impl AsTensor,
        attention_mask: Option<&Tensor>,
        decoder_ids: impl AsTensor,
    ) -> Tensor {
        let _scope = MODELS.open();
        self.decoding(ids, attention_mask).forward(decoder_ids)
    }

    /// Encodes `ids`, integers `[batch, length]`, for a decoder. `attention_mask`, of the same
    /// shape, is 0 for padding.
    ///
    /// Everything computed from it is poisoned if the shapes do not fit.
    #[track_caller]
    pub fn decoding(&self, ids: impl AsTensor, attention_mask: Option<&Tensor>) -> Decoding<'_> {
        let _scope = MODELS.open();
        Decoding::new(self, ids.as_tensor(), attention_mask)
    }

    fn layer_options(&self) -> LayerOptions {
        let T5 { gradient_checkpointing, scan_layers, .. } = *self;
        LayerOptions { gradient_checkpointing, scan_layers, ..LayerOptions::default() }
    }
}

impl EncoderDecoder for T5 {
    fn name(&self) -> &'static str {
        "T5"
    }

    fn start_token(&self) -> i32 {
        self.config.decoder_start_token_id
    }

    fn padding_token(&self) -> i32 {
        self.config.padding_token()
    }

    fn encode(
        &self,
        ids: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<(Tensor, Vec<KeysValues>), Refusal> {
        let (features, _) = self.encoder.forward(
            ids,
            &Span::new(ids, None),
            mask,
            None,
            None,
            self.layer_options(),
        );
        let keys_values = self
            .decoder
            .block
            .iter()
            .filter_map(|block| block.cross_attention.as_ref())
            .map(|(attention, _)| attention.keys_values(&features))
            .collect();
        Ok((features, keys_values))
    }

    fn decode(
        &self,
        ids: &Tensor,
        memory: &Memory,
        cache: Option<&StaticCache>,
    ) -> (Tensor, Option<StaticCache>) {
        let span = Span::new(ids, cache);
        self.decoder.forward(
            ids,
            &span,
            Some(&span.mask(None)),
            Some(memory),
            cache,
            self.layer_options(),
        )
    }

    fn head(&self, x: Tensor) -> Tensor {
        let T5 { config, lm_head, .. } = self;
        lm_head.forward(if config.is_tied() { x * (config.d_model as f64).powf(-0.5) } else { x })
    }

    fn empty_cache(&self, batch: usize, max_len: usize) -> StaticCache {
        let T5 { config, shared, decoder, .. } = self;
        let dtype = shared.weight.dtype();
        let layer = |_| KeyValueCache::new(dtype, batch, config.num_heads, max_len, config.d_kv);
        StaticCache::new(decoder.block.iter().map(layer))
    }

    /// `None`, because any distance has a range.
    fn max_positions(&self) -> Option<usize> {
        None
    }
}

impl Pretrained for T5 {
    type Config = Config;
    const MODEL_TYPES: &'static [&'static str] = &["t5"];
    const FIXED_SETTINGS: &'static [(&'static str, &'static str)] =
        &[("is_encoder_decoder", "true")];
    /// The length of the texts that it was trained on; settings of other heads.
    const HARMLESS_SETTINGS: &'static [&'static str] = &["classifier_dropout", "n_positions"];
    const SETTING_ALIASES: &'static [(&'static str, &'static str)] = &[
        ("head_dim", "d_kv"),
        ("hidden_size", "d_model"),
        ("num_attention_heads", "num_heads"),
        ("num_hidden_layers", "num_layers"),
    ];
    const BASE_MODEL_PREFIX: &'static str = "transformer";
    const HEAD: &'static [&'static str] = &["lm_head"];
    /// A table that old files have and no code reads.
    const IGNORED_KEYS: &'static [&'static str] = &["EncDecAttention.relative_attention_bias"];

    fn new(config: Config) -> Result<T5> {
        let Config { vocab_size, d_model, relative_attention_num_buckets: ranges, .. } = config;
        if ranges < 4 || config.relative_attention_max_distance <= ranges {
            let max_distance = config.relative_attention_max_distance;
            let message = format!(
                "`relative_attention_num_buckets` is {ranges}, expected at least 4 and less than \
                 `relative_attention_max_distance`, {max_distance}"
            );
            return Err(error::config(message));
        }
        let shared = Embedding::new(vocab_size, d_model);
        shared.weight.set_init(Init::normal(0.0, config.initializer_factor));
        shared.weight.with_axes(["vocab", "embed"]);
        let encoder = Stack::new(&config, &shared, false)?;
        let decoder = Stack::new(&config, &shared, true)?;
        let mut lm_head = config.linear(d_model, vocab_size, 1.0).with_axes("vocab", "embed");
        if config.is_tied() {
            lm_head.weight = Parameter::clone(&shared.weight);
        }
        Ok(T5 {
            shared,
            encoder,
            decoder,
            lm_head,
            gradient_checkpointing: false,
            scan_layers: false,
            config,
        })
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn other_settings(config: &Config) -> &Map<String, Value> {
        &config.other
    }

    fn architecture(&self) -> String {
        "T5ForConditionalGeneration".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{ExpectedValues, check_decoder, folder};

    #[test]
    fn a_t5_of_transformers_gives_its_logits_and_tokens() {
        let model = T5::from_folder(folder("t5")).unwrap_or_else(|e| panic!("{e}"));
        let expected = ExpectedValues::read("t5");
        let [ids, mask] = ["input_ids", "attention_mask"].map(|name| expected.tensor(name));
        let decoding = model.decoding(&ids, Some(&mask));
        check_decoder("t5", &decoding, |ids| decoding.forward(ids));
    }

    #[test]
    fn a_t5_with_gates_gives_transformers_logits() {
        let model = T5::from_folder(folder("t5-gated")).unwrap_or_else(|e| panic!("{e}"));
        let expected = ExpectedValues::read("t5-gated");
        let [ids, decoder_ids] =
            ["input_ids", "decoder_input_ids"].map(|name| expected.tensor(name));
        expected.check(&[("logits", &model.forward(&ids, None, &decoder_ids))]);
    }

    /// transformers' `_shift_right` does the same.
    #[test]
    fn an_ignored_label_is_read_as_the_padding_token() {
        let mut model = T5::from_folder(folder("t5")).unwrap_or_else(|e| panic!("{e}"));
        let labels = Tensor::from_slice(&[-100i32, 5, -100, 6], [1, 4]);
        let shifted = |model: &T5| {
            let decoding = model.decoding(labels.maximum(0.0), None);
            let ids = decoding.shift_right(&labels).eval();
            ids.and_then(|ids| ids.to_vec::<i32>()).unwrap_or_else(|e| panic!("{e}"))
        };
        assert_eq!(shifted(&model), [0, 0, 5, 0]);
        model.config.pad_token_id = Some(3);
        assert_eq!(shifted(&model), [0, 3, 5, 3]);
    }
}
