//! ConvNeXt: transformers' `ConvNextForImageClassification`, Liu et al. 2022, "A ConvNet for the
//! 2020s".
//!
//! Four stages of blocks. A block is a 7 × 7 depthwise convolution, followed by a feed-forward
//! network over the channels of each position.

#[cfg(test)]
mod tests;

use fulmen_nn::{Conv2d, DropPath, Init, LayerNorm, Linear, Module, Parameter};
use fulmen_tensor::{AsTensor, Tensor, checkpoint};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Activation, Labels, MODELS, Pretrained, Result, init};

/// The settings, with the names of `config.json`; by default ConvNeXt-T, of 29 million parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The number of channels of an image.
    pub num_channels: usize,
    /// The height and width of the patches of the first convolution.
    pub patch_size: usize,
    /// The channels of each stage. Each stage except the first halves height and width.
    pub hidden_sizes: [usize; 4],
    /// The number of blocks in each stage.
    pub depths: [usize; 4],
    /// The activation within a block.
    pub hidden_act: Activation,
    /// The standard deviation of initial values.
    pub initializer_range: f64,
    /// The constant that the last normalization adds to the variance; the others add 1e-6.
    pub layer_norm_eps: f64,
    /// The initial layer scale, which multiplies the output of a block; 0 for no such parameter.
    pub layer_scale_init_value: f64,
    /// The probability of dropping the last block in training; those before it have lower ones, in
    /// equal steps from 0.
    pub drop_path_rate: f64,
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
            num_channels: 3,
            patch_size: 4,
            hidden_sizes: [96, 192, 384, 768],
            depths: [3, 3, 9, 3],
            hidden_act: Activation::Gelu,
            initializer_range: 0.02,
            layer_norm_eps: 1e-12,
            layer_scale_init_value: 1e-6,
            drop_path_rate: 0.0,
            labels: Labels::default(),
            other: Map::new(),
        }
    }
}

/// A ConvNeXt with its head: images `[batch, channels, height, width]` to logits
/// `[batch, classes]`.
///
/// ```
/// use fulmen_models::convnext::{Config, ConvNext};
/// use fulmen_models::{Labels, Pretrained};
/// use fulmen_nn::Module;
/// use fulmen_tensor::{DType, Tensor};
///
/// let labels = Labels::numbered(10);
/// let config = Config { hidden_sizes: [4, 8, 12, 16], depths: [1; 4], labels, ..Config::default() };
/// let model = ConvNext::new(config)?;
/// model.initialize(0);
/// let logits = model.forward(Tensor::zeros(DType::F32, [8, 3, 32, 32]));
/// assert_eq!(logits.ty().to_string(), "f32[8, 10]");
/// # Ok::<(), fulmen_models::Error>(())
/// ```
#[derive(Module)]
pub struct ConvNext {
    /// The stages.
    pub convnext: Backbone,
    /// Maps the mean over all positions to logits.
    pub classifier: Linear,
    /// Whether the backward pass recomputes each block, for a fraction of the memory; initially
    /// false.
    pub gradient_checkpointing: bool,
    #[module(skip)]
    config: Config,
}

/// Everything except the head: transformers' `ConvNextModel`.
#[derive(Module)]
pub struct Backbone {
    embeddings: Embeddings,
    encoder: Encoder,
    /// The last normalization, after the mean over all positions.
    pub layernorm: LayerNorm,
}

#[derive(Module)]
struct Embeddings {
    patch_embeddings: Conv2d,
    layernorm: LayerNorm,
}

#[derive(Module)]
struct Encoder {
    stages: Vec<Stage>,
}

#[derive(Module)]
struct Stage {
    downsampling_layer: Option<(LayerNorm, Conv2d)>,
    layers: Vec<Block>,
}

#[derive(Module)]
struct Block {
    /// The depthwise convolution.
    dwconv: Conv2d,
    layernorm: LayerNorm,
    /// `pwconv1` and `pwconv2`: the feed-forward network of each position.
    pwconv1: Linear,
    pwconv2: Linear,
    /// `[channels]`.
    layer_scale_parameter: Option<Parameter>,
    drop_path: DropPath,
    #[module(skip)]
    activation: Activation,
}

impl ConvNext {
    /// Logits `[batch, classes]` of images `[batch, channels, height, width]`.
    #[track_caller]
    pub fn forward(&self, pixel_values: impl AsTensor) -> Tensor {
        let _scope = MODELS.open();
        let features = self.forward_features(pixel_values).mean([-2, -1]);
        self.classifier.forward(self.convnext.layernorm.forward(features))
    }

    /// The output of the last stage for images `[batch, channels, height, width]`: `[batch,
    /// features, rows, columns]`.
    #[track_caller]
    pub fn forward_features(&self, pixel_values: impl AsTensor) -> Tensor {
        let _scope = MODELS.open();
        let Embeddings { patch_embeddings, layernorm } = &self.convnext.embeddings;
        let mut x =
            over_channels(&patch_embeddings.forward(pixel_values), |x| layernorm.forward(x));
        for stage in &self.convnext.encoder.stages {
            if let Some((norm, conv)) = &stage.downsampling_layer {
                x = conv.forward(over_channels(&x, |x| norm.forward(x)));
            }
            for block in &stage.layers {
                x = if self.gradient_checkpointing {
                    checkpoint(|x| block.forward(&x), &x)
                } else {
                    block.forward(&x)
                };
            }
        }
        x
    }
}

impl Block {
    fn new(config: &Config, channels: usize, drop_path: f64) -> Block {
        let scale = config.layer_scale_init_value;
        Block {
            dwconv: Conv2d::new(channels, channels, 7).padding(3).groups(channels),
            layernorm: norm(channels),
            pwconv1: Linear::new(channels, 4 * channels),
            pwconv2: Linear::new(4 * channels, channels),
            layer_scale_parameter: (scale > 0.0)
                .then(|| Parameter::new([channels], Init::constant(scale))),
            drop_path: DropPath::new(drop_path),
            activation: config.hidden_act,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let y = over_channels(&self.dwconv.forward(x), |y| {
            let y = self.activation.forward(&self.pwconv1.forward(self.layernorm.forward(y)));
            let y = self.pwconv2.forward(y);
            match &self.layer_scale_parameter {
                Some(scale) => scale.get().to_dtype(y.dtype()) * y,
                None => y,
            }
        });
        x + self.drop_path.forward(y)
    }
}

/// Applies `f` to `x`, `[batch, channels, height, width]`, with the channels temporarily on the
/// last axis.
fn over_channels(x: &Tensor, f: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
    f(&x.permute([0, 2, 3, 1])).permute([0, 3, 1, 2])
}

fn norm(channels: usize) -> LayerNorm {
    LayerNorm::new([channels]).eps(1e-6)
}

impl Pretrained for ConvNext {
    type Config = Config;
    const MODEL_TYPES: &'static [&'static str] = &["convnext"];
    const FIXED_SETTINGS: &'static [(&'static str, &'static str)] = &[("num_stages", "4")];
    /// The size of images in training; settings of backbones.
    const HARMLESS_SETTINGS: &'static [&'static str] =
        &["image_size", "out_features", "out_indices", "stage_names"];
    const BASE_MODEL_PREFIX: &'static str = "convnext";
    const HEAD: &'static [&'static str] = &["classifier."];

    fn new(config: Config) -> Result<ConvNext> {
        let Config { num_channels, patch_size, hidden_sizes, depths, drop_path_rate, .. } = config;
        let last_block = depths.iter().sum::<usize>().saturating_sub(1).max(1) as f64;
        let mut inputs = hidden_sizes[0];
        let mut block = 0;
        let stages =
            hidden_sizes.into_iter().zip(depths).enumerate().map(|(i, (channels, depth))| {
                let halve = (norm(inputs), Conv2d::new(inputs, channels, 2).stride(2));
                inputs = channels;
                let layers = (0..depth).map(|_| {
                    block += 1;
                    Block::new(
                        &config,
                        channels,
                        drop_path_rate * f64::from(block - 1) / last_block,
                    )
                });
                Stage { downsampling_layer: (i > 0).then_some(halve), layers: layers.collect() }
            });
        let convnext = Backbone {
            encoder: Encoder { stages: stages.collect() },
            embeddings: Embeddings {
                patch_embeddings: Conv2d::new(num_channels, hidden_sizes[0], patch_size)
                    .stride(patch_size),
                layernorm: norm(hidden_sizes[0]),
            },
            layernorm: LayerNorm::new([hidden_sizes[3]]).eps(config.layer_norm_eps),
        };
        let classifier = Linear::new(hidden_sizes[3], config.labels.len());
        let model = ConvNext { convnext, classifier, gradient_checkpointing: false, config };
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
        "ConvNextForImageClassification".into()
    }
}
