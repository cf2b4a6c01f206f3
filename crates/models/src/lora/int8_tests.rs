//! Int8 weights under updates: comparison with PyTorch, and with the weights that the integers mean.

use fulmen_nn::loss::{CrossEntropyLoss, LossMethod};
use fulmen_nn::weights::StateDict;
use fulmen_nn::{Init, Linear, MixtureOfExperts};
use fulmen_tensor::{DType, Runtime, TensorType, grad};

use super::*;
use crate::Pretrained;
use crate::decoder::{Config, Decoder};
use crate::gpt2::{self, Gpt2};
use crate::reference::{assert_close, evaluated, folder};

#[test]
fn integers_scales_results_and_gradients_are_pytorchs() {
    let values = StateDict::read(folder("int8.safetensors")).unwrap();
    let value = |name: &str| values.get(name).unwrap().unwrap();
    let layer = Linear::new(12, 7).bias(false);
    layer.weight.set(value("weight").to_tensor());
    let scale = layer.weight.quantize_int8().unwrap();
    let integers = layer.weight.variable().get().eval().unwrap();
    assert_eq!(integers.to_vec::<i8>().unwrap(), value("integers").to_vec::<i8>().unwrap());
    let scales = scale.get().eval().unwrap().to_vec::<f32>().unwrap();
    assert_eq!(scales, value("scale").to_vec::<f32>().unwrap());
    let integers: Vec<f64> = integers.to_f64();
    let expected: Vec<f64> =
        integers.iter().enumerate().map(|(i, q)| f64::from(*q as f32 * scales[i / 12])).collect();
    assert_eq!(layer.weight.get().eval().unwrap().to_f64(), expected);

    // The rows of usual sizes, in f64.
    let rows = Tensor::from_slice(&[0i32, 1, 2, 6], [4]);
    let some = |name: &str, axis: isize| {
        value(name).to_tensor().to_dtype(DType::F64).take(axis, &rows).eval().unwrap().to_tensor()
    };
    let small = Linear::new(12, 4).bias(false);
    small.weight.set(value("weight").to_tensor().take(0, &rows).eval().unwrap().to_tensor());
    small.weight.quantize_int8().unwrap();
    small.to_dtype(DType::F64).unwrap();
    let a = Parameter::from_tensor(value("a").to_tensor().to_dtype(DType::F64));
    let b = Parameter::from_tensor(some("b", 0));
    let update = LowRank { a: a.clone(), b: b.clone(), scale: 1.5, transposed: false };
    small.weight.set_low_rank(Some(update));
    let x = value("x").to_tensor().to_dtype(DType::F64);
    let y = small.forward(&x);
    let loss = (&y * some("cotangent", -1)).sum_all();
    let gradients = grad(&loss, &[x.clone(), a.get(), b.get()]);
    let merged = x.matmul(small.weight.get().t());
    let results = evaluated(&[vec![y, merged], gradients].concat());
    for (actual, name) in results.iter().zip(["y", "y", "gradient.x", "gradient.a"]) {
        assert_close(actual, &value(name).to_f64(), 1e-6);
    }
    let of_b: Vec<f64> = some("gradient.b", 0).eval().unwrap().to_f64();
    assert_close(&results[4], &of_b, 1e-12);
}

fn decoder(scan_layers: bool) -> Decoder {
    let config = Config {
        vocab_size: 20,
        hidden_size: 16,
        intermediate_size: 24,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: Some(2),
        initializer_range: 0.3,
        ..Config::default()
    };
    let mut model = Decoder::new(config).unwrap();
    (model.scan_layers, model.gradient_checkpointing) = (scan_layers, scan_layers);
    model.initialize(1);
    take_values(&model, &model);
    model
}

/// Sets the values of all parameters to those of another model, on the host.
fn take_values(to: &impl Module, from: &impl Module) {
    let values: Vec<Tensor> =
        from.parameters().iter().map(|(_, parameter)| parameter.get()).collect();
    let values = Runtime::global().unwrap().eval_many(&values).unwrap();
    for ((_, parameter), value) in to.parameters().iter().zip(values) {
        parameter.set(value.to_tensor());
    }
}

fn adapted(model: Decoder) -> Lora<Decoder> {
    Lora::new(model, &["*_proj.weight"], 2, 3.0).unwrap()
}

/// Values for the updates, which begin with zeros.
fn set_updates(lora: &Lora<impl Module>) {
    let trained = lora.parameters().into_iter().filter(|(_, parameter)| parameter.requires_grad());
    for (i, (_, parameter)) in trained.enumerate() {
        parameter.set_init(Init::normal(0.0, 0.3));
        parameter.initialize(&fulmen_tensor::random::key(i as u64));
    }
}

fn ids() -> Tensor {
    Tensor::arange(DType::I32, 14).reshape([2, 7])
}

/// The logits, and the gradients of everything that is trained.
fn logits_and_gradients(lora: &Lora<Decoder>) -> Vec<Tensor> {
    let logits = lora.apply(|model| model.forward(ids()));
    let trained = lora.parameters().into_iter().filter(|(_, parameter)| parameter.requires_grad());
    let trained: Vec<Tensor> = trained.map(|(_, parameter)| parameter.get()).collect();
    assert_eq!(trained.len(), 2 * 7 * 2);
    let gradients = grad(&logits.square().mean_all(), &trained);
    [vec![logits], gradients].concat()
}

#[test]
fn logits_and_gradients_are_those_of_the_weights_that_the_integers_mean() {
    let quantized = adapted(decoder(false)).quantize_int8().unwrap();
    set_updates(&quantized);
    let kinds: Vec<String> = quantized
        .model()
        .parameters()
        .iter()
        .filter(|(_, parameter)| parameter.ty().dtype == DType::I8)
        .map(|(name, _)| name.clone())
        .collect();
    assert_eq!(kinds.len(), 2 * 7 + 2, "all but the normalizations: {kinds:?}");
    let plain = adapted(decoder(false));
    set_updates(&plain);
    let scanned = adapted(decoder(true)).quantize_int8().unwrap();
    set_updates(&scanned);
    // In f32, rounding reaches 4e-6 of the largest.
    [&quantized, &plain, &scanned].iter().for_each(|lora| lora.to_dtype(DType::F64).unwrap());
    for ((name, to), (_, from)) in
        plain.model().parameters().iter().zip(quantized.model().parameters())
    {
        to.set(match quantized.scales.0.get(name) {
            // An embedding rounds the products to f32.
            Some(scale) if name != "model.embed_tokens.weight" => {
                let integers = from.variable().get().to_dtype(DType::F64);
                integers * scale.get().to_dtype(DType::F64).unsqueeze(-1)
            }
            _ => from.get(),
        });
    }
    let all = [&quantized, &plain, &scanned].map(logits_and_gradients);
    let count = all[0].len();
    let values = evaluated(&all.concat());
    for i in 0..count {
        assert_close(&values[i], &values[count + i], 1e-9);
        assert_close(&values[2 * count + i], &values[i], 1e-9);
    }
}

/// The loss of the head in chunks or not, and the gradient of an update.
fn loss_and_gradient(lora: &Lora<Decoder>) -> Vec<Tensor> {
    let loss = lora.apply(|model| model.loss(ids(), ids(), &CrossEntropyLoss::new()));
    let trained = lora.adapters.0["model.layers.0.mlp.up_proj"].b.get();
    [vec![loss.clone()], grad(&loss, &[trained])].concat()
}

#[test]
fn the_loss_takes_the_integers_of_the_head() {
    let lora = |method| {
        let mut model = decoder(false);
        model.loss_method = method;
        adapted(model)
    };
    let plain = lora(LossMethod::Plain);
    let quantized =
        [LossMethod::Plain, LossMethod::Chunks].map(|method| lora(method).quantize_int8().unwrap());
    set_updates(&plain);
    quantized.iter().for_each(set_updates);
    take_values(plain.model(), quantized[0].model());
    let all = [&plain, &quantized[0], &quantized[1]].map(loss_and_gradient);
    let values = evaluated(&all.concat());
    for method in [2, 4] {
        assert_close(&values[method], &values[0], 2e-6);
        assert_close(&values[method + 1], &values[1], 1e-5);
    }
}

#[test]
fn weights_of_other_layers_keep_their_dtype() {
    let config = gpt2::Config {
        vocab_size: 20,
        n_positions: 8,
        n_embd: 16,
        n_layer: 1,
        n_head: 2,
        initializer_range: 0.3,
        ..gpt2::Config::default()
    };
    let make = || {
        let model = Gpt2::new(config.clone()).unwrap();
        model.initialize(1);
        take_values(&model, &model);
        Lora::new(model, &["*.c_attn.weight", "*.wte.weight"], 2, 3.0).unwrap()
    };
    let quantized = make().quantize_int8().unwrap();
    let int8: Vec<String> = quantized
        .model()
        .parameters()
        .into_iter()
        .filter(|(_, parameter)| parameter.ty().dtype == DType::I8)
        .map(|(name, _)| name)
        .collect();
    assert_eq!(int8, ["transformer.wte.weight", "transformer.wpe.weight"]);
    let plain = make();
    take_values(plain.model(), quantized.model());
    let ids = Tensor::arange(DType::I32, 14).reshape([2, 7]);
    let logits = [quantized, plain].map(|lora| {
        set_updates(&lora);
        lora.eval();
        lora.apply(|model| model.forward(&ids))
    });
    let values = evaluated(&logits);
    assert_close(&values[0], &values[1], 2e-6);
}

#[test]
fn a_second_call_and_another_dtype_keep_integers_and_scales() {
    let once = adapted(decoder(false)).quantize_int8().unwrap();
    let contents = |lora: &Lora<Decoder>| {
        let weight = &lora.model().lm_head.weight;
        let scale = &lora.scales.0["lm_head.weight"];
        evaluated(&[weight.variable().get(), scale.get()])
    };
    let before = contents(&once);
    let twice = once.quantize_int8().unwrap();
    assert_eq!(contents(&twice), before);
    twice.to_dtype(DType::Bf16).unwrap();
    assert_eq!(contents(&twice), before);
    let dtype = |name: &str| {
        let all = twice.parameters();
        all.iter().find(|(other, _)| other == name).unwrap().1.ty().dtype
    };
    assert_eq!(dtype("lm_head.weight"), DType::I8);
    assert_eq!(dtype("lm_head.weight_scale"), DType::F32);
    assert_eq!(dtype("model.norm.weight"), DType::Bf16);
    assert_eq!(twice.model().lm_head.weight.get().dtype(), DType::Bf16);
    let plain = adapted(decoder(false));
    plain.to_dtype(DType::Bf16).unwrap();
    let [logits, expected] = [&twice, &plain].map(|lora| lora.apply(|model| model.forward(ids())));
    assert_eq!(logits.ty(), expected.ty());
}

#[test]
fn adapters_and_merged_models_are_saved_as_without_int8() {
    let directory = tempfile::tempdir().unwrap();
    let [base, adapter, merged] = ["base", "adapter", "merged"].map(|n| directory.path().join(n));
    let model = decoder(false);
    model.to_dtype(DType::Bf16).unwrap();
    model.save_pretrained(&base).unwrap();
    let read = || {
        let model = Decoder::from_folder(&base).unwrap();
        assert!(model.lm_head.weight.get().is_on_host());
        Lora::new(model, &["*_proj.weight"], 2, 3.0).unwrap().quantize_int8().unwrap()
    };
    let lora = read();
    set_updates(&lora);
    let logits = lora.apply(|model| model.forward(ids()));
    lora.save_pretrained(&adapter).unwrap();
    let names: Vec<String> = StateDict::read(&adapter.join("adapter_model.safetensors"))
        .unwrap()
        .iter()
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_eq!(names.len(), 28);
    assert!(names.iter().all(|name| name.contains(".lora_A.") || name.contains(".lora_B.")));
    lora.apply(|model| model.save_pretrained(&merged)).unwrap();
    let again = Lora::from_folder(Decoder::from_folder(&base).unwrap(), &adapter).unwrap();
    let again = again.quantize_int8().unwrap().apply(|model| model.forward(ids()));
    let saved = Decoder::from_folder(&merged).unwrap();
    let head = saved.lm_head.weight.ty();
    let unloaded = lora.merge_and_unload();
    assert_eq!(unloaded.lm_head.weight.ty(), head);
    let all = [logits, again, saved.forward(ids()), unloaded.forward(ids())];
    let all = evaluated(&all);
    assert_eq!(all[0], all[1]);
    // The merged weights have the dtype of the model's.
    let tolerance = if head.dtype == DType::F32 { 1e-5 } else { 2e-2 };
    assert_close(&all[2], &all[0], tolerance);
    assert_close(&all[3], &all[2], 1e-6);
}

#[test]
fn what_cannot_be_int8_is_told() {
    let model = decoder(false);
    model.lm_head.weight.set(Tensor::full(DType::F32, [20, 16], f64::NAN));
    let text = adapted(model).quantize_int8().err().unwrap().to_string();
    assert!(text.contains("`lm_head.weight`") && text.contains("an infinity or NaN"), "{text}");
    let experts = MixtureOfExperts::new(4, 8, 2);
    let lora = Lora::new(experts, &["gate.weight"], 2, 1.0).unwrap();
    let text = lora.quantize_int8().err().unwrap().to_string();
    assert!(text.contains("no frozen weight of a linear layer or an embedding"), "{text}");
    let lora = adapted(decoder(false)).quantize_int8().unwrap();
    let text = lora.modules_to_save(&["lm_head"]).err().unwrap().to_string();
    assert!(text.contains("trains `lm_head.weight`, which is int8"), "{text}");
    // A model without values.
    let config = decoder(false).config().clone();
    let lora = adapted(Decoder::new(config).unwrap()).quantize_int8().unwrap();
    assert_eq!(*lora.model().lm_head.weight.ty().shape, [20, 16]);
    lora.initialize(0);
    let fault = lora.model().forward(ids()).fault().unwrap().to_string();
    assert!(fault.contains("an int8 weight cannot be initialized"), "{fault}");
    // A folder's weights come before.
    let folder = tempfile::tempdir().unwrap();
    decoder(false).save_pretrained(folder.path()).unwrap();
    let file = folder.path().join("model.safetensors");
    let text = load_weights(lora.model(), file, Strictness::Strict).unwrap_err().to_string();
    assert!(
        text.contains("lm_head.weight: the model has i8[20, 16], the file f32[20, 16]"),
        "{text}"
    );
    // A scan needs the same updates in all layers.
    let lora =
        Lora::new(decoder(true), &["model.layers.0.self_attn.q_proj.weight"], 2, 3.0).unwrap();
    let logits = lora.apply(|model| model.forward(ids()));
    let fault = logits.fault().unwrap().to_string();
    assert!(
        fault.contains("`0.self_attn.q_proj.weight.lora_A` f32[2, 16]; a scan needs equal layers"),
        "{fault}"
    );
    let vector = Parameter::with_type(TensorType::new(DType::F32, [3]), Init::zeros());
    let text = vector.quantize_int8().err().unwrap().to_string();
    assert!(text.contains("cannot store f32[3] as int8, expected a matrix"), "{text}");
}
