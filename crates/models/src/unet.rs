//! UNet for diffusion: diffusers' `UNet2DModel`, after Ho et al. 2020, "Denoising Diffusion
//! Probabilistic Models".
//!
//! On the way down, blocks halve the size of images and add channels. On the way up, blocks do the
//! reverse, and each also gets the output of its counterpart on the way down. Each block is
//! conditioned on the noise level.

mod config;
#[cfg(test)]
mod tests;

use fulmen_nn::attention::Attention;
use fulmen_nn::{Conv2d, Dropout, Embedding, GroupNorm, Linear, Module};
use fulmen_tensor::{AsTensor, DType, Interpolation, PadMode, Refusal, Tensor, checkpoint};
use serde_json::{Map, Value};

use crate::attention::{join_heads, split_heads};
use crate::{Activation, MODELS, Pretrained, Result, error};

pub use config::{Config, DownBlockType, UpBlockType};

/// A UNet: from noisy images `[batch, channels, height, width]` and time steps `[batch]` to a
/// prediction, usually of the noise.
///
/// ```
/// use fulmen_models::Pretrained;
/// use fulmen_models::unet::{Config, DownBlockType::*, UNet, UpBlockType::*};
/// use fulmen_nn::Module;
/// use fulmen_tensor::{DType, Tensor};
///
/// let config = Config {
///     in_channels: 1,
///     out_channels: 1,
///     down_block_types: vec![Down, AttnDown],
///     up_block_types: vec![AttnUp, Up],
///     block_out_channels: vec![8, 16],
///     norm_num_groups: 4,
///     ..Config::default()
/// };
/// let model = UNet::new(config)?;
/// model.initialize(0);
/// let noisy = Tensor::zeros(DType::F32, [4, 1, 28, 28]);
/// let timesteps = Tensor::zeros(DType::I32, [4]);
/// assert_eq!(model.forward(&noisy, timesteps, None).ty(), noisy.ty());
/// # Ok::<(), fulmen_models::Error>(())
/// ```
#[derive(Module)]
pub struct UNet {
    conv_in: Conv2d,
    time_embedding: TimestepEmbedding,
    class_embedding: Option<Embedding>,
    down_blocks: Vec<DownBlock>,
    mid_block: MidBlock,
    up_blocks: Vec<UpBlock>,
    conv_norm_out: GroupNorm,
    conv_out: Conv2d,
    /// Whether the backward pass recomputes each residual block, for a fraction of the memory;
    /// initially false.
    pub gradient_checkpointing: bool,
    #[module(skip)]
    config: Config,
}

#[derive(Module)]
struct TimestepEmbedding {
    linear_1: Linear,
    linear_2: Linear,
}

#[derive(Module)]
struct DownBlock {
    resnets: Vec<ResnetBlock>,
    /// One for each residual block, or none.
    attentions: Vec<SpatialAttention>,
    downsamplers: Option<(Downsample,)>,
}

#[derive(Module)]
struct MidBlock {
    resnets: [ResnetBlock; 2],
    attentions: [SpatialAttention; 1],
}

#[derive(Module)]
struct UpBlock {
    resnets: Vec<ResnetBlock>,
    /// One for each residual block, or none.
    attentions: Vec<SpatialAttention>,
    upsamplers: Option<(Upsample,)>,
}

/// Two convolutions, with the time step's embedding added between them, and a residual connection.
#[derive(Module)]
struct ResnetBlock {
    norm1: GroupNorm,
    conv1: Conv2d,
    time_emb_proj: Linear,
    norm2: GroupNorm,
    dropout: Dropout,
    conv2: Conv2d,
    conv_shortcut: Option<Conv2d>,
    #[module(skip)]
    activation: Activation,
}

/// Attention of all positions of an image to each other, with a residual connection.
#[derive(Module)]
struct SpatialAttention {
    group_norm: GroupNorm,
    to_q: Linear,
    to_k: Linear,
    to_v: Linear,
    to_out: (Linear,),
    heads: usize,
}

#[derive(Module)]
struct Downsample {
    conv: Conv2d,
    padding: usize,
}

#[derive(Module)]
struct Upsample {
    conv: Conv2d,
}

impl UNet {
    /// The prediction `[batch, out_channels, height, width]` for noisy images `[batch, in_channels,
    /// height, width]` at integer time steps `[batch]`, and for classes `[batch]` if the config has
    /// a number of classes.
    ///
    /// Height and width must be multiples of `2^(blocks - 1)`. Poisoned otherwise, and if classes
    /// are given to a model without them.
    #[track_caller]
    pub fn forward(
        &self,
        sample: impl AsTensor,
        timesteps: impl AsTensor,
        class_labels: Option<&Tensor>,
    ) -> Tensor {
        MODELS.record("UNet", || {
            self.predict(sample.as_tensor(), timesteps.as_tensor(), class_labels)
        })
    }

    fn predict(
        &self,
        sample: &Tensor,
        timesteps: &Tensor,
        classes: Option<&Tensor>,
    ) -> Result<Tensor, Refusal> {
        let x = sample.live()?;
        let timesteps = timesteps.live()?;
        let halved = 1 << (self.down_blocks.len() - 1);
        let [batch, _, height, width] = *x.shape().dims() else {
            return Err(
                format!("the sample {} is not [batch, channels, height, width]", x.ty()).into()
            );
        };
        if height % halved != 0 || width % halved != 0 {
            return Err(format!(
                "height and width of the sample {} are not multiples of {halved}",
                x.ty()
            )
            .into());
        }
        if timesteps.shape().dims() != [batch] {
            return Err(format!(
                "the time steps {} are not one for each sample of {}",
                timesteps.ty(),
                x.ty()
            )
            .into());
        }
        let mut emb = self.time_embedding.forward(&self.sinusoids(timesteps).to_dtype(x.dtype()));
        match (&self.class_embedding, classes) {
            (Some(embedding), Some(classes)) => emb = emb + embedding.forward(classes),
            (None, None) => {}
            (Some(_), None) => {
                return Err("the model needs classes: its config has `num_class_embeds`".into());
            }
            (None, Some(_)) => {
                return Err(
                    "the model takes no classes: its config has no `num_class_embeds`".into()
                );
            }
        }
        let emb = self.config.act_fn.forward(&emb);

        let mut x = self.conv_in.forward(x);
        let mut skips = vec![x.clone()];
        for block in &self.down_blocks {
            for (i, resnet) in block.resnets.iter().enumerate() {
                x = self.residual(resnet, block.attentions.get(i), &x, &emb);
                skips.push(x.clone());
            }
            if let Some((downsample,)) = &block.downsamplers {
                x = downsample.forward(&x);
                skips.push(x.clone());
            }
        }
        let MidBlock { resnets: [first, last], attentions: [attention] } = &self.mid_block;
        x = self.residual(first, Some(attention), &x, &emb);
        x = self.residual(last, None, &x, &emb);
        for block in &self.up_blocks {
            for (i, resnet) in block.resnets.iter().enumerate() {
                let opposite = skips.pop().unwrap_or_else(|| x.clone());
                x = Tensor::concatenate(&[&x, &opposite], 1);
                x = self.residual(resnet, block.attentions.get(i), &x, &emb);
            }
            if let Some((upsample,)) = &block.upsamplers {
                x = upsample.conv.forward(x.interpolate_by(&[2.0, 2.0], Interpolation::Nearest));
            }
        }
        // As in diffusers, `act_fn` is not used here.
        Ok(self.conv_out.forward(Activation::Silu.forward(&self.conv_norm_out.forward(x))))
    }

    /// A residual block followed by attention.
    fn residual(
        &self,
        resnet: &ResnetBlock,
        attention: Option<&SpatialAttention>,
        x: &Tensor,
        emb: &Tensor,
    ) -> Tensor {
        let forward = |x: &Tensor| {
            let x = resnet.forward(x, emb);
            attention.map_or_else(|| x.clone(), |attention| attention.forward(&x))
        };
        if self.gradient_checkpointing { checkpoint(|x| forward(&x), x) } else { forward(x) }
    }

    /// Sines and cosines of the time steps `[batch]`, at frequencies from 1 down to 1/10000:
    /// `[batch, channels]`.
    fn sinusoids(&self, timesteps: &Tensor) -> Tensor {
        let half = self.config.block_out_channels[0] / 2;
        let step = -10_000f64.ln() / (half as f64 - self.config.freq_shift);
        let frequencies = (Tensor::arange(DType::F32, half) * step).exp();
        let angles = timesteps.to_dtype(DType::F32).unsqueeze(1) * frequencies;
        let sin = angles.sin();
        let cos = angles.cos();
        Tensor::concatenate(
            &if self.config.flip_sin_to_cos { [&cos, &sin] } else { [&sin, &cos] },
            1,
        )
    }
}

impl TimestepEmbedding {
    fn forward(&self, x: &Tensor) -> Tensor {
        self.linear_2.forward(Activation::Silu.forward(&self.linear_1.forward(x)))
    }
}

impl ResnetBlock {
    fn new(config: &Config, inputs: usize, outputs: usize) -> ResnetBlock {
        let norm = |channels| GroupNorm::new(config.norm_num_groups, channels).eps(config.norm_eps);
        ResnetBlock {
            norm1: norm(inputs),
            conv1: Conv2d::new(inputs, outputs, 3).padding(1),
            time_emb_proj: Linear::new(4 * config.block_out_channels[0], outputs),
            norm2: norm(outputs),
            dropout: Dropout::new(config.dropout),
            conv2: Conv2d::new(outputs, outputs, 3).padding(1),
            conv_shortcut: (inputs != outputs).then(|| Conv2d::new(inputs, outputs, 1)),
            activation: config.act_fn,
        }
    }

    fn forward(&self, x: &Tensor, emb: &Tensor) -> Tensor {
        let y = self.conv1.forward(self.activation.forward(&self.norm1.forward(x)));
        let y = y + self.time_emb_proj.forward(emb).unsqueeze(-1).unsqueeze(-1);
        let y = self.dropout.forward(self.activation.forward(&self.norm2.forward(y)));
        let y = self.conv2.forward(y);
        match &self.conv_shortcut {
            Some(conv) => conv.forward(x) + y,
            None => x + y,
        }
    }
}

impl SpatialAttention {
    fn new(config: &Config, channels: usize) -> SpatialAttention {
        let linear = || Linear::new(channels, channels);
        SpatialAttention {
            group_norm: GroupNorm::new(config.norm_num_groups, channels).eps(config.norm_eps),
            to_q: linear(),
            to_k: linear(),
            to_v: linear(),
            to_out: (linear(),),
            heads: channels / config.attention_head_dim.unwrap_or(channels),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let pixels = self.group_norm.forward(x).flatten(2, 3).transpose(1, 2); // [batch, height·width, channels]
        let [q, k, v] = [&self.to_q, &self.to_k, &self.to_v]
            .map(|l| split_heads(&l.forward(&pixels), self.heads));
        let attended = self.to_out.0.forward(join_heads(&Attention::new().forward(q, k, v)));
        x + attended.transpose(1, 2).reshape(x.shape())
    }
}

impl Downsample {
    fn forward(&self, x: &Tensor) -> Tensor {
        match self.padding {
            0 => self.conv.forward(x.pad_mode(&[(0, 1), (0, 1)], PadMode::Zeros)),
            _ => self.conv.forward(x),
        }
    }
}

fn down_blocks(config: &Config) -> Vec<DownBlock> {
    let channels = &config.block_out_channels;
    let layers = config.layers_per_block;
    let mut inputs = channels[0];
    let mut blocks = Vec::new();
    for (i, (&outputs, kind)) in channels.iter().zip(&config.down_block_types).enumerate() {
        let halves = i + 1 < channels.len();
        let padding = config.downsample_padding;
        let conv = || Conv2d::new(outputs, outputs, 3).stride(2).padding(padding);
        let resnets = (0..layers).map(|layer| {
            ResnetBlock::new(config, if layer == 0 { inputs } else { outputs }, outputs)
        });
        let attention = if *kind == DownBlockType::AttnDown { layers } else { 0 };
        blocks.push(DownBlock {
            resnets: resnets.collect(),
            attentions: attentions(config, attention, outputs),
            downsamplers: halves.then(|| (Downsample { conv: conv(), padding },)),
        });
        inputs = outputs;
    }
    blocks
}

/// The numbers of channels that the way down keeps for the way up, which concatenates them.
fn skip_channels(config: &Config) -> Vec<usize> {
    let channels = &config.block_out_channels;
    let mut kept = vec![channels[0]];
    for (i, &outputs) in channels.iter().enumerate() {
        let halves = i + 1 < channels.len();
        kept.extend(vec![outputs; config.layers_per_block + usize::from(halves)]);
    }
    kept
}

/// The way up starts with the last channels.
fn up_blocks(config: &Config) -> Vec<UpBlock> {
    let channels = &config.block_out_channels;
    let layers = config.layers_per_block;
    let mut inputs = channels[channels.len() - 1];
    let mut skip_channels = skip_channels(config);
    let mut blocks = Vec::new();
    for (i, (&outputs, kind)) in channels.iter().rev().zip(&config.up_block_types).enumerate() {
        let resnets = (0..=layers).map(|_| {
            let opposite = skip_channels.pop().unwrap_or(channels[0]);
            let all = std::mem::replace(&mut inputs, outputs) + opposite;
            ResnetBlock::new(config, all, outputs)
        });
        let attention = if *kind == UpBlockType::AttnUp { layers + 1 } else { 0 };
        blocks.push(UpBlock {
            resnets: resnets.collect(),
            attentions: attentions(config, attention, outputs),
            upsamplers: (i + 1 < channels.len())
                .then(|| (Upsample { conv: Conv2d::new(outputs, outputs, 3).padding(1) },)),
        });
    }
    blocks
}

fn attentions(config: &Config, count: usize, channels: usize) -> Vec<SpatialAttention> {
    (0..count).map(|_| SpatialAttention::new(config, channels)).collect()
}

impl Pretrained for UNet {
    type Config = Config;
    const MODEL_TYPE_KEY: &'static str = "_class_name";
    const MODEL_TYPES: &'static [&'static str] = &["UNet2DModel"];
    const WEIGHTS: &'static str = "diffusion_pytorch_model.safetensors";
    const FIXED_SETTINGS: &'static [(&'static str, &'static str)] = &[
        ("add_attention", "true"),
        ("attn_norm_num_groups", "null"),
        ("center_input_sample", "false"),
        ("class_embed_type", "null"),
        ("downsample_type", "\"conv\""),
        ("mid_block_scale_factor", "1"),
        ("mid_block_type", "\"UNetMidBlock2D\""),
        ("resnet_time_scale_shift", "\"default\""),
        ("time_embedding_dim", "null"),
        ("time_embedding_type", "\"positional\""),
        ("upsample_type", "\"conv\""),
    ];
    /// The size of images in training, and settings of the averages of weights.
    const HARMLESS_SETTINGS: &'static [&'static str] = &[
        "_diffusers_version",
        "_use_default_values",
        "decay",
        "inv_gamma",
        "min_decay",
        "num_train_timesteps",
        "optimization_step",
        "power",
        "sample_size",
        "update_after_step",
        "use_ema_warmup",
    ];
    const HEAD: &'static [&'static str] = &["conv_out.", "class_embedding."];

    /// The first published models used another attention class.
    fn current_name(name: &str) -> String {
        let renamed =
            [("query", "to_q"), ("key", "to_k"), ("value", "to_v"), ("proj_attn", "to_out.0")];
        renamed.into_iter().fold(name.into(), |name, (old, new)| {
            name.replace(&format!(".{old}."), &format!(".{new}."))
        })
    }

    fn new(config: Config) -> Result<UNet> {
        let channels = &config.block_out_channels;
        let [down, up] = [config.down_block_types.len(), config.up_block_types.len()];
        if channels.is_empty() || [down, up] != [channels.len(); 2] {
            return Err(error::config(format!(
                "`block_out_channels` has {} blocks, `down_block_types` {down} and `up_block_types` {up}; the numbers \
                 must be equal, and at least 1",
                channels.len()
            )));
        }
        for &features in channels {
            let dim = config.attention_head_dim.unwrap_or(features);
            if dim == 0 || features % dim != 0 {
                return Err(error::config(format!(
                    "`attention_head_dim` is {dim}, which does not divide {features} of `block_out_channels`"
                )));
            }
        }
        let first = channels[0];
        let last = channels[channels.len() - 1];
        let down_blocks = down_blocks(&config);
        let up_blocks = up_blocks(&config);
        Ok(UNet {
            conv_in: Conv2d::new(config.in_channels, first, 3).padding(1),
            time_embedding: TimestepEmbedding {
                linear_1: Linear::new(first, 4 * first),
                linear_2: Linear::new(4 * first, 4 * first),
            },
            class_embedding: config
                .num_class_embeds
                .map(|classes| Embedding::new(classes, 4 * first)),
            down_blocks,
            mid_block: MidBlock {
                resnets: [
                    ResnetBlock::new(&config, last, last),
                    ResnetBlock::new(&config, last, last),
                ],
                attentions: [SpatialAttention::new(&config, last)],
            },
            up_blocks,
            conv_norm_out: GroupNorm::new(config.norm_num_groups, first).eps(config.norm_eps),
            conv_out: Conv2d::new(first, config.out_channels, 3).padding(1),
            gradient_checkpointing: false,
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
