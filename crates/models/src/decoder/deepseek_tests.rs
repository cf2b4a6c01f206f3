//! DeepSeek's models: comparison with transformers, with attention computed in other ways, and with one
//! device.

use fulmen_nn::axes::AxisRules;
use fulmen_nn::loss::CrossEntropyLoss;
use fulmen_tensor::{
    Accelerator, Argument, Devices, Function, Literal, Mesh, Runtime, Sharding, TensorType,
    autocast, grad,
};
use serde_json::json;

use super::*;
use crate::reference::{
    ExpectedValues, assert_close, check_decoder, check_packing, evaluated, folder,
};
use crate::{GenerationConfig, Lora, Prompt, generate};

fn load(name: &str) -> Decoder {
    Decoder::from_folder(folder(name)).unwrap_or_else(|e| panic!("{e}"))
}

/// A small DeepSeek-V2 without experts in its first `dense` layers, of two in total.
fn small(dense: usize) -> Config {
    let sizes = Config {
        vocab_size: 20,
        hidden_size: 16,
        intermediate_size: 24,
        num_hidden_layers: 2,
        num_attention_heads: 8,
        num_key_value_heads: Some(8),
        initializer_range: 0.3,
        ..Config::new(ModelType::DeepseekV2)
    };
    Config {
        q_lora_rank: Some(6),
        kv_lora_rank: Some(8),
        qk_nope_head_dim: Some(6),
        qk_rope_head_dim: Some(4),
        v_head_dim: Some(5),
        n_routed_experts: Some(4),
        num_experts_per_tok: Some(2),
        moe_intermediate_size: Some(8),
        first_k_dense_replace: Some(dense),
        ..sizes
    }
}

/// With groups of experts, and latent features of queries.
#[test]
fn deepseek_v2_gives_transformers_logits_and_tokens_from_a_latent_cache() {
    let model = load("deepseek_v2");
    check_decoder("deepseek_v2", &model, |ids| model.forward(ids));
}

#[test]
fn losses_and_gradients_of_attention_and_routers_are_transformers() {
    for name in ["deepseek_v2", "deepseek_v3"] {
        let mut model = load(name);
        model.gradient_checkpointing = true;
        let expected = ExpectedValues::read(name);
        let ids = expected.tensor("ids");
        let ignored = Tensor::full(DType::I32, [2, 1], -100.0);
        let targets = Tensor::concatenate(&[&ids.narrow(1, 1, 6), &ignored], 1);
        let loss = model.loss(&ids, &targets, &CrossEntropyLoss::new().ignore_index(-100));
        let is_expected = |name: &str| expected.has(&format!("gradient.{name}"));
        let parameters: Vec<(String, Parameter)> =
            model.parameters().into_iter().filter(|(name, _)| is_expected(name)).collect();
        assert_eq!(parameters.len(), if name == "deepseek_v3" { 21 } else { 15 });
        let weights: Vec<Tensor> = parameters.iter().map(|(_, weight)| weight.get()).collect();
        let gradients = grad(&loss, &weights);
        let names: Vec<String> =
            parameters.iter().map(|(name, _)| format!("gradient.{name}")).collect();
        let named = names.iter().map(String::as_str).zip(&gradients);
        let all: Vec<(&str, &Tensor)> = std::iter::once(("loss", &loss)).chain(named).collect();
        expected.check(&all);
    }
}

#[test]
fn packed_documents_are_the_documents_alone_with_latent_attention() {
    let config = Config { num_hidden_layers: 1, num_attention_heads: 2, ..small(1) };
    let config = Config { num_key_value_heads: Some(2), ..config };
    // More than one block.
    check_packing(Decoder::new(config).unwrap(), 600, |model, packed, method| {
        model.attention = method;
        match packed {
            [ids] => model.forward(ids),
            [ids, segment_ids, positions] => model.forward_packed(ids, segment_ids, positions),
            _ => panic!("ids, or ids with segments and positions"),
        }
    });
}

/// The logits after ten tokens: all at once, and from a cache of the first six, then of nine.
fn last_logits(model: &Decoder) -> [Tensor; 2] {
    let ids = Tensor::arange(DType::I32, 20).reshape([2, 10]);
    let mut cache = model.empty_cache(2, 12);
    let mut logits = Tensor::zeros(DType::F32, []);
    for (start, count) in [(0, 6), (6, 3), (9, 1)] {
        (logits, cache) = model.next_token_logits(&ids.narrow(1, start, count), &cache);
    }
    [model.forward(&ids).index(1, -1), logits]
}

#[test]
fn a_latent_cache_is_small_and_gives_the_same_with_updates_and_int8_weights() {
    let model = Decoder::new(small(2)).unwrap();
    model.initialize(5);
    let cache = model.empty_cache(2, 12);
    let [keys, values, _] = cache.layers()[0].types();
    assert_eq!(format!("{keys} {values}"), "f32[2, 1, 12, 8] f32[2, 1, 12, 4]");
    let mixed = autocast(Some(DType::Bf16), || last_logits(&model));
    assert!(mixed.iter().all(|logits| logits.fault().is_none()), "{mixed:?}");
    let lora = Lora::new(model, &["*.self_attn.*_proj.weight"], 2, 4.0).unwrap();
    lora.initialize(6);
    for (name, parameter) in lora.parameters() {
        if name.ends_with("lora_B.weight") {
            parameter.set(parameter.get() + 0.3);
        }
    }
    let lora = lora.quantize_int8().unwrap();
    let [plain, cached] = lora.apply(last_logits);
    let of_base = lora.model().forward(Tensor::arange(DType::I32, 20).reshape([2, 10]));
    let all = evaluated(&[plain, cached, of_base.index(1, -1)]);
    assert_close(&all[1], &all[0], 1e-5);
    assert!(all[0].iter().zip(&all[2]).any(|(a, b)| (a - b).abs() > 0.1), "updates count");
}

/// The loss, its gradients and generated tokens on the devices of a mesh, by the default rules.
fn on_devices(axes: &[(&str, usize)], model: &Decoder, ids: &Tensor) -> Vec<Vec<f64>> {
    let mesh = Mesh::new(axes.iter().copied()).unwrap();
    let devices = Devices::from(mesh.num_devices());
    let runtime = Runtime::open(Accelerator::Cpu, &devices).unwrap().with_mesh(&mesh).unwrap();
    let parameters = model.parameters();
    let values: Vec<Tensor> = std::iter::once(ids.clone())
        .chain(parameters.iter().map(|(_, weight)| weight.get()))
        .collect();
    let types: Vec<TensorType> = values.iter().map(|value| value.ty().clone()).collect();
    let names =
        |weight: &Parameter| weight.axes().unwrap_or_else(|| vec![None; weight.ty().shape.rank()]);
    let batch = vec![Some("batch".to_owned()), Some("length".to_owned())];
    let shardings: Vec<Sharding> = std::iter::once(batch)
        .chain(parameters.iter().map(|(_, weight)| names(weight)))
        .zip(&types)
        .map(|(names, ty)| AxisRules::default().sharding(&names, &ty.shape, &mesh).unwrap())
        .collect();
    let plain = GenerationConfig { max_new_tokens: Some(4), ..GenerationConfig::default() };
    let mut function = Function::trace("deepseek", &types, |arguments| {
        AxisRules::default().apply(&mesh, || {
            for ((_, parameter), value) in parameters.iter().zip(&arguments[1..]) {
                parameter.set(value.clone());
            }
            let ids = &arguments[0];
            let loss = model.loss(ids, ids, &CrossEntropyLoss::new());
            let gradients = grad(&loss, &arguments[1..]);
            let tokens = generate(model, &Prompt::from(ids), &plain);
            [vec![loss, tokens], gradients].concat()
        })
    });
    for (i, sharding) in shardings.iter().enumerate() {
        function = function.shard_parameter(i, sharding.clone());
        if i > 0 {
            function = function.shard_result(i + 1, sharding.clone());
        }
    }
    let compiled = runtime.compile(&function).unwrap();
    let arrays: Vec<_> = values
        .iter()
        .zip(&shardings)
        .map(|(value, sharding)| runtime.to_devices(&value.eval().unwrap(), sharding).unwrap())
        .collect();
    let outputs = compiled.call(arrays.iter().map(Argument::Borrow).collect()).unwrap();
    for ((_, parameter), value) in parameters.iter().zip(&values[1..]) {
        parameter.set(value.clone());
    }
    let arrays = outputs.arrays.iter().collect::<Vec<_>>();
    runtime.read(&arrays).unwrap().wait().unwrap().iter().map(Literal::to_f64).collect()
}

#[test]
fn eight_devices_learn_and_generate_what_one_does() {
    let model = Decoder::new(small(1)).unwrap();
    model.initialize(7);
    let ids: Vec<i32> = (0..32).map(|i| i * i * 7 % 19).collect();
    let ids = Tensor::from_slice(&ids, [4, 8]);
    let one = on_devices(&[("data", 1)], &model, &ids);
    let eight = on_devices(&[("data", 2), ("model", 4)], &model, &ids);
    assert_eq!(one.len(), eight.len());
    assert_eq!(one[1], eight[1], "tokens");
    for (one, eight) in one.iter().zip(&eight) {
        if one.iter().any(|x| *x != 0.0) {
            assert_close(eight, one, 1e-5);
        }
    }
}

#[test]
fn settings_of_deepseek_that_do_not_fit_are_told() {
    let refusal = |model_type: &str, key: &str, value: Value| {
        let sizes = serde_json::to_value(small(1)).unwrap();
        let mut settings = sizes.as_object().unwrap().clone();
        if model_type != "deepseek_v2" {
            settings.remove("topk_method");
        }
        settings.insert("model_type".into(), json!(model_type));
        settings.insert(key.into(), value);
        let config: Config = serde_json::from_value(Value::Object(settings)).unwrap();
        Decoder::new(config).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let v2 = "deepseek_v2";
    let v3 = "deepseek_v3";
    for (model_type, key, value, expected) in [
        (v2, "kv_lora_rank", json!(null), "`kv_lora_rank` is missing, expected at least 1"),
        (v2, "q_lora_rank", json!(0), "`q_lora_rank` is 0, expected at least 1"),
        (v3, "v_head_dim", json!(0), "`v_head_dim` is 0, expected at least 1"),
        (v3, "qk_rope_head_dim", json!(3), "`qk_rope_head_dim` is 3, expected an even number"),
        (v3, "head_dim", json!(64), "`head_dim` is 64, expected 4, `qk_rope_head_dim`; remove it"),
        (v3, "qk_head_dim", json!(9), "`qk_head_dim` is 9, expected 10, the sum of both parts"),
        (v2, "num_key_value_heads", json!(4), "`num_key_value_heads` is 4, expected 8"),
        (v2, "v_head_dim", json!(1u64 << 62), "`num_attention_heads` is 8, too many for heads of"),
        (v2, "scoring_func", json!("sigmoid"), "`scoring_func` is `sigmoid`, expected `softmax`"),
        (v3, "scoring_func", json!("softmax"), "expected `sigmoid` for `deepseek_v3`"),
        (
            v2,
            "topk_method",
            json!("noaux_tc"),
            "`topk_method` is `noaux_tc`, expected `greedy` or `group_limited_greedy`",
        ),
        (v3, "topk_method", json!("greedy"), "`topk_method` is `greedy`, expected `noaux_tc`"),
        (v2, "topk_method", json!("group_limited_greedy"), "`n_group` is missing, but `topk_m"),
        (v2, "norm_topk_prob", json!(true), "`norm_topk_prob` is true, which transformers ignores"),
        (v2, "mlp_bias", json!(true), "`mlp_bias` is true; in this kind of model, only false"),
        (v2, "n_shared_experts", json!(null), "`n_shared_experts` is missing"),
        (
            v2,
            "num_experts_per_tok",
            json!(null),
            "`num_experts_per_tok` is missing, expected from 1",
        ),
        (
            v2,
            "rope_parameters",
            json!({"rope_type": "yarn", "mscale_all_dim": 1.0}),
            "the scaling of rotations has no number `factor`",
        ),
        (v2, "rope_interleave", json!(true), "`rope_interleave` is true; in this kind of model"),
        ("llama", "kv_lora_rank", json!(8), "in this kind of model, only null is supported"),
    ] {
        let text = refusal(model_type, key, value);
        assert!(text.contains(expected), "{model_type} {key}: {text}");
    }
    // What transformers writes, and what only DeepSeek's own code reads.
    for (key, value) in [("head_dim", json!(4)), ("qk_head_dim", json!(10)), ("ep_size", json!(1))]
    {
        assert_eq!(refusal(v3, key, value), "");
    }
}

#[test]
fn folders_of_fp8_weights_are_refused_with_what_to_do() {
    let copy = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(folder("deepseek_v3/config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["quantization_config"] = json!({"quant_method": "fp8"});
    std::fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    let text = Decoder::from_folder(copy.path()).err().unwrap().to_string();
    assert!(
        text.contains(
            r#"`quantization_config` is {"quant_method":"fp8"}: the weights are quantized"#
        ) && text.contains("convert them to bf16 and remove the key"),
        "{text}"
    );
}
