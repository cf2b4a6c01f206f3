//! [`Lora`]: low-rank updates of a frozen model's weights, by the names of the parameters (Hu et al. 2021), in files as
//! peft has them.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use fulmen_nn::optim::pattern;
use fulmen_nn::weights::{Strictness, load_weights, save_weights};
use fulmen_nn::{Init, Module, Parameter, Visit};
use fulmen_tensor::Tensor;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::folder::{read_json, read_object};
use crate::{Error, Result};

/// The settings, with the names of peft's `adapter_config.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct LoraConfig {
    /// The rank of the updates.
    pub r: usize,
    /// What the updates are multiplied by, times `r`.
    pub lora_alpha: f64,
    /// Which weights are updated: the last parts of the names of their layers, such as `q_proj`.
    pub target_modules: Vec<String>,
    /// Whether the weights lie `[in, out]`, as GPT-2's.
    pub fan_in_fan_out: bool,
    /// What else the file says; it is kept.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Default for LoraConfig {
    fn default() -> LoraConfig {
        LoraConfig {
            r: 8,
            lora_alpha: 8.0,
            target_modules: vec![],
            fan_in_fan_out: false,
            other: Map::new(),
        }
    }
}
