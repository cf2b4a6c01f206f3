//! Reading the [`GenerationConfig`] of a folder.
//!
//! A setting of transformers that is not built here is refused by name, unless its value is the one
//! that changes nothing. A key that is in none of the lists is refused too, because it could change
//! which tokens are chosen.

use std::path::Path;

use serde_json::{Map, Value};

use super::GenerationConfig;
use crate::error::InConfig as _;
use crate::pretrained::{read_json, read_object};
use crate::{Result, error};

/// Keys of `generation_config.json` that do not change which tokens are chosen: what else is
/// returned, how fast they come, and settings of a second model that is not given.
const HARMLESS: [&str; 26] = [
    "_commit_hash",
    "_from_model_config",
    "assistant_confidence_threshold",
    "assistant_ensemble_weight",
    "assistant_lookbehind",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "continuous_batching_config",
    "disable_compile",
    "is_assistant",
    "low_memory",
    "max_cache_len",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "prefill_chunk_size",
    "return_dict_in_generate",
    "target_lookbehind",
    "transformers_version",
    "use_cache",
];

/// Settings that are not built, each with the value that changes nothing.
const FIXED_SETTINGS: [(&str, &str); 23] = [
    ("assistant_early_exit", "null"),
    ("constraints", "null"),
    ("diversity_penalty", "0.0"),
    ("dola_layers", "null"),
    ("encoder_repetition_penalty", "1.0"),
    ("epsilon_cutoff", "0.0"),
    ("eta_cutoff", "0.0"),
    ("exponential_decay_length_penalty", "null"),
    ("force_bos_token_to_be_generated", "false"),
    ("force_words_ids", "null"),
    ("guidance_scale", "1.0"),
    ("max_time", "null"),
    ("num_beam_groups", "1"),
    ("penalty_alpha", "0.0"),
    ("prompt_lookup_num_tokens", "null"),
    ("remove_invalid_values", "false"),
    ("sequence_bias", "null"),
    ("speculation_type", "null"),
    ("token_healing", "false"),
    ("top_h", "null"),
    ("typical_p", "1.0"),
    ("use_mtp", "false"),
    ("watermarking_config", "null"),
];

impl GenerationConfig {
    /// Reads the `generation_config.json` of a folder or, if there is none, the corresponding keys
    /// of its `config.json`.
    ///
    /// # Errors
    /// Neither can be read; a setting is of a different type, asks for an unsupported feature, or is
    /// not known: the message names it.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<GenerationConfig> {
        let own = folder.as_ref().join("generation_config.json");
        let has_own = own.exists();
        let file = if has_own { own } else { folder.as_ref().join("config.json") };
        let json = read_object(&file)?;
        settings(json, has_own).and_then(|json| read_json(&json, &[])).map_err(|e| e.in_file(&file))
    }
}

/// The settings of a file that a [`GenerationConfig`] has, after a check of all others. The keys
/// that are in no list belong to the model, unless the file is only about generation.
fn settings(json: Map<String, Value>, only_generation: bool) -> Result<Map<String, Value>> {
    let known = serde_json::to_value(GenerationConfig::default()).unwrap_or_default();
    let mut settings = Map::new();
    for (key, value) in json.into_iter().filter(|(_, value)| !value.is_null()) {
        if known.get(&key).is_some() {
            settings.insert(key, as_integer(value));
        } else if let Some((_, expected)) = FIXED_SETTINGS.iter().find(|(name, _)| *name == key) {
            let default = serde_json::from_str(expected).unwrap_or_default();
            if !is_same(&value, &default) {
                let message = format!("`{key}` is {value}; only {expected} is supported");
                return Err(error::config(message));
            }
        } else if only_generation && !HARMLESS.contains(&key.as_str()) {
            let message = format!(
                "`{key}` is not known, so it could change which tokens are chosen; if it does not, delete it from \
                 the file"
            );
            return Err(error::config(message));
        }
    }
    Ok(settings)
}

/// A number without a fraction as an integer: `1` for `1.0`.
fn as_integer(value: Value) -> Value {
    match value.as_f64().filter(|_| value.is_f64()) {
        Some(number) if number.fract() == 0.0 && number.abs() < 1e15 => (number as i64).into(),
        _ => value,
    }
}

fn is_same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the folder of such a file says; the error's last part if it is refused.
    fn read(file: &str, text: &str) -> Result<GenerationConfig, String> {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        std::fs::write(folder.path().join(file), text).unwrap_or_else(|e| panic!("{e}"));
        GenerationConfig::from_folder(folder.path()).map_err(|error| {
            let text = error.to_string();
            text.split_once(".json: ").map_or(text.clone(), |(_, message)| message.to_owned())
        })
    }

    fn read_own(text: &str) -> Result<GenerationConfig, String> {
        read("generation_config.json", text)
    }

    #[test]
    fn the_files_of_published_models_are_read() {
        // opus-mt
        let config = read_own(
            r#"{"bad_words_ids": [[58100]], "bos_token_id": 0, "decoder_start_token_id": 58100, "eos_token_id": 0,
            "forced_eos_token_id": 0, "max_length": 512, "num_beams": 6, "pad_token_id": 58100,
            "renormalize_logits": true, "transformers_version": "4.32.0.dev0"}"#,
        )
        .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((config.max_length, config.num_beams), (Some(512), 6));
        assert_eq!(
            (config.new_tokens(1, Some(512)), config.forced_eos_token_id),
            (Ok(511), vec![0])
        );
        // Qwen 2.5
        let config = read_own(
            r#"{"bos_token_id": 151643, "do_sample": true, "eos_token_id": [151645, 151643], "pad_token_id": 151643,
            "repetition_penalty": 1.05, "temperature": 0.7, "top_k": 20, "top_p": 0.8}"#,
        )
        .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((config.repetition_penalty, config.top_k), (1.05, 20));
        // Gemma 3, without a generation_config.json
        let config = read(
            "config.json",
            r#"{"model_type": "gemma3_text", "cache_implementation": "hybrid", "eos_token_id": 1, "pad_token_id": null,
            "max_length": 30}"#,
        )
        .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((config.eos_token_id, config.max_length), (vec![1], Some(30)));
    }

    #[test]
    fn numbers_are_numbers_and_null_is_the_default() {
        let config = read_own(
            r#"{"num_beams": 2.0, "max_length": 12.0, "top_p": 1, "temperature": 0.0, "top_k": null, "min_p": null,
            "guidance_scale": 1, "num_beam_groups": 1.0, "typical_p": 1, "diversity_penalty": 0, "max_time": null,
            "some_future_setting": null}"#,
        )
        .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((config.num_beams, config.max_length, config.top_k), (2, Some(12), 50));
        // Greedily, a temperature of 0 has no effect.
        assert_eq!((config.temperature, config.check()), (0.0, None));
    }

    #[test]
    fn what_is_not_built_is_refused_by_name() {
        for (key, default) in FIXED_SETTINGS {
            assert!(read_own(&format!(r#"{{"{key}": {default}}}"#)).is_ok(), "{key}");
            let only = format!("; only {default} is supported");
            for file in ["config.json", "generation_config.json"] {
                let error = read(file, &format!(r#"{{"{key}": 0.25}}"#)).err().unwrap_or_default();
                assert_eq!(error, format!("`{key}` is 0.25{only}"));
            }
        }
        for (text, expected) in [
            (
                r#"{"exponential_decay_length_penalty": [5, 1.1]}"#,
                "`exponential_decay_length_penalty` is [5,1.1]; only null is supported",
            ),
            (r#"{"chat_format": "chatml"}"#, "`chat_format` is not known"),
            (r#"{"repetition_penalties": 1.0}"#, "`repetition_penalties` is not known"),
            (r#"{"early_stopping": "never"}"#, "`early_stopping` is \"never\", expected a boolean"),
            (r#"{"num_beams": 1.5}"#, "`num_beams` is 1.5, expected a whole number from 0"),
            (r#"{"do_sample": 1}"#, "`do_sample` is 1, expected a boolean"),
            (r#"{"eos_token_id": "</s>"}"#, "`eos_token_id` is \"</s>\", expected a whole number"),
            (r#"{"eos_token_id": [1, "</s>"]}"#, "`eos_token_id` is [1,\"</s>\"]: invalid type"),
            (r#"{"pad_token_id": true}"#, "`pad_token_id` is true, expected a whole number"),
        ] {
            let error = read_own(text).err().unwrap_or_default();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(read("config.json", r#"{"hidden_size": 64}"#).is_ok());
    }

    #[test]
    fn no_key_is_in_two_lists() {
        let known = serde_json::to_value(GenerationConfig::default()).unwrap_or_default();
        let fixed = FIXED_SETTINGS.iter().map(|(key, _)| *key);
        let mut keys: Vec<&str> = HARMLESS.into_iter().chain(fixed).collect();
        keys.extend(known.as_object().into_iter().flatten().map(|(key, _)| key.as_str()));
        keys.sort_unstable();
        let count = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }
}
