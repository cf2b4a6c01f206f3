//! GPT-2: transformers' `GPT2LMHeadModel`, Radford et al. 2019.
//!
//! Token and position embeddings are added. Each block consists of attention to earlier tokens and
//! a feed-forward network, with residual connections. The head, which shares the weight of the
//! token embedding, turns the last normalization into logits.

use fulmen_nn::attention::{Attention, AttentionMethod, KeyValueCache};
use fulmen_nn::axes::{axis_parts, constrain};
use fulmen_nn::loss::{CrossEntropyLoss, LinearCrossEntropyLoss, LossMethod};
use fulmen_nn::{Dropout, Embedding, Init, LayerNorm, Linear, Module, Parameter};
use fulmen_tensor::{AsTensor, DType, Refusal, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::attention::{
    Setting, Span, StepSizes, Visibility, attend, check_heads, product_dtype, split_heads, tokens,
};
use crate::layers::{LayerOptions, run_layers};
use crate::{Activation, CausalLm, MODELS, Pretrained, Result, StaticCache};

/// The settings, with the names of `config.json`; by default the smallest GPT-2, of 124 million
/// parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// `gpt2`.
    pub model_type: String,
    /// The size of the vocabulary.
    pub vocab_size: usize,
    /// The maximum number of tokens in a sequence.
    pub n_positions: usize,
    /// The number of features of a token.
    pub n_embd: usize,
    /// The number of blocks.
    pub n_layer: usize,
    /// The number of attention heads, which must divide the number of features.
    pub n_head: usize,
    /// The number of features in the feed-forward network of a block; four times `n_embd` if not
    /// given.
    pub n_inner: Option<usize>,
    /// The activation of the feed-forward network of a block.
    pub activation_function: Activation,
    /// The dropout of the output of each part of a block.
    pub resid_pdrop: f64,
    /// The dropout of embeddings.
    pub embd_pdrop: f64,
    /// The dropout of attention weights.
    pub attn_pdrop: f64,
    /// The constant that normalizations add to the variance.
    pub layer_norm_epsilon: f64,
    /// The standard deviation of initial values.
    pub initializer_range: f64,
    /// Whether the head shares the weight of the token embedding.
    pub tie_word_embeddings: bool,
    /// Other keys of the file, which are preserved.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            model_type: "gpt2".into(),
            vocab_size: 50257,
            n_positions: 1024,
            n_embd: 768,
            n_layer: 12,
            n_head: 12,
            n_inner: None,
            activation_function: Activation::GeluNew,
            resid_pdrop: 0.1,
            embd_pdrop: 0.1,
            attn_pdrop: 0.1,
            layer_norm_epsilon: 1e-5,
            initializer_range: 0.02,
            tie_word_embeddings: true,
            other: Map::new(),
        }
    }
}

/// GPT-2 with its head.
///
/// ```
/// use fulmen_models::Pretrained;
/// use fulmen_models::gpt2::{Config, Gpt2};
/// use fulmen_nn::Module;
/// use fulmen_tensor::{DType, Tensor};
///
/// let config = Config { vocab_size: 50, n_positions: 16, n_embd: 8, n_layer: 2, n_head: 2, ..Config::default() };
/// let model = Gpt2::new(config)?;
/// model.initialize(0);
/// model.eval();
/// let logits = model.forward(Tensor::zeros(DType::I32, [4, 16])); // ids [batch, length]
/// assert_eq!(logits.ty().to_string(), "f32[4, 16, 50]");
/// assert_eq!(model.parameters()[2].0, "transformer.h.0.ln_1.weight");
/// # Ok::<(), fulmen_models::Error>(())
/// ```
#[derive(Module)]
pub struct Gpt2 {
    /// The embeddings and the blocks.
    pub transformer: Transformer,
    /// The output projection from features to logits, `[vocabulary, features]`.
    pub lm_head: Linear,
    /// Whether the backward pass recomputes each block, for a fraction of the memory; initially
    /// false.
    pub gradient_checkpointing: bool,
    /// Whether equal blocks run as one scan. The program then compiles as fast as with a single
    /// one. Initially false. Generation with a cache
    /// runs the blocks in sequence.
    pub scan_layers: bool,
    /// How attention is computed; initially [`AttentionMethod::Auto`]. That is the kernel on TPUs for
    /// which it is approved, if it fits. Otherwise it is blocks for sequences
    /// of more than 2,048 tokens whose scores need more memory than the logits and their gradient:
    /// `4·heads·length² > 6·vocabulary·length` bytes, or times the number of blocks if they are not
    /// recomputed. Generation with a cache is always plain.
    #[module(skip)]
    pub attention: AttentionMethod,
    /// How [`loss`](Gpt2::loss) is computed; initially [`LossMethod::Auto`]. That is plain unless the
    /// logits of one sequence need more than 1 GiB in f32, `4·vocabulary·length` bytes. Then it is the
    /// kernel on TPUs for which it is approved, if it fits, and otherwise chunks.
    #[module(skip)]
    pub loss_method: LossMethod,
    /// The dtype of the residual stream, the values between the blocks; initially `None`, which is that
    /// of the embedding: f32 in mixed precision, as in transformers. With bf16, as in MaxText, the
    /// backward pass keeps half as much. Normalizations compute in f32 all the same. Generation with
    /// a cache does not use it.
    #[module(skip)]
    pub residual_dtype: Option<DType>,
    /// How many blocks in a row keep one input for the backward pass, with `gradient_checkpointing`;
    /// initially 1. With `n`, `1/n` of the inputs are kept, and each block is computed once more.
    pub layers_per_checkpoint: usize,
    #[module(skip)]
    config: Config,
}

/// Everything except the head: transformers' `GPT2Model`.
#[derive(Module)]
pub struct Transformer {
    /// The tokens' embedding, `[vocabulary, features]`.
    pub wte: Embedding,
    /// The positions' embedding, `[positions, features]`.
    pub wpe: Embedding,
    drop: Dropout,
    /// The blocks.
    pub h: Vec<Block>,
    /// The last normalization.
    pub ln_f: LayerNorm,
}

/// A block: `h = x + attn(ln_1(x))`, then `h + mlp(ln_2(h))`.
#[derive(Module)]
pub struct Block {
    /// The normalization before attention.
    pub ln_1: LayerNorm,
    /// Attention to earlier tokens.
    pub attn: SelfAttention,
    /// The normalization before the network.
    pub ln_2: LayerNorm,
    /// The network of two layers.
    pub mlp: Mlp,
}

/// Attention whose queries, keys and values are one product.
#[derive(Module)]
pub struct SelfAttention {
    /// To queries, keys and values, `[features, 3·features]`.
    pub c_attn: Conv1D,
    /// The output projection, `[features, features]`.
    pub c_proj: Conv1D,
    attn_dropout: Dropout,
    resid_dropout: Dropout,
    n_head: usize,
}

/// The network of a block.
#[derive(Module)]
pub struct Mlp {
    /// `[features, inner]`.
    pub c_fc: Conv1D,
    /// `[inner, features]`.
    pub c_proj: Conv1D,
    dropout: Dropout,
    #[module(skip)]
    activation: Activation,
}

/// transformers' `Conv1D`: a linear layer whose weight is transposed, `[in, out]`.
#[derive(Module)]
pub struct Conv1D {
    /// `[in, out]`.
    pub weight: Parameter,
    /// `[out]`.
    pub bias: Parameter,
}

impl Conv1D {
    fn new(from: usize, to: usize, std: f64) -> Conv1D {
        let weight = Parameter::new([from, to], Init::normal(0.0, std));
        Conv1D { weight, bias: Parameter::new([to], Init::zeros()) }
    }

    /// Names the axes of the input features and of the output features.
    fn with_axes(self, from: &str, to: &str) -> Conv1D {
        self.weight.with_axes([from, to]);
        self.bias.with_axes([to]);
        self
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        Conv1D::product(x, &self.weight.get(), &self.bias.get())
    }

    fn product(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Tensor {
        let product = x.matmul(weight);
        &product + bias.to_dtype(product.dtype())
    }
}

impl Block {
    fn new(config: &Config) -> Block {
        let Config { n_embd, initializer_range: std, resid_pdrop, .. } = *config;
        let norm = || LayerNorm::new([n_embd]).eps(config.layer_norm_epsilon);
        // The more blocks add to the residual stream, the smaller is each contribution.
        let added = std / ((2 * config.n_layer) as f64).sqrt();
        let inner = config.n_inner.unwrap_or(4 * n_embd);
        Block {
            ln_1: norm(),
            attn: SelfAttention {
                c_attn: Conv1D::new(n_embd, 3 * n_embd, std).with_axes("embed", "heads"),
                c_proj: Conv1D::new(n_embd, n_embd, added).with_axes("heads", "embed"),
                attn_dropout: Dropout::new(config.attn_pdrop),
                resid_dropout: Dropout::new(resid_pdrop),
                n_head: config.n_head,
            },
            ln_2: norm(),
            mlp: Mlp {
                c_fc: Conv1D::new(n_embd, inner, std).with_axes("embed", "mlp"),
                c_proj: Conv1D::new(inner, n_embd, added).with_axes("mlp", "embed"),
                dropout: Dropout::new(resid_pdrop),
                activation: config.activation_function,
            },
        }
    }

    fn forward(
        &self,
        x: &Tensor,
        visibility: &Visibility,
        cache: Option<&KeyValueCache>,
    ) -> (Tensor, Option<KeyValueCache>) {
        let (attended, cache) = self.attn.forward(&self.ln_1.forward(x), visibility, cache);
        let x = x + attended;
        let transformed = self.mlp.forward(&self.ln_2.forward(&x));
        (x + transformed, cache)
    }
}

impl SelfAttention {
    fn forward(
        &self,
        x: &Tensor,
        visibility: &Visibility,
        cache: Option<&KeyValueCache>,
    ) -> (Tensor, Option<KeyValueCache>) {
        let [q, k, v] = self.projections(x).map(|x| split_heads(&x, self.n_head));
        let attention = visibility.attention(&Attention::new()).dropout(&self.attn_dropout);
        let (attended, cache) = attend(attention, &q, &k, &v, cache);
        (self.resid_dropout.forward(tokens(self.c_proj.forward(&attended), "embed")), cache)
    }

    /// Queries, keys and values `[batch, length, features]`.
    fn projections(&self, x: &Tensor) -> [Tensor; 3] {
        let width = x.size(-1);
        if axis_parts("heads") == 1 {
            let all = self.c_attn.forward(x);
            return [0, 1, 2].map(|i| all.narrow(-1, i * width, width));
        }
        // A part of the columns belongs to other heads than the same part of the queries, keys or
        // values. So each of the three products gets its own columns, which are split by heads.
        let weight = constrain(self.c_attn.weight.get(), [Some("embed"), None]);
        let bias = constrain(self.c_attn.bias.get(), [None::<&str>]);
        [0, 1, 2].map(|i| {
            let weight = constrain(weight.narrow(1, i * width, width), ["embed", "heads"]);
            let bias = constrain(bias.narrow(0, i * width, width), ["heads"]);
            tokens(Conv1D::product(x, &weight, &bias), "heads")
        })
    }
}

impl Mlp {
    fn forward(&self, x: &Tensor) -> Tensor {
        let hidden = self.activation.forward(&tokens(self.c_fc.forward(x), "mlp"));
        self.dropout.forward(tokens(self.c_proj.forward(&hidden), "embed"))
    }
}

impl Gpt2 {
    /// The logits `[batch, length, vocabulary]` of the token after each of the ids, integers
    /// `[batch, length]`.
    ///
    /// Poisoned if the ids have another rank or type, or if there are more of them than positions.
    #[track_caller]
    pub fn forward(&self, ids: impl AsTensor) -> Tensor {
        MODELS.record("Gpt2", || {
            let ids = ids.as_tensor().live()?;
            let (x, _) = self.features(ids, Span::new(ids, None), None)?;
            Ok(tokens(self.lm_head.forward(x), "vocab"))
        })
    }

    /// [`forward`](Gpt2::forward) for sequences into which documents are packed, which do not see
    /// each other. `segment_ids` and `positions` are integers of the shape of the ids: the document
    /// of each token, and its position there, as the text reader's `TokenCollator` makes them with
    /// `documents(true)`. The logits of a document are those of the document alone.
    ///
    /// Poisoned if ids, segment ids or positions have another rank, shape or type, or if there are
    /// more ids than positions.
    ///
    /// ```
    /// use fulmen_models::Pretrained;
    /// use fulmen_models::gpt2::{Config, Gpt2};
    /// use fulmen_nn::Module;
    /// use fulmen_tensor::{DType, Tensor};
    ///
    /// let model = Gpt2::new(Config { n_embd: 16, n_layer: 1, n_head: 2, ..Config::default() })?;
    /// model.initialize(0);
    /// model.eval();
    /// let ids = Tensor::zeros(DType::I32, [1, 5]);
    /// let documents = Tensor::from_slice(&[1, 1, 1, 2, 2], [1, 5]);
    /// let positions = Tensor::from_slice(&[0, 1, 2, 0, 1], [1, 5]);
    /// let logits = model.forward_packed(&ids, &documents, &positions);
    /// assert_eq!(logits.ty().to_string(), "f32[1, 5, 50257]");
    /// # Ok::<(), fulmen_models::Error>(())
    /// ```
    #[track_caller]
    pub fn forward_packed(
        &self,
        ids: impl AsTensor,
        segment_ids: impl AsTensor,
        positions: impl AsTensor,
    ) -> Tensor {
        MODELS.record("Gpt2", || {
            let ids = ids.as_tensor().live()?;
            let span = Span::packed(ids, segment_ids.as_tensor(), positions.as_tensor())?;
            let (x, _) = self.features(ids, span, None)?;
            Ok(tokens(self.lm_head.forward(x), "vocab"))
        })
    }

    /// The loss of predicting `targets`, the token after each of the ids: integers of their shape,
    /// as the text reader's `CausalLabels::Shifted` makes them. It is `loss` of the
    /// [logits](Gpt2::forward), of which not all are in memory at once if they are many;
    /// [`loss_method`](Gpt2::loss_method) decides.
    ///
    /// Poisoned like [`forward`](Gpt2::forward), and if the targets do not fit.
    ///
    /// ```
    /// use fulmen_models::Pretrained;
    /// use fulmen_models::gpt2::{Config, Gpt2};
    /// use fulmen_nn::Module;
    /// use fulmen_nn::loss::CrossEntropyLoss;
    /// use fulmen_tensor::Tensor;
    ///
    /// let config = Config { vocab_size: 50, n_embd: 16, n_layer: 1, n_head: 2, ..Config::default() };
    /// let mut model = Gpt2::new(config)?;
    /// model.loss_method = "chunks".parse()?;
    /// model.initialize(0);
    /// model.eval();
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
        MODELS.record("Gpt2", || {
            let ids = ids.as_tensor().live()?;
            self.loss_of(ids, Span::new(ids, None), targets.as_tensor(), loss)
        })
    }

    /// [`loss`](Gpt2::loss) for packed documents, like
    /// [`forward_packed`](Gpt2::forward_packed). The targets do not reach into the next document,
    /// if the text reader's `documents(true)` made them.
    ///
    /// Poisoned like [`forward_packed`](Gpt2::forward_packed), and if the targets do not fit.
    #[track_caller]
    pub fn loss_packed(
        &self,
        ids: impl AsTensor,
        segment_ids: impl AsTensor,
        positions: impl AsTensor,
        targets: impl AsTensor,
        loss: &CrossEntropyLoss,
    ) -> Tensor {
        MODELS.record("Gpt2", || {
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
        let (x, _) = self.features(ids, span, None)?;
        let loss = LinearCrossEntropyLoss::new(loss.clone()).method(self.loss_method);
        Ok(loss.forward_head(x, &self.lm_head, targets))
    }

    /// How attention is computed for sequences of this length.
    fn method(&self, length: usize, has_cache: bool) -> AttentionMethod {
        let Config { n_head: heads, vocab_size: vocabulary, n_layer, .. } = self.config;
        let layers = if self.gradient_checkpointing { 1 } else { n_layer };
        if has_cache {
            return AttentionMethod::Plain;
        }
        let width = self.config.n_embd / heads;
        let dtype = product_dtype(self.transformer.wte.weight.dtype());
        let has_dropout = self.transformer.h.iter().any(|it| it.attn.attn_dropout.is_active());
        let sizes = StepSizes { length, heads, vocabulary, layers, width, dtype, has_dropout };
        sizes.decide(self.attention)
    }

    /// The features `[batch, length, features]` that the head takes.
    fn features(
        &self,
        ids: &Tensor,
        span: Span,
        cache: Option<&StaticCache>,
    ) -> Result<(Tensor, Option<StaticCache>), Refusal> {
        if ids.rank() != 2 || ids.size(1) > self.config.n_positions {
            let max_length = self.config.n_positions;
            return Err(format!(
                "the ids {} are not [batch, length] with a length of at most {max_length}",
                ids.ty()
            )
            .into());
        }
        let Transformer { wte, wpe, drop, h, ln_f } = &self.transformer;
        let visibility = span.visibility(None, self.method(ids.size(1), cache.is_some()));
        let x = tokens(wte.forward(ids), "embed") + wpe.forward(span.positions());
        let x = drop.forward(x);
        let options = LayerOptions {
            gradient_checkpointing: self.gradient_checkpointing,
            scan_layers: self.scan_layers,
            layers_per_checkpoint: self.layers_per_checkpoint,
            residual_dtype: self.residual_dtype,
        };
        let (x, cache) = run_layers(
            x,
            h,
            cache,
            options,
            |_| true,
            |i, x, cache| h[i].forward(x, &visibility, cache),
        );
        Ok((ln_f.forward(x), cache))
    }
}

impl CausalLm for Gpt2 {
    fn empty_cache(&self, batch: usize, max_len: usize) -> StaticCache {
        let Config { n_layer, n_head, n_embd, .. } = self.config;
        let dtype: DType = self.transformer.wte.weight.dtype();
        StaticCache::new(
            (0..n_layer)
                .map(|_| KeyValueCache::new(dtype, batch, n_head, max_len, n_embd / n_head)),
        )
    }

    #[track_caller]
    fn next_token_logits(&self, ids: &Tensor, cache: &StaticCache) -> (Tensor, StaticCache) {
        MODELS.record("Gpt2", || {
            let ids = ids.live()?;
            let (x, after) = self.features(ids, Span::new(ids, Some(cache)), Some(cache))?;
            Ok((self.lm_head.forward(x.index(1, -1)), after.unwrap_or_else(|| cache.clone())))
        })
    }

    fn max_positions(&self) -> Option<usize> {
        Some(self.config.n_positions)
    }
}

impl Pretrained for Gpt2 {
    type Config = Config;
    const MODEL_TYPES: &'static [&'static str] = &["gpt2"];
    const FIXED_SETTINGS: &'static [(&'static str, &'static str)] =
        &[("scale_attn_weights", "true"), ("scale_attn_by_inverse_layer_idx", "false")];
    /// Another name of `n_positions`, the precision of attention, and settings of other heads.
    const HARMLESS_SETTINGS: &'static [&'static str] = &[
        "n_ctx",
        "n_special",
        "predict_special_tokens",
        "reorder_and_upcast_attn",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    ];
    const SETTING_ALIASES: &'static [(&'static str, &'static str)] = &[
        ("hidden_size", "n_embd"),
        ("max_position_embeddings", "n_positions"),
        ("num_attention_heads", "n_head"),
        ("num_hidden_layers", "n_layer"),
    ];
    const BASE_MODEL_PREFIX: &'static str = "transformer";
    const HEAD: &'static [&'static str] = &["lm_head"];
    /// The masks that old files have.
    const IGNORED_KEYS: &'static [&'static str] = &["attn.bias", "attn.masked_bias"];

    fn new(config: Config) -> Result<Gpt2> {
        let Config { vocab_size, n_positions, n_embd, n_head, initializer_range, .. } = config;
        check_heads(Setting::new("n_head", n_head), Setting::new("n_embd", n_embd))?;
        let embedding = |rows| {
            let mut embedding = Embedding::new(rows, n_embd);
            embedding.weight = Parameter::new([rows, n_embd], Init::normal(0.0, initializer_range));
            embedding
        };
        let wte = embedding(vocab_size);
        wte.weight.with_axes(["vocab", "embed"]);
        let mut lm_head = Linear::new(n_embd, vocab_size).bias(false).with_axes("vocab", "embed");
        if config.tie_word_embeddings {
            lm_head.weight = wte.weight.clone();
        }
        let transformer = Transformer {
            wte,
            wpe: embedding(n_positions),
            drop: Dropout::new(config.embd_pdrop),
            h: (0..config.n_layer).map(|_| Block::new(&config)).collect(),
            ln_f: LayerNorm::new([n_embd]).eps(config.layer_norm_epsilon),
        };
        Ok(Gpt2 {
            transformer,
            lm_head,
            gradient_checkpointing: false,
            scan_layers: false,
            attention: AttentionMethod::Auto,
            loss_method: LossMethod::Auto,
            residual_dtype: None,
            layers_per_checkpoint: 1,
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
        "GPT2LMHeadModel".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{check_decoder, check_packing, folder};

    #[test]
    fn packed_documents_are_the_documents_alone() {
        let sizes = Config {
            vocab_size: 20,
            n_positions: 12,
            n_embd: 8,
            n_layer: 2,
            n_head: 2,
            ..Config::default()
        };
        let none = Config { embd_pdrop: 0.0, attn_pdrop: 0.0, resid_pdrop: 0.0, ..sizes };
        check_packing(Gpt2::new(none).unwrap(), 12, |model, packed, method| {
            model.attention = method;
            match packed {
                [ids] => model.forward(ids),
                [ids, segment_ids, positions] => model.forward_packed(ids, segment_ids, positions),
                _ => panic!("ids, or ids with segments and positions"),
            }
        });
    }

    #[test]
    fn shards_of_transformers_give_its_logits_and_tokens() {
        let model = Gpt2::from_folder(folder("gpt2")).unwrap_or_else(|e| panic!("{e}"));
        check_decoder("gpt2", &model, |ids| model.forward(ids));
    }
}
