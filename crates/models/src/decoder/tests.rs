//! Comparison with transformers.

use fulmen_nn::auto_kernels::{AutoKernel, with_auto_kernels};
use fulmen_tensor::{Function, Runtime, Scan, TensorType, autocast, grad, random};

use super::*;
use crate::Lora;
use crate::reference::{
    ExpectedValues, borrow_tensors, check_decoder, check_packing, folder, outputs_without_cache,
};

fn load(name: &str) -> Decoder {
    Decoder::from_folder(folder(name)).unwrap_or_else(|e| panic!("{e}"))
}

#[track_caller]
fn check(name: &str) {
    let model = load(name);
    check_decoder(name, &model, |ids| model.forward(ids));
}

#[test]
fn llama_of_bf16_gives_transformers_logits_and_tokens() {
    check("llama");
}

#[test]
fn gemma3_gives_transformers_logits_and_tokens() {
    check("gemma3");
}

/// Qwen 3 has an older config, and Mistral's file is the pickle of a wrapped model.
#[test]
fn the_others_give_transformers_logits_and_tokens_without_a_cache() {
    for name in ["qwen2", "qwen3", "mistral", "gemma", "gemma2"].into_iter().chain([
        "qwen2_moe",
        "qwen3_moe",
        "dots1",
        "glm4_moe",
        "deepseek_v2_lite",
        "deepseek_v3",
    ]) {
        let model = load(name);
        let expected = ExpectedValues::read(name);
        expected
            .check(&borrow_tensors(&outputs_without_cache(&expected, |ids| model.forward(ids))));
    }
}

#[test]
#[ignore = "eleven programs more, for minutes: cargo test -p fulmen-models -- --ignored the_others"]
fn the_others_give_transformers_tokens_with_a_cache() {
    ["qwen2", "qwen3", "mistral", "gemma", "gemma2"].into_iter().for_each(check);
    ["qwen2_moe", "qwen3_moe", "dots1", "glm4_moe"].into_iter().for_each(check);
    ["deepseek_v2_lite", "deepseek_v3"].into_iter().for_each(check);
}

#[test]
fn mixtral_gives_transformers_logits_and_tokens() {
    check("mixtral");
}

/// The losses and the gradients of a model with experts, under the names of the expected ones.
fn losses_and_gradients(model: &Decoder, ids: &Tensor) -> Vec<(String, Tensor)> {
    let ignored = Tensor::full(DType::I32, [2, 1], -100.0);
    let targets = Tensor::concatenate(&[&ids.narrow(1, 1, 6), &ignored], 1);
    let loss = model.loss(ids, &targets, &CrossEntropyLoss::new().ignore_index(-100));
    let balance = model.forward_with_routers(ids).1.unwrap().load_balancing_loss();
    let parameters = model.parameters();
    let weights: Vec<Tensor> = parameters.iter().map(|(_, weight)| weight.get()).collect();
    let gradients = grad(&loss, &weights);
    let mut all = vec![("loss".to_owned(), loss), ("balance".to_owned(), balance)];
    for ((name, _), gradient) in parameters.into_iter().zip(gradients) {
        let name = format!("gradient.{}", name.replace("shared_experts", "shared_expert"));
        match (name.strip_suffix("gate_proj"), name.strip_suffix("up_proj")) {
            // transformers has both in one tensor.
            (Some(start), _) => all.push((format!("{start}gate_up_proj"), gradient)),
            (_, Some(_)) => {
                let last = all.last_mut().unwrap();
                last.1 = Tensor::concatenate(&[&last.1, &gradient], 1);
            }
            _ => all.push((name, gradient)),
        }
    }
    all
}

#[test]
fn losses_and_gradients_of_experts_are_transformers_also_in_scans_that_compute_again() {
    for (name, scan) in [("mixtral", true), ("qwen2_moe", false), ("qwen3_moe", false)] {
        let mut model = load(name);
        model.router_aux_loss_coef = model.config().router_aux_loss_coef.unwrap();
        (model.scan_layers, model.gradient_checkpointing) = (scan, scan);
        let expected = ExpectedValues::read(name);
        let all = losses_and_gradients(&model, &expected.tensor("ids"));
        let all: Vec<(&str, &Tensor)> = all.iter().map(|(name, x)| (name.as_str(), x)).collect();
        expected.check(&all);
    }
}

#[test]
fn a_folder_with_experts_is_saved_as_published_ones_are() {
    let deepseek = ["deepseek_v2", "deepseek_v2_lite", "deepseek_v3"];
    for name in ["mixtral", "qwen2_moe", "dots1", "glm4_moe"].into_iter().chain(deepseek) {
        let saved = tempfile::tempdir().unwrap();
        load(name).save_pretrained(saved.path()).unwrap();
        let [old, new] =
            [folder(name), saved.path().to_owned()].map(|folder| StateDict::read(folder).unwrap());
        if name == "qwen2_moe" {
            // The reference has transformers' own form.
            let weight = "model.layers.1.mlp.experts.3.up_proj.weight";
            assert_eq!(new.get(weight).unwrap().unwrap().ty().to_string(), "f32[8, 16]");
            assert!(new.iter().any(|(name, _)| name.contains("mlp.shared_expert.gate_proj")));
        } else {
            let list = |values: &StateDict| -> Vec<(String, Vec<f64>)> {
                let value = |name: &str| values.get(name).unwrap().unwrap().to_f64();
                values.iter().map(|(name, _)| (name.to_owned(), value(name))).collect()
            };
            assert!(list(&old) == list(&new), "{name}");
        }
        let again = Decoder::from_folder(saved.path()).unwrap();
        assert_eq!(again.config().experts(), load(name).config().experts());
        assert_eq!(again.config().rope_parameters, load(name).config().rope_parameters);
        assert_eq!(again.config().q_lora_rank, load(name).config().q_lora_rank);
    }
}

/// The values of another module, and those of a layer that predicts further tokens.
struct WithPredictionLayer(Decoder);

impl Module for WithPredictionLayer {
    fn visit(&self, visit: &mut fulmen_nn::Visit<'_>) {
        visit.flatten(&self.0);
        for name in ["eh_proj.weight", "self_attn.q_proj.weight", "shared_head.norm.weight"] {
            let parameter = Parameter::from_tensor(Tensor::zeros(DType::F32, [1]));
            visit.child(&format!("model.layers.2.{name}"), &parameter);
        }
    }
}

#[test]
fn layers_that_predict_further_tokens_are_not_read() {
    for name in ["glm4_moe", "deepseek_v3"] {
        let copy = tempfile::tempdir().unwrap();
        let config = folder(name).join("config.json");
        std::fs::copy(config, copy.path().join("config.json")).unwrap();
        let module = WithPredictionLayer(load(name));
        let file = copy.path().join("model.safetensors");
        fulmen_nn::weights::save_weights(&module, &file).unwrap();
        let again = Decoder::from_folder(copy.path()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(again.parameters().len(), module.0.parameters().len());
    }
}

#[test]
fn settings_of_experts_that_do_not_fit_are_told() {
    let refusal = |config: Config| Decoder::new(config).err().unwrap().to_string();
    let text = refusal(Config { num_experts_per_tok: Some(9), ..Config::new(ModelType::Mixtral) });
    let expected = "`num_experts_per_tok` is 9, expected from 1 to 8, the number of experts";
    assert!(text.contains(expected), "{text}");
    let text = refusal(Config { num_local_experts: Some(8), ..Config::default() });
    assert!(text.contains("`num_local_experts` is 8; in this kind of model, only null"), "{text}");
    let text = refusal(Config::new(ModelType::Dots1));
    assert!(text.contains("`n_routed_experts` is missing"), "{text}");
}

#[test]
fn packed_documents_are_the_documents_alone_with_windows_and_scans() {
    let sizes = Config {
        vocab_size: 20,
        hidden_size: 8,
        intermediate_size: 12,
        num_hidden_layers: 4,
        num_attention_heads: 2,
        num_key_value_heads: Some(1),
        head_dim: Some(4),
        ..Config::default()
    };
    let config = Config {
        model_type: ModelType::Gemma2,
        sliding_window: Some(40),
        query_pre_attn_scalar: Some(4),
        attn_logit_softcapping: Some(2.0),
        ..sizes
    };
    // More than one block.
    check_packing(Decoder::new(config).unwrap(), 600, |model, packed, method| {
        model.attention = method;
        model.scan_layers = true;
        model.gradient_checkpointing = true;
        match packed {
            [ids] => model.forward(ids),
            [ids, segment_ids, positions] => model.forward_packed(ids, segment_ids, positions),
            _ => panic!("ids, or ids with segments and positions"),
        }
    });
}

#[test]
fn packed_documents_are_the_documents_alone_with_experts() {
    let sizes = Config { vocab_size: 20, hidden_size: 8, intermediate_size: 12, ..mixtral() };
    check_packing(Decoder::new(sizes).unwrap(), 30, |model, packed, method| {
        model.attention = method;
        match packed {
            [ids] => model.forward(ids),
            [ids, segment_ids, positions] => model.forward_packed(ids, segment_ids, positions),
            _ => panic!("ids, or ids with segments and positions"),
        }
    });
}

fn mixtral() -> Config {
    Config {
        num_hidden_layers: 1,
        num_attention_heads: 2,
        num_key_value_heads: Some(1),
        head_dim: Some(4),
        ..Config::new(ModelType::Mixtral)
    }
}

#[test]
fn the_bias_of_experts_moves_in_a_loss_with_a_rate() {
    let mut model = load("dots1");
    model.router_balance_rate = 0.25;
    let bias = |model: &Decoder| {
        let gate = &model.model.layers[1].mlp.experts().unwrap().gate;
        gate.e_score_correction_bias.as_ref().unwrap().get()
    };
    let before = bias(&model);
    let ids = ExpectedValues::read("dots1").tensor("ids");
    let loss = model.loss(&ids, &ids, &CrossEntropyLoss::new());
    let all = evaluated(&[before, bias(&model), loss]);
    let steps: Vec<f64> = all[0].iter().zip(&all[1]).map(|(a, b)| (b - a).abs()).collect();
    assert!(steps.iter().all(|step| [0.0, 0.25].iter().any(|x| (step - x).abs() < 1e-6)));
    assert!(steps.iter().any(|step| *step > 0.1), "{steps:?}");
}

#[test]
fn documents_that_do_not_fit_are_told() {
    let model = Decoder::new(Config { num_hidden_layers: 1, ..Config::default() }).unwrap();
    let ids = Tensor::zeros(DType::I32, [2, 5]);
    let short = Tensor::zeros(DType::I32, [1, 5]);
    let halves = Tensor::zeros(DType::F32, [2, 5]);
    let fault = |segment_ids, positions| {
        model.forward_packed(&ids, segment_ids, positions).fault().unwrap().to_string()
    };
    let text = fault(&short, &ids);
    let expected = "the segment ids i32[1, 5] must be integers of the shape of the ids i32[2, 5]";
    assert!(text.contains(expected) && text.contains("decoder/tests.rs"), "{text}");
    let text = fault(&ids, &halves);
    assert!(text.contains("the positions f32[2, 5] must be integers"), "{text}");
}

#[test]
fn long_sequences_of_many_heads_are_computed_in_blocks() {
    let llama = |length, layers| StepSizes {
        length,
        heads: 32,
        vocabulary: 128_256,
        layers,
        width: 128,
        dtype: DType::Bf16,
        has_dropout: false,
    };
    let auto = |sizes: StepSizes| sizes.decide(AttentionMethod::Auto);
    assert_eq!(auto(llama(6012, 1)), AttentionMethod::Plain);
    assert_eq!(auto(llama(6013, 1)), AttentionMethod::Blocks);
    assert_eq!(auto(llama(2048, 32)), AttentionMethod::Plain);
    assert_eq!(auto(llama(2049, 32)), AttentionMethod::Blocks);
    assert_eq!(llama(1 << 20, 1).decide(AttentionMethod::Plain), AttentionMethod::Plain);
    assert_eq!(llama(1, 1).decide(AttentionMethod::Blocks), AttentionMethod::Blocks);
}

#[test]
fn decoders_take_an_approved_kernel_unless_something_is_dropped_or_cached() {
    let sizes = Config {
        vocab_size: 20,
        hidden_size: 8,
        intermediate_size: 12,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        ..Config::default()
    };
    let taken = |dropout: f64, dtype: DType, length: usize| {
        let config = Config { attention_dropout: dropout, ..sizes.clone() };
        let model = Decoder::new(config).unwrap();
        let ids = Tensor::zeros(DType::I32, [1, length]);
        model.initialize(0);
        model.set_random_key(&random::key(0));
        let record = || autocast(Some(dtype), || model.forward(&ids));
        let (logits, taken) = with_auto_kernels(&AutoKernel::ALL, record);
        assert!(logits.fault().is_none(), "{logits:?}");
        let methods = taken[&AutoKernel::Attention].methods.iter();
        methods.cloned().collect::<Vec<_>>().join(" and ")
    };
    assert_eq!(taken(0.0, DType::Bf16, 128), "kernel");
    assert_eq!(taken(0.1, DType::Bf16, 128), "plain");
    assert_eq!(taken(0.0, DType::F16, 128), "plain");
    assert_eq!(taken(0.0, DType::Bf16, 127), "plain");
}

/// Gemma 2 with a tied head and bounded logits.
fn gemma2() -> Config {
    let sizes = Config {
        vocab_size: 20,
        hidden_size: 8,
        intermediate_size: 12,
        num_hidden_layers: 4,
        num_attention_heads: 2,
        head_dim: Some(4),
        ..Config::default()
    };
    Config {
        model_type: ModelType::Gemma2,
        sliding_window: Some(4),
        query_pre_attn_scalar: Some(4),
        final_logit_softcapping: Some(2.0),
        ..sizes
    }
}

fn evaluated(tensors: &[Tensor]) -> Vec<Vec<f64>> {
    let values = Runtime::global().unwrap().eval_many(tensors).unwrap();
    values.iter().map(|value| value.to_f64()).collect()
}

#[test]
fn the_loss_in_chunks_is_the_plain_one_for_packed_documents_tied_weights_and_lora() {
    let mut model = Decoder::new(gemma2()).unwrap();
    model.loss_method = LossMethod::Chunks;
    model.scan_layers = true;
    model.gradient_checkpointing = true;
    let lora = Lora::new(model, &["*.q_proj.weight", "*.embed_tokens.weight"], 2, 4.0).unwrap();
    lora.initialize(0);
    for (name, parameter) in lora.parameters() {
        // Some gradients are small differences of large numbers.
        parameter.to_dtype(DType::F64).unwrap();
        if name.ends_with("lora_B.weight") {
            parameter.set(parameter.get() + 0.1);
        }
    }
    let integers = |of: fn(i32) -> i32| {
        let numbers: Vec<i32> = (0..18).map(of).collect();
        Tensor::from_slice(&numbers, [2, 9])
    };
    let ids = integers(|i| i * i * 7 % 19);
    let documents = integers(|i| 1 + i % 9 / 5);
    let positions = integers(|i| if i % 9 < 5 { i % 9 } else { i % 9 - 5 });
    let targets = integers(|i| if i % 9 % 5 == 4 { -100 } else { i * i % 19 });
    let loss = CrossEntropyLoss::new().ignore_index(-100).z_loss(0.1);
    let both = lora.apply(|model| {
        let logits = model.forward_packed(&ids, &documents, &positions);
        let in_chunks = model.loss_packed(&ids, &documents, &positions, &targets, &loss);
        [loss.forward(logits, &targets), in_chunks]
    });
    let trained = lora.parameters().into_iter().filter(|(_, weight)| weight.requires_grad());
    let trained: Vec<Tensor> = trained.map(|(_, weight)| weight.get()).collect();
    let of = |loss: &Tensor| [vec![loss.clone()], grad(loss, &trained)].concat();
    let all = evaluated(&[of(&both[0]), of(&both[1])].concat());
    let (plain, chunks) = all.split_at(all.len() / 2);
    for (plain, chunks) in plain.iter().zip(chunks) {
        let largest = plain.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
        assert!(largest > 0.0);
        for (a, b) in plain.iter().zip(chunks) {
            assert!((a - b).abs() <= 1e-12 * largest, "{a} and {b}; the largest is {largest}");
        }
    }
}

#[test]
fn a_large_vocabulary_is_computed_in_chunks_or_by_an_approved_kernel() {
    let text = |vocab_size| {
        let model = Decoder::new(Config { vocab_size, num_hidden_layers: 1, ..gemma2() }).unwrap();
        for (_, weight) in model.parameters() {
            weight.set(Tensor::zeros(DType::F32, weight.ty().shape));
        }
        let ids = TensorType::new(DType::I32, [1, 1024]);
        let function =
            Function::trace("loss", ids, |ids| model.loss(&ids, &ids, &CrossEntropyLoss::new()));
        function.stablehlo().unwrap()
    };
    let loops = |vocab_size| text(vocab_size).matches("stablehlo.while").count();
    assert_eq!([262_144, 262_145].map(loops), [0, 1]);
    let (text, taken) = with_auto_kernels(&[AutoKernel::Loss], || text(262_145));
    assert!(text.contains("@linear_cross_entropy("));
    assert!(taken[&AutoKernel::Loss].methods.contains("kernel"));
}

/// The losses of 200 steps of Adam on one batch.
fn curve(residual_dtype: Option<DType>, products: Option<DType>) -> Vec<f64> {
    let config = Config { hidden_size: 16, num_hidden_layers: 2, head_dim: None, ..gemma2() };
    let config = Config {
        model_type: ModelType::Llama,
        sliding_window: None,
        query_pre_attn_scalar: None,
        final_logit_softcapping: None,
        ..config
    };
    let mut model = Decoder::new(config).unwrap();
    model.residual_dtype = residual_dtype;
    model.initialize(3);
    let ids: Vec<i32> = (0..132).map(|i| (i * i * i + 5 * i) % 19).collect();
    let ids = Tensor::from_slice(&ids, [4, 33]);
    let weights: Vec<Parameter> = model.parameters().into_iter().map(|(_, w)| w).collect();
    let start: Vec<Tensor> = weights.iter().map(Parameter::get).collect();
    let zeros: Vec<Tensor> = start.iter().map(Tensor::zeros_like).collect();
    let init = [start, zeros.clone(), zeros].concat();
    let count = weights.len();
    let (_, losses) = Scan::new().length(200).run(init, (), |state, ()| {
        let values = &state[..count];
        weights.iter().zip(values).for_each(|(weight, value)| weight.set(value.clone()));
        let loss = autocast(products, || {
            let targets = ids.narrow(1, 1, 32);
            model.loss(ids.narrow(1, 0, 32), &targets, &CrossEntropyLoss::new())
        });
        let gradients = grad(&loss, values);
        let mut next = [Vec::new(), Vec::new(), Vec::new()];
        for (i, gradient) in gradients.iter().enumerate() {
            let mean = &state[count + i] * 0.9 + gradient * 0.1;
            let square = &state[2 * count + i] * 0.99 + gradient * gradient * 0.01;
            next[0].push(&values[i] - &mean / (square.sqrt() + 1e-8) * 0.002);
            next[1].push(mean);
            next[2].push(square);
        }
        (next.concat(), loss)
    });
    evaluated(&[losses]).remove(0)
}

#[test]
fn a_residual_stream_in_bf16_learns_like_one_in_f32() {
    let exact = curve(None, None);
    let mixed = curve(None, Some(DType::Bf16));
    let narrow = curve(Some(DType::Bf16), Some(DType::Bf16));
    let distance = |curve: &[f64]| {
        exact.iter().zip(curve).fold(0.0f64, |largest, (a, b)| largest.max((a - b).abs()))
    };
    let distances = [distance(&mixed), distance(&narrow)];
    println!("from {} to {}: {distances:?} off", exact[0], exact[199]);
    assert!(exact[199] < 0.7 * exact[0], "{} and {}", exact[0], exact[199]);
    assert!(distances[1] > 0.0 && distances[1] < 0.05, "{distances:?}");
}

#[test]
fn the_backward_pass_keeps_the_residual_stream_in_its_dtype() {
    let program = |residual_dtype| {
        let mut model = Decoder::new(Config { hidden_size: 24, ..gemma2() }).unwrap();
        model.residual_dtype = residual_dtype;
        model.scan_layers = true;
        model.gradient_checkpointing = true;
        model.initialize(0);
        let weights: Vec<Tensor> = model.parameters().iter().map(|(_, w)| w.get()).collect();
        let function = Function::trace("step", TensorType::new(DType::I32, [3, 7]), |ids| {
            let loss =
                autocast(Some(DType::Bf16), || model.loss(&ids, &ids, &CrossEntropyLoss::new()));
            grad(&loss, &weights)
        });
        function.stablehlo().unwrap()
    };
    // Two steps of two layers each.
    let kept = |program: &str, dtype: &str| program.contains(&format!("tensor<2x3x7x24x{dtype}>"));
    let wide = program(None);
    assert!(kept(&wide, "f32") && !kept(&wide, "bf16"));
    let narrow = program(Some(DType::Bf16));
    assert!(kept(&narrow, "bf16") && !kept(&narrow, "f32"));
}

#[test]
fn the_backward_pass_keeps_two_products_of_each_gated_network() {
    const LAYERS: usize = 4;
    const INNER: usize = 1024;
    const LENGTH: usize = 128;
    let config = Config {
        vocab_size: 20,
        hidden_size: 16,
        intermediate_size: INNER,
        num_hidden_layers: LAYERS,
        num_attention_heads: 2,
        ..Config::default()
    };
    let model = Decoder::new(config).unwrap();
    model.initialize(0);
    let ids = TensorType::new(DType::I32, [1, LENGTH]);
    let step = Function::trace("step", ids, |ids| {
        let parameters: Vec<Tensor> = model.parameters().iter().map(|(_, p)| p.get()).collect();
        grad(&model.forward(ids).square().mean_all(), &parameters)
    });
    let compiled = Runtime::global().unwrap().compile(&step).unwrap();
    let bytes = compiled.executable().memory_analysis().unwrap().temp_bytes as usize;
    let of_inner = bytes as f64 / (4 * LENGTH * INNER) as f64;
    println!("{of_inner} values of the inner size");
    // Five of each network would be 20: both products, the sigmoid, the activation and their product.
    assert!(of_inner > 2.0 * LAYERS as f64 && of_inner < 3.8 * LAYERS as f64, "{of_inner}");
}
