//! What the keys of configs mean: defaults for missing ones, and which others may be there.

#[cfg(all(
    test,
    feature = "bert",
    feature = "convnext",
    feature = "decoder",
    feature = "gpt2",
    feature = "marian",
    feature = "t5",
    feature = "vit"
))]
mod tests;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Number, Value, json};

use crate::{Result, error};

/// Keys of `config.json` that do not change what a model computes: where it comes from, which
/// tokens and classes it is for, how Python runs it, and how it generates texts.
pub(crate) const HARMLESS_SETTINGS: &[&str] = &[
    // Where it comes from.
    "_name_or_path",
    "name_or_path",
    "_commit_hash",
    "architectures",
    "auto_map",
    "custom_pipelines",
    "license",
    "language",
    "name",
    "made_with",
    "model_type",
    "transformers_version",
    "sentence_transformers",
    "transformers.js_config",
    "transformers_weights",
    "unsloth_fixed",
    "unsloth_version",
    // Tokens, classes and tasks.
    "bos_token_id",
    "cls_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "eos_token_ids",
    "mask_token_id",
    "pad_token_id",
    "sep_token_id",
    "unk_token_id",
    "_num_labels",
    "finetuning_task",
    "id2label",
    "label2id",
    "num_labels",
    "prefix",
    "problem_type",
    "task_specific_params",
    "tokenizer_class",
    "max_sequence_length",
    "model_max_length",
    // How Python runs it.
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "_experts_implementation",
    "_experts_implementation_internal",
    "_flash_attn_2_enabled",
    "attn_implementation",
    "chunk_size_feed_forward",
    "dtype",
    "experts_implementation",
    "gradient_checkpointing",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "return_dict",
    "tf_legacy_loss",
    "torch_dtype",
    "torchscript",
    "use_bfloat16",
    "use_cache",
    "xla_device",
    // Generation, which `GenerationConfig` reads.
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "force_bos_token_to_be_generated",
    "forced_bos_token_id",
    "forced_decoder_ids",
    "forced_eos_token_id",
    "guidance_scale",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "penalty_alpha",
    "remove_invalid_values",
    "renormalize_logits",
    "repetition_penalty",
    "return_dict_in_generate",
    "sequence_bias",
    "stop_strings",
    "suppress_tokens",
    "target_lookbehind",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
];

/// Keys of `config.json` that only one value is supported for in all models, with that value in
/// JSON.
pub(crate) const FIXED_IN_ALL: &[(&str, &str)] = &[
    ("add_cross_attention", "false"),
    ("cross_attention_hidden_size", "null"),
    ("is_causal", "true"),
    ("is_decoder", "false"),
    ("is_encoder_decoder", "false"),
    ("per_layer_config", "null"),
    ("pruned_heads", "{}"),
    ("quantization_config", "null"),
    ("tie_encoder_decoder", "false"),
    ("tie_last_hidden_states", "null"),
];

/// The JSON object of a deserializer, in which missing keys have the values of `defaults`.
pub(crate) fn default_missing<'de, D: Deserializer<'de>, C: Serialize>(
    deserializer: D,
    defaults: impl FnOnce(&Map<String, Value>) -> serde_json::Result<C>,
) -> Result<Value, D::Error> {
    let mut all = Map::deserialize(deserializer)?;
    let defaults = defaults(&all).and_then(serde_json::to_value).map_err(D::Error::custom)?;
    for (key, value) in defaults.as_object().into_iter().flatten() {
        all.entry(key).or_insert_with(|| value.clone());
    }
    Ok(Value::Object(all))
}

/// What is wrong with the first value of a table that settings cannot be read from. `keys` are the
/// keys of the tables around it, and `aliases` are pairs of a key in the file and its name in the
/// settings.
///
/// serde's error does not name the key, so each value is tried separately.
pub(crate) fn wrong_value<C: DeserializeOwned>(
    keys: &mut Vec<String>,
    table: &Map<String, Value>,
    aliases: &[(&str, &str)],
) -> Option<String> {
    for (key, value) in table {
        keys.push(key.clone());
        let nested =
            |value: &Value, key: &String| -> Value { json!({ key.as_str(): value.clone() }) };
        let alone = keys.iter().rev().fold(value.clone(), |value, key| nested(&value, key));
        if let Err(error) = serde_json::from_value::<C>(alone) {
            let inner = value.as_object();
            return inner.and_then(|inner| wrong_value::<C>(keys, inner, aliases)).or_else(|| {
                let alias = aliases.iter().find(|(_, name)| *name == keys[0]);
                if let Some((alias, _)) = alias {
                    keys[0] = (*alias).into();
                }
                Some(describe_wrong_value(&keys.join("."), value, &error.to_string()))
            });
        }
        keys.pop();
    }
    None
}

/// The length that a value is cut to in a message.
const MAX_SHOWN_CHARS: usize = 200;

/// serde's error about the value of a key in the words of JSON: the value, and what is expected.
fn describe_wrong_value(key: &str, value: &Value, error: &str) -> String {
    let mut shown = value.to_string();
    if let Some((end, _)) = shown.char_indices().nth(MAX_SHOWN_CHARS) {
        shown.truncate(end);
        shown.push('…');
    }
    let is_of_the_value = !value.is_array() && !value.is_object();
    let expected = error.rsplit_once(", expected ").filter(|_| is_of_the_value);
    match expected.map(|(_, expected)| expected) {
        Some("usize" | "u64") => format!("`{key}` is {shown}, expected a whole number from 0"),
        Some("i32") => format!("`{key}` is {shown}, expected a whole number of 32 bits"),
        Some("f64") => format!("`{key}` is {shown}, expected a number"),
        Some("a map") => format!("`{key}` is {shown}, expected a table"),
        Some("a sequence") => format!("`{key}` is {shown}, expected a list"),
        Some("string or map") => format!("`{key}` is {shown}, expected a name"),
        Some(expected) => format!("`{key}` is {shown}, expected {expected}"),
        None => format!("`{key}` is {shown}: {error}"),
    }
}

/// Whether a value is the one that `expected` has in JSON. Numbers are compared as numbers: `1` is
/// `1.0`.
pub(crate) fn same_json(value: &Value, expected: &str) -> bool {
    serde_json::from_str(expected).is_ok_and(|expected: Value| same_value(value, &expected))
}

fn same_value(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || Number::as_f64(a) == Number::as_f64(b),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_value(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same_value(a, b)))
        }
        _ => a == b,
    }
}

/// Checks keys that no code reads. Each is null, or in one of the lists `harmless`, or in `fixed`
/// and has the value there.
///
/// # Errors
/// The first key that could mean another model.
pub(crate) fn check_unread(
    unread: &Map<String, Value>,
    fixed: &[(&str, &str)],
    harmless: &[&[&str]],
) -> Result<()> {
    for (key, value) in unread {
        if value.is_null() || harmless.iter().any(|keys| keys.contains(&key.as_str())) {
            continue;
        }
        match fixed.iter().find(|(name, _)| name == key) {
            Some((_, expected)) if same_json(value, expected) => {}
            Some(_) if key == "quantization_config" => {
                return Err(error::config(format!(
                    "`{key}` is {value}: the weights are quantized, which is not supported; convert them to bf16 and \
                     remove the key"
                )));
            }
            Some((_, expected)) => {
                let message = format!("`{key}` is {value}; only {expected} is supported");
                return Err(error::config(message));
            }
            None => {
                return Err(error::config(format!(
                    "`{key}` is {value}, but this key is unknown and may mean another model; remove it if it \
                     changes nothing"
                )));
            }
        }
    }
    Ok(())
}
