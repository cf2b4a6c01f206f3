//! The rotations of a decoder's queries and keys, from the forms that settings have in files of
//! different ages.

use fulmen_nn::attention::{RotaryEmbedding, RotaryScaling};
use serde_json::{Map, Value};

use super::config::{Config, ModelType};
use crate::error::InConfig as _;
use crate::settings::check_unread;
use crate::{Result, error};

/// The base of the angles, if a file has none.
const THETA: f64 = 10_000.0;

/// That of Mixtral.
const MIXTRAL_THETA: f64 = 1_000_000.0;

/// The base of the angles of Gemma 3's layers that see all tokens.
const GEMMA3_THETA: f64 = 1_000_000.0;

/// The keys of `rope_parameters` and `rope_scaling` that are read, or that transformers ignores.
const KNOWN_KEYS: &[&str] = &[
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    ORIGINAL_LENGTH,
];

/// Those that are numbers, whatever the type of the rotations.
const NUMBERS: [&str; 5] =
    ["rope_theta", "factor", "low_freq_factor", "high_freq_factor", ORIGINAL_LENGTH];

/// The key of the length that the model was first trained on.
const ORIGINAL_LENGTH: &str = "original_max_position_embeddings";

impl Config {
    /// The rotations of a layer.
    pub(super) fn rope(&self, sliding: bool) -> Result<RotaryEmbedding> {
        let parameters = if self.model_type == ModelType::Gemma3 {
            self.gemma3_parameters(sliding)?
        } else {
            self.shared_parameters()?
        };
        self.rotations(&parameters).map_err(|e| e.in_key("rope_parameters"))
    }

    fn rotations(&self, parameters: &Map<String, Value>) -> Result<RotaryEmbedding> {
        check_unread(parameters, &[("partial_rotary_factor", "1")], &[KNOWN_KEYS])?;
        for key in NUMBERS {
            number(parameters, key)?;
        }
        let theta = number(parameters, "rope_theta")?.unwrap_or(THETA);
        Ok(RotaryEmbedding::new(self.width()).theta(theta).scaling(self.scaling(parameters)?))
    }

    /// The parameters of all layers. As in transformers, the older key takes precedence.
    fn shared_parameters(&self) -> Result<Map<String, Value>> {
        let scaling = self.rope_scaling.as_ref().filter(|scaling| !scaling.is_empty());
        let mut parameters = scaling.or(self.rope_parameters.as_ref()).cloned().unwrap_or_default();
        if let Some(kind) = LAYER_TYPES.iter().find(|kind| parameters.contains_key(**kind)) {
            return Err(error::config(format!(
                "`rope_parameters` has a table for `{kind}`; only Gemma 3 has one for each type of layer"
            )));
        }
        let theta = if self.model_type == ModelType::Mixtral { MIXTRAL_THETA } else { THETA };
        set_theta(&mut parameters, self.rope_theta.unwrap_or(theta));
        Ok(parameters)
    }

    /// The parameters of Gemma 3, which has a table for each type of layer.
    fn gemma3_parameters(&self, sliding: bool) -> Result<Map<String, Value>> {
        let all = self.rope_parameters.clone().unwrap_or_default();
        if let Some(key) = all.keys().find(|key| !LAYER_TYPES.contains(&key.as_str())) {
            return Err(error::config(format!(
                "`rope_parameters` has `{key}`, expected a table for each type of layer"
            )));
        }
        let table = all.get(LAYER_TYPES[usize::from(sliding)]);
        let mut parameters = match table {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(table)) => table.clone(),
            Some(other) => {
                return Err(error::config(format!("`rope_parameters` has {other}, not a table")));
            }
        };
        if sliding {
            set_theta(&mut parameters, self.rope_local_base_freq.unwrap_or(THETA));
        } else {
            parameters.extend(self.rope_scaling.clone().unwrap_or_default());
            set_theta(&mut parameters, self.rope_theta.unwrap_or(GEMMA3_THETA));
        }
        Ok(parameters)
    }

    fn scaling(&self, parameters: &Map<String, Value>) -> Result<RotaryScaling> {
        let required = |key: &str| {
            number(parameters, key)?.ok_or_else(|| {
                error::config(format!("the scaling of rotations has no number `{key}`"))
            })
        };
        let name = parameters.get("rope_type").or(parameters.get("type"));
        match name.map_or(Some("default"), Value::as_str) {
            Some("default") => Ok(RotaryScaling::None),
            Some("linear") => Ok(RotaryScaling::Linear { factor: required("factor")? }),
            Some("llama3") => Ok(RotaryScaling::Llama3 {
                factor: required("factor")?,
                low_freq_factor: required("low_freq_factor")?,
                high_freq_factor: required("high_freq_factor")?,
                original_max_position_embeddings: original_length(parameters)?
                    .unwrap_or(self.max_position_embeddings),
            }),
            _ => {
                let name = name.map(Value::to_string).unwrap_or_default().replace('"', "");
                let message =
                    format!("`rope_type` is `{name}`, expected `default`, `linear` or `llama3`");
                Err(error::config(message))
            }
        }
    }
}

/// The keys of Gemma 3's `rope_parameters`.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

fn set_theta(parameters: &mut Map<String, Value>, theta: f64) {
    parameters.entry("rope_theta").or_insert_with(|| theta.into());
}

/// The length that the model was first trained on, if a table has it. Some files have it as `8192.0`.
fn original_length(parameters: &Map<String, Value>) -> Result<Option<usize>> {
    let Some(length) = number(parameters, ORIGINAL_LENGTH)? else { return Ok(None) };
    if length < 1.0 || length.fract() != 0.0 || length > MAX_LENGTH {
        return Err(error::config(format!(
            "`{ORIGINAL_LENGTH}` is {length}, expected a whole number from 1"
        )));
    }
    Ok(Some(length as usize))
}

/// A number of tokens that no model reaches, which f64 has exactly.
const MAX_LENGTH: f64 = 1e15;

/// A number of a table, if it is there.
fn number(parameters: &Map<String, Value>, key: &str) -> Result<Option<f64>> {
    match parameters.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value
            .as_f64()
            .map(Some)
            .ok_or_else(|| error::config(format!("`{key}` is {value}, expected a number"))),
    }
}
