//! The decoder of today's language models: Llama 3, Mistral, Qwen 2 and 3, Gemma 1 to 3 (text), and
//! with experts Mixtral, Qwen2-MoE, Qwen3-MoE, dots.llm1, GLM-4.5, DeepSeek-V2 and DeepSeek-V3, which
//! differ in a few settings. transformers' `LlamaForCausalLM` and its variants.
//!
//! Each layer consists of attention to earlier tokens and a gated feed-forward network, with
//! residual connections. Positions are rotations of queries and keys; several query heads share one
//! head of keys and values, or in DeepSeek all of them share [latent features](LatentAttention).

mod config;
#[cfg(test)]
mod deepseek_tests;
mod experts;
mod latent_attention;
mod rope;
mod self_attention;
#[cfg(test)]
mod tests;

use fulmen_nn::attention::{AttentionMethod, KeyValueCache};
use fulmen_nn::loss::{CrossEntropyLoss, LinearCrossEntropyLoss, LossMethod};
use fulmen_nn::weights::StateDict;
use fulmen_nn::{Embedding, Init, Linear, Module, Parameter, RmsNorm};
use fulmen_tensor::{AsTensor, DType, IntoTree, Refusal, Tensor, Tree, checkpoint};
use serde_json::{Map, Value};

use crate::attention::{Span, StepSizes, product_dtype, tokens};
use crate::layers::{LayerOptions, Outputs, run_layers_with_others};
use crate::{Activation, CausalLm, MODELS, Pretrained, Result, StaticCache, init};

use self_attention::AttentionMasks;

pub use config::{Config, LayerType, ModelType, ScoringFunc, TopkMethod};
pub use experts::{FeedForward, RouterStatistics};
pub use latent_attention::LatentAttention;
pub use self_attention::{GroupedQueryAttention, SelfAttention};

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
    /// Whether equal layers run as one scan. The program then compiles as fast as with a single
    /// one. Initially false. Generation with a cache
    /// runs the layers in sequence.
    pub scan_layers: bool,
    /// How attention is computed; initially [`AttentionMethod::Auto`]. That is the kernel on TPUs for
    /// which it is approved, if it fits. Otherwise it is blocks for sequences
    /// of more than 2,048 tokens whose scores need more memory than the logits and their gradient:
    /// `4·heads·length² > 6·vocabulary·length` bytes, or times the number of layers if they are not
    /// recomputed. Generation with a cache is always plain.
    #[module(skip)]
    pub attention: AttentionMethod,
    /// How [`loss`](Decoder::loss) is computed; initially [`LossMethod::Auto`]. That is plain unless the
    /// logits of one sequence need more than 1 GiB in f32, `4·vocabulary·length` bytes. Then it is the
    /// kernel on TPUs for which it is approved, if it fits, and otherwise chunks.
    #[module(skip)]
    pub loss_method: LossMethod,
    /// The dtype of the residual stream, the values between the layers; initially `None`, which is that
    /// of the embedding: f32 in mixed precision, as in transformers. With bf16, as in MaxText, the
    /// backward pass keeps half as much. Normalizations compute in f32 all the same. Generation with
    /// a cache does not use it.
    #[module(skip)]
    pub residual_dtype: Option<DType>,
    /// How many layers in a row keep one input for the backward pass, with `gradient_checkpointing`;
    /// initially 1. With `n`, `1/n` of the inputs are kept, and each layer is computed once more.
    pub layers_per_checkpoint: usize,
    /// The factor of the [loss that balances experts](RouterStatistics::load_balancing_loss), which
    /// [`loss`](Decoder::loss) adds. Initially that of the config, if its `output_router_logits` is
    /// true, as in transformers; otherwise 0.
    pub router_aux_loss_coef: f64,
    /// The factor of the mean z-loss of routers, which [`loss`](Decoder::loss) adds; initially 0.
    pub router_z_loss_coef: f64,
    /// By how much [`loss`](Decoder::loss) changes the biases that balance experts without a loss:
    /// [`Router::balance`](fulmen_nn::Router::balance). Initially 0. DeepSeek-V3 was trained with
    /// 0.001.
    pub router_balance_rate: f64,
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
    /// The gated network, or experts.
    pub mlp: FeedForward,
    /// The normalization before attention.
    pub input_layernorm: Norm,
    /// The normalization before the network; in Gemma 2 and 3, after attention.
    pub post_attention_layernorm: Norm,
    /// In Gemma 2 and 3, the normalization before the network.
    pub pre_feedforward_layernorm: Option<Norm>,
    /// In Gemma 2 and 3, the normalization after the network.
    pub post_feedforward_layernorm: Option<Norm>,
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
        Norm::with_eps(config, features, config.rms_norm_eps)
    }

    fn with_eps(config: &Config, features: usize, eps: f64) -> Norm {
        let offset = if config.is_gemma() { 1.0 } else { 0.0 };
        let norm = RmsNorm::new([features]).eps(eps).elementwise_affine(false);
        Norm { weight: Parameter::new([features], Init::constant(1.0 - offset)), norm, offset }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let wide = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        (self.norm.forward(x.to_dtype(wide)) * (self.weight.get().to_dtype(wide) + self.offset))
            .to_dtype(x.dtype())
    }
}

/// The normalization before a network, and whether the backward pass recomputes what is cheap.
struct PreNorm<'a> {
    norm: &'a Norm,
    recompute: bool,
}

impl PreNorm<'_> {
    /// The products of the normalized values with the weights of some layers. If the backward pass
    /// recomputes the normalized values, it keeps only `x`.
    fn project<const N: usize>(&self, x: &Tensor, layers: [&Linear; N]) -> [Tensor; N] {
        recomputed(self.recompute, x, |x| {
            let x = self.norm.forward(&x);
            layers.map(|layer| layer.forward(&x))
        })
    }
}

/// `f(inputs)`. With `recompute`, the backward pass keeps only the inputs.
fn recomputed<I: IntoTree, T: Tree>(recompute: bool, inputs: I, f: impl FnOnce(I::Tree) -> T) -> T {
    if recompute { checkpoint(f, inputs) } else { f(inputs.into_tree()) }
}

impl Layer {
    fn new(config: &Config, number: usize) -> Result<Layer> {
        let norm = || Norm::new(config, config.hidden_size);
        Ok(Layer {
            self_attn: SelfAttention::new(config, number)?,
            mlp: FeedForward::new(config, number),
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
    ) -> (Tensor, Option<KeyValueCache>, Option<Tensor>) {
        let pre = |norm| PreNorm { norm, recompute: masks.recompute };
        let (attended, cache) =
            self.self_attn.forward(x, &pre(&self.input_layernorm), masks, cache);
        let (Some(before), Some(after)) =
            (&self.pre_feedforward_layernorm, &self.post_feedforward_layernorm)
        else {
            let x = x + attended;
            let (transformed, statistics) =
                self.mlp.forward(&x, &pre(&self.post_attention_layernorm));
            return (x + transformed, cache, statistics);
        };
        let x = x + self.post_attention_layernorm.forward(&attended);
        let (transformed, statistics) = self.mlp.forward(&x, &pre(before));
        (x + after.forward(&transformed), cache, statistics)
    }
}

impl Mlp {
    fn new(config: &Config) -> Mlp {
        let Config { hidden_size: features, intermediate_size: inner, .. } = *config;
        let layer = |of, to| Linear::new(of, to).bias(config.mlp_bias);
        Mlp {
            gate_proj: layer(features, inner).with_axes("mlp", "embed"),
            up_proj: layer(features, inner).with_axes("mlp", "embed"),
            down_proj: layer(inner, features).with_axes("embed", "mlp"),
            activation: config.activation(),
        }
    }

    fn forward(&self, x: &Tensor, norm: &PreNorm<'_>) -> Tensor {
        let inner = norm.project(x, [&self.gate_proj, &self.up_proj]);
        // The backward pass keeps the two products, from which the rest is cheap to recompute.
        let output = recomputed(norm.recompute, inner.map(|x| tokens(x, "mlp")), |[gate, up]| {
            self.down_proj.forward(self.activation.forward(&gate) * up)
        });
        tokens(output, "embed")
    }
}

impl Decoder {
    /// The logits `[batch, length, vocabulary]` of the token after each of the ids, integers
    /// `[batch, length]`.
    ///
    /// Poisoned if the ids have another rank or type.
    #[track_caller]
    pub fn forward(&self, ids: impl AsTensor) -> Tensor {
        MODELS.record("Decoder", || {
            let ids = ids.as_tensor().live()?;
            Ok(self.logits(&self.features(ids, Span::new(ids, None), None)?.x))
        })
    }

    /// [`forward`](Decoder::forward), and what the routers did, if the model has experts.
    ///
    /// ```
    /// use fulmen_models::Pretrained;
    /// use fulmen_models::decoder::{Config, Decoder, ModelType};
    /// use fulmen_nn::Module;
    /// use fulmen_tensor::{DType, Tensor};
    ///
    /// let model = Decoder::new(Config {
    ///     vocab_size: 50,
    ///     hidden_size: 16,
    ///     intermediate_size: 32,
    ///     num_hidden_layers: 1,
    ///     num_attention_heads: 4,
    ///     num_key_value_heads: Some(2),
    ///     ..Config::new(ModelType::Mixtral)
    /// })?;
    /// model.initialize(0);
    /// let (logits, routers) = model.forward_with_routers(Tensor::zeros(DType::I32, [3, 10]));
    /// assert_eq!(logits.ty().to_string(), "f32[3, 10, 50]");
    /// assert_eq!(routers.unwrap().tokens_per_expert.ty().to_string(), "f32[1, 8]");
    /// # Ok::<(), fulmen_models::Error>(())
    /// ```
    #[track_caller]
    pub fn forward_with_routers(&self, ids: impl AsTensor) -> (Tensor, Option<RouterStatistics>) {
        let mut statistics = None;
        let logits = MODELS.record("Decoder", || {
            let ids = ids.as_tensor().live()?;
            let found = self.features(ids, Span::new(ids, None), None)?;
            statistics = RouterStatistics::new(&found.others);
            Ok(self.logits(&found.x))
        });
        (logits, statistics)
    }

    /// Limits the tokens of each expert, or not: see
    /// [`capacity_factor`](fulmen_nn::MixtureOfExperts::capacity_factor). Initially, no token is
    /// dropped.
    pub fn set_capacity_factor(&mut self, factor: Option<f64>) {
        for layer in &mut self.model.layers {
            if let FeedForward::Experts(experts) = &mut layer.mlp {
                experts.set_capacity_factor(factor);
            }
        }
    }

    /// [`forward`](Decoder::forward) for sequences into which documents are packed, which do not
    /// see each other. `segment_ids` and `positions` are integers of the shape of the ids: the
    /// document of each token, and its position there, as the text reader's `TokenCollator` makes
    /// them with `documents(true)`. The logits of a document are those of the document alone.
    ///
    /// Poisoned if ids, segment ids or positions have another rank, shape or type.
    ///
    /// ```
    /// use fulmen_models::Pretrained;
    /// use fulmen_models::decoder::{Config, Decoder};
    /// use fulmen_nn::Module;
    /// use fulmen_tensor::Tensor;
    ///
    /// let model = Decoder::new(Config {
    ///     vocab_size: 50,
    ///     hidden_size: 16,
    ///     intermediate_size: 32,
    ///     num_hidden_layers: 1,
    ///     num_attention_heads: 4,
    ///     ..Config::default()
    /// })?;
    /// model.initialize(0);
    /// let ids = Tensor::from_slice(&[7, 8, 9, 7, 8], [1, 5]);
    /// let documents = Tensor::from_slice(&[1, 1, 1, 2, 2], [1, 5]);
    /// let positions = Tensor::from_slice(&[0, 1, 2, 0, 1], [1, 5]);
    /// let logits = model.forward_packed(&ids, &documents, &positions);
    /// let distance = (logits.index(1, 1) - logits.index(1, 4)).abs().max([0, 1]);
    /// assert!(distance.eval()?.to_f64()[0] < 1e-5); // the same beginning of two documents
    /// # Ok::<(), fulmen_models::Error>(())
    /// ```
    #[track_caller]
    pub fn forward_packed(
        &self,
        ids: impl AsTensor,
        segment_ids: impl AsTensor,
        positions: impl AsTensor,
    ) -> Tensor {
        MODELS.record("Decoder", || {
            let ids = ids.as_tensor().live()?;
            let span = Span::packed(ids, segment_ids.as_tensor(), positions.as_tensor())?;
            Ok(self.logits(&self.features(ids, span, None)?.x))
        })
    }

    /// The loss of predicting `targets`, the token after each of the ids: integers of their shape,
    /// as the text reader's `CausalLabels::Shifted` makes them. It is `loss` of the
    /// [logits](Decoder::forward), of which not all are in memory at once if they are many;
    /// [`loss_method`](Decoder::loss_method) decides.
    ///
    /// Poisoned like [`forward`](Decoder::forward), and if the targets do not fit.
    ///
    /// ```
    /// use fulmen_models::Pretrained;
    /// use fulmen_models::decoder::{Config, Decoder};
    /// use fulmen_nn::Module;
    /// use fulmen_nn::loss::CrossEntropyLoss;
    /// use fulmen_tensor::Tensor;
    ///
    /// let mut model = Decoder::new(Config {
    ///     vocab_size: 50,
    ///     hidden_size: 16,
    ///     intermediate_size: 32,
    ///     num_hidden_layers: 1,
    ///     num_attention_heads: 4,
    ///     ..Config::default()
    /// })?;
    /// model.loss_method = "chunks".parse()?;
    /// model.initialize(0);
    /// let ids = Tensor::from_slice(&[7, 8, 9, 7, 8], [1, 5]);
    /// let targets = Tensor::from_slice(&[8, 9, 7, 8, -100], [1, 5]);
    /// let loss = CrossEntropyLoss::new().ignore_index(-100);
    /// let in_chunks = model.loss(&ids, &targets, &loss);
    /// let plain = loss.forward(model.forward(&ids), &targets);
    /// assert!((in_chunks - plain).eval()?.to_f64()[0].abs() < 1e-5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn loss(
        &self,
        ids: impl AsTensor,
        targets: impl AsTensor,
        loss: &CrossEntropyLoss,
    ) -> Tensor {
        MODELS.record("Decoder", || {
            let ids = ids.as_tensor().live()?;
            self.loss_of(ids, Span::new(ids, None), targets.as_tensor(), loss)
        })
    }

    /// [`loss`](Decoder::loss) for packed documents, like
    /// [`forward_packed`](Decoder::forward_packed). The targets do not reach into the next document,
    /// if the text reader's `documents(true)` made them.
    ///
    /// Poisoned like [`forward_packed`](Decoder::forward_packed), and if the targets do not fit.
    #[track_caller]
    pub fn loss_packed(
        &self,
        ids: impl AsTensor,
        segment_ids: impl AsTensor,
        positions: impl AsTensor,
        targets: impl AsTensor,
        loss: &CrossEntropyLoss,
    ) -> Tensor {
        MODELS.record("Decoder", || {
            let ids = ids.as_tensor().live()?;
            let span = Span::packed(ids, segment_ids.as_tensor(), positions.as_tensor())?;
            self.loss_of(ids, span, targets.as_tensor(), loss)
        })
    }

    fn loss_of(
        &self,
        ids: &Tensor,
        span: Span,
        targets: &Tensor,
        loss: &CrossEntropyLoss,
    ) -> Result<Tensor, Refusal> {
        let Outputs { x, others, .. } = self.features(ids, span, None)?;
        let mut loss = LinearCrossEntropyLoss::new(loss.clone()).method(self.loss_method);
        if let Some(cap) = self.config.final_logit_softcapping {
            loss = loss.softcap(cap);
        }
        let loss = loss.forward_head(x, &self.lm_head, targets);
        Ok(self.with_router_losses(loss, &others))
    }

    /// The loss with those of the routers, whose biases it changes.
    fn with_router_losses(&self, loss: Tensor, statistics: &[(usize, Tensor)]) -> Tensor {
        let Some(routers) = RouterStatistics::new(statistics) else { return loss };
        if self.router_balance_rate != 0.0 {
            for (row, (layer, _)) in statistics.iter().enumerate() {
                let tokens = routers.tokens_per_expert.index(0, row as isize);
                if let Some(experts) = self.model.layers[*layer].mlp.experts() {
                    experts.gate.balance(&tokens, self.router_balance_rate);
                }
            }
        }
        let mut loss = loss;
        if self.router_aux_loss_coef != 0.0 {
            loss = loss + routers.load_balancing_loss() * self.router_aux_loss_coef;
        }
        if self.router_z_loss_coef != 0.0 {
            loss = loss + routers.z_loss.mean_all() * self.router_z_loss_coef;
        }
        loss
    }

    fn logits(&self, x: &Tensor) -> Tensor {
        let logits = match x.rank() {
            3 => tokens(self.lm_head.forward(x), "vocab"),
            _ => self.lm_head.forward(x),
        };
        self.config
            .final_logit_softcapping
            .map_or(logits.clone(), |cap| (logits / cap).tanh() * cap)
    }

    /// How attention is computed for sequences of this length.
    fn method(&self, length: usize, has_cache: bool) -> AttentionMethod {
        let Config { num_attention_heads: heads, vocab_size: vocabulary, .. } = self.config;
        let layers = if self.gradient_checkpointing { 1 } else { self.config.num_hidden_layers };
        if has_cache {
            return AttentionMethod::Plain;
        }
        // The wider one of keys and values.
        let width = self.config.width().max(self.config.v_head_dim.unwrap_or(0));
        let dtype = product_dtype(self.model.embed_tokens.weight.dtype());
        let has_dropout = self.model.layers.iter().any(|layer| layer.self_attn.has_dropout());
        let sizes = StepSizes { length, heads, vocabulary, layers, width, dtype, has_dropout };
        sizes.decide(self.attention)
    }

    /// Whether the backward pass recomputes normalizations and activations. A checkpoint of the whole
    /// layer does so anyway, and parameters that are split over devices would be gathered once more.
    fn recomputes_within_layers(&self) -> bool {
        let is_gathered = |weight: Tensor| weight.gathered_from().is_some();
        let parameters = self.model.parameters();
        !self.gradient_checkpointing && !parameters.iter().any(|(_, p)| is_gathered(p.get()))
    }

    /// The features `[batch, length, features]`, the input of the head.
    fn features(
        &self,
        ids: &Tensor,
        span: Span,
        cache: Option<&StaticCache>,
    ) -> Result<Outputs, Refusal> {
        if ids.rank() != 2 {
            return Err(format!("the ids {} are not [batch, length]", ids.ty()).into());
        }
        let Model { embed_tokens, layers, norm } = &self.model;
        let method = self.method(ids.size(1), cache.is_some());
        let full = span.visibility(None, method);
        let sliding = span.visibility(self.config.window(), method);
        let masks = AttentionMasks {
            positions: span.positions_of_heads(),
            full,
            sliding,
            recompute: cache.is_none() && self.recomputes_within_layers(),
        };
        let mut x = tokens(embed_tokens.forward(ids), "embed");
        if self.config.is_gemma() {
            x = x * (self.config.hidden_size as f64).sqrt();
        }
        let options = LayerOptions {
            gradient_checkpointing: self.gradient_checkpointing,
            scan_layers: self.scan_layers,
            layers_per_checkpoint: self.layers_per_checkpoint,
            residual_dtype: self.residual_dtype,
        };
        let kind = |layer: &Layer| (layer.self_attn.is_sliding(), layer.mlp.experts().is_some());
        let outputs = run_layers_with_others(x, layers, cache, options, kind, |i, x, cache| {
            layers[i].forward(x, &masks, cache)
        });
        Ok(Outputs { x: norm.forward(&outputs.x), ..outputs })
    }
}

impl CausalLm for Decoder {
    fn empty_cache(&self, batch: usize, max_len: usize) -> StaticCache {
        let width = self.config.width();
        let dtype = self.model.embed_tokens.weight.dtype();
        let of_layer = |layer: &Layer| layer.self_attn.empty_cache(dtype, batch, max_len, width);
        StaticCache::new(self.model.layers.iter().map(of_layer))
    }

    #[track_caller]
    fn next_token_logits(&self, ids: &Tensor, cache: &StaticCache) -> (Tensor, StaticCache) {
        MODELS.record("Decoder", || {
            let ids = ids.live()?;
            let found = self.features(ids, Span::new(ids, Some(cache)), Some(cache))?;
            let after = found.cache.unwrap_or_else(|| cache.clone());
            Ok((self.logits(&found.x.index(1, -1)), after))
        })
    }

    /// `None`, because rotations work at any position.
    fn max_positions(&self) -> Option<usize> {
        None
    }

    fn trained_positions(&self) -> Option<usize> {
        Some(self.config.max_position_embeddings)
    }
}

impl Pretrained for Decoder {
    type Config = Config;
    const MODEL_TYPES: &'static [&'static str] = &[
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "mixtral",
        "qwen2_moe",
        "qwen3_moe",
        "dots1",
        "glm4_moe",
        "deepseek_v2",
        "deepseek_v3",
    ];
    const FIXED_SETTINGS: &'static [(&'static str, &'static str)] = &[
        ("moe_layer_freq", "1"),
        ("rope_interleaved", "false"),
        ("router_jitter_noise", "0"),
        ("use_bidirectional_attention", "false"),
        ("use_mrope", "false"),
    ];
    /// Parts of products, which only old code separated; the default for `sliding_window_pattern`;
    /// layers that predict further tokens, which are not part of the model; a width that transformers
    /// computes, how DeepSeek's own code splits experts over devices, and the loss with which it
    /// balances them.
    const HARMLESS_SETTINGS: &'static [&'static str] = &[
        "_sliding_window_pattern",
        "aux_loss_alpha",
        "ep_size",
        "is_llama_config",
        "num_mtp_layers",
        "num_nextn_predict_layers",
        "pretraining_tp",
        "qk_head_dim",
        "seq_aux",
    ];
    const BASE_MODEL_PREFIX: &'static str = "model";
    const HEAD: &'static [&'static str] = &["lm_head"];
    /// Tables that only old files have.
    const IGNORED_KEYS: &'static [&'static str] = &["rotary_emb.inv_freq"];

    fn current_name(name: &str) -> String {
        experts::current_name(name)
    }

    fn read_values(values: StateDict) -> Result<StateDict> {
        experts::read_values(&values)
    }

    fn written_values(&self, name: String, value: Tensor) -> Vec<(String, Tensor)> {
        experts::written_values(self.config.model_type, name, &value)
    }

    fn new(config: Config) -> Result<Decoder> {
        config.check()?;
        let Config { vocab_size, hidden_size, .. } = config;
        let embed_tokens = Embedding::new(vocab_size, hidden_size);
        embed_tokens.weight.with_axes(["vocab", "embed"]);
        let mut lm_head =
            Linear::new(hidden_size, vocab_size).bias(false).with_axes("vocab", "embed");
        if config.is_tied() {
            lm_head.weight = embed_tokens.weight.clone();
        }
        let layers =
            (0..config.num_hidden_layers).map(|i| Layer::new(&config, i)).collect::<Result<_>>()?;
        let model = Model { embed_tokens, layers, norm: Norm::new(&config, hidden_size) };
        let decoder = Decoder {
            model,
            lm_head,
            gradient_checkpointing: false,
            scan_layers: false,
            attention: AttentionMethod::Auto,
            loss_method: LossMethod::Auto,
            residual_dtype: None,
            layers_per_checkpoint: 1,
            router_aux_loss_coef: config.aux_loss_coef(),
            router_z_loss_coef: 0.0,
            router_balance_rate: 0.0,
            config,
        };
        init::normal(&decoder, decoder.config.initializer_range);
        Ok(decoder)
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn other_settings(config: &Config) -> &Map<String, Value> {
        &config.other
    }

    fn architecture(&self) -> String {
        format!("{:?}ForCausalLM", self.config.model_type)
    }
}
