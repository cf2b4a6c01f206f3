//! The settings of a UNet.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Activation;

/// The settings, with the names and the defaults of diffusers' `config.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The number of channels of the noisy image.
    pub in_channels: usize,
    /// The number of channels of the prediction.
    pub out_channels: usize,
    /// Whether the cosines of a time step's embedding come before the sines.
    pub flip_sin_to_cos: bool,
    /// Reduces the number of intervals between the highest and the lowest frequency of the
    /// embedding.
    pub freq_shift: f64,
    /// The blocks on the way down. All except the last halve height and width.
    pub down_block_types: Vec<DownBlockType>,
    /// The blocks on the way up: as many as on the way down. All except the last double height and
    /// width.
    pub up_block_types: Vec<UpBlockType>,
    /// The channels of each block on the way down; the way up uses them in reverse.
    pub block_out_channels: Vec<usize>,
    /// The number of residual blocks in each block on the way down; on the way up there is one
    /// more.
    pub layers_per_block: usize,
    /// The padding of the halving convolutions on each side; with 0, only on the right and below.
    pub downsample_padding: usize,
    /// The dropout within residual blocks.
    pub dropout: f64,
    /// The activation before the convolutions of residual blocks.
    pub act_fn: Activation,
    /// The number of features of a head of attention; none for one head of all features.
    pub attention_head_dim: Option<usize>,
    /// The number of channel groups of normalizations.
    pub norm_num_groups: usize,
    /// The constant that normalizations add to the variance.
    pub norm_eps: f64,
    /// The number of classes, if the model is conditioned on the class.
    pub num_class_embeds: Option<usize>,
    /// Other keys of the file, which are preserved.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The kinds of block on the way down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DownBlockType {
    /// Residual blocks.
    #[serde(rename = "DownBlock2D")]
    Down,
    /// Residual blocks, each followed by attention.
    #[serde(rename = "AttnDownBlock2D")]
    AttnDown,
}

/// The kinds of block on the way up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpBlockType {
    /// Residual blocks.
    #[serde(rename = "UpBlock2D")]
    Up,
    /// Residual blocks, each followed by attention.
    #[serde(rename = "AttnUpBlock2D")]
    AttnUp,
}

impl Default for Config {
    fn default() -> Config {
        use {DownBlockType::*, UpBlockType::*};
        Config {
            in_channels: 3,
            out_channels: 3,
            flip_sin_to_cos: true,
            freq_shift: 0.0,
            down_block_types: vec![Down, AttnDown, AttnDown, AttnDown],
            up_block_types: vec![AttnUp, AttnUp, AttnUp, Up],
            block_out_channels: vec![224, 448, 672, 896],
            layers_per_block: 2,
            downsample_padding: 1,
            dropout: 0.0,
            act_fn: Activation::Silu,
            attention_head_dim: Some(8),
            norm_num_groups: 32,
            norm_eps: 1e-5,
            num_class_embeds: None,
            other: Map::new(),
        }
    }
}
