//! Parameters that are tied after the model was built, and whole models that change their element
//! type.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{assert_close, fault, values};
use fulmen_nn::safetensors::{read, write};
use fulmen_nn::weights::{Strictness, load_weights, save_weights};
use fulmen_nn::{
    BatchNorm2d, Buffer, Conv2d, Embedding, Init, Linear, ModelSummary, Module, Parameter,
};
use fulmen_tensor::{DType, Sharding, Tensor, TensorType, grad, random};

/// A minimal language model: the weight of the output layer has the shape of the embedding's.
#[derive(Module)]
struct Words {
    embed: Embedding,
    head: Linear,
}

impl Words {
    fn new() -> Words {
        Words { embed: Embedding::new(5, 3), head: Linear::new(3, 5).bias(false) }
    }

    /// Takes `&self`, as in a hook.
    fn tie(&self) {
        self.head.weight.tie(&self.embed.weight).unwrap_or_else(|e| panic!("{e}"));
    }

    fn loss(&self) -> Tensor {
        let words = Tensor::from_slice(&[0i32, 3, 3, 4], [4]);
        let logits = self.head.forward(&self.embed.forward(&words).tanh());
        (&logits * &logits).mean_all()
    }
}

#[test]
fn a_shared_parameter_is_marked_in_the_summary() {
    let words = Words::new();
    assert!(!ModelSummary::new(&words, 1).to_string().contains("shared"));
    words.tie();
    let summary = ModelSummary::new(&words, 1);
    assert_eq!(summary.rows()[0][3], "weight f32[5, 3]");
    assert_eq!(summary.rows()[1][3], "weight f32[5, 3] shared with embed.weight");
    assert_eq!(summary.total(), "15 parameters; 60 bytes");
}

fn names(module: &impl Module) -> Vec<String> {
    module.parameters().into_iter().map(|(name, _)| name).collect()
}

#[test]
fn tied_parameters_are_one_for_all_that_ask() {
    let words = Words::new();
    words.initialize(1);
    let before = (words.embed.weight.clone(), words.head.weight.clone());
    assert_eq!(words.num_parameters(), 30);
    assert_ne!(values(&words.embed.weight.get()), values(&words.head.weight.get()));
    let expected = values(&words.embed.weight.get());
    words.tie();
    assert_eq!(names(&words), ["embed.weight"]);
    assert_eq!(words.num_parameters(), 15);
    assert_eq!(words.state().len(), 1);
    assert_eq!(values(&words.head.weight.get()), expected, "the value is that of the one tied to");

    // Clones made before the tying share the value too, in both directions.
    assert!(before.0.is(&before.1) && before.1.is(&words.embed.weight));
    before.1.set(Tensor::ones(DType::F32, [5, 3]));
    assert_eq!(values(&words.embed.weight.get()), [1.0; 15]);
    before.0.set_requires_grad(false);
    assert!(!words.head.weight.requires_grad());
    // Tying again changes nothing.
    words.tie();
    words.embed.weight.tie(&words.head.weight).unwrap();
    assert_eq!(names(&words), ["embed.weight"]);
}

#[test]
fn the_gradient_of_a_tied_weight_is_the_sum_of_both() {
    let untied = Words::new();
    let tied = Words::new();
    let value = random::normal(&random::key(3), DType::F32, [5, 3]);
    for parameter in [&untied.embed.weight, &untied.head.weight, &tied.embed.weight] {
        parameter.set(Tensor::from_slice(
            &values(&value).iter().map(|&v| v as f32).collect::<Vec<_>>(),
            [5, 3],
        ));
    }
    tied.tie();
    let gradients = grad(&untied.loss(), &[&untied.embed.weight.get(), &untied.head.weight.get()]);
    let gradient = grad(&tied.loss(), &[&tied.embed.weight.get()]);
    assert_close(
        &values(&gradient[0]),
        &values(&(&gradients[0] + &gradients[1])),
        1e-5,
        1e-6,
        "gradient",
    );
}

#[test]
fn ties_go_along_with_what_is_tied_on() {
    let p: Vec<Parameter> = (0..5).map(|i| Parameter::new([2], Init::Constant(i.into()))).collect();
    p[0].tie(&p[1]).unwrap();
    p[2].tie(&p[0]).unwrap();
    p[3].tie(&p[4]).unwrap();
    assert!(p[0].is(&p[2]) && !p[0].is(&p[3]));
    // All five are now the same as the last one.
    p[2].tie(&p[3]).unwrap();
    p.initialize(0);
    for parameter in &p {
        assert!(parameter.is(&p[4]));
        assert_eq!(values(&parameter.get()), [4.0; 2]);
    }
    assert_eq!(names(&p), ["0"]);
}

#[test]
fn a_sharding_is_the_parameters_under_all_its_names() {
    let words = Words::new();
    assert!(words.embed.weight.sharding().is_none());
    let rows = Sharding::new([Some("model"), None]);
    words.embed.weight.with_sharding(rows.clone());
    words.tie();
    assert_eq!(words.head.weight.sharding(), Some(rows));
    words.initialize(0);
    words.head.weight.with_sharding(Sharding::over([vec!["data"], vec!["model"]]));
    assert!(words.embed.weight.get().fault().is_none());
    words.head.weight.with_sharding(Sharding::new([None, None, Some("model")]));
    let text = fault(&words.loss());
    assert!(text.contains("the sharding [-, -, model] has more axes than f32[5, 3]"), "{text}");
    assert!(text.contains("given at") && text.contains("tying.rs"), "{text}");
}

#[test]
fn what_differs_in_type_cannot_be_tied_and_stays() {
    let a = Parameter::new([2, 3], Init::zeros());
    for ty in [TensorType::new(DType::F32, [3, 2]), TensorType::new(DType::Bf16, [2, 3])] {
        let b = Parameter::with_type(ty.clone(), Init::zeros());
        let error = a.tie(&b).unwrap_err();
        assert!(error.is_usage());
        let text = error.to_string();
        assert!(
            text.contains("f32[2, 3]")
                && text.contains(&ty.to_string())
                && text.contains("tying.rs"),
            "{text}"
        );
        assert!(!a.is(&b));
        assert_eq!(b.ty(), ty);
    }
}

#[test]
fn threads_that_tie_two_parameters_to_each_other_make_one() {
    for _ in 0..50 {
        let p: Vec<Parameter> = (0..3).map(|_| Parameter::new([1], Init::zeros())).collect();
        std::thread::scope(|scope| {
            for (from, to) in [(0, 1), (1, 2), (2, 0)] {
                let p = &p;
                scope.spawn(move || p[from].tie(&p[to]).unwrap());
            }
        });
        assert!(p[0].is(&p[1]) && p[1].is(&p[2]));
    }
}

fn file(path: &Path, tensors: &[(&str, f32)]) {
    let value =
        |x: f32| Tensor::from_slice(&[x; 15], [5, 3]).eval().unwrap_or_else(|e| panic!("{e}"));
    let tensors: Vec<_> = tensors.iter().map(|&(name, x)| (name.to_owned(), value(x))).collect();
    write(path, &tensors, &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_tied_weight_is_saved_once_and_read_from_files_with_one_name_or_both() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("words.safetensors");
    let words = Words::new();
    words.initialize(0);
    words.tie();
    save_weights(&words, &path).unwrap();
    assert_eq!(read(&path).unwrap().0.into_keys().collect::<Vec<_>>(), ["embed.weight"]);

    for names in [&["embed.weight"][..], &["head.weight"], &["embed.weight", "head.weight"]] {
        file(&path, &names.iter().map(|&name| (name, 2.0)).collect::<Vec<_>>());
        let words = Words::new();
        words.tie();
        let report = load_weights(&words, &path, Strictness::Strict).unwrap();
        assert!(report.is_complete());
        assert_eq!(values(&words.head.weight.get()), [2.0; 15]);
    }
}

#[test]
fn two_values_for_one_parameter_are_refused_or_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("words.safetensors");
    file(&path, &[("embed.weight", 1.0), ("head.weight", 2.0)]);
    let words = Words::new();
    words.tie();
    let error = load_weights(&words, &path, Strictness::Strict).unwrap_err();
    assert!(error.is_mismatch());
    let text = error.to_string();
    assert!(
        text.contains(
            "embed.weight and head.weight: one parameter in the model, two values in the file"
        ),
        "{text}"
    );
    assert!(!words.embed.weight.is_set());

    let report = load_weights(&words, &path, Strictness::Lenient).unwrap();
    assert_eq!(
        (&*report.conflicting[0].name, &*report.conflicting[0].other),
        ("embed.weight", "head.weight")
    );
    assert!(report.to_string().contains("embed.weight and head.weight"));
    assert_eq!(values(&words.embed.weight.get()), [1.0; 15]);
    // Parameters that are not tied do not conflict.
    assert!(load_weights(&Words::new(), &path, Strictness::Strict).unwrap().is_complete());
}

#[derive(Module)]
struct Net {
    conv: Conv2d,
    bn: BatchNorm2d,
    given: Parameter,
    counts: Buffer,
}

#[test]
fn a_model_changes_its_element_type_with_its_values() {
    let third = 1.0f32 / 3.0;
    let net = Net {
        conv: Conv2d::new(1, 2, 1),
        bn: BatchNorm2d::new(2),
        given: Parameter::from_tensor(Tensor::from_slice(&[third], [1])),
        counts: Buffer::new(Tensor::from_slice(&[300i32], [1])),
    };
    let weight = net.conv.weight.clone();
    net.to_dtype(DType::Bf16).unwrap();
    net.initialize(0);
    for (name, cell) in net.state() {
        let expected = match name.as_str() {
            "counts" => DType::I32,
            "bn.num_batches_tracked" => DType::I64,
            _ => DType::Bf16,
        };
        assert_eq!(cell.ty().dtype, expected, "{name}");
        assert_eq!(cell.get().dtype(), expected, "{name}");
    }
    assert_eq!(weight.ty().dtype, DType::Bf16, "clones follow");
    assert_eq!(values(&net.given.get()), [0.333_984_375]);
    assert_eq!(values(&net.counts.get()), [300.0]);

    let x = Tensor::ones(DType::Bf16, [2, 1, 2, 2]);
    assert_eq!(net.bn.forward(&net.conv.forward(&x)).dtype(), DType::Bf16);
    assert!(net.bn.buffers().iter().all(|(_, buffer)| buffer.get().fault().is_none()));

    // Initial values and initial statistics have the new type too.
    net.reinitialize(1);
    net.to_dtype(DType::F32).unwrap();
    net.reinitialize(1);
    assert!(
        net.state()
            .iter()
            .all(|(name, cell)| cell.get().fault().is_none() && *cell.get().ty() == cell.ty()
                || panic!("{name}: {cell:?}"))
    );
    let error = net.to_dtype(DType::U8).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("cannot become u8"), "{error}");
    assert_eq!(weight.ty().dtype, DType::F32);
}

#[test]
fn a_parameter_without_a_value_still_says_so_after_the_change() {
    let p = Parameter::new([2], Init::ones());
    p.to_dtype(DType::F16).unwrap();
    assert!(!p.is_set());
    assert!(p.get().fault().unwrap().message().contains("f16[2] has no value yet"));
    p.initialize(&random::key(0));
    assert_eq!(p.get().dtype(), DType::F16);
}
