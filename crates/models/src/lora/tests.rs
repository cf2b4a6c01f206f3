//! Comparison with peft.

use fulmen_tensor::grad;

use super::*;
use crate::gpt2::Gpt2;
use crate::reference::{ExpectedValues, borrow_tensors, folder};
use crate::{AutoModelForSequenceClassification, Pretrained};

fn gpt2() -> Gpt2 {
    Gpt2::from_folder(folder("gpt2")).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn an_adapter_of_peft_gives_its_logits_and_is_saved_as_it_was() {
    let adapter = folder("gpt2-lora");
    let expected = ExpectedValues::read("gpt2-lora");
    let lora = Lora::from_folder(gpt2(), &adapter).unwrap_or_else(|e| panic!("{e}"));
    let ids = expected.tensor("input_ids");
    let logits = lora.apply(|model| model.forward(&ids));

    let base = lora.model().forward(&ids);
    let directory = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    lora.save_pretrained(directory.path()).unwrap_or_else(|e| panic!("{e}"));
    let loaded = Lora::from_folder(gpt2(), directory.path()).unwrap_or_else(|e| panic!("{e}"));
    // Everything that is trained, and no other gradient.
    let trained: Vec<Tensor> = lora
        .parameters()
        .into_iter()
        .filter(|(_, p)| p.requires_grad())
        .map(|(_, p)| p.get())
        .collect();
    assert_eq!(trained.len(), 4);
    let gradients = grad(&logits.square().mean_all(), &trained);
    assert!(gradients.iter().all(|gradient| gradient.fault().is_none()));
    let mut merged = loaded.merge_and_unload();
    merged.gradient_checkpointing = true;
    let merged = merged.forward(&ids);
    expected.check(&borrow_tensors(&[("logits", logits), ("base", base), ("logits", merged)]));
}

#[test]
fn a_classifier_that_is_trained_whole_stands_beside_the_updates() {
    type Classifier = AutoModelForSequenceClassification;
    let classifier =
        |folder: &Path| Classifier::from_folder(folder).unwrap_or_else(|e| panic!("{e}"));
    let base = || classifier(&folder("roberta-classifier"));
    let expected = ExpectedValues::read("roberta-lora");
    let directory = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let [merged, adapter] = ["merged", "adapter"].map(|name| directory.path().join(name));
    let ids = expected.tensor("input_ids");

    let lora = Lora::from_folder(base(), folder("roberta-lora")).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(
        lora.parameters().iter().filter(|(_, parameter)| parameter.requires_grad()).count(),
        2 + 4
    );
    lora.save_pretrained(&adapter).unwrap_or_else(|e| panic!("{e}"));
    lora.apply(|model| model.save_pretrained(&merged)).unwrap_or_else(|e| panic!("{e}"));
    let loaded = Lora::from_folder(base(), &adapter).unwrap_or_else(|e| panic!("{e}"));
    let logits = |lora: &Lora<Classifier>| lora.apply(|model| model.forward(&ids, None, None));
    expected.check(&borrow_tensors(&[
        ("base", base().forward(&ids, None, None)),
        ("logits", logits(&lora)),
        ("logits", logits(&loaded)),
        ("logits", classifier(&merged).forward(&ids, None, None)),
    ]));

    let lora = Lora::new(base(), &["*.query.weight"], 2, 1.0)
        .and_then(|lora| lora.modules_to_save(&["score"]));
    let text = lora.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(
        text.contains("`modules_to_save` names `score`, but the model has no such module"),
        "{text}"
    );
}

#[test]
fn a_pattern_that_fits_nothing_is_refused() {
    let text = Lora::new(gpt2(), &["*.q_proj.weight"], 2, 1.0)
        .err()
        .map(|e| e.to_string())
        .unwrap_or_default();
    assert!(text.contains("the pattern `*.q_proj.weight` matches no parameter"), "{text}");
    let text = Lora::new(gpt2(), &["*.ln_1.weight"], 2, 1.0)
        .err()
        .map(|e| e.to_string())
        .unwrap_or_default();
    assert!(
        text.contains(
            "`transformer.h.0.ln_1.weight` is f32[16], expected the weight of a linear layer"
        ),
        "{text}"
    );
}

#[test]
fn other_initial_weights_and_scales_give_pefts_logits() {
    let expected = ExpectedValues::read("lora");
    let ids = expected.tensor("input_ids");
    let directory = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let mut outputs = Vec::new();
    for name in ["gpt2-rslora", "gpt2-gaussian", "gpt2-pissa"] {
        let lora = Lora::from_folder(gpt2(), folder("lora").join(name));
        let lora = lora.unwrap_or_else(|e| panic!("{e}"));
        outputs.push((name, lora.apply(|model| model.forward(&ids))));
        // Saved again, it is for the same model.
        lora.save_pretrained(directory.path()).unwrap_or_else(|e| panic!("{e}"));
        let again = Lora::from_folder(gpt2(), directory.path()).unwrap_or_else(|e| panic!("{e}"));
        outputs.push((name, again.merge_and_unload().forward(&ids)));
    }
    for name in ["roberta-pissa", "roberta-olora", "roberta-orthogonal"] {
        let base = AutoModelForSequenceClassification::from_folder(folder("roberta-classifier"));
        let base = base.unwrap_or_else(|e| panic!("{e}"));
        let lora = Lora::from_folder(base, folder("lora").join(name));
        let lora = lora.unwrap_or_else(|e| panic!("{e}"));
        outputs.push((name, lora.apply(|model| model.forward(&ids, None, None))));
    }
    expected.check(&borrow_tensors(&outputs));
}

/// An error of an adapter in which a key has another value.
fn refusal(name: &str, key: &str, value: Value) -> Option<String> {
    let copy = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let from = folder(name);
    std::fs::copy(from.join(WEIGHTS), copy.path().join(WEIGHTS)).unwrap_or_else(|e| panic!("{e}"));
    let mut config = read_object(&from.join(CONFIG)).unwrap_or_else(|e| panic!("{e}"));
    config.insert(key.into(), value);
    let text = Value::Object(config).to_string();
    std::fs::write(copy.path().join(CONFIG), text).unwrap_or_else(|e| panic!("{e}"));
    Lora::from_folder(gpt2(), copy.path()).err().map(|e| e.to_string())
}

#[test]
fn a_setting_of_another_adapter_is_refused_by_name() {
    for (key, value) in [
        ("peft_type", json!("ADALORA")),
        ("alora_invocation_tokens", json!([3])),
        ("alpha_pattern", json!({"c_fc": 3})),
        ("arrow_config", json!({"top_k": 1})),
        ("bias", json!("all")),
        ("ensure_weight_tying", json!(true)),
        ("exclude_modules", json!(["h.0.mlp.c_fc"])),
        ("init_lora_weights", json!("pissa_niter_4")),
        ("init_lora_weights", json!("corda")),
        ("init_lora_weights", json!("loftq")),
        ("init_lora_weights", json!("mica")),
        ("init_lora_weights", json!("olora")),
        ("kasa_config", json!({})),
        ("layer_replication", json!([[0, 1], [0, 1]])),
        ("layers_to_transform", json!([0])),
        ("lora_bias", json!(true)),
        ("modules_to_save", json!(["wte"])),
        ("modules_to_save", json!(["lm_head"])),
        ("rank_pattern", json!({"c_fc": 3})),
        ("some_new_key", json!(0.5)),
        ("target_modules", json!("all-linear")),
        ("target_parameters", json!(["c_fc.weight"])),
        ("trainable_token_indices", json!([1])),
        ("use_dora", json!(true)),
        ("use_qalora", json!(true)),
        ("velora_config", json!({"rank": 1})),
    ] {
        let text = refusal("gpt2-lora", key, value.clone()).unwrap_or_default();
        assert!(text.contains(&format!("`{key}`")), "{key} {value}: {text}");
    }
    for (key, value) in [
        ("lora_alpha", json!(6.0)),
        ("use_dora", json!(null)),
        ("layers_to_transform", json!([])),
        ("lora_dropout", json!(0.1)),
        ("task_type", json!("CAUSAL_LM")),
    ] {
        assert_eq!(refusal("gpt2-lora", key, value), None, "{key}");
    }
}
