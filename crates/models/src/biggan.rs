//! BigGAN: a generator and a discriminator conditioned on the class. Brock et al. 2018, "Large
//! Scale GAN Training for High Fidelity Natural Image Synthesis".
//!
//! Both consist of residual blocks with spectral normalization, and attention over positions at one
//! size. In the generator, the scales and shifts of normalizations come from the class's embedding
//! and a part of the random input. Train with [`loss::GanLoss::Hinge`](fulmen_nn::loss::GanLoss),
//! and draw samples with a moving average of the generator.
//!
//! ```
//! use fulmen_models::biggan::{Config, Discriminator, Generator};
//! use fulmen_nn::Module;
//! use fulmen_tensor::{DType, Tensor};
//!
//! let config = Config { resolution: 32, ch: 4, n_classes: 10, attention: Some(16), ..Config::default() };
//! let generator = Generator::new(&config)?;
//! let discriminator = Discriminator::new(&config)?;
//! generator.initialize(0);
//! discriminator.initialize(1);
//! let z = Tensor::zeros(DType::F32, [16, config.dim_z]);
//! let classes = Tensor::zeros(DType::I32, [16]);
//! let images = generator.forward(z, &classes);
//! assert_eq!(images.ty().to_string(), "f32[16, 3, 32, 32]");
//! assert_eq!(discriminator.forward(&images, &classes).ty().to_string(), "f32[16]");
//! # Ok::<(), fulmen_models::Error>(())
//! ```

#[cfg(test)]
mod tests;

use fulmen_nn::{
    AvgPool2d, BatchNorm2d, Conv2d, Embedding, Init, Linear, MaxPool2d, Module, Parameter,
    SpectralNorm,
};
use fulmen_tensor::{AsTensor, Interpolation, Tensor, checkpoint};
use serde::{Deserialize, Serialize};

use crate::{MODELS, Result, error};

/// The settings of both networks; by default for ImageNet at 128 × 128, with 70 and 88 million
/// parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The height and width of images: 32, 64, 128 or 256.
    pub resolution: usize,
    /// The number of channels of an image.
    pub channels: usize,
    /// The unit of channels: the widest layers have 16 times as many.
    pub ch: usize,
    /// The classes.
    pub n_classes: usize,
    /// The number of random inputs of an image; the first layer and each block get equal parts.
    pub dim_z: usize,
    /// The number of features of the class embedding in the generator.
    pub shared_dim: usize,
    /// The height and width at which attention is applied, if any.
    pub attention: Option<usize>,
    /// The constant that normalizations add to the variance.
    pub bn_eps: f64,
    /// The lower bound of norms in spectral normalization.
    pub sn_eps: f64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            resolution: 128,
            channels: 3,
            ch: 96,
            n_classes: 1000,
            dim_z: 120,
            shared_dim: 128,
            attention: Some(64),
            bn_eps: 1e-5,
            sn_eps: 1e-6,
        }
    }
}

impl Config {
    /// The channels of the generator, in units of `ch`: the inputs of the blocks, and the output of
    /// the last.
    fn widths(&self) -> Result<&'static [usize]> {
        match self.resolution {
            32 => Ok(&[4, 4, 4, 4]),
            64 => Ok(&[16, 16, 8, 4, 2]),
            128 => Ok(&[16, 16, 8, 4, 2, 1]),
            256 => Ok(&[16, 16, 8, 8, 4, 2, 1]),
            other => Err(error::config(format!("`resolution` is {other}, not 32, 64, 128 or 256"))),
        }
    }

    /// The channels of the discriminator: the inputs of the blocks and the output of the last; and
    /// how many of the first blocks halve height and width.
    fn discriminator_widths(&self) -> Result<(Vec<usize>, usize)> {
        let widths: &[usize] = match self.resolution {
            32 => return Ok(([&[self.channels][..], &[4 * self.ch; 4]].concat(), 2)),
            64 => &[1, 2, 4, 8, 16],
            128 => &[1, 2, 4, 8, 16, 16],
            256 => &[1, 2, 4, 8, 8, 16, 16],
            other => {
                return Err(error::config(format!(
                    "`resolution` is {other}, not 32, 64, 128 or 256"
                )));
            }
        };
        Ok((
            std::iter::once(self.channels)
                .chain(widths.iter().map(|width| width * self.ch))
                .collect(),
            widths.len() - 1,
        ))
    }

    fn conv(&self, inputs: usize, outputs: usize, kernel: usize) -> SpectralNorm<Conv2d> {
        SpectralNorm::new(Conv2d::new(inputs, outputs, kernel).padding(kernel / 2)).eps(self.sn_eps)
    }

    /// A 1 × 1 convolution without a bias.
    fn projection(&self, inputs: usize, outputs: usize) -> SpectralNorm<Conv2d> {
        SpectralNorm::new(Conv2d::new(inputs, outputs, 1).bias(false)).eps(self.sn_eps)
    }
}

/// Maps random inputs `[batch, dim_z]` and classes `[batch]` to images `[batch, channels,
/// resolution, resolution]` with values from -1 to 1.
#[derive(Debug, Module)]
pub struct Generator {
    /// The class embedding, `[classes, shared_dim]`.
    pub shared: Embedding,
    linear: SpectralNorm<Linear>,
    blocks: Vec<(GeneratorBlock, Option<SelfAttention>)>,
    output_layer: (BatchNorm2d, SpectralNorm<Conv2d>),
    /// Whether the backward pass recomputes each block, for a fraction of the memory; initially
    /// false.
    pub gradient_checkpointing: bool,
    dim_z: usize,
}

/// Doubles height and width.
#[derive(Debug, Module)]
struct GeneratorBlock {
    bn1: ConditionalNorm,
    conv1: SpectralNorm<Conv2d>,
    bn2: ConditionalNorm,
    conv2: SpectralNorm<Conv2d>,
    conv_sc: SpectralNorm<Conv2d>,
}

/// Batch normalization whose scale (minus 1) and shift are linear functions of a condition.
#[derive(Debug, Module)]
struct ConditionalNorm {
    gain: SpectralNorm<Linear>,
    bias: SpectralNorm<Linear>,
    #[module(flatten)]
    norm: BatchNorm2d,
}

/// Attention of all positions to a quarter of them, with a residual connection whose weight is
/// initially 0.
#[derive(Debug, Module)]
struct SelfAttention {
    theta: SpectralNorm<Conv2d>,
    phi: SpectralNorm<Conv2d>,
    g: SpectralNorm<Conv2d>,
    o: SpectralNorm<Conv2d>,
    gamma: Parameter,
}

/// Maps images `[batch, channels, resolution, resolution]` and classes `[batch]` to logits
/// `[batch]`, positive for real images.
#[derive(Debug, Module)]
pub struct Discriminator {
    blocks: Vec<(DiscriminatorBlock, Option<SelfAttention>)>,
    linear: SpectralNorm<Linear>,
    embed: SpectralNorm<Embedding>,
    /// Whether the backward pass recomputes each block, for a fraction of the memory; initially
    /// false.
    pub gradient_checkpointing: bool,
}

#[derive(Debug, Module)]
struct DiscriminatorBlock {
    conv1: SpectralNorm<Conv2d>,
    conv2: SpectralNorm<Conv2d>,
    conv_sc: Option<SpectralNorm<Conv2d>>,
    /// All blocks except the first begin with an activation.
    preactivation: bool,
    /// Whether height and width are halved.
    downsample: bool,
}

impl Generator {
    /// A generator without values. Weights are initialized as orthogonal matrices.
    ///
    /// # Errors
    /// The resolution is not supported, or `dim_z` cannot be split into equal parts.
    pub fn new(config: &Config) -> Result<Generator> {
        let widths = config.widths()?;
        let blocks = widths.len() - 1;
        let dim_z = config.dim_z;
        if !dim_z.is_multiple_of(blocks + 1) {
            return Err(error::config(format!(
                "`dim_z` is {dim_z}, which cannot be split into {} equal parts",
                blocks + 1
            )));
        }
        let chunk = dim_z / (blocks + 1);
        let norm = |channels| ConditionalNorm::new(config, config.shared_dim + chunk, channels);
        let blocks = widths.windows(2).enumerate().map(|(i, widths)| {
            let inputs = widths[0] * config.ch;
            let outputs = widths[1] * config.ch;
            let block = GeneratorBlock {
                bn1: norm(inputs),
                conv1: config.conv(inputs, outputs, 3),
                bn2: norm(outputs),
                conv2: config.conv(outputs, outputs, 3),
                conv_sc: config.conv(inputs, outputs, 1),
            };
            (block, (config.attention == Some(8 << i)).then(|| SelfAttention::new(config, outputs)))
        });
        let last = widths[widths.len() - 1] * config.ch;
        let generator = Generator {
            shared: Embedding::new(config.n_classes, config.shared_dim),
            linear: SpectralNorm::new(Linear::new(chunk, 16 * widths[0] * config.ch))
                .eps(config.sn_eps),
            blocks: blocks.collect(),
            output_layer: (
                BatchNorm2d::new(last).eps(config.bn_eps),
                config.conv(last, config.channels, 3),
            ),
            gradient_checkpointing: false,
            dim_z,
        };
        orthogonal(&generator);
        Ok(generator)
    }

    /// Images from random inputs `[batch, dim_z]`, usually normal numbers, and integer classes
    /// `[batch]`.
    #[track_caller]
    pub fn forward(&self, z: impl AsTensor, classes: impl AsTensor) -> Tensor {
        MODELS.record("Generator", || {
            let z = z.as_tensor().live()?;
            if z.rank() != 2 || z.size(1) != self.dim_z {
                return Err(format!(
                    "the random numbers {} are not [batch, {}]",
                    z.ty(),
                    self.dim_z
                )
                .into());
            }
            let chunk = self.dim_z / (self.blocks.len() + 1);
            let class = self.shared.forward(classes);
            let mut x = self.linear.forward(z.narrow(1, 0, chunk)).unflatten(1, &[-1, 4, 4]);
            for (i, (block, attention)) in self.blocks.iter().enumerate() {
                let condition =
                    Tensor::concatenate(&[&class, &z.narrow(1, (i + 1) * chunk, chunk)], 1);
                let forward = |x: &Tensor, condition: &Tensor| {
                    let x = block.forward(x, condition);
                    attention.as_ref().map_or(x.clone(), |attention| attention.forward(&x))
                };
                x = if self.gradient_checkpointing {
                    checkpoint(|(x, condition)| forward(&x, &condition), (&x, &condition))
                } else {
                    forward(&x, &condition)
                };
            }
            let (norm, conv) = &self.output_layer;
            Ok(conv.forward(norm.forward(x).relu()).tanh())
        })
    }
}

impl GeneratorBlock {
    fn forward(&self, x: &Tensor, condition: &Tensor) -> Tensor {
        let double = |x: &Tensor| x.interpolate_by(&[2.0, 2.0], Interpolation::Nearest);
        let y = self.conv1.forward(double(&self.bn1.forward(x, condition).relu()));
        let y = self.conv2.forward(self.bn2.forward(&y, condition).relu());
        y + self.conv_sc.forward(double(x))
    }
}

impl ConditionalNorm {
    fn new(config: &Config, condition: usize, channels: usize) -> ConditionalNorm {
        let linear =
            || SpectralNorm::new(Linear::new(condition, channels).bias(false)).eps(config.sn_eps);
        let norm = BatchNorm2d::new(channels).eps(config.bn_eps).affine(false);
        ConditionalNorm { gain: linear(), bias: linear(), norm }
    }

    fn forward(&self, x: &Tensor, condition: &Tensor) -> Tensor {
        let [gain, bias] =
            [&self.gain, &self.bias].map(|l| l.forward(condition).unsqueeze(-1).unsqueeze(-1));
        self.norm.forward(x) * (gain + 1.0) + bias
    }
}

impl SelfAttention {
    fn new(config: &Config, channels: usize) -> SelfAttention {
        SelfAttention {
            theta: config.projection(channels, channels / 8),
            phi: config.projection(channels, channels / 8),
            g: config.projection(channels, channels / 2),
            o: config.projection(channels / 2, channels),
            gamma: Parameter::new([], Init::zeros()),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let pool = MaxPool2d::new(2);
        let theta = self.theta.forward(x).flatten(2, 3); // [batch, channels / 8, places]
        let phi = pool.forward(self.phi.forward(x)).flatten(2, 3); // [batch, channels / 8, places / 4]
        let g = pool.forward(self.g.forward(x)).flatten(2, 3); // [batch, channels / 2, places / 4]
        let weights = theta.transpose(1, 2).matmul(&phi).softmax(-1); // [batch, places, places / 4]
        let attended = g.matmul(&weights.transpose(1, 2)).unflatten(2, &[x.size(2) as isize, -1]);
        self.gamma.get().to_dtype(x.dtype()) * self.o.forward(attended) + x
    }
}

impl Discriminator {
    /// A discriminator without values. Weights are initialized as orthogonal matrices.
    ///
    /// # Errors
    /// The resolution is not supported.
    pub fn new(config: &Config) -> Result<Discriminator> {
        let (widths, halvings) = config.discriminator_widths()?;
        let blocks = widths.windows(2).enumerate().map(|(i, widths)| {
            let inputs = widths[0];
            let outputs = widths[1];
            let downsample = i < halvings;
            let block = DiscriminatorBlock {
                conv1: config.conv(inputs, outputs, 3),
                conv2: config.conv(outputs, outputs, 3),
                conv_sc: (inputs != outputs || downsample).then(|| config.conv(inputs, outputs, 1)),
                preactivation: i > 0,
                downsample,
            };
            let attention = downsample && config.attention == Some(config.resolution >> (i + 1));
            (block, attention.then(|| SelfAttention::new(config, outputs)))
        });
        let last = widths[widths.len() - 1];
        let discriminator = Discriminator {
            blocks: blocks.collect(),
            linear: SpectralNorm::new(Linear::new(last, 1)).eps(config.sn_eps),
            embed: SpectralNorm::new(Embedding::new(config.n_classes, last)).eps(config.sn_eps),
            gradient_checkpointing: false,
        };
        orthogonal(&discriminator);
        Ok(discriminator)
    }

    /// The logits of images `[batch, channels, resolution, resolution]` with integer classes
    /// `[batch]`.
    #[track_caller]
    pub fn forward(&self, images: impl AsTensor, classes: impl AsTensor) -> Tensor {
        let _scope = MODELS.open();
        let mut x = images.as_tensor().clone();
        for (block, attention) in &self.blocks {
            let forward = |x: &Tensor| {
                let x = block.forward(x);
                attention.as_ref().map_or(x.clone(), |attention| attention.forward(&x))
            };
            x = if self.gradient_checkpointing {
                checkpoint(|x| forward(&x), &x)
            } else {
                forward(&x)
            };
        }
        let features = x.relu().sum([-2, -1]); // [batch, channels]
        let class_score = (self.embed.forward(classes) * &features).sum(-1);
        self.linear.forward(features).squeeze(1) + class_score
    }
}

impl DiscriminatorBlock {
    fn forward(&self, x: &Tensor) -> Tensor {
        let halve = |x: Tensor| if self.downsample { AvgPool2d::new(2).forward(x) } else { x };
        let project = |x: Tensor| self.conv_sc.as_ref().map_or(x.clone(), |conv| conv.forward(x));
        let (y, short) = if self.preactivation {
            (x.relu(), halve(project(x.clone())))
        } else {
            (x.clone(), project(halve(x.clone())))
        };
        halve(self.conv2.forward(self.conv1.forward(y).relu())) + short
    }
}

/// Initializes weights and embeddings as orthogonal matrices, and biases of convolutions and linear
/// layers as in PyTorch.
fn orthogonal(module: &impl Module) {
    for (_, parameter) in module.parameters().into_iter().filter(|(_, p)| p.ty().shape.rank() > 1) {
        parameter.set_init(Init::Orthogonal { gain: 1.0 });
    }
}
