//! ResNet: convolutions with residual connections. He et al. 2015, "Deep Residual Learning for
//! Image Recognition".
//!
//! Modules and parameters have torchvision's and timm's names, so `resnet50-….pth` and timm's
//! folders can be loaded. As in both libraries, a bottleneck has its stride in the 3 × 3
//! convolution (v1.5).
//!
//! ```
//! use fulmen_models::Pretrained;
//! use fulmen_models::resnet::{Config, ResNet};
//! use fulmen_nn::Module;
//! use fulmen_tensor::{DType, Tensor};
//!
//! let model = ResNet::new(Config { num_classes: 10, ..Config::resnet18() })?;
//! model.initialize(0);
//! let logits = model.forward(Tensor::zeros(DType::F32, [8, 3, 224, 224]));
//! assert_eq!(logits.ty().to_string(), "f32[8, 10]");
//! assert_eq!(model.parameters()[3].0, "layer1.0.conv1.weight");
//! # Ok::<(), fulmen_models::Error>(())
//! ```

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;

use fulmen_nn::init::{Fan, Nonlinearity};
use fulmen_nn::weights::{StateDict, Strictness};
use fulmen_nn::{AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Init, Linear, MaxPool2d, Module};
use fulmen_tensor::{AsTensor, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::InConfig as _;
use crate::settings::same_json;
use crate::{MODELS, Pretrained, Result, error};

/// The settings; `config.json` has them as timm writes them.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "TimmConfig", into = "TimmConfig")]
pub struct Config {
    /// The ResNet.
    pub architecture: Architecture,
    /// The number of classes of the head.
    pub num_classes: usize,
    /// The number of channels of an image.
    pub in_chans: usize,
    /// The channels of the first convolution: 64, the only value in timm and torchvision.
    pub stem_channels: usize,
    /// The channels of the four stages, `[64, 128, 256, 512]`. A bottleneck outputs four times as
    /// many.
    pub channels: [usize; 4],
    /// The number of blocks in each of the four stages, as the architecture defines it.
    pub layers: [usize; 4],
    /// For images of about 32 × 32: the first convolution is 3 × 3 with stride 1, without pooling
    /// after it. Neither torchvision nor timm has this form.
    pub small_images: bool,
    /// Whether the last normalization of each block is initialized with zeros, so that the block
    /// initially passes its input through.
    pub zero_init_last: bool,
    /// timm's description of the weights and of the images that they expect, such as the mean
    /// pixel. Saving writes it back unchanged.
    pub pretrained_cfg: Map<String, Value>,
    /// Other keys of the file, which are preserved.
    pub other: Map<String, Value>,
}

/// The ResNets of the paper, with the numbers of parameters for 1000 classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// Basic blocks, 11.7 million parameters.
    ResNet18,
    /// Basic blocks, 21.8 million parameters.
    ResNet34,
    /// Bottlenecks, 25.6 million parameters.
    ResNet50,
    /// Bottlenecks, 44.5 million parameters.
    ResNet101,
    /// Bottlenecks, 60.2 million parameters.
    ResNet152,
}

impl Config {
    /// For ImageNet: three channels, 1000 classes.
    pub fn new(architecture: Architecture) -> Config {
        let layers = match architecture {
            Architecture::ResNet18 => [2, 2, 2, 2],
            Architecture::ResNet34 | Architecture::ResNet50 => [3, 4, 6, 3],
            Architecture::ResNet101 => [3, 4, 23, 3],
            Architecture::ResNet152 => [3, 8, 36, 3],
        };
        Config {
            architecture,
            num_classes: 1000,
            in_chans: 3,
            stem_channels: STEM_CHANNELS,
            channels: [64, 128, 256, 512],
            layers,
            small_images: false,
            zero_init_last: false,
            pretrained_cfg: Map::new(),
            other: Map::new(),
        }
    }

    /// ResNet-18 for ImageNet.
    pub fn resnet18() -> Config {
        Config::new(Architecture::ResNet18)
    }

    /// ResNet-34 for ImageNet.
    pub fn resnet34() -> Config {
        Config::new(Architecture::ResNet34)
    }

    /// ResNet-50 for ImageNet.
    pub fn resnet50() -> Config {
        Config::new(Architecture::ResNet50)
    }

    /// ResNet-101 for ImageNet.
    pub fn resnet101() -> Config {
        Config::new(Architecture::ResNet101)
    }

    /// ResNet-152 for ImageNet.
    pub fn resnet152() -> Config {
        Config::new(Architecture::ResNet152)
    }

    /// The settings of the ResNet with these weights, from their names and shapes; `None` if these
    /// are not the weights of a ResNet.
    fn of_weights(weights: &StateDict) -> Option<Config> {
        let dims = |name: &str| {
            weights.iter().find(|(known, _)| *known == name).map(|(_, ty)| ty.shape.to_vec())
        };
        let has = |name: String| dims(&name).is_some();
        let layers = [1, 2, 3, 4].map(|stage| {
            (0..).take_while(|i| has(format!("layer{stage}.{i}.conv1.weight"))).count()
        });
        let mut channels = [0; 4];
        for (stage, channels) in (1..).zip(&mut channels) {
            *channels = *dims(&format!("layer{stage}.0.conv1.weight"))?.first()?;
        }
        let architectures = [
            Architecture::ResNet18,
            Architecture::ResNet34,
            Architecture::ResNet50,
            Architecture::ResNet101,
            Architecture::ResNet152,
        ];
        let bottlenecks = has("layer1.0.conv3.weight".into());
        let mut known = architectures
            .into_iter()
            .map(Config::new)
            .filter(|config| config.has_bottlenecks() == bottlenecks);
        let usual =
            known.clone().find(|config| config.layers == layers).or_else(|| known.next())?;
        let &[stem_channels, in_chans, kernel, _] = &dims("conv1.weight")?[..] else { return None };
        let num_classes = *dims("fc.weight")?.first()?;
        Some(Config {
            num_classes,
            in_chans,
            stem_channels,
            channels,
            layers,
            small_images: kernel == 3,
            ..usual
        })
    }

    fn has_bottlenecks(&self) -> bool {
        !matches!(self.architecture, Architecture::ResNet18 | Architecture::ResNet34)
    }
}

const STEM_CHANNELS: usize = 64;

/// timm's `config.json`: `model_args` has the differences from the architecture.
#[derive(Deserialize, Serialize)]
#[serde(default)]
struct TimmConfig {
    architecture: Architecture,
    num_classes: Option<usize>,
    model_args: ModelArgs,
    #[serde(skip_serializing_if = "Option::is_none")]
    stem_channels: Option<usize>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    small_images: bool,
    pretrained_cfg: Map<String, Value>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// The arguments of timm's class.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct ModelArgs {
    #[serde(skip_serializing)]
    num_classes: Option<usize>,
    in_chans: Option<usize>,
    channels: Option<[usize; 4]>,
    layers: Option<[usize; 4]>,
    zero_init_last: Option<bool>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// The defaults of timm's other arguments, in JSON. With another value it is another model.
const DEFAULT_ARGS: [(&str, &str); 13] = [
    ("avg_down", "false"),
    ("base_width", "64"),
    ("block_reduce_first", "1"),
    ("cardinality", "1"),
    ("down_kernel_size", "1"),
    ("drop_block_rate", "0"),
    ("drop_path_rate", "0"),
    ("drop_rate", "0"),
    ("global_pool", "\"avg\""),
    ("output_stride", "32"),
    ("replace_stem_pool", "false"),
    ("stem_type", "\"\""),
    ("stem_width", "64"),
];

impl ModelArgs {
    /// The arguments that mean another model.
    fn unsupported(&self) -> Map<String, Value> {
        let is_default = |name: &str, value: &Value| {
            let default = DEFAULT_ARGS.iter().find(|(known, _)| *known == name);
            value.is_null() || default.is_some_and(|(_, default)| same_json(value, default))
        };
        let unsupported = self.other.iter().filter(|(name, value)| !is_default(name, value));
        unsupported.map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

impl Default for TimmConfig {
    fn default() -> TimmConfig {
        TimmConfig {
            architecture: Architecture::ResNet50,
            num_classes: None,
            model_args: ModelArgs::default(),
            stem_channels: None,
            small_images: false,
            pretrained_cfg: Map::new(),
            other: Map::new(),
        }
    }
}

/// What `pretrained_cfg` says about the sizes of the model.
#[derive(Deserialize)]
struct DescribedSizes {
    num_classes: Option<usize>,
    input_size: Option<Vec<usize>>,
}

impl TryFrom<TimmConfig> for Config {
    type Error = serde_json::Error;

    fn try_from(timm: TimmConfig) -> Result<Config, serde_json::Error> {
        let TimmConfig { model_args: args, pretrained_cfg, mut other, .. } = timm;
        let usual = Config::new(timm.architecture);
        let unsupported = args.unsupported();
        if !unsupported.is_empty() {
            other.insert("model_args".into(), Value::Object(unsupported));
        }
        if let Some(pool) = pretrained_cfg.get("global_pool") {
            other.entry("global_pool").or_insert_with(|| pool.clone());
        }
        let described: DescribedSizes =
            serde_json::from_value(Value::Object(pretrained_cfg.clone()))?;
        let described_channels = described.input_size.and_then(|size| size.first().copied());
        Ok(Config {
            architecture: timm.architecture,
            num_classes: (args.num_classes.or(timm.num_classes))
                .or(described.num_classes)
                .unwrap_or(usual.num_classes),
            in_chans: args.in_chans.or(described_channels).unwrap_or(usual.in_chans),
            stem_channels: timm.stem_channels.unwrap_or(usual.stem_channels),
            channels: args.channels.unwrap_or(usual.channels),
            layers: args.layers.unwrap_or(usual.layers),
            small_images: timm.small_images,
            zero_init_last: args.zero_init_last.unwrap_or(usual.zero_init_last),
            pretrained_cfg,
            other,
        })
    }
}

impl From<Config> for TimmConfig {
    fn from(config: Config) -> TimmConfig {
        let model_args = ModelArgs {
            num_classes: None,
            in_chans: Some(config.in_chans),
            channels: Some(config.channels),
            layers: Some(config.layers),
            zero_init_last: Some(config.zero_init_last),
            other: Map::new(),
        };
        let stem_channels = config.stem_channels;
        TimmConfig {
            architecture: config.architecture,
            num_classes: Some(config.num_classes),
            model_args,
            stem_channels: (stem_channels != STEM_CHANNELS).then_some(stem_channels),
            small_images: config.small_images,
            pretrained_cfg: config.pretrained_cfg,
            other: config.other,
        }
    }
}

/// An image classifier: `[batch, channels, height, width]` to logits `[batch, classes]`, for any
/// height and width.
#[derive(Clone, Debug, Module)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    maxpool: Option<MaxPool2d>,
    layer1: Vec<Block>,
    layer2: Vec<Block>,
    layer3: Vec<Block>,
    layer4: Vec<Block>,
    /// From the features to logits.
    pub fc: Linear,
    #[module(skip)]
    config: Config,
}

impl ResNet {
    /// The model for weights without a `config.json`: torchvision's `resnet50-….pth`, or a
    /// checkpoint of the Trainer. Names and shapes determine which ResNet it is. Other values, such
    /// as training state, are ignored.
    ///
    /// ```
    /// use fulmen_models::Pretrained;
    /// use fulmen_models::resnet::{Config, ResNet};
    /// use fulmen_nn::{Module, weights::save_weights};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("model.safetensors");
    /// let config = Config { num_classes: 10, stem_channels: 8, channels: [8, 16, 32, 64], ..Config::resnet18() };
    /// let model = ResNet::new(config)?;
    /// model.initialize(0);
    /// save_weights(&model, &path)?;
    /// assert_eq!(ResNet::from_weights(&path)?.config(), model.config());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`StateDict::read`]; the weights are incomplete, or not those of a ResNet.
    pub fn from_weights(path: impl AsRef<Path>) -> Result<ResNet> {
        let weights = StateDict::read(path.as_ref())?;
        let config = Config::of_weights(&weights).ok_or_else(|| {
            let message = "not the weights of a ResNet: they need torchvision's names, conv1.weight to fc.bias";
            error::config(message).in_file(path.as_ref())
        })?;
        let model = ResNet::new(config)?;
        let names: BTreeSet<String> = model.state().into_iter().map(|(name, _)| name).collect();
        let model_weights =
            weights.rename_with(|name| names.contains(name).then(|| name.to_owned()))?;
        model_weights.load_into(&model, Strictness::Strict)?;
        Ok(model)
    }

    /// Maps images `[batch, channels, height, width]` to logits `[batch, classes]`.
    #[track_caller]
    pub fn forward(&self, images: impl AsTensor) -> Tensor {
        let _scope = MODELS.open();
        self.fc.forward(
            AdaptiveAvgPool2d::new(1).forward(self.forward_features(images)).flatten(1, -1),
        )
    }

    /// The output of the last stage for images `[batch, channels, height, width]`: `[batch,
    /// features, height / 32, width / 32]`; for small images `/ 8`.
    #[track_caller]
    pub fn forward_features(&self, images: impl AsTensor) -> Tensor {
        let _scope = MODELS.open();
        let mut x = self.bn1.forward(self.conv1.forward(images)).relu();
        if let Some(maxpool) = &self.maxpool {
            x = maxpool.forward(x);
        }
        for block in [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().flatten()
        {
            x = block.forward(&x);
        }
        x
    }
}

/// Two or three convolutions with a residual connection. torchvision's `BasicBlock` and
/// `Bottleneck` have the same parameter names, so one struct implements both.
#[derive(Clone, Debug, Module)]
struct Block {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    /// Only in a bottleneck.
    conv3: Option<Conv2d>,
    bn3: Option<BatchNorm2d>,
    /// Only if the block changes the shape.
    downsample: Option<(Conv2d, BatchNorm2d)>,
    outputs: usize,
}

impl Block {
    fn new(inputs: usize, channels: usize, stride: usize, bottleneck: bool) -> Block {
        let outputs = if bottleneck { 4 * channels } else { channels };
        let norm = BatchNorm2d::new;
        let [conv1, conv2] = if bottleneck {
            [conv(inputs, channels, 1, 1), conv(channels, channels, 3, stride)]
        } else {
            [conv(inputs, channels, 3, stride), conv(channels, channels, 3, 1)]
        };
        Block {
            conv1,
            bn1: norm(channels),
            conv2,
            bn2: norm(channels),
            conv3: bottleneck.then(|| conv(channels, outputs, 1, 1)),
            bn3: bottleneck.then(|| norm(outputs)),
            downsample: (stride != 1 || inputs != outputs)
                .then(|| (conv(inputs, outputs, 1, stride), norm(outputs))),
            outputs,
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let mut y = self.bn1.forward(self.conv1.forward(x)).relu();
        y = self.bn2.forward(self.conv2.forward(y));
        if let (Some(conv3), Some(bn3)) = (&self.conv3, &self.bn3) {
            y = bn3.forward(conv3.forward(y.relu()));
        }
        match &self.downsample {
            Some((conv, bn)) => (y + bn.forward(conv.forward(x))).relu(),
            None => (y + x).relu(),
        }
    }
}

impl Pretrained for ResNet {
    type Config = Config;
    const MODEL_TYPE_KEY: &'static str = "architecture";
    const MODEL_TYPES: &'static [&'static str] =
        &["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"];
    const FIXED_SETTINGS: &'static [(&'static str, &'static str)] =
        &[("global_pool", "\"avg\""), ("model_args", "{}")];
    /// The number of features, and the names of the classes.
    const HARMLESS_SETTINGS: &'static [&'static str] =
        &["label_descriptions", "label_names", "num_features"];
    const HEAD: &'static [&'static str] = &["fc."];

    fn new(config: Config) -> Result<ResNet> {
        let bottleneck = config.has_bottlenecks();
        let stem = config.stem_channels;
        let mut inputs = stem;
        let [layer1, layer2, layer3, layer4] = [0, 1, 2, 3].map(|stage| {
            let blocks = (0..config.layers[stage]).map(|i| {
                let stride = if stage > 0 && i == 0 { 2 } else { 1 };
                let block = Block::new(inputs, config.channels[stage], stride, bottleneck);
                inputs = block.outputs;
                block
            });
            blocks.collect::<Vec<_>>()
        });
        if config.zero_init_last {
            for block in [&layer1, &layer2, &layer3, &layer4].into_iter().flatten() {
                let last = block.bn3.as_ref().unwrap_or(&block.bn2);
                last.weight.iter().for_each(|weight| weight.set_init(Init::zeros()));
            }
        }
        let (kernel, stride) = if config.small_images { (3, 1) } else { (7, 2) };
        Ok(ResNet {
            conv1: conv(config.in_chans, stem, kernel, stride),
            bn1: BatchNorm2d::new(stem),
            maxpool: (!config.small_images).then(|| MaxPool2d::new(3).stride(2).padding(1)),
            layer1,
            layer2,
            layer3,
            layer4,
            fc: Linear::new(inputs, config.num_classes),
            config,
        })
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn other_settings(config: &Config) -> &Map<String, Value> {
        &config.other
    }
}

/// A convolution that preserves height and width, apart from its stride, initialized like
/// torchvision's.
fn conv(inputs: usize, outputs: usize, kernel: usize, stride: usize) -> Conv2d {
    let conv = Conv2d::new(inputs, outputs, kernel).stride(stride).padding(kernel / 2).bias(false);
    conv.weight.set_init(Init::kaiming_normal(Nonlinearity::Relu, Fan::Out));
    conv
}
