//! Comparison with transformers: defaults of its configuration classes, logits of folders whose
//! configs have only the sizes, and which other keys may be there.

use std::path::Path;

use fulmen_tensor::Tensor;
use serde_json::json;

use super::*;
use crate::convnext::ConvNext;
use crate::decoder::Decoder;
use crate::gpt2::Gpt2;
use crate::marian::Marian;
use crate::pretrained::read_object;
use crate::reference::{ExpectedValues, folder};
use crate::t5::T5;
use crate::vit::ViT;
use crate::{AutoModelForSequenceClassification, Pretrained};

/// A family's model for any `model_type`.
trait Family: Pretrained {
    fn logits(&self, inputs: &ExpectedValues) -> Tensor;
}

impl Family for Decoder {
    fn logits(&self, inputs: &ExpectedValues) -> Tensor {
        self.forward(inputs.tensor("input_ids"))
    }
}

impl Family for Gpt2 {
    fn logits(&self, inputs: &ExpectedValues) -> Tensor {
        self.forward(inputs.tensor("input_ids"))
    }
}

impl Family for AutoModelForSequenceClassification {
    fn logits(&self, inputs: &ExpectedValues) -> Tensor {
        self.forward(inputs.tensor("input_ids"), None, None)
    }
}

impl Family for T5 {
    fn logits(&self, inputs: &ExpectedValues) -> Tensor {
        self.forward(inputs.tensor("input_ids"), None, inputs.tensor("decoder_input_ids"))
    }
}

impl Family for Marian {
    fn logits(&self, inputs: &ExpectedValues) -> Tensor {
        self.forward(inputs.tensor("input_ids"), None, inputs.tensor("decoder_input_ids"))
    }
}

impl Family for ViT {
    fn logits(&self, inputs: &ExpectedValues) -> Tensor {
        self.forward(inputs.tensor("pixel_values"))
    }
}

impl Family for ConvNext {
    fn logits(&self, inputs: &ExpectedValues) -> Tensor {
        self.forward(inputs.tensor("large"))
    }
}

/// Calls a function with the family of a `model_type`.
macro_rules! with_family {
    ($model_type:expr, $function:ident($($argument:expr),*)) => {
        match $model_type {
            "gpt2" => $function::<Gpt2>($($argument),*),
            "bert" | "roberta" => $function::<AutoModelForSequenceClassification>($($argument),*),
            "t5" => $function::<T5>($($argument),*),
            "marian" => $function::<Marian>($($argument),*),
            "vit" => $function::<ViT>($($argument),*),
            "convnext" => $function::<ConvNext>($($argument),*),
            _ => $function::<Decoder>($($argument),*),
        }
    };
}

fn reference(file: &str) -> Map<String, Value> {
    read_object(&folder("defaults").join(file)).unwrap_or_else(|e| panic!("{e}"))
}

/// Writes a config into a new folder.
fn folder_of(config: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    std::fs::write(folder.path().join("config.json"), config.to_string())
        .unwrap_or_else(|e| panic!("{e}"));
    folder
}

/// The model of a case of `cases.json`.
fn model<M: Pretrained>(case: &Value) -> M {
    let folder = folder_of(&case["config"]);
    let weights = self::folder("defaults").join(case["weights"].as_str().unwrap_or_default());
    std::fs::copy(weights, folder.path().join("model.safetensors"))
        .unwrap_or_else(|e| panic!("{e}"));
    M::from_folder(folder.path()).unwrap_or_else(|e| panic!("{e}"))
}

fn logits<M: Family>(case: &Value, inputs: &ExpectedValues) -> Tensor {
    model::<M>(case).logits(inputs)
}

#[test]
fn folders_with_only_the_sizes_or_one_more_key_give_transformers_logits() {
    let expected = ExpectedValues::read("defaults");
    let cases = reference("cases.json");
    let outputs: Vec<(&String, Tensor)> = cases
        .iter()
        .map(|(name, case)| {
            let model_type = case["config"]["model_type"].as_str().unwrap_or_default();
            (name, with_family!(model_type, logits(case, &expected)))
        })
        .collect();
    assert_eq!(outputs.len(), 43);
    let borrowed: Vec<(&str, &Tensor)> =
        outputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    expected.check(&borrowed);
}

/// The settings of a config with this one key, as they are saved.
fn defaults<M: Family>(model_type: &str) -> Value {
    let config: M::Config = serde_json::from_value(json!({ M::MODEL_TYPE_KEY: model_type }))
        .unwrap_or_else(|e| panic!("{e}"));
    serde_json::to_value(config).unwrap_or_else(|e| panic!("{e}"))
}

fn read_settings<M: Family>(folder: &Path) -> Result<()> {
    M::config_from_folder(folder).map(drop)
}

/// What a setting that is not given means, where transformers writes it.
fn meaning(model_type: &str, key: &str) -> Option<Value> {
    let is_gemma = model_type.starts_with("gemma");
    match key {
        "tie_word_embeddings" => Some(json!(is_gemma)),
        "hidden_act" | "hidden_activation" => {
            Some(json!(if is_gemma { "gelu_pytorch_tanh" } else { "silu" }))
        }
        "num_key_value_heads" => Some(json!(32)),
        "head_dim" if model_type.starts_with("deepseek") => Some(json!(64)),
        "head_dim" => Some(json!(128)),
        "decoder_vocab_size" => Some(json!(58101)),
        "num_decoder_layers" => Some(json!(6)),
        "pad_token_id" if model_type == "bert" => Some(json!(0)),
        "pad_token_id" if model_type == "roberta" => Some(json!(1)),
        "use_sliding_window" | "is_gated_act" => Some(json!(false)),
        "scale_decoder_outputs" => Some(json!(true)),
        "dense_act_fn" => Some(json!("relu")),
        _ => None,
    }
}

#[test]
fn each_family_has_the_defaults_of_its_class_and_knows_all_its_keys() {
    for (model_type, class) in reference("classes.json") {
        let ours = with_family!(model_type.as_str(), defaults(&model_type));
        for (key, expected) in class.as_object().into_iter().flatten() {
            // The logits show these.
            if ["rope_parameters", "layer_types", "sliding_window"].contains(&key.as_str()) {
                continue;
            }
            let given = ours.get(key);
            let found = given.filter(|value| !value.is_null()).cloned();
            let found = found.or_else(|| meaning(&model_type, key)).or_else(|| given.cloned());
            assert!(
                found.as_ref().is_none_or(|found| same_value(found, expected)),
                "{model_type}: `{key}` is {found:?}, expected {expected}"
            );
        }
        let folder = folder_of(&class);
        with_family!(model_type.as_str(), read_settings(folder.path()))
            .unwrap_or_else(|e| panic!("{model_type}: {e}"));
    }
}

/// The keys of published folders, of different ages.
#[test]
fn configs_of_published_folders_are_read() {
    let published = [
        r#"{"model_type": "bert", "architectures": ["BertForMaskedLM"], "directionality": "bidi",
            "pooler_fc_size": 768, "pooler_type": "first_token_transform",
            "gradient_checkpointing": false, "position_embedding_type": "absolute",
            "use_cache": true, "output_past": true}"#,
        r#"{"model_type": "roberta", "bos_token_id": 0, "eos_token_ids": 0, "finetuning_task": null,
            "is_decoder": false, "length_penalty": 1.0, "num_labels": 2, "pruned_heads": {},
            "top_k": 50, "torchscript": false, "use_bfloat16": false, "language": "english",
            "name": "Roberta"}"#,
        r#"{"model_type": "gpt2", "n_ctx": 1024, "n_special": 0, "predict_special_tokens": true,
            "summary_type": "cls_index", "task_specific_params": {"text-generation": {}}}"#,
        r#"{"model_type": "llama", "_name_or_path": "x", "pretraining_tp": 1.0,
            "rope_scaling": null, "torch_dtype": "bfloat16", "eos_token_id": [128001, 128009],
            "unsloth_version": "2025.1", "rope_interleaved": false,
            "transformers.js_config": {"dtype": "q4"}}"#,
        r#"{"model_type": "mistral", "sliding_window": null, "attention_bias": false,
            "_flash_attn_2_enabled": true}"#,
        r#"{"model_type": "qwen2", "use_sliding_window": false, "max_window_layers": 21,
            "sliding_window": 131072, "use_mrope": false}"#,
        r#"{"model_type": "gemma", "hidden_act": "gelu", "hidden_activation": null}"#,
        r#"{"model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh",
            "cache_implementation": "hybrid"}"#,
        r#"{"model_type": "gemma3_text", "sliding_window_pattern": 6,
            "_sliding_window_pattern": 6, "rope_local_base_freq": 10000,
            "use_bidirectional_attention": false}"#,
        r#"{"model_type": "deepseek_v2", "aux_loss_alpha": 0.001, "moe_layer_freq": 1,
            "n_group": 1, "norm_topk_prob": false, "q_lora_rank": null, "scoring_func": "softmax",
            "seq_aux": true, "topk_group": 1, "topk_method": "greedy", "rope_scaling":
            {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000}"#,
        r#"{"model_type": "deepseek_v3", "ep_size": 1, "moe_layer_freq": 1,
            "num_nextn_predict_layers": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
            "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"}}"#,
        r#"{"model_type": "t5", "n_positions": 512, "dense_act_fn": "gelu_new",
            "feed_forward_proj": "gated-gelu", "is_gated_act": true, "output_past": true,
            "tie_word_embeddings": false}"#,
        r#"{"model_type": "marian", "_num_labels": 3, "add_bias_logits": false,
            "bad_words_ids": [[58100]], "extra_pos_embeddings": 58101,
            "force_bos_token_to_be_generated": false, "normalize_before": false,
            "num_hidden_layers": 6, "encoder_layers": 6, "static_position_embeddings": true,
            "num_beams": 6}"#,
        r#"{"model_type": "vit", "encoder_stride": 16, "pooler_act": "tanh"}"#,
        r#"{"model_type": "convnext", "image_size": 224, "out_features": ["stage4"],
            "stage_names": ["stem"]}"#,
    ];
    for text in published {
        let config: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let folder = folder_of(&config);
        let model_type = config["model_type"].as_str().unwrap_or_default();
        with_family!(model_type, read_settings(folder.path()))
            .unwrap_or_else(|e| panic!("{text}: {e}"));
    }
}

fn refusal<M: Family>(folder: &Path) -> String {
    let model = M::config_from_folder(folder).and_then(M::new);
    model.err().map(|e| e.to_string()).unwrap_or_default()
}

/// Keys that mean another model, and keys that are not known.
#[test]
fn a_key_that_means_another_model_is_refused_by_name() {
    for (model_type, key, value) in [
        ("bert", "is_decoder", "true"),
        ("bert", "position_embedding_type", r#""relative_key""#),
        ("bert", "embedding_size", "128"),
        ("roberta", "adapters", r#"{"a": 1}"#),
        ("gpt2", "scale_attn_weights", "false"),
        ("gpt2", "attention_multiplier", "0.5"),
        ("llama", "attention_multiplier", "0.5"),
        ("llama", "partial_rotary_factor", "0.5"),
        ("llama", "use_qk_norm", "true"),
        ("llama", "is_causal", "false"),
        ("llama", "quantization_config", r#"{"bits": 4}"#),
        ("llama", "sliding_window", "3"),
        ("llama", "final_logit_softcapping", "30.0"),
        ("llama", "per_layer_config", r#"{"0": {"hidden_act": "relu"}}"#),
        ("llama", "rope_parameters", r#"{"rope_type": "default", "mrope_section": [1, 1]}"#),
        ("llama", "rope_parameters", r#"{"rope_theta": "10000"}"#),
        ("qwen2", "rope_parameters", r#"{"full_attention": {"rope_theta": 3.0}}"#),
        ("mistral", "mlp_bias", "true"),
        ("gemma2", "sliding_window_pattern", "3"),
        ("gemma3_text", "rope_parameters", r#"{"rope_theta": 3.0}"#),
        ("gemma3_text", "use_bidirectional_attention", "true"),
        ("deepseek_v2", "moe_layer_freq", "2"),
        ("deepseek_v3", "quantization_config", r#"{"quant_method": "fp8"}"#),
        ("deepseek_v3", "index_topk", "2048"),
        ("t5", "dense_act_fn", r#""silu""#),
        ("marian", "normalize_before", "true"),
        ("marian", "encoder_layerdrop", "0.1"),
        ("vit", "use_mask_token", "true"),
        ("convnext", "num_stages", "3"),
    ] {
        let value: Value = serde_json::from_str(value).unwrap_or_else(|e| panic!("{key}: {e}"));
        let folder = folder_of(&json!({"model_type": model_type, key: value}));
        let text = with_family!(model_type, refusal(folder.path()));
        assert!(text.contains(&format!("`{key}`")), "{model_type} {key}: {text}");
    }
}

/// A value of another type than this one, with what a message says that it should be.
fn of_another_type(value: &Value) -> Option<(Value, &'static str)> {
    match value {
        Value::Null => None,
        Value::Bool(_) => Some((json!("true"), "a boolean")),
        Value::Number(number) if number.is_f64() => Some((json!("0.5"), "a number")),
        Value::Number(_) => Some((json!("7"), "a whole number")),
        Value::String(_) => Some((json!(7), "")),
        Value::Array(_) => Some((json!("7"), "")),
        Value::Object(_) => Some((json!("7"), "a table")),
    }
}

/// The keys that a config has a field for.
fn keys_with_a_field<M: Family>(model_type: &str) -> Map<String, Value> {
    let mut keys = defaults::<M>(model_type).as_object().cloned().unwrap_or_default();
    keys.remove("model_type");
    keys
}

#[test]
fn a_value_of_another_type_is_refused_with_key_value_and_type() {
    let mut count = 0;
    for (model_type, class) in reference("classes.json") {
        let fields = with_family!(model_type.as_str(), keys_with_a_field(&model_type));
        // Those that are not given by default have the type of transformers' default.
        let not_given = OPTIONAL_KEYS.iter().filter(|key| !class[**key].is_null());
        let optional = not_given.map(|key| ((*key).to_owned(), class[*key].clone()));
        for (key, value) in fields.into_iter().chain(optional) {
            let Some((wrong, expected)) = of_another_type(&value) else { continue };
            let folder = folder_of(&json!({"model_type": model_type, key.as_str(): wrong}));
            let text = with_family!(model_type.as_str(), refusal(folder.path()));
            let start = format!("config.json: `{key}` is {wrong}, expected {expected}");
            assert!(text.contains(&start), "{model_type}: {text:?}, expected {start:?}");
            count += 1;
        }
    }
    assert_eq!(count, 288);
}

/// Keys whose field has no value by default.
const OPTIONAL_KEYS: &[&str] = &[
    "head_dim",
    "is_gated_act",
    "num_decoder_layers",
    "num_key_value_heads",
    "scale_decoder_outputs",
    "tie_word_embeddings",
    "use_sliding_window",
];

#[test]
fn a_wrong_value_is_named_where_it_is_in_the_file() {
    for (model_type, key, value, expected) in [
        ("t5", "pad_token_id", "\"<pad>\"", "`pad_token_id` is \"<pad>\", expected a whole number"),
        (
            "t5",
            "pad_token_id",
            "3000000000",
            "`pad_token_id` is 3000000000, expected a whole number",
        ),
        ("t5", "hidden_size", "\"x\"", "`hidden_size` is \"x\", expected a whole number from 0"),
        ("t5", "d_model", "-1", "`d_model` is -1, expected a whole number from 0"),
        ("t5", "feed_forward_proj", "true", "`feed_forward_proj` is true, expected a string"),
        ("marian", "pad_token_id", "1e3", "`pad_token_id` is 1000.0, expected a whole number"),
        ("marian", "pad_token_id", "3000000000", "`pad_token_id` is 3000000000, expected a whole"),
        (
            "bert",
            "pad_token_id",
            "30522",
            "`pad_token_id` is 30522, expected a token below `vocab_",
        ),
        (
            "roberta",
            "pad_token_id",
            "18446744073709551615",
            "`pad_token_id` is 18446744073709551615",
        ),
        ("roberta", "num_labels", "\"3\"", "`num_labels` is \"3\", expected a whole number from 0"),
        (
            "bert",
            "id2label",
            r#"{"zero": "no"}"#,
            "`id2label.zero` is \"no\": the keys of `id2label`",
        ),
        ("bert", "id2label", r#"{"0": 0}"#, "`id2label.0` is 0, expected a string"),
        ("vit", "label2id", r#"{"no": "0"}"#, "`label2id.no` is \"0\", expected a whole number"),
        ("convnext", "depths", "[3, 3, 9]", "`depths` is [3,3,9]: invalid length 3"),
        ("gemma3_text", "layer_types", "[\"x\"]", "`layer_types` is [\"x\"]: unknown variant `x`"),
        (
            "deepseek_v2",
            "topk_method",
            "\"best\"",
            "`topk_method` is \"best\", expected one of `greedy`, `group_limited_greedy`, `noaux_tc`",
        ),
        (
            "deepseek_v3",
            "scoring_func",
            "\"tanh\"",
            "`scoring_func` is \"tanh\", expected `softmax` or `sigmoid`",
        ),
        ("llama", "rope_parameters", "5", "`rope_parameters` is 5, expected a table"),
        ("llama", "rope_scaling", r#"{"factor": "2"}"#, "`factor` is \"2\", expected a number"),
        (
            "llama",
            "rope_scaling",
            r#"{"rope_type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 4,
                "original_max_position_embeddings": -8192}"#,
            "`original_max_position_embeddings` is -8192, expected a whole number from 1",
        ),
    ] {
        let value: Value = serde_json::from_str(value).unwrap_or_else(|e| panic!("{key}: {e}"));
        let folder = folder_of(&json!({"model_type": model_type, key: value}));
        let text = with_family!(model_type, refusal(folder.path()));
        assert!(text.contains(expected), "{model_type} {key}: {text}");
    }
    // Null means that a key is not given.
    for (model_type, key) in [("t5", "pad_token_id"), ("bert", "pad_token_id"), ("vit", "id2label")]
    {
        let folder = folder_of(&json!({"model_type": model_type, key: null}));
        with_family!(model_type, read_settings(folder.path())).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn numbers_are_compared_as_numbers() {
    assert!(same_json(&json!(1.0), "1") && same_json(&json!(1), "1.0"));
    assert!(same_json(&json!({"a": [2]}), r#"{"a": [2.0]}"#));
    assert!(!same_json(&json!(1.5), "1") && !same_json(&json!("1"), "1"));
    assert!(!same_json(&json!({}), r#"{"a": 1}"#));
}

#[test]
fn a_key_is_harmless_or_null_or_has_the_only_value() {
    let check = |unread: Value| {
        let unread = unread.as_object().cloned().unwrap_or_default();
        check_unread(&unread, &[("scale", "1.0")], &[&["note"]]).map_err(|e| e.to_string())
    };
    assert_eq!(check(json!({"note": 3, "unknown": null, "scale": 1})), Ok(()));
    let text = check(json!({"scale": 2})).err().unwrap_or_default();
    assert!(text.contains("`scale` is 2; only 1.0 is supported"), "{text}");
    let text = check(json!({"factor": 2})).err().unwrap_or_default();
    assert!(text.contains("`factor` is 2, but this key is unknown"), "{text}");
}

/// Logits of two texts. The second one is masked as a whole: in an attention, its tokens get zeros,
/// or in T5 the mean of all.
#[test]
fn a_text_without_tokens_gives_transformers_logits() {
    let expected = ExpectedValues::read("defaults");
    let [ids, mask, decoder_ids] =
        ["input_ids", "attention_mask", "decoder_input_ids"].map(|name| expected.tensor(name));
    let cases = reference("cases.json");
    let classified = |name: &str| {
        let model: AutoModelForSequenceClassification = model(&cases[name]);
        model.forward(&ids, None, Some(&mask))
    };
    let outputs = [
        ("bert masked", classified("bert")),
        ("roberta masked", classified("roberta")),
        ("t5 masked", model::<T5>(&cases["t5"]).forward(&ids, Some(&mask), &decoder_ids)),
        (
            "marian masked",
            model::<Marian>(&cases["marian"]).forward(&ids, Some(&mask), &decoder_ids),
        ),
    ];
    expected.check(&outputs.each_ref().map(|(name, tensor)| (*name, tensor)));
}
