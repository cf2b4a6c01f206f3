//! Inception-v3: Szegedy et al. 2015, "Rethinking the Inception Architecture for Computer Vision".
//!
//! Modules and parameters have torchvision's names, so `inception_v3_google-….pth` can be loaded.
//!
//! FID and Inception Score are defined with another network, TensorFlow's `inception-2015-12-05`
//! ([`InceptionV3::fid`]), which pytorch-fid and torch-fidelity publish with the same names.
//! Numbers of different networks, torchvision's for example, cannot be compared. It differs in this:
//!
//! - It has 1008 classes, and no auxiliary head.
//! - The mean of a pooling window leaves out the padding. The last block takes the maximum instead.
//! - It expects pixels from 0 to 255 that are resized as TensorFlow 1 does: [`fid_input`].
//!
//! ```
//! use fulmen_models::inception::{Config, InceptionV3};
//! use fulmen_nn::Module;
//! use fulmen_tensor::{DType, Tensor, random};
//!
//! let model = InceptionV3::new(Config { num_classes: 10, ..Config::default() });
//! model.initialize(0);
//! // A new model is in training mode, where its dropout draws numbers.
//! model.set_random_key(&random::key(1));
//! let output = model.forward_with_aux(Tensor::zeros(DType::F32, [8, 3, 299, 299]));
//! assert_eq!(output.logits.check()?.ty().to_string(), "f32[8, 10]");
//! assert_eq!(output.aux_logits.map(|logits| logits.ty().to_string()), Some("f32[8, 10]".into()));
//! assert_eq!(model.parameters()[0].0, "Conv2d_1a_3x3.conv.weight");
//! # Ok::<(), fulmen_tensor::Error>(())
//! ```

mod blocks;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;

use fulmen_nn::weights::{StateDict, Strictness};
use fulmen_nn::{AdaptiveAvgPool2d, Dropout, Init, Linear, MaxPool2d, Module, TrainingMode};
use fulmen_tensor::{AsTensor, DType, Tensor};

use crate::error::InConfig as _;
use crate::{MODELS, Result, error};
use blocks::{BasicConv2d, Head, MixedA, MixedB, MixedC, MixedD, MixedE, Pool};

/// The number of features before the last layer.
const FEATURES: usize = 2048;

/// The number of outputs of TensorFlow's network, of which 1000 are ImageNet's classes.
const FID_CLASSES: usize = 1008;

/// The height and width of the images that the network was made for.
const IMAGE_SIZE: usize = 299;

/// The settings; by default torchvision's.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The network.
    pub network: Network,
    /// The number of classes of the heads.
    pub num_classes: usize,
    /// Whether the model has the auxiliary head, which is used only in training. It needs images of
    /// 299 × 299.
    pub aux_logits: bool,
    /// Whether images are normalized with ImageNet's mean and deviation, and are mapped to those
    /// from -1 to 1, which the published weights were trained with.
    pub transform_input: bool,
    /// The probability of dropping a feature before the last layer in training.
    pub dropout: f64,
}

/// Which of the networks with these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// torchvision's `inception_v3`.
    Torchvision,
    /// TensorFlow's `inception-2015-12-05`, for FID and Inception Score.
    Fid,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            network: Network::Torchvision,
            num_classes: 1000,
            aux_logits: true,
            transform_input: false,
            dropout: 0.5,
        }
    }
}

impl Config {
    /// The settings of TensorFlow's `inception-2015-12-05`.
    pub fn fid() -> Config {
        Config {
            network: Network::Fid,
            num_classes: FID_CLASSES,
            aux_logits: false,
            ..Config::default()
        }
    }

    /// The settings of the network with these weights, from their names and shapes; `None` if these
    /// are not the weights of an Inception-v3.
    fn of_weights(weights: &StateDict) -> Option<Config> {
        let dims = |name: &str| {
            weights.iter().find(|(known, _)| *known == name).map(|(_, ty)| ty.shape.to_vec())
        };
        dims("Mixed_7c.branch_pool.conv.weight")?;
        let num_classes = *dims("fc.weight")?.first()?;
        let aux_logits = dims("AuxLogits.fc.weight").is_some();
        if num_classes == FID_CLASSES && !aux_logits {
            return Some(Config::fid());
        }
        Some(Config { num_classes, aux_logits, transform_input: true, ..Config::default() })
    }
}

/// An image classifier: `[batch, 3, height, width]` to logits `[batch, classes]`, for images of
/// 299 × 299, or of any size of at least 75 × 75.
#[derive(Debug, Module)]
pub struct InceptionV3 {
    #[module(rename = "Conv2d_1a_3x3")]
    conv2d_1a: BasicConv2d,
    #[module(rename = "Conv2d_2a_3x3")]
    conv2d_2a: BasicConv2d,
    #[module(rename = "Conv2d_2b_3x3")]
    conv2d_2b: BasicConv2d,
    #[module(rename = "Conv2d_3b_1x1")]
    conv2d_3b: BasicConv2d,
    #[module(rename = "Conv2d_4a_3x3")]
    conv2d_4a: BasicConv2d,
    #[module(rename = "Mixed_5b")]
    mixed_5b: MixedA,
    #[module(rename = "Mixed_5c")]
    mixed_5c: MixedA,
    #[module(rename = "Mixed_5d")]
    mixed_5d: MixedA,
    #[module(rename = "Mixed_6a")]
    mixed_6a: MixedB,
    #[module(rename = "Mixed_6b")]
    mixed_6b: MixedC,
    #[module(rename = "Mixed_6c")]
    mixed_6c: MixedC,
    #[module(rename = "Mixed_6d")]
    mixed_6d: MixedC,
    #[module(rename = "Mixed_6e")]
    mixed_6e: MixedC,
    #[module(rename = "AuxLogits")]
    aux_logits: Option<Head>,
    #[module(rename = "Mixed_7a")]
    mixed_7a: MixedD,
    #[module(rename = "Mixed_7b")]
    mixed_7b: MixedE,
    #[module(rename = "Mixed_7c")]
    mixed_7c: MixedE,
    dropout: Dropout,
    /// From the features to logits.
    pub fc: Linear,
    mode: TrainingMode,
    #[module(skip)]
    config: Config,
}

/// The logits of both heads.
#[derive(Clone, Debug)]
pub struct Output {
    /// `[batch, classes]`.
    pub logits: Tensor,
    /// Those of the auxiliary head, `[batch, classes]`, in training mode and if the model has one.
    /// The paper adds 0.4 times its loss (torchvision's reference 0.3 to 0.4).
    pub aux_logits: Option<Tensor>,
}

impl InceptionV3 {
    /// A model without values.
    pub fn new(config: Config) -> InceptionV3 {
        let pool = match config.network {
            Network::Torchvision => Pool::Mean,
            Network::Fid => Pool::MeanWithoutPadding,
        };
        let last_pool = match config.network {
            Network::Torchvision => Pool::Mean,
            Network::Fid => Pool::Max,
        };
        let fc = Linear::new(FEATURES, config.num_classes);
        fc.weight.set_init(Init::TruncNormal { mean: 0.0, std: 0.1, a: -2.0, b: 2.0 });
        InceptionV3 {
            conv2d_1a: BasicConv2d::valid(3, 32, 3, 2),
            conv2d_2a: BasicConv2d::valid(32, 32, 3, 1),
            conv2d_2b: BasicConv2d::same(32, 64, [3, 3]),
            conv2d_3b: BasicConv2d::valid(64, 80, 1, 1),
            conv2d_4a: BasicConv2d::valid(80, 192, 3, 1),
            mixed_5b: MixedA::new(192, 32, pool),
            mixed_5c: MixedA::new(256, 64, pool),
            mixed_5d: MixedA::new(288, 64, pool),
            mixed_6a: MixedB::new(288),
            mixed_6b: MixedC::new(768, 128, pool),
            mixed_6c: MixedC::new(768, 160, pool),
            mixed_6d: MixedC::new(768, 160, pool),
            mixed_6e: MixedC::new(768, 192, pool),
            aux_logits: config.aux_logits.then(|| Head::new(768, config.num_classes)),
            mixed_7a: MixedD::new(768),
            mixed_7b: MixedE::new(1280, pool),
            mixed_7c: MixedE::new(FEATURES, last_pool),
            dropout: Dropout::new(config.dropout),
            fc,
            mode: TrainingMode::new(),
            config,
        }
    }

    /// TensorFlow's `inception-2015-12-05` without values, for FID and Inception Score. Load
    /// `pt_inception-2015-12-05-….pth` with [`from_weights`](InceptionV3::from_weights), which
    /// recognizes it.
    pub fn fid() -> InceptionV3 {
        InceptionV3::new(Config::fid())
    }

    /// The model with the weights of a file or folder, in evaluation mode: a state dict of
    /// PyTorch (`.pth`), safetensors, or a checkpoint of the Trainer. 1008 classes without an
    /// auxiliary head are those of [`InceptionV3::fid`]. Other weights are torchvision's, and have
    /// `transform_input`, as there. Values that the model does not have, such as training state,
    /// are ignored.
    ///
    /// # Errors
    /// Those of [`StateDict::read`]; the weights are incomplete, or not those of an Inception-v3.
    pub fn from_weights(path: impl AsRef<Path>) -> Result<InceptionV3> {
        let weights = StateDict::read(path.as_ref())?;
        let config = Config::of_weights(&weights).ok_or_else(|| {
            let message = "not the weights of an Inception-v3: they need torchvision's names, Conv2d_1a_3x3.conv.weight \
                           to fc.bias";
            error::config(message).in_file(path.as_ref())
        })?;
        let model = InceptionV3::new(config);
        let names: BTreeSet<String> = model.state().into_iter().map(|(name, _)| name).collect();
        let model_weights =
            weights.rename_with(|name| names.contains(name).then(|| name.to_owned()))?;
        model_weights.load_into(&model, Strictness::Strict)?;
        model.eval();
        Ok(model)
    }

    /// Changes [`Config::transform_input`].
    #[must_use]
    pub fn transform_input(mut self, transform_input: bool) -> InceptionV3 {
        self.config.transform_input = transform_input;
        self
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Maps images `[batch, 3, height, width]` to logits `[batch, classes]`.
    #[track_caller]
    pub fn forward(&self, images: impl AsTensor) -> Tensor {
        let _scope = MODELS.open();
        let x = self.middle(images.as_tensor());
        self.fc.forward(self.dropout.forward(self.last_features(&x)))
    }

    /// Maps images `[batch, 3, 299, 299]` to the logits of both heads.
    #[track_caller]
    pub fn forward_with_aux(&self, images: impl AsTensor) -> Output {
        let _scope = MODELS.open();
        let x = self.middle(images.as_tensor());
        let aux = self.aux_logits.as_ref().filter(|_| self.mode.is_training());
        let aux_logits = aux.map(|head| head.forward(&x));
        let logits = self.fc.forward(self.dropout.forward(self.last_features(&x)));
        Output { logits, aux_logits }
    }

    /// The features of images `[batch, 3, height, width]`: `[batch, 2048]`. FID compares these.
    #[track_caller]
    pub fn features(&self, images: impl AsTensor) -> Tensor {
        let _scope = MODELS.open();
        self.last_features(&self.middle(images.as_tensor()))
    }

    /// The logits of features `[batch, 2048]` without the bias: `[batch, classes]`. The reference
    /// implementations of the Inception Score take these.
    #[track_caller]
    pub fn unbiased_logits(&self, features: impl AsTensor) -> Tensor {
        let _scope = MODELS.open();
        features.as_tensor().matmul(self.fc.weight.get().t())
    }

    /// Everything before the auxiliary head: `[batch, 768, 17, 17]` for images of 299 × 299.
    fn middle(&self, images: &Tensor) -> Tensor {
        let x = if self.config.transform_input { to_unit_range(images) } else { images.clone() };
        let pool = MaxPool2d::new(3).stride(2);
        let x = self.conv2d_2a.forward(&self.conv2d_1a.forward(&x));
        let x = pool.forward(self.conv2d_2b.forward(&x));
        let x = self.conv2d_4a.forward(&self.conv2d_3b.forward(&x));
        let mut x = pool.forward(x);
        for block in [&self.mixed_5b, &self.mixed_5c, &self.mixed_5d] {
            x = block.forward(&x);
        }
        x = self.mixed_6a.forward(&x);
        for block in [&self.mixed_6b, &self.mixed_6c, &self.mixed_6d, &self.mixed_6e] {
            x = block.forward(&x);
        }
        x
    }

    fn last_features(&self, x: &Tensor) -> Tensor {
        let x = self.mixed_7b.forward(&self.mixed_7a.forward(x));
        AdaptiveAvgPool2d::new(1).forward(self.mixed_7c.forward(&x)).flatten(1, -1)
    }
}

/// From images that are normalized with ImageNet's mean and deviation to images from -1 to 1.
fn to_unit_range(images: &Tensor) -> Tensor {
    let vector =
        |values: [f32; 3]| Tensor::from_slice(&values, [1, 3, 1, 1]).to_dtype(images.dtype());
    let scale = vector([0.229 / 0.5, 0.224 / 0.5, 0.225 / 0.5]);
    let shift = vector([(0.485 - 0.5) / 0.5, (0.456 - 0.5) / 0.5, (0.406 - 0.5) / 0.5]);
    images * scale + shift
}

/// The input of [`InceptionV3::fid`] for images `[batch, 3, height, width]` with pixels from 0 to
/// 255: `f32[batch, 3, 299, 299]` from -1 to 1. It resizes as TensorFlow 1 does: linearly, with the
/// first pixels of both images in the same place, not the centers.
///
/// ```
/// use fulmen_models::inception::fid_input;
/// use fulmen_tensor::{DType, Tensor};
/// let images = Tensor::zeros(DType::U8, [8, 3, 32, 32]);
/// assert_eq!(fid_input(images).ty().to_string(), "f32[8, 3, 299, 299]");
/// ```
#[track_caller]
pub fn fid_input(images: impl AsTensor) -> Tensor {
    MODELS.record("fid_input", || {
        let images = images.as_tensor().live()?;
        if images.rank() != 4 || images.size(1) != 3 {
            return Err(
                format!("the images {} are not [batch, 3, height, width]", images.ty()).into()
            );
        }
        let pixels = images.to_dtype(DType::F32);
        let resized = resize(&resize(&pixels, 3), 2);
        Ok((resized - 128.0) / 128.0)
    })
}

/// Resizes an axis to 299 as TensorFlow 1 does.
fn resize(x: &Tensor, axis: usize) -> Tensor {
    let size = x.shape()[axis];
    let scale = (size as f64 / IMAGE_SIZE as f64) as f32;
    let places: Vec<f32> = (0..IMAGE_SIZE).map(|i| i as f32 * scale).collect();
    let before: Vec<i32> = places.iter().map(|place| place.floor() as i32).collect();
    let after: Vec<i32> = before.iter().map(|&i| (i + 1).min(size as i32 - 1)).collect();
    let fractions: Vec<f32> = places.iter().map(|place| place.fract()).collect();
    let mut shape = [1; 4];
    shape[axis] = IMAGE_SIZE;
    let axis = axis as isize;
    let low = x.take(axis, Tensor::from_slice(&before, [IMAGE_SIZE]));
    let high = x.take(axis, Tensor::from_slice(&after, [IMAGE_SIZE]));
    &low + (high - &low) * Tensor::from_slice(&fractions, shape)
}
