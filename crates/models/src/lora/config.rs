//! peft's `adapter_config.json`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::settings::check_unread;
use crate::{Result, error};

/// The fields that are read.
#[derive(Deserialize)]
pub(super) struct Config {
    #[serde(default = "default_rank")]
    pub(super) r: usize,
    #[serde(default = "default_alpha")]
    pub(super) lora_alpha: f64,
    #[serde(default)]
    pub(super) target_modules: Vec<String>,
    #[serde(default)]
    pub(super) modules_to_save: Option<Vec<String>>,
    #[serde(default)]
    pub(super) use_rslora: Option<bool>,
    #[serde(default)]
    pub(super) init_lora_weights: InitialWeights,
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// peft's default of `r`.
fn default_rank() -> usize {
    8
}

/// peft's default of `lora_alpha`.
fn default_alpha() -> f64 {
    8.0
}

/// Keys that only one value is supported for.
const FIXED_SETTINGS: &[(&str, &str)] = &[
    ("peft_type", "\"LORA\""),
    ("alora_invocation_tokens", "null"),
    ("alpha_pattern", "{}"),
    ("arrow_config", "null"),
    ("bias", "\"none\""),
    ("ensure_weight_tying", "false"),
    ("exclude_modules", "[]"),
    ("kasa_config", "null"),
    ("layer_replication", "[]"),
    ("layers_to_transform", "[]"),
    ("lora_bias", "false"),
    ("megatron_config", "null"),
    ("monteclora_config", "null"),
    ("rank_pattern", "{}"),
    ("target_parameters", "[]"),
    ("trainable_token_indices", "null"),
    ("use_bdlora", "false"),
    ("use_dora", "false"),
    ("use_qalora", "false"),
    ("velora_config", "null"),
];

/// Keys that do not change what the adapter computes: where it comes from, dropout in training, the
/// layout of weights, which the model has, and what only other settings use.
const HARMLESS_SETTINGS: &[&str] = &[
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
];

impl Config {
    /// Checks that there is something to adapt, and the fields that are not read.
    pub(super) fn check(&self) -> Result<()> {
        if self.target_modules.is_empty() {
            return Err(error::config("`target_modules` names no module"));
        }
        check_unread(&self.other, FIXED_SETTINGS, &[HARMLESS_SETTINGS])
    }
}

/// How peft made the initial `A` and `B`, and which weights it took for the frozen ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum InitialWeights {
    /// The frozen weights are the model's.
    #[default]
    Random,
    /// The initial update is the part of the weight with the largest singular values (Meng et al.
    /// 2024). The frozen weight is the rest.
    Pissa,
    /// The initial update is the part of the weight in the span of its first columns (Büyükakyüz
    /// 2024). The frozen weight is the rest.
    Olora,
}

impl<'de> Deserialize<'de> for InitialWeights {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<InitialWeights, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Null | Value::Bool(_) => Ok(InitialWeights::Random),
            Value::String(name) => match name.as_str() {
                "gaussian" | "eva" | "orthogonal" => Ok(InitialWeights::Random),
                "pissa" => Ok(InitialWeights::Pissa),
                _ if name.eq_ignore_ascii_case("gaussian") => Ok(InitialWeights::Random),
                _ if name.eq_ignore_ascii_case("olora") => Ok(InitialWeights::Olora),
                _ => Err(D::Error::custom(format!(
                    "`{name}` is not supported; in peft, save the adapter with \
                     `path_initial_model_for_weight_conversion`"
                ))),
            },
            other => Err(D::Error::custom(format!("{other} is not supported"))),
        }
    }
}

impl Serialize for InitialWeights {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            InitialWeights::Random => serializer.serialize_bool(true),
            InitialWeights::Pissa => serializer.serialize_str("pissa"),
            InitialWeights::Olora => serializer.serialize_str("olora"),
        }
    }
}
