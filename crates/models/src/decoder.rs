//! The decoder of today's language models: Llama 3, Mistral, Qwen 2 and 3, Gemma 1 to 3 (text),
//! which differ in a few settings. transformers' `LlamaForCausalLM` and its variants.
//!
//! Each layer consists of attention to earlier tokens and a gated feed-forward network, with
//! residual connections. Positions are rotations of queries and keys; several query heads share one
//! head of keys and values.

use fulmen_nn::attention::{Attention, KeyValueCache, RotaryEmbedding, RotaryScaling};
use fulmen_nn::{Dropout, Embedding, Init, Linear, Module, Parameter, RmsNorm};
use fulmen_tensor::{AsTensor, DType, Refusal, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::attention::{Span, attend, check_heads, split_heads};
use crate::layers::{LayerOptions, run_layers};
use crate::{Activation, CausalLm, Error, MODELS, Pretrained, Result, StaticCache, init};

/// The kind of model, which determines everything that the settings do not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ModelType {
    /// Llama 2 and 3.
    Llama,
    /// Mistral 7B: a sliding window.
    Mistral,
    /// Qwen 2 and 2.5: queries, keys and values have biases.
    Qwen2,
    /// Qwen 3: queries and keys are normalized.
    Qwen3,
    /// Gemma: normalizations multiply by `1 + weight`, and embeddings are scaled.
    Gemma,
    /// Gemma 2: four normalizations in each layer; logits are bounded.
    Gemma2,
    /// Gemma 3, text only: queries and keys are normalized; layers with a sliding window use
    /// different angles.
    #[serde(rename = "gemma3_text")]
    Gemma3,
}

/// Which tokens a layer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerType {
    /// All earlier tokens.
    FullAttention,
    /// The last `sliding_window`.
    SlidingAttention,
}

/// The settings, with the names of `config.json`; by default Llama 2's of 7 billion parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The kind of model.
    pub model_type: ModelType,
    /// The size of the vocabulary.
    pub vocab_size: usize,
    /// The number of features of a token.
    pub hidden_size: usize,
    /// The number of features in the feed-forward network of a layer.
    pub intermediate_size: usize,
    /// The number of layers.
    pub num_hidden_layers: usize,
    /// The number of query heads.
    pub num_attention_heads: usize,
    /// The number of key and value heads, which must divide the number of query heads. By default,
    /// the two numbers are equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_key_value_heads: Option<usize>,
    /// The number of features of a head; `hidden_size/num_attention_heads` if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// The number of tokens that the model was trained on.
    pub max_position_embeddings: usize,
    /// The constant that normalizations add to the mean square.
    pub rms_norm_eps: f64,
    /// The activation of the gate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_act: Option<Activation>,
    /// The same; Gemma's name, which takes precedence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_activation: Option<Activation>,
    /// Whether the projections of attention have biases.
    pub attention_bias: bool,
    /// Whether the layers of the feed-forward network have biases.
    pub mlp_bias: bool,
    /// The dropout of attention weights.
    pub attention_dropout: f64,
    /// Whether the head shares the weight of the token embedding; by default only in Gemma.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tie_word_embeddings: Option<bool>,
    /// The rotations as in transformers 5: `rope_theta`, `rope_type` and its settings; or such a
    /// table for each type of layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_parameters: Option<Map<String, Value>>,
    /// The base of the angles, in older files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f64>,
    /// How angles are scaled for long sequences, in older files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<Map<String, Value>>,
    /// The base of the angles of layers with a sliding window, in older files of Gemma 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_local_base_freq: Option<f64>,
    /// The number of tokens that a layer with a sliding window sees, including its own.
    pub sliding_window: Option<usize>,
    /// Whether Qwen has a sliding window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_sliding_window: Option<bool>,
    /// The first layer with Qwen's sliding window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_window_layers: Option<usize>,
    /// Which tokens each layer sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_types: Option<Vec<LayerType>>,
    /// Gemma: queries times keys are divided by the square root of this instead of `head_dim`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_pre_attn_scalar: Option<usize>,
    /// Gemma 2: the bound `c` of attention scores, `c·tanh(x/c)`.
    pub attn_logit_softcapping: Option<f64>,
    /// Gemma 2: the same for the logits.
    pub final_logit_softcapping: Option<f64>,
    /// The standard deviation of initial values.
    pub initializer_range: f64,
    /// Other keys of the file, which are preserved.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            model_type: ModelType::Llama,
            vocab_size: 32000,
            hidden_size: 4096,
            intermediate_size: 11008,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: None,
            head_dim: None,
            max_position_embeddings: 2048,
            rms_norm_eps: 1e-6,
            hidden_act: None,
            hidden_activation: None,
            attention_bias: false,
            mlp_bias: false,
            attention_dropout: 0.0,
            tie_word_embeddings: None,
            rope_parameters: None,
            rope_theta: None,
            rope_scaling: None,
            rope_local_base_freq: None,
            sliding_window: None,
            use_sliding_window: None,
            max_window_layers: None,
            layer_types: None,
            query_pre_attn_scalar: None,
            attn_logit_softcapping: None,
            final_logit_softcapping: None,
            initializer_range: 0.02,
            other: Map::new(),
        }
    }
}

impl Config {
    fn is_gemma(&self) -> bool {
        matches!(self.model_type, ModelType::Gemma | ModelType::Gemma2 | ModelType::Gemma3)
    }

    /// Whether queries and keys are normalized.
    fn has_qk_norm(&self) -> bool {
        matches!(self.model_type, ModelType::Qwen3 | ModelType::Gemma3)
    }

    /// Whether the outputs of attention and of the feed-forward network are normalized as well.
    fn has_post_norms(&self) -> bool {
        matches!(self.model_type, ModelType::Gemma2 | ModelType::Gemma3)
    }

    fn key_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    fn width(&self) -> usize {
        self.head_dim.unwrap_or(match self.model_type {
            _ if self.is_gemma() => 256,
            ModelType::Qwen3 => 128,
            _ => self.hidden_size / self.num_attention_heads,
        })
    }

    fn activation(&self) -> Activation {
        let default = if self.is_gemma() { Activation::GeluPytorchTanh } else { Activation::Silu };
        self.hidden_activation.or(self.hidden_act).unwrap_or(default)
    }

    fn is_sliding(&self, layer: usize) -> bool {
        if self.sliding_window.is_none() {
            return false;
        }
        match (&self.layer_types, self.model_type) {
            (Some(types), _) => types.get(layer) == Some(&LayerType::SlidingAttention),
            (None, ModelType::Mistral) => true,
            (None, ModelType::Qwen2 | ModelType::Qwen3) => {
                self.use_sliding_window == Some(true)
                    && layer >= self.max_window_layers.unwrap_or(0)
            }
            (None, ModelType::Gemma2) => layer.is_multiple_of(2),
            (None, ModelType::Gemma3) => !(layer + 1).is_multiple_of(6),
            (None, ModelType::Llama | ModelType::Gemma) => false,
        }
    }

    /// The rotations of a layer.
    fn rope(&self, sliding: bool) -> Result<RotaryEmbedding> {
        let kind = if sliding { "sliding_attention" } else { "full_attention" };
        let table = |key: &str, settings: &Map<String, Value>| {
            settings.get(key).and_then(Value::as_object).cloned()
        };
        let settings = self
            .rope_parameters
            .as_ref()
            .map(|all| table(kind, all).unwrap_or_else(|| all.clone()));
        let local = sliding && self.model_type == ModelType::Gemma3 && settings.is_none();
        let scaling = if local { None } else { settings.as_ref().or(self.rope_scaling.as_ref()) };
        let own_theta = settings
            .as_ref()
            .and_then(|settings| settings.get("rope_theta"))
            .and_then(Value::as_f64);
        let theta = if local { self.rope_local_base_freq } else { own_theta.or(self.rope_theta) };
        let Some(scaling) = scaling else {
            return Ok(RotaryEmbedding::new(self.width()).theta(theta.unwrap_or(10_000.0)));
        };
        let number = |key: &str| {
            let number = scaling.get(key).and_then(Value::as_f64);
            number.ok_or_else(|| {
                Error::config(format!("the scaling of rotations has no number `{key}`"))
            })
        };
        let name = scaling
            .get("rope_type")
            .or(scaling.get("type"))
            .and_then(Value::as_str)
            .unwrap_or("default");
        let rule = match name {
            "default" => RotaryScaling::None,
            "linear" => RotaryScaling::Linear { factor: number("factor")? },
            "llama3" => RotaryScaling::Llama3 {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_max_position_embeddings: number("original_max_position_embeddings")?
                    as usize,
            },
            other => {
                let message =
                    format!("`rope_type` is `{other}`, expected `default`, `linear` or `llama3`");
                return Err(Error::config(message));
            }
        };
        if scaling
            .get("partial_rotary_factor")
            .and_then(Value::as_f64)
            .is_some_and(|factor| factor != 1.0)
        {
            return Err(Error::config(
                "`partial_rotary_factor` is not 1; only the rotation of whole heads is supported",
            ));
        }
        Ok(RotaryEmbedding::new(self.width()).theta(theta.unwrap_or(10_000.0)).scaling(rule))
    }

    /// Checks the settings.
    fn check(&self) -> Result<()> {
        let Config { num_attention_heads: heads, num_hidden_layers: layers, .. } = *self;
        check_heads(("num_key_value_heads", self.key_heads()), ("num_attention_heads", heads))?;
        let types = self.layer_types.as_ref().map_or(layers, Vec::len);
        if types == layers {
            Ok(())
        } else {
            Err(Error::config(format!(
                "`layer_types` has {types} entries, `num_hidden_layers` is {layers}"
            )))
        }
    }
}

/// A decoder with its head.
///
/// ```
/// use fulmen_models::Pretrained;
/// use fulmen_models::decoder::{Config, Decoder};
/// use fulmen_nn::Module;
/// use fulmen_tensor::{DType, Tensor};
///
/// let config = Config {
///     vocab_size: 50,
///     hidden_size: 16,
///     intermediate_size: 32,
///     num_hidden_layers: 2,
///     num_attention_heads: 4,
///     num_key_value_heads: Some(2),
///     ..Config::default()
/// };
/// let model = Decoder::new(config)?;
/// model.initialize(0);
/// let logits = model.forward(Tensor::zeros(DType::I32, [3, 10])); // ids [batch, length]
/// assert_eq!(logits.ty().to_string(), "f32[3, 10, 50]");
/// assert_eq!(model.parameters()[1].0, "model.layers.0.self_attn.q_proj.weight");
/// # Ok::<(), fulmen_models::Error>(())
/// ```
#[derive(Module)]
pub struct Decoder {
    /// The embedding and the layers.
    pub model: Model,
    /// The output projection from features to logits, `[vocabulary, features]`.
    pub lm_head: Linear,
    /// Whether the backward pass recomputes each layer, for a fraction of the memory; initially
    /// false.
    pub gradient_checkpointing: bool,
    /// Whether equal layers run as one scan. The program then compiles in the time of a single one,
    /// but needs the memory of their parameters twice. Initially false. Generation with a cache
    /// runs the layers in sequence.
    pub scan_layers: bool,
    #[module(skip)]
    config: Config,
}

/// Everything except the head.
#[derive(Module)]
pub struct Model {
    /// `[vocabulary, features]`.
    pub embed_tokens: Embedding,
    /// The layers.
    pub layers: Vec<Layer>,
    /// The last normalization.
    pub norm: Norm,
}

/// A layer: `h = x + self_attn(norm(x))`, then `h + mlp(norm(h))`.
#[derive(Module)]
pub struct Layer {
    /// Attention to earlier tokens.
    pub self_attn: SelfAttention,
    /// The gated network.
    pub mlp: Mlp,
    /// The normalization before attention.
    pub input_layernorm: Norm,
    /// The normalization before the network; in Gemma 2 and 3, after attention.
    pub post_attention_layernorm: Norm,
    /// In Gemma 2 and 3, the normalization before the network.
    pub pre_feedforward_layernorm: Option<Norm>,
    /// In Gemma 2 and 3, the normalization after the network.
    pub post_feedforward_layernorm: Option<Norm>,
}

/// Attention with rotated queries and keys.
#[derive(Module)]
pub struct SelfAttention {
    /// `[heads·width, features]`.
    pub q_proj: Linear,
    /// `[key heads·width, features]`.
    pub k_proj: Linear,
    /// `[key heads·width, features]`.
    pub v_proj: Linear,
    /// `[features, heads·width]`.
    pub o_proj: Linear,
    /// The normalization of each query head.
    pub q_norm: Option<Norm>,
    /// The normalization of each key head.
    pub k_norm: Option<Norm>,
    dropout: Dropout,
    #[module(skip)]
    rope: RotaryEmbedding,
    #[module(skip)]
    attention: Attention,
    sliding: bool,
    heads: usize,
    key_heads: usize,
}

/// `down_proj(activation(gate_proj(x))·up_proj(x))`.
#[derive(Module)]
pub struct Mlp {
    /// `[inner, features]`.
    pub gate_proj: Linear,
    /// `[inner, features]`.
    pub up_proj: Linear,
    /// `[features, inner]`.
    pub down_proj: Linear,
    #[module(skip)]
    activation: Activation,
}

/// A normalization by the root of the mean square, times the weight, or in Gemma times
/// `1 + weight`.
#[derive(Module)]
pub struct Norm {
    /// `[features]`.
    pub weight: Parameter,
    norm: RmsNorm,
    offset: f64,
}

impl Norm {
    fn new(config: &Config, features: usize) -> Norm {
        let offset = if config.is_gemma() { 1.0 } else { 0.0 };
        let norm = RmsNorm::new([features]).eps(config.rms_norm_eps).elementwise_affine(false);
        Norm { weight: Parameter::new([features], Init::constant(1.0 - offset)), norm, offset }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let wide = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        (self.norm.forward(x.to_dtype(wide)) * (self.weight.get().to_dtype(wide) + self.offset))
            .to_dtype(x.dtype())
    }
}

impl Layer {
    fn new(config: &Config, number: usize) -> Result<Layer> {
        let Config {
            hidden_size: features,
            num_attention_heads: heads,
            intermediate_size: inner,
            ..
        } = *config;
        let (width, key_heads) = (config.width(), config.key_heads());
        let biased = config.attention_bias || config.model_type == ModelType::Qwen2;
        let sliding = config.is_sliding(number);
        let mut attention = Attention::new().enable_gqa(true);
        if let Some(scalar) = config.query_pre_attn_scalar.filter(|_| config.has_post_norms()) {
            attention = attention.scale((scalar as f64).powf(-0.5));
        }
        if let Some(cap) = config.attn_logit_softcapping {
            attention = attention.softcap(cap);
        }
        let norm = || Norm::new(config, features);
        let head_norm = || config.has_qk_norm().then(|| Norm::new(config, width));
        Ok(Layer {
            self_attn: SelfAttention {
                q_proj: Linear::new(features, heads * width).bias(biased),
                k_proj: Linear::new(features, key_heads * width).bias(biased),
                v_proj: Linear::new(features, key_heads * width).bias(biased),
                o_proj: Linear::new(heads * width, features).bias(config.attention_bias),
                q_norm: head_norm(),
                k_norm: head_norm(),
                dropout: Dropout::new(config.attention_dropout),
                rope: config.rope(sliding)?,
                attention,
                sliding,
                heads,
                key_heads,
            },
            mlp: Mlp {
                gate_proj: Linear::new(features, inner).bias(config.mlp_bias),
                up_proj: Linear::new(features, inner).bias(config.mlp_bias),
                down_proj: Linear::new(inner, features).bias(config.mlp_bias),
                activation: config.activation(),
            },
            input_layernorm: norm(),
            post_attention_layernorm: norm(),
            pre_feedforward_layernorm: config.has_post_norms().then(norm),
            post_feedforward_layernorm: config.has_post_norms().then(norm),
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        masks: &AttentionMasks,
        cache: Option<&KeyValueCache>,
    ) -> (Tensor, Option<KeyValueCache>) {
        let (attended, cache) =
            self.self_attn.forward(&self.input_layernorm.forward(x), masks, cache);
        let (Some(before), Some(after)) =
            (&self.pre_feedforward_layernorm, &self.post_feedforward_layernorm)
        else {
            let x = x + attended;
            let transformed = self.mlp.forward(&self.post_attention_layernorm.forward(&x));
            return (x + transformed, cache);
        };
        let x = x + self.post_attention_layernorm.forward(&attended);
        let transformed = after.forward(&self.mlp.forward(&before.forward(&x)));
        (x + transformed, cache)
    }
}

/// The positions of tokens, and the masks of the keys that each token sees.
struct AttentionMasks {
    positions: Tensor,
    full: Tensor,
    sliding: Tensor,
}

impl SelfAttention {
    fn forward(
        &self,
        x: &Tensor,
        masks: &AttentionMasks,
        cache: Option<&KeyValueCache>,
    ) -> (Tensor, Option<KeyValueCache>) {
        let rotated_heads = |x: Tensor, heads: usize, norm: &Option<Norm>| {
            let x = split_heads(&x, heads);
            let x = norm.as_ref().map_or(x.clone(), |norm| norm.forward(&x));
            self.rope.forward_at(x, &masks.positions)
        };
        let q = rotated_heads(self.q_proj.forward(x), self.heads, &self.q_norm);
        let k = rotated_heads(self.k_proj.forward(x), self.key_heads, &self.k_norm);
        let v = split_heads(&self.v_proj.forward(x), self.key_heads);
        let mask = if self.sliding { &masks.sliding } else { &masks.full };
        let attention = self.attention.clone().mask(mask).dropout(&self.dropout);
        let (attended, cache) = attend(attention, [&q, &k, &v], cache);
        (self.o_proj.forward(attended), cache)
    }
}

impl Mlp {
    fn forward(&self, x: &Tensor) -> Tensor {
        self.down_proj
            .forward(self.activation.forward(&self.gate_proj.forward(x)) * self.up_proj.forward(x))
    }
}

impl Decoder {
    /// The logits `[batch, length, vocabulary]` of the token after each of the ids, integers
    /// `[batch, length]`.
    ///
    /// Poisoned if the ids have another rank or type.
    #[track_caller]
    pub fn forward(&self, ids: impl AsTensor) -> Tensor {
        MODELS.record("Decoder", || Ok(self.logits(&self.features(ids.as_tensor(), None)?.0)))
    }

    fn logits(&self, x: &Tensor) -> Tensor {
        let logits = self.lm_head.forward(x);
        self.config
            .final_logit_softcapping
            .map_or(logits.clone(), |cap| (logits / cap).tanh() * cap)
    }

    /// The features `[batch, length, features]`, the input of the head.
    fn features(
        &self,
        ids: &Tensor,
        cache: Option<&StaticCache>,
    ) -> Result<(Tensor, Option<StaticCache>), Refusal> {
        let ids = ids.live()?;
        if ids.rank() != 2 {
            return Err(format!("the ids {} are not [batch, length]", ids.ty()).into());
        }
        let Model { embed_tokens, layers, norm } = &self.model;
        let span = Span::new(ids, cache);
        let (full, sliding) = (span.mask(None), span.mask(self.config.sliding_window));
        let masks = AttentionMasks { positions: span.positions_of_heads(), full, sliding };
        let mut x = embed_tokens.forward(ids);
        if self.config.is_gemma() {
            x = x * (self.config.hidden_size as f64).sqrt();
        }
        let Decoder { gradient_checkpointing, scan_layers, .. } = *self;
        let options = LayerOptions { gradient_checkpointing, scan_layers };
        let is_sliding = |layer: &Layer| layer.self_attn.sliding;
        let (x, cache) = run_layers(x, layers, cache, options, is_sliding, |i, x, cache| {
            layers[i].forward(x, &masks, cache)
        });
        Ok((norm.forward(&x), cache))
    }
}

impl CausalLm for Decoder {
    fn empty_cache(&self, batch: usize, max_len: usize) -> StaticCache {
        let (heads, width) = (self.config.key_heads(), self.config.width());
        let dtype = self.model.embed_tokens.weight.ty().dtype;
        StaticCache::new(
            self.model
                .layers
                .iter()
                .map(|_| KeyValueCache::new(dtype, batch, heads, max_len, width)),
        )
    }

    #[track_caller]
    fn next_token_logits(&self, ids: &Tensor, cache: &StaticCache) -> (Tensor, StaticCache) {
        MODELS.record("Decoder", || {
            let (x, after) = self.features(ids, Some(cache))?;
            Ok((self.logits(&x.index(1, -1)), after.unwrap_or_else(|| cache.clone())))
        })
    }

    /// `None`, because rotations work at any position.
    fn max_positions(&self) -> Option<usize> {
        None
    }
}

impl Pretrained for Decoder {
    type Config = Config;
    const MODEL_TYPES: &'static [&'static str] =
        &["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"];
    const FIXED: &'static [(&'static str, &'static str)] =
        &[("use_bidirectional_attention", "false"), ("pretraining_tp", "1")];
    const BASE_MODEL_PREFIX: &'static str = "model";
    const HEAD: &'static [&'static str] = &["lm_head"];
    /// Tables that only old files have.
    const IGNORED: &'static [&'static str] = &["rotary_emb.inv_freq"];

    fn new(config: Config) -> Result<Decoder> {
        config.check()?;
        let Config { vocab_size, hidden_size, .. } = config;
        let embed_tokens = Embedding::new(vocab_size, hidden_size);
        let mut lm_head = Linear::new(hidden_size, vocab_size).bias(false);
        if config.tie_word_embeddings.unwrap_or(config.is_gemma()) {
            lm_head.weight = embed_tokens.weight.clone();
        }
        let layers =
            (0..config.num_hidden_layers).map(|i| Layer::new(&config, i)).collect::<Result<_>>()?;
        let model = Model { embed_tokens, layers, norm: Norm::new(&config, hidden_size) };
        let decoder =
            Decoder { model, lm_head, gradient_checkpointing: false, scan_layers: false, config };
        init::normal(&decoder, decoder.config.initializer_range);
        Ok(decoder)
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn architecture(&self) -> String {
        format!("{:?}ForCausalLM", self.config.model_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{Expected, borrowed, check_decoder, folder, without_cache};

    fn load(name: &str) -> Decoder {
        Decoder::from_folder(folder(name)).unwrap_or_else(|e| panic!("{e}"))
    }

    #[track_caller]
    fn check(name: &str) {
        let model = load(name);
        check_decoder(name, &model, |ids| model.forward(ids));
    }

    #[test]
    fn llama_of_bf16_gives_transformers_logits_and_tokens() {
        check("llama");
    }

    #[test]
    fn gemma3_gives_transformers_logits_and_tokens() {
        check("gemma3");
    }

    /// Qwen 3 has an older config, and Mistral's file is the pickle of a wrapped model.
    #[test]
    fn the_others_give_transformers_logits_and_tokens_without_a_cache() {
        for name in ["qwen2", "qwen3", "mistral", "gemma", "gemma2"] {
            let (model, expected) = (load(name), Expected::read(name));
            expected.check(&borrowed(&without_cache(&expected, |ids| model.forward(ids))));
        }
    }

    #[test]
    #[ignore = "five programs more, for a minute: cargo test -p fulmen-models -- --ignored the_others"]
    fn the_others_give_transformers_tokens_with_a_cache() {
        ["qwen2", "qwen3", "mistral", "gemma", "gemma2"].into_iter().for_each(check);
    }
}
