//! Vision Transformer: transformers' `ViTForImageClassification`, Dosovitskiy et al. 2020, "An
//! Image is Worth 16x16 Words".
//!
//! An image is cut into patches, and each patch is a token. Position embeddings are added, and a
//! token in front of the others, `[CLS]`, collects the input of the head. A block consists of
//! attention to all tokens and a feed-forward network, with residual connections.

#[cfg(test)]
mod tests;

use fulmen_nn::attention::Attention;
use fulmen_nn::{Conv2d, Dropout, Init, LayerNorm, Linear, Module, Parameter};
use fulmen_tensor::{AsTensor, Interpolation, Refusal, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::attention::{Setting, check_heads, self_attention, tokens};
use crate::layers::{LayerOptions, run_layers};
use crate::{Activation, Labels, MODELS, Pretrained, Result, error, init};

/// The settings, with the names of `config.json`; by default ViT-Base with patches of 16 × 16, of
/// 86 million parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The number of features of a token.
    pub hidden_size: usize,
    /// The number of blocks.
    pub num_hidden_layers: usize,
    /// The number of attention heads, which must divide the number of features.
    pub num_attention_heads: usize,
    /// The number of features in the feed-forward network of a block.
    pub intermediate_size: usize,
    /// The activation of the feed-forward network of a block.
    pub hidden_act: Activation,
    /// The dropout of embeddings, and of the output of each part of a block.
    pub hidden_dropout_prob: f64,
    /// The dropout of attention weights.
    pub attention_probs_dropout_prob: f64,
    /// The standard deviation of initial values.
    pub initializer_range: f64,
    /// The constant that normalizations add to the variance.
    pub layer_norm_eps: f64,
    /// Height and width of the images that the position embeddings are for.
    pub image_size: usize,
    /// Height and width of a patch.
    pub patch_size: usize,
    /// The number of channels of an image.
    pub num_channels: usize,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The classes.
    #[serde(flatten)]
    pub labels: Labels,
    /// Other keys of the file, which are preserved.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_act: Activation::Gelu,
            hidden_dropout_prob: 0.0,
            attention_probs_dropout_prob: 0.0,
            initializer_range: 0.02,
            layer_norm_eps: 1e-12,
            image_size: 224,
            patch_size: 16,
            num_channels: 3,
            qkv_bias: true,
            labels: Labels::default(),
            other: Map::new(),
        }
    }
}

/// A Vision Transformer with its head: images `[batch, channels, height, width]` to logits
/// `[batch, classes]`.
///
/// ```
/// use fulmen_models::vit::{Config, ViT};
/// use fulmen_models::{Labels, Pretrained};
/// use fulmen_nn::Module;
/// use fulmen_tensor::{DType, Tensor};
///
/// let config = Config {
///     hidden_size: 48,
///     num_hidden_layers: 2,
///     num_attention_heads: 4,
///     image_size: 32,
///     patch_size: 8,
///     labels: Labels::numbered(10),
///     ..Config::default()
/// };
/// let model = ViT::new(config)?;
/// model.initialize(0);
/// let logits = model.forward(Tensor::zeros(DType::F32, [8, 3, 32, 32]));
/// assert_eq!(logits.ty().to_string(), "f32[8, 10]");
/// # Ok::<(), fulmen_models::Error>(())
/// ```
#[derive(Module)]
pub struct ViT {
    /// The embeddings and the blocks.
    pub vit: Backbone,
    /// Maps the first token's features to logits.
    pub classifier: Linear,
    /// Whether the backward pass recomputes each block, for a fraction of the memory; initially
    /// false.
    pub gradient_checkpointing: bool,
    /// Whether equal blocks run as one scan. The program then compiles as fast as with a single
    /// one. Initially false.
    pub scan_layers: bool,
    #[module(skip)]
    config: Config,
}

/// Everything except the head: transformers' `ViTModel`.
#[derive(Module)]
pub struct Backbone {
    /// From images to tokens.
    pub embeddings: Embeddings,
    encoder: Encoder,
    /// The last normalization.
    pub layernorm: LayerNorm,
}

/// From images to tokens.
#[derive(Module)]
pub struct Embeddings {
    /// The token in front, `[1, 1, features]`.
    pub cls_token: Parameter,
    /// The embedding added to the tokens, `[1, 1 + patches, features]`.
    pub position_embeddings: Parameter,
    patch_embeddings: PatchEmbeddings,
    dropout: Dropout,
}

/// The patches are the positions of a convolution whose stride equals its size.
#[derive(Module)]
struct PatchEmbeddings {
    projection: Conv2d,
}

#[derive(Module)]
struct Encoder {
    layer: Vec<Block>,
}

/// A block: `h = x + attention(layernorm_before(x))`, then
/// `h + output(intermediate(layernorm_after(h)))`.
#[derive(Module)]
struct Block {
    layernorm_before: LayerNorm,
    attention: AttentionWithOutput,
    layernorm_after: LayerNorm,
    intermediate: Dense,
    output: Dense,
    dropout: Dropout,
    #[module(skip)]
    activation: Activation,
}

#[derive(Module)]
struct AttentionWithOutput {
    attention: SelfAttention,
    output: Dense,
}

#[derive(Module)]
struct SelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    dropout: Dropout,
    heads: usize,
}

/// A linear layer under the name `dense`.
#[derive(Module)]
struct Dense {
    dense: Linear,
}

impl ViT {
    /// Logits `[batch, classes]` of images `[batch, channels, height, width]`.
    ///
    /// For images of other sizes than the config's, position embeddings are interpolated, as with
    /// transformers' `interpolate_pos_encoding`.
    #[track_caller]
    pub fn forward(&self, pixel_values: impl AsTensor) -> Tensor {
        MODELS.record("ViT", || {
            Ok(self.classifier.forward(self.features(pixel_values.as_tensor())?.index(1, 0)))
        })
    }

    /// The features `[batch, 1 + patches, features]` of the tokens; the head takes the features of
    /// the first token.
    #[track_caller]
    pub fn forward_features(&self, pixel_values: impl AsTensor) -> Tensor {
        MODELS.record("ViT", || self.features(pixel_values.as_tensor()))
    }

    fn features(&self, pixel_values: &Tensor) -> Result<Tensor, Refusal> {
        let x = self.vit.embeddings.forward(pixel_values.live()?, &self.config)?;
        let ViT { gradient_checkpointing, scan_layers, .. } = *self;
        let blocks = &self.vit.encoder.layer;
        let options =
            LayerOptions { gradient_checkpointing, scan_layers, ..LayerOptions::default() };
        let x =
            run_layers(x, blocks, None, options, |_| true, |i, x, _| (blocks[i].forward(x), None))
                .0;
        Ok(self.vit.layernorm.forward(x))
    }
}

impl Embeddings {
    fn forward(&self, pixel_values: &Tensor, config: &Config) -> Result<Tensor, Refusal> {
        let patches = self.patch_embeddings.projection.forward(pixel_values); // [batch, features, rows, columns]
        let [batch, features, rows, columns] = *patches.live()?.shape().dims() else {
            return Err(format!(
                "the images {} are not [batch, channels, height, width]",
                pixel_values.ty()
            )
            .into());
        };
        let first = self.cls_token.get().expand(&[batch as isize, -1, -1]);
        let x = Tensor::concatenate(&[&first, &patches.flatten(2, 3).transpose(1, 2)], 1);
        let positions = self.position_embeddings.get();
        let side = config.image_size / config.patch_size;
        if [rows, columns] == [side, side] {
            return Ok(self.dropout.forward(x + positions));
        }
        let grid = positions
            .narrow(1, 1, side * side)
            .transpose(1, 2)
            .reshape([1, features, side, side])
            .interpolate(&[rows, columns], Interpolation::Cubic { align_corners: false });
        let resized_positions = Tensor::concatenate(
            &[&positions.narrow(1, 0, 1), &grid.flatten(2, 3).transpose(1, 2)],
            1,
        );
        Ok(self.dropout.forward(x + resized_positions))
    }
}

impl Block {
    fn new(config: &Config) -> Block {
        let Config { hidden_size: features, intermediate_size: inner, .. } = *config;
        let norm = || LayerNorm::new([features]).eps(config.layer_norm_eps);
        let projection =
            || Linear::new(features, features).bias(config.qkv_bias).with_axes("heads", "embed");
        Block {
            layernorm_before: norm(),
            attention: AttentionWithOutput {
                attention: SelfAttention {
                    query: projection(),
                    key: projection(),
                    value: projection(),
                    dropout: Dropout::new(config.attention_probs_dropout_prob),
                    heads: config.num_attention_heads,
                },
                output: Dense {
                    dense: Linear::new(features, features).with_axes("embed", "heads"),
                },
            },
            layernorm_after: norm(),
            intermediate: Dense { dense: Linear::new(features, inner).with_axes("mlp", "embed") },
            output: Dense { dense: Linear::new(inner, features).with_axes("embed", "mlp") },
            dropout: Dropout::new(config.hidden_dropout_prob),
            activation: config.hidden_act,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let attended = self.attention.forward(&self.layernorm_before.forward(x));
        let x = x + self.dropout.forward(attended);
        let inner = self.intermediate.dense.forward(self.layernorm_after.forward(&x));
        let inner = self.activation.forward(&tokens(inner, "mlp"));
        &x + self.dropout.forward(tokens(self.output.dense.forward(inner), "embed"))
    }
}

impl AttentionWithOutput {
    fn forward(&self, x: &Tensor) -> Tensor {
        let SelfAttention { query, key, value, dropout, heads } = &self.attention;
        let attention = Attention::new().dropout(dropout);
        let attended = self_attention(attention, query, key, value, x, *heads);
        tokens(self.output.dense.forward(attended), "embed")
    }
}

impl Pretrained for ViT {
    type Config = Config;
    const MODEL_TYPES: &'static [&'static str] = &["vit"];
    /// Settings of other heads.
    const HARMLESS_SETTINGS: &'static [&'static str] =
        &["encoder_stride", "pooler_act", "pooler_output_size"];
    const BASE_MODEL_PREFIX: &'static str = "vit";
    const HEAD: &'static [&'static str] = &["classifier"];
    /// The layer that turns the first token into features of the whole image, for other heads.
    const IGNORED_KEYS: &'static [&'static str] = &["pooler."];

    fn new(config: Config) -> Result<ViT> {
        let Config { hidden_size, image_size, patch_size, num_channels, .. } = config;
        check_heads(
            Setting::new("num_attention_heads", config.num_attention_heads),
            Setting::new("hidden_size", hidden_size),
        )?;
        if patch_size == 0 || image_size < patch_size {
            let message = format!(
                "`patch_size` is {patch_size}; an image of `image_size` {image_size} has no patch"
            );
            return Err(error::config(message));
        }
        let patches = (image_size / patch_size).pow(2);
        let vit = Backbone {
            embeddings: Embeddings {
                cls_token: Parameter::new([1, 1, hidden_size], Init::zeros()),
                position_embeddings: Parameter::new([1, 1 + patches, hidden_size], Init::zeros()),
                patch_embeddings: PatchEmbeddings {
                    projection: Conv2d::new(num_channels, hidden_size, patch_size)
                        .stride(patch_size),
                },
                dropout: Dropout::new(config.hidden_dropout_prob),
            },
            encoder: Encoder {
                layer: (0..config.num_hidden_layers).map(|_| Block::new(&config)).collect(),
            },
            layernorm: LayerNorm::new([hidden_size]).eps(config.layer_norm_eps),
        };
        let classifier = Linear::new(hidden_size, config.labels.len());
        let model =
            ViT { vit, classifier, gradient_checkpointing: false, scan_layers: false, config };
        init::normal(&model, model.config.initializer_range);
        Ok(model)
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn other_settings(config: &Config) -> &Map<String, Value> {
        &config.other
    }

    fn architecture(&self) -> String {
        "ViTForImageClassification".into()
    }
}
