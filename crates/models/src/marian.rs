//! The encoder-decoder Transformer, Vaswani et al. 2017, in the form of transformers'
//! `MarianMTModel`, including the translation models of the University of Helsinki, `opus-mt-…`.
//!
//! An encoder reads a text; a decoder writes another, with attention to its own tokens and to the
//! encoder's output. Each part of a layer is followed by a residual sum and a normalization.
//! Positions are encoded by sines and cosines.

mod config;

use fulmen_nn::attention::{Attention, KeyValueCache};
use fulmen_nn::{Buffer, Dropout, Embedding, LayerNorm, Linear, Module, Parameter};
use fulmen_tensor::{AsTensor, DType, Refusal, Tensor};
use serde_json::{Map, Value};

use crate::attention::{Span, attend, split_heads};
use crate::encoder_decoder::{Decoding, EncoderDecoder, KeysValues, Memory};
use crate::layers::{LayerOptions, run_layers};
use crate::{Activation, MODELS, Pretrained, Result, StaticCache, init};

pub use config::Config;

/// The Transformer with its head.
///
/// ```
/// use fulmen_models::marian::{Config, Marian};
/// use fulmen_models::{GenerationConfig, Pretrained, generate};
/// use fulmen_nn::Module;
/// use fulmen_tensor::{DType, Tensor};
///
/// let sizes = Config { d_model: 8, encoder_layers: 1, decoder_layers: 1, ..Config::base(50) };
/// let model = Marian::new(Config { encoder_ffn_dim: 16, decoder_ffn_dim: 16, ..sizes })?;
/// model.initialize(0);
/// model.eval();
/// let ids = Tensor::zeros(DType::I32, [4, 16]);
/// let decoder_ids = Tensor::zeros(DType::I32, [4, 6]);
/// assert_eq!(model.forward(&ids, None, &decoder_ids).ty().to_string(), "f32[4, 6, 50]");
///
/// let decoding = model.decoding(&ids, None);
/// let config = GenerationConfig { max_new_tokens: Some(3), num_beams: 2, ..GenerationConfig::default() };
/// assert_eq!(generate(&decoding, &decoding.start(), &config).ty().to_string(), "i32[4, 3]");
/// # Ok::<(), fulmen_models::Error>(())
/// ```
#[derive(Module)]
pub struct Marian {
    /// Everything except the head.
    pub model: Model,
    /// The output projection from features to logits, `[vocabulary, features]`.
    pub lm_head: Linear,
    /// The bias of the logits, `[1, vocabulary]`: zeros, unless a file has other values.
    pub final_logits_bias: Buffer,
    /// Whether the backward pass recomputes each layer, for a fraction of the memory; initially
    /// false.
    pub gradient_checkpointing: bool,
    /// Whether equal layers run as one scan. The program then compiles as fast as with a single
    /// one. Initially false. Generation with a cache
    /// runs the layers in sequence.
    pub scan_layers: bool,
    #[module(skip)]
    config: Config,
}

/// Encoder and decoder: transformers' `MarianModel`.
#[derive(Module)]
pub struct Model {
    /// The token embedding, if encoder and decoder share it, `[vocabulary, features]`.
    pub shared: Option<Embedding>,
    /// The encoder.
    pub encoder: Encoder,
    /// The decoder.
    pub decoder: Decoder,
}

/// The encoder.
#[derive(Module)]
pub struct Encoder {
    /// `[vocabulary, features]`.
    pub embed_tokens: Embedding,
    /// The layers.
    pub layers: Vec<EncoderLayer>,
    dropout: Dropout,
}

/// The decoder.
#[derive(Module)]
pub struct Decoder {
    /// `[vocabulary, features]`.
    pub embed_tokens: Embedding,
    /// The layers.
    pub layers: Vec<DecoderLayer>,
    dropout: Dropout,
}

/// A layer of the encoder: `h = norm(x + self_attn(x))`, then `norm(h + fc2(activation(fc1(h))))`.
#[derive(Module)]
pub struct EncoderLayer {
    /// Attention to all tokens.
    pub self_attn: MultiHeadAttention,
    /// The normalization after self-attention.
    pub self_attn_layer_norm: LayerNorm,
    #[module(flatten)]
    network: Network,
}

/// A layer of the decoder: like one of the encoder, with attention to the encoder's output in
/// between.
#[derive(Module)]
pub struct DecoderLayer {
    /// Attention to earlier tokens.
    pub self_attn: MultiHeadAttention,
    /// The normalization after self-attention.
    pub self_attn_layer_norm: LayerNorm,
    /// Attention to the encoder's output.
    pub encoder_attn: MultiHeadAttention,
    /// The normalization after attention to the encoder's output.
    pub encoder_attn_layer_norm: LayerNorm,
    #[module(flatten)]
    network: Network,
}

/// The feed-forward network of a layer, the normalization after it, and the dropout of the layer's
/// outputs.
#[derive(Module)]
struct Network {
    fc1: Linear,
    fc2: Linear,
    final_layer_norm: LayerNorm,
    activation_dropout: Dropout,
    dropout: Dropout,
    #[module(skip)]
    activation: Activation,
}

/// Multi-head attention.
#[derive(Module)]
pub struct MultiHeadAttention {
    /// `[features, features]`.
    pub k_proj: Linear,
    /// `[features, features]`.
    pub v_proj: Linear,
    /// `[features, features]`.
    pub q_proj: Linear,
    /// `[features, features]`.
    pub out_proj: Linear,
    dropout: Dropout,
    heads: usize,
}

impl MultiHeadAttention {
    fn new(config: &Config, heads: usize) -> MultiHeadAttention {
        let layer = || Linear::new(config.d_model, config.d_model);
        let dropout = Dropout::new(config.attention_dropout);
        MultiHeadAttention {
            k_proj: layer(),
            v_proj: layer(),
            q_proj: layer(),
            out_proj: layer(),
            dropout,
            heads,
        }
    }

    fn queries(&self, x: &Tensor) -> Tensor {
        split_heads(&self.q_proj.forward(x), self.heads)
    }

    /// Keys and values of these tokens, each `[batch, heads, length, width]`.
    fn keys_values(&self, x: &Tensor) -> KeysValues {
        let project = |layer: &Linear| split_heads(&layer.forward(x), self.heads);
        KeysValues { keys: project(&self.k_proj), values: project(&self.v_proj) }
    }

    /// Self-attention.
    fn forward(
        &self,
        x: &Tensor,
        attention: &Attention,
        cache: Option<&KeyValueCache>,
    ) -> (Tensor, Option<KeyValueCache>) {
        let q = self.queries(x);
        let KeysValues { keys, values } = self.keys_values(x);
        let attention = attention.clone().dropout(&self.dropout);
        let (attended, cache) = attend(attention, &q, &keys, &values, cache);
        (self.out_proj.forward(attended), cache)
    }
}

impl Network {
    fn new(config: &Config, inner: usize) -> Network {
        Network {
            fc1: Linear::new(config.d_model, inner),
            fc2: Linear::new(inner, config.d_model),
            final_layer_norm: config.norm(),
            activation_dropout: Dropout::new(config.activation_dropout),
            dropout: Dropout::new(config.dropout),
            activation: config.activation_function,
        }
    }

    /// `norm(x + part)`.
    fn add(&self, x: &Tensor, part: Tensor, norm: &LayerNorm) -> Tensor {
        norm.forward(x + self.dropout.forward(part))
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let hidden = self.activation_dropout.forward(self.activation.forward(&self.fc1.forward(x)));
        self.add(x, self.fc2.forward(hidden), &self.final_layer_norm)
    }
}

impl Marian {
    /// The logits `[batch, decoder length, vocabulary]` of the token after each of `decoder_ids`,
    /// integers `[batch, decoder length]`, given `ids`, integers `[batch, length]`.
    /// `attention_mask`, of the shape of `ids`, is 0 for padding.
    ///
    /// Poisoned if the shapes do not fit, and if there are more tokens than positions.
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
    /// Everything computed from it is poisoned if the shapes do not fit, or if there are more
    /// tokens than positions.
    #[track_caller]
    pub fn decoding(&self, ids: impl AsTensor, attention_mask: Option<&Tensor>) -> Decoding<'_> {
        let _scope = MODELS.open();
        Decoding::new(self, ids.as_tensor(), attention_mask)
    }

    fn layer_options(&self) -> LayerOptions {
        let Marian { gradient_checkpointing, scan_layers, .. } = *self;
        LayerOptions { gradient_checkpointing, scan_layers, ..LayerOptions::default() }
    }

    /// Embeddings of tokens and positions.
    fn embed(&self, embedding: &Embedding, ids: &Tensor, span: &Span) -> Tensor {
        let tokens = embedding.forward(ids);
        let width = self.config.d_model;
        let tokens =
            if self.config.scale_embedding { tokens * (width as f64).sqrt() } else { tokens };
        let frequencies: Vec<f32> =
            (0..width / 2).map(|i| 10_000f64.powf(-2.0 * i as f64 / width as f64) as f32).collect();
        let rates = Tensor::from_slice(&frequencies, [frequencies.len()]);
        let angles = span.positions().to_dtype(DType::F32).unsqueeze(-1) * rates;
        let encodings = Tensor::concatenate(&[&angles.sin(), &angles.cos()], -1);
        &tokens + encodings.to_dtype(tokens.dtype())
    }
}

impl EncoderDecoder for Marian {
    fn name(&self) -> &'static str {
        "Marian"
    }

    fn start_token(&self) -> i32 {
        self.config.decoder_start_token_id
    }

    /// By default the first token of the decoder, as in all published folders.
    fn padding_token(&self) -> i32 {
        let padding = self.config.pad_token_id.and_then(|id| i32::try_from(id).ok());
        padding.unwrap_or(self.config.decoder_start_token_id)
    }

    fn encode(
        &self,
        ids: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<(Tensor, Vec<KeysValues>), Refusal> {
        let max_length = self.config.max_position_embeddings;
        if ids.size(1) > max_length {
            return Err(format!(
                "the ids {} are longer than the {max_length} positions of the encoder",
                ids.ty()
            )
            .into());
        }
        let Encoder { embed_tokens, layers, dropout } = &self.model.encoder;
        let x = dropout.forward(self.embed(embed_tokens, ids, &Span::new(ids, None)));
        let attention = mask.map_or(Attention::new(), |mask| Attention::new().mask(mask));
        let forward = |i: usize, x: &Tensor, _: Option<&_>| {
            let EncoderLayer { self_attn, self_attn_layer_norm, network } = &layers[i];
            let attended = self_attn.forward(x, &attention, None).0;
            (network.forward(&network.add(x, attended, self_attn_layer_norm)), None)
        };
        let features = run_layers(x, layers, None, self.layer_options(), |_| true, forward).0;
        let decoder = &self.model.decoder.layers;
        let keys_values =
            decoder.iter().map(|layer| layer.encoder_attn.keys_values(&features)).collect();
        Ok((features, keys_values))
    }

    fn decode(
        &self,
        ids: &Tensor,
        memory: &Memory,
        cache: Option<&StaticCache>,
    ) -> (Tensor, Option<StaticCache>) {
        let Decoder { embed_tokens, layers, dropout } = &self.model.decoder;
        let span = Span::new(ids, cache);
        let attention = Attention::new().mask(&span.mask(None));
        let x = dropout.forward(self.embed(embed_tokens, ids, &span));
        run_layers(
            x,
            layers,
            cache,
            self.layer_options(),
            |_| true,
            |i, x, cache| {
                let DecoderLayer {
                    self_attn,
                    self_attn_layer_norm,
                    encoder_attn,
                    encoder_attn_layer_norm,
                    network,
                } = &layers[i];
                let has_cache = cache.is_some();
                let (attended, cache) = self_attn.forward(x, &attention, cache);
                let x = network.add(x, attended, self_attn_layer_norm);
                let keys_values =
                    memory.keys_values(i, has_cache, |features| encoder_attn.keys_values(features));
                let mut attention = Attention::new().dropout(&encoder_attn.dropout);
                if let Some(mask) = memory.mask() {
                    attention = attention.mask(mask);
                }
                let attended = encoder_attn.out_proj.forward(memory.attend(
                    attention,
                    &encoder_attn.queries(&x),
                    &keys_values,
                ));
                (network.forward(&network.add(&x, attended, encoder_attn_layer_norm)), cache)
            },
        )
    }

    fn head(&self, x: Tensor) -> Tensor {
        let logits = self.lm_head.forward(x);
        &logits + self.final_logits_bias.get().squeeze(0).to_dtype(logits.dtype())
    }

    fn empty_cache(&self, batch: usize, max_len: usize) -> StaticCache {
        let Config { d_model, decoder_attention_heads: heads, .. } = self.config;
        let dtype = self.model.decoder.embed_tokens.weight.dtype();
        let layer = |_| KeyValueCache::new(dtype, batch, heads, max_len, d_model / heads);
        StaticCache::new(self.model.decoder.layers.iter().map(layer))
    }

    fn max_positions(&self) -> Option<usize> {
        Some(self.config.max_position_embeddings)
    }
}

impl Pretrained for Marian {
    type Config = Config;
    const MODEL_TYPES: &'static [&'static str] = &["marian"];
    const FIXED_SETTINGS: &'static [(&'static str, &'static str)] = &[
        ("is_encoder_decoder", "true"),
        ("normalize_before", "false"),
        ("normalize_embedding", "false"),
        ("add_final_layer_norm", "false"),
        ("add_bias_logits", "false"),
        ("static_position_embeddings", "true"),
        ("encoder_layerdrop", "0"),
        ("decoder_layerdrop", "0"),
    ];
    /// Settings of other heads; a number of positions that no code reads.
    const HARMLESS_SETTINGS: &'static [&'static str] =
        &["classif_dropout", "classifier_dropout", "extra_pos_embeddings"];
    const SETTING_ALIASES: &'static [(&'static str, &'static str)] = &[
        ("hidden_size", "d_model"),
        ("num_attention_heads", "encoder_attention_heads"),
        ("num_hidden_layers", "encoder_layers"),
    ];
    const BASE_MODEL_PREFIX: &'static str = "model";
    const HEAD: &'static [&'static str] = &["lm_head", "final_logits_bias"];
    /// Tables of sines and cosines, which are computed instead.
    const IGNORED_KEYS: &'static [&'static str] = &["embed_positions.weight"];

    fn new(config: Config) -> Result<Marian> {
        config.check()?;
        let Config { d_model, share_encoder_decoder_embeddings: is_shared, .. } = config;
        let target = config.target_vocab_size();
        let embedding = |rows| {
            let padding = config.pad_token_id.filter(|&id| id < rows);
            Embedding::new(rows, d_model).padding_idx(padding)
        };
        let source = embedding(config.vocab_size);
        let target_embedding = if is_shared { source.clone() } else { embedding(target) };
        let mut lm_head = Linear::new(d_model, target).bias(false);
        if config.tie_word_embeddings {
            lm_head.weight = Parameter::clone(&target_embedding.weight);
        }
        let encoder_layer = |_| EncoderLayer {
            self_attn: MultiHeadAttention::new(&config, config.encoder_attention_heads),
            self_attn_layer_norm: config.norm(),
            network: Network::new(&config, config.encoder_ffn_dim),
        };
        let decoder_layer = |_| DecoderLayer {
            self_attn: MultiHeadAttention::new(&config, config.decoder_attention_heads),
            self_attn_layer_norm: config.norm(),
            encoder_attn: MultiHeadAttention::new(&config, config.decoder_attention_heads),
            encoder_attn_layer_norm: config.norm(),
            network: Network::new(&config, config.decoder_ffn_dim),
        };
        let model = Model {
            shared: is_shared.then(|| source.clone()),
            encoder: Encoder {
                embed_tokens: source,
                layers: (0..config.encoder_layers).map(encoder_layer).collect(),
                dropout: Dropout::new(config.dropout),
            },
            decoder: Decoder {
                embed_tokens: target_embedding,
                layers: (0..config.decoder_layers).map(decoder_layer).collect(),
                dropout: Dropout::new(config.dropout),
            },
        };
        let final_logits_bias = Buffer::new(Tensor::zeros(DType::F32, [1, target]));
        let gradient_checkpointing = false;
        let scan_layers = false;
        let marian = Marian {
            model,
            lm_head,
            final_logits_bias,
            gradient_checkpointing,
            scan_layers,
            config,
        };
        init::normal(&marian, marian.config.init_std);
        Ok(marian)
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn other_settings(config: &Config) -> &Map<String, Value> {
        &config.other
    }

    fn architecture(&self) -> String {
        "MarianMTModel".into()
    }
}

#[cfg(test)]
mod tests {
    use fulmen_nn::loss::CrossEntropyLoss;
    use fulmen_tensor::grad;

    use super::*;
    use crate::reference::{ExpectedValues, check_decoder, folder};
    use crate::{GenerationConfig, generate};

    #[test]
    fn a_marian_of_transformers_gives_its_logits_and_tokens() {
        let model = Marian::from_folder(folder("marian")).unwrap_or_else(|e| panic!("{e}"));
        let expected = ExpectedValues::read("marian");
        let [ids, mask] = ["input_ids", "attention_mask"].map(|name| expected.tensor(name));
        let decoding = model.decoding(&ids, Some(&mask));
        check_decoder("marian", &decoding, |ids| decoding.forward(ids));
    }

    #[test]
    fn a_marian_with_two_vocabularies_gives_transformers_logits_and_loss() {
        let model = Marian::from_folder(folder("marian-two")).unwrap_or_else(|e| panic!("{e}"));
        let expected = ExpectedValues::read("marian-two");
        let names = ["input_ids", "decoder_input_ids", "labels"];
        let [ids, decoder_ids, labels] = names.map(|name| expected.tensor(name));
        let decoding = model.decoding(&ids, None);
        let logits = decoding.forward(decoding.shift_right(&labels));
        let loss = CrossEntropyLoss::new().ignore_index(-100).forward(logits, &labels);
        expected.check(&[("logits", &decoding.forward(&decoder_ids)), ("loss", &loss)]);
    }

    /// An `opus-mt` folder: the decoder starts with the padding token and reads it where a label is
    /// ignored, looking it up gives its row no gradient, and it is never generated, although its
    /// bias makes it the likeliest.
    #[test]
    fn the_padding_token_starts_the_decoder_and_is_never_generated() {
        let model = Marian::from_folder(folder("marian-padding")).unwrap_or_else(|e| panic!("{e}"));
        let expected = ExpectedValues::read("marian-padding");
        let names = ["input_ids", "attention_mask", "labels"];
        let [ids, mask, labels] = names.map(|name| expected.tensor(name));
        let decoding = model.decoding(&ids, Some(&mask));
        let logits = decoding.forward(decoding.shift_right(&labels));
        let loss = CrossEntropyLoss::new().ignore_index(-100).forward(&logits, &labels);
        let weight = model.model.decoder.embed_tokens.weight.get();
        let gradient = &grad(&loss, &[&weight])[0];
        let searched = GenerationConfig::from_folder(folder("marian-padding"))
            .unwrap_or_else(|e| panic!("{e}"));
        let greedy = GenerationConfig { num_beams: 1, ..searched.clone() };
        expected.check(&[
            ("logits", &logits),
            ("loss", &loss),
            ("gradient", gradient),
            ("greedy", &generate(&decoding, &decoding.start(), &greedy)),
            ("beams", &generate(&decoding, &decoding.start(), &searched)),
        ]);
    }

    #[test]
    fn the_sizes_are_those_of_the_paper() {
        // Without the embedding, which is the head too.
        let count = |config: Config| {
            let tokens = config.vocab_size * config.d_model;
            Marian::new(config).unwrap().num_parameters() - tokens
        };
        assert_eq!((count(Config::base(1)), count(Config::big(1))), (44_138_496, 176_357_376));
    }
}
