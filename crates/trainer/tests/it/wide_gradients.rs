//! Training of complex and of f64 parameters, compared with PyTorch.

use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::optim::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, NAdam, Optimizer, RAdam, RmsProp, Sgd,
};
use fulmen_nn::{Module, Parameter};
use fulmen_tensor::{DType, Tensor};
use fulmen_trainer::callbacks::NormMonitor;
use fulmen_trainer::{Batch, GradientClipAlgorithm, Result, Strategy, TrainerBuilder, TrainingFn};
use serde_json::Value;

use crate::common::{DROP_LAST, trainer};
use crate::optimizers::numbers;

const SAMPLES: usize = 4;
const SIZE: usize = 3;
const STEPS: u64 = 8;

/// The parts of a parameter, as `reference/wide_gradients.py` has them.
fn reference(case: &str) -> Vec<f64> {
    let json: Value =
        serde_json::from_str(include_str!("../reference/wide_gradients.json")).unwrap();
    let parts = ["re", "im"].map(|part| json[case][part].as_array().cloned().unwrap_or_default());
    parts.concat().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// A vector as a model.
#[derive(Module)]
struct Vector {
    value: Parameter,
}

impl Vector {
    fn complex() -> Vector {
        let part = |start| Tensor::from_slice(&numbers(start, SIZE), [SIZE]);
        Vector { value: Parameter::from_tensor(Tensor::complex(part(1), part(11))) }
    }

    fn f64() -> Vector {
        let part = Tensor::from_slice(&numbers(1, SIZE), [SIZE]);
        Vector { value: Parameter::from_tensor(part.to_dtype(DType::F64)) }
    }

    fn parts(&self) -> Vec<f64> {
        let value = self.value.get();
        let mut parts = value.real().eval().unwrap().to_f64();
        if value.dtype().is_complex() {
            parts.extend(value.imag().eval().unwrap().to_f64());
        }
        parts
    }
}

/// The loss of a batch.
fn loss(model: &Vector, batch: &Batch) -> Tensor {
    let value = model.value.get();
    let x = if value.dtype().is_complex() {
        Tensor::complex(batch.get("re"), batch.get("im"))
    } else {
        batch.get("re").to_dtype(DType::F64)
    };
    let sum = (x * &value).sum([1]);
    let real = sum.real() - 1.0;
    let mut squares = &real * &real;
    if sum.dtype().is_complex() {
        let imaginary = sum.imag() - 2.0;
        squares = squares + &imaginary * &imaginary;
    }
    batch.mean(squares)
}

/// Trains for as many epochs as the reference makes steps.
fn train<O: Optimizer + 'static>(
    model: &Vector,
    batch_size: usize,
    optimizer: impl Fn() -> O,
    set: impl Fn(TrainerBuilder) -> TrainerBuilder,
) -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let field = |start| numbers(start, SAMPLES * SIZE);
    let data = TensorDataset::builder()
        .array("re", [SAMPLES, SIZE], field(21))
        .array("im", [SAMPLES, SIZE], field(41))
        .build()
        .unwrap();
    let loader =
        DataLoader::builder(data).batch_size(batch_size).drop_last(DROP_LAST).build().unwrap();
    let module = TrainingFn::new(model, |model, batch, _| loss(model, batch), |_| optimizer());
    let builder = trainer(folder.path()).max_epochs(STEPS).enable_checkpointing(false);
    set(builder).build()?.fit(&module, &loader, None).map(drop)
}

fn assert_parts(model: &Vector, case: &str, tolerance: f64) {
    let parts = model.parts();
    let expected = reference(case);
    assert_eq!(parts.len(), expected.len());
    for (part, expected) in parts.iter().zip(&expected) {
        assert!((part - expected).abs() <= tolerance, "{case}: {parts:?}, expected {expected:?}");
    }
}

#[test]
fn complex_parameters_train_as_in_pytorch() {
    fn check<O: Optimizer + 'static>(case: &str, optimizer: impl Fn() -> O) {
        let model = Vector::complex();
        train(&model, SAMPLES, optimizer, |builder| builder).unwrap();
        assert_parts(&model, case, 2e-6);
    }
    check("sgd", || Sgd::new(0.1).momentum(0.5).weight_decay(0.01));
    check("adam", || Adam::new(0.1));
    check("adamw", || AdamW::new(0.1).weight_decay(0.1));
    check("rmsprop", || RmsProp::new(0.01).momentum(0.5));
    check("adagrad", || Adagrad::new(0.1).initial_accumulator_value(0.5));
    check("adadelta", || Adadelta::new(1.0));
    check("nadam", || NAdam::new(0.1));
    check("radam", || RAdam::new(0.1));
}

#[test]
fn complex_gradients_are_accumulated_clipped_and_sharded() {
    let sgd = || Sgd::new(0.1).momentum(0.5).weight_decay(0.01);
    let model = Vector::complex();
    let clip = |b: TrainerBuilder| {
        b.gradient_clip_val(0.5).gradient_clip_algorithm(GradientClipAlgorithm::Norm)
    };
    let norms = |b: TrainerBuilder| {
        clip(b).log_grad_norm(true).callback(NormMonitor::new().parameters(true).updates(true))
    };
    train(&model, 2, sgd, |b| norms(b).accumulate_grad_batches(2)).unwrap();
    assert_parts(&model, "clipped", 2e-6);
    let model = Vector::complex();
    train(&model, SAMPLES, sgd, |b| clip(b).devices(2).strategy(Strategy::Fsdp)).unwrap();
    assert_parts(&model, "clipped", 2e-6);
    let error = train(&Vector::complex(), SAMPLES, || Adafactor::new(0.1), |b| b).unwrap_err();
    let message = error.to_string();
    assert!(
        error.is_usage() && message.contains("Adafactor: the parameter `value` is complex"),
        "{message}"
    );
}

#[test]
fn f64_gradients_are_clipped_in_f64() {
    let model = Vector::f64();
    train(&model, SAMPLES, || Sgd::new(0.5), |b| b.gradient_clip_val(0.25).log_grad_norm(true))
        .unwrap();
    assert_parts(&model, "f64", 1e-14);
}
