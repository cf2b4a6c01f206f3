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

/// The keys of `rope_parameters` and `rope_scaling` that are no numbers.
const NO_NUMBERS: [&str; 3] = ["rope_type", "type", "truncate"];

/// Those that are numbers. They are read, or transformers ignores them, by the type of the rotations.
const NUMBERS: [&str; 10] = [
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    ORIGINAL_LENGTH,
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
];

/// The key of the fraction of features that are rotated.
const PARTIAL: &str = "partial_rotary_factor";

/// That of GLM, if a file has none.
const GLM_PARTIAL: f64 = 0.5;

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
        let is_partial = self.model_type == ModelType::Glm4Moe;
        let partial_keys: &[&str] = if is_partial { &[PARTIAL] } else { &[] };
        check_unread(parameters, &[(PARTIAL, "1")], &[&NO_NUMBERS, &NUMBERS, partial_keys])?;
        for key in NUMBERS {
            number(parameters, key)?;
        }
        let theta = number(parameters, "rope_theta")?.unwrap_or(THETA);
        let width = match self.model_type {
            ModelType::Glm4Moe => self.rotated_width(parameters)?,
            _ if self.has_latent_attention() => self.latent_sizes().rotated,
            _ => self.width(),
        };
        // Scores are the same in any order of the features, so pairs stay where they are.
        let interleaved = self.has_latent_attention() && self.rope_interleave.unwrap_or(true);
        Ok(RotaryEmbedding::new(width)
            .theta(theta)
            .interleaved(interleaved)
            .scaling(self.scaling(parameters)?))
    }

    /// The factor of queries times keys in latent attention: 1 over the root of their width, times the
    /// square of YaRN's magnitude for `mscale_all_dim`.
    pub(super) fn latent_scale(&self) -> Result<f64> {
        let parameters = self.shared_parameters()?;
        let magnitude = latent_magnitude(&parameters).map_err(|e| e.in_key("rope_parameters"))?;
        Ok((self.width() as f64).powf(-0.5) * magnitude * magnitude)
    }

    /// The number of features of queries and keys that are rotated.
    fn rotated_width(&self, parameters: &Map<String, Value>) -> Result<usize> {
        let given = number(parameters, PARTIAL)?.or(self.partial_rotary_factor);
        let part = given.unwrap_or(GLM_PARTIAL);
        let all = self.width();
        let width = (all as f64 * part) as usize;
        if !(part > 0.0 && part <= 1.0 && width > 0 && width.is_multiple_of(2)) {
            return Err(error::config(format!(
                "`{PARTIAL}` is {part}, which rotates {width} of {all} features; expected an even number of them"
            )));
        }
        Ok(width)
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
        let name = rope_type(parameters);
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
            Some("yarn") => self.yarn(parameters),
            _ => {
                let name = name.map(Value::to_string).unwrap_or_default().replace('"', "");
                let message = format!(
                    "`rope_type` is `{name}`, expected `default`, `linear`, `llama3` or `yarn`"
                );
                Err(error::config(message))
            }
        }
    }

    /// YaRN's scaling, with the defaults of transformers: a 0 counts as not given.
    fn yarn(&self, parameters: &Map<String, Value>) -> Result<RotaryScaling> {
        let given = |key: &str| {
            let value = number(parameters, key)?.filter(|value| *value != 0.0);
            match value {
                Some(value) if value < 0.0 => Err(error::config(format!(
                    "`{key}` is {value}, expected a number above 0 for `yarn`"
                ))),
                value => Ok(value),
            }
        };
        let theta = number(parameters, "rope_theta")?.unwrap_or(THETA);
        if theta <= 1.0 {
            return Err(error::config(format!(
                "`rope_theta` is {theta}, expected a number above 1 for `yarn`"
            )));
        }
        let length = original_length(parameters)?.unwrap_or(self.max_position_embeddings);
        if number(parameters, "factor")? == Some(0.0) {
            return Err(error::config("`factor` is 0, expected a number above 0 for `yarn`"));
        }
        let factor = match (given("factor")?, parameters.contains_key("factor")) {
            (Some(factor), _) => factor,
            (None, true) => self.max_position_embeddings as f64 / length as f64,
            (None, false) => {
                return Err(error::config("the scaling of rotations has no number `factor`"));
            }
        };
        let attention_factor = match number(parameters, "attention_factor")? {
            Some(attention_factor) => attention_factor,
            None => match (given("mscale")?, given("mscale_all_dim")?) {
                (Some(mscale), Some(of_all)) => {
                    magnitude(factor, mscale) / magnitude(factor, of_all)
                }
                _ => magnitude(factor, 1.0),
            },
        };
        let truncate = match parameters.get("truncate") {
            None | Some(Value::Null) => true,
            Some(Value::Bool(truncate)) => *truncate,
            Some(other) => {
                return Err(error::config(format!(
                    "`truncate` is {other}, expected `true` or `false`"
                )));
            }
        };
        if !truncate && self.model_type == ModelType::Gemma3 {
            return Err(error::config(
                "`truncate` is false, which transformers ignores in Gemma 3; remove it",
            ));
        }
        Ok(RotaryScaling::Yarn {
            factor,
            original_max_position_embeddings: length,
            beta_fast: given("beta_fast")?.unwrap_or(32.0),
            beta_slow: given("beta_slow")?.unwrap_or(1.0),
            attention_factor,
            truncate,
        })
    }
}

/// YaRN's factor of cosines and sines for a factor of lengths.
fn magnitude(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// The factor of the queries and keys of latent attention, which transformers also applies to rotations
/// that are scaled in other ways.
fn latent_magnitude(parameters: &Map<String, Value>) -> Result<f64> {
    let name = rope_type(parameters);
    let is_scaled = name.is_some_and(|name| name.as_str() != Some("default"));
    let of_all = number(parameters, "mscale_all_dim")?.unwrap_or(0.0);
    if !is_scaled || of_all == 0.0 {
        return Ok(1.0);
    }
    match number(parameters, "factor")? {
        Some(factor) => Ok(magnitude(factor, of_all)),
        None => Err(error::config("the scaling of rotations has no number `factor`")),
    }
}

/// The name of the scaling, in files of any age.
fn rope_type(parameters: &Map<String, Value>) -> Option<&Value> {
    parameters.get("rope_type").or(parameters.get("type"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::folder;

    fn read(config: &Value) -> Config {
        serde_json::from_value(config.clone()).unwrap_or_else(|e| panic!("{config}: {e}"))
    }

    #[test]
    fn tables_are_transformers() {
        let text = std::fs::read_to_string(folder("rope.json")).unwrap();
        let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
        assert!(cases.len() > 15);
        for case in cases {
            let config = &case["config"];
            let rope = read(config).rope(false).unwrap_or_else(|e| panic!("{config}: {e}"));
            let expected: Vec<f64> = serde_json::from_value(case["frequencies"].clone()).unwrap();
            let actual = rope.frequencies();
            assert_eq!(actual.len(), expected.len(), "{config}");
            for (pair, (actual, expected)) in actual.into_iter().zip(expected).enumerate() {
                // transformers computes in f32.
                let off = (actual / expected - 1.0).abs();
                assert!(off < 2e-6, "{config}: pair {pair} is {actual}, expected {expected}");
            }
            let factor = case["factor"].as_f64().unwrap();
            assert!(
                (rope.attention_factor() - factor).abs() < 1e-12,
                "{config}: expected {factor}"
            );
        }
    }

    #[test]
    fn values_of_yarn_and_parts_that_do_not_fit_are_told() {
        let yarn = |key: &str, value: Value| {
            let mut parameters = serde_json::json!({"rope_type": "yarn", "factor": 4.0});
            parameters[key] = value;
            serde_json::json!({"model_type": "llama", "rope_parameters": parameters})
        };
        let glm = |part: f64| serde_json::json!({"model_type": "glm4_moe", "head_dim": 16, "partial_rotary_factor": part});
        let gemma = serde_json::json!({"model_type": "gemma3_text", "rope_parameters": {"full_attention":
            {"rope_type": "yarn", "factor": 2.0, "truncate": false}}});
        for (config, expected) in [
            (yarn("factor", 0.into()), "`factor` is 0, expected a number above 0 for `yarn`"),
            (yarn("factor", (-2.0).into()), "`factor` is -2, expected a number above 0"),
            (yarn("beta_slow", (-1).into()), "`beta_slow` is -1, expected a number above 0"),
            (yarn("beta_fast", "fast".into()), "`beta_fast` is \"fast\", expected a number"),
            (yarn("truncate", 1.into()), "`truncate` is 1, expected `true` or `false`"),
            (yarn("rope_theta", 1.0.into()), "`rope_theta` is 1, expected a number above 1"),
            (yarn("long_factor", 1.into()), "`long_factor` is 1, but this key is unknown"),
            (yarn("partial_rotary_factor", 0.5.into()), "`partial_rotary_factor` is 0.5; only 1"),
            (glm(0.2), "`partial_rotary_factor` is 0.2, which rotates 3 of 16 features"),
            (glm(0.0), "which rotates 0 of 16 features; expected an even number of them"),
            (glm(1.5), "`partial_rotary_factor` is 1.5, which rotates 24 of 16 features"),
            (gemma, "`truncate` is false, which transformers ignores in Gemma 3"),
        ] {
            let text = read(&config).rope(false).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(text.contains(expected), "{config}: {text}");
        }
    }
}
