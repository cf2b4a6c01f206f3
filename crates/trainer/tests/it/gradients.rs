//! Gradients before the optimizer: groups of batches, clipping, and parameters without gradients.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use std::path::Path;

use crate::common::{
    CLASSES, DROP_LAST, FEATURES, PAD_LAST, Record, assert_close, isolated, samples, trainer,
};
use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::loss::{Reduction, cross_entropy};
use fulmen_nn::optim::{AdamW, Optimizer, ParamGroups, Sgd, Step};
use fulmen_nn::schedule::{Exponential, OneCycle};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::{DType, Tensor, TensorType};
use fulmen_trainer::callbacks::NormMonitor;
use fulmen_trainer::{
    Batch, FitSummary, GradientClipAlgorithm, Plan, Precision, StepContext, Strategy,
    TrainerBuilder, TrainingModule,
};

/// Two layers without batch statistics, so that the result does not depend on how samples are
/// batched.
#[derive(Module)]
struct Mlp {
    body: Linear,
    head: Linear,
    how: How,
}

/// Selects the optimizer.
#[derive(Clone, Copy, Module)]
enum How {
    AdamW,
    Sgd,
    Frozen,
    Misspelt,
    Falling,
    Sign,
}

/// A user's optimizer, which leaves types to the Trainer.
#[derive(Debug)]
struct SignSgd(f64);

impl Optimizer for SignSgd {
    fn state(&self, _: &str, _: &TensorType) -> Vec<(&'static str, Tensor)> {
        Vec::new()
    }
    fn update(
        &self,
        step: &Step,
        _: &str,
        p: &Tensor,
        g: &Tensor,
        _: &[Tensor],
    ) -> (Tensor, Vec<Tensor>) {
        (p - self.learning_rate(step).to_dtype(p.dtype()) * g.sign(), Vec::new())
    }
    fn learning_rate(&self, step: &Step) -> Tensor {
        step.learning_rate(&self.0)
    }
}

impl Mlp {
    fn new(how: How) -> Mlp {
        Mlp { body: Linear::new(FEATURES, 16), head: Linear::new(16, CLASSES), how }
    }

    fn weights(&self) -> Vec<f64> {
        self.parameters().iter().flat_map(|(_, p)| p.get().eval().unwrap().to_f64()).collect()
    }
}

impl TrainingModule for Mlp {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let logits = self.head.forward(&self.body.forward(&batch.get("x")).tanh());
        batch.mean(&cross_entropy(&logits, &batch.get("y"), Reduction::None))
    }
    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        let adamw = AdamW::new(OneCycle::new(0.05, plan.total_steps));
        match self.how {
            How::AdamW => Box::new(adamw),
            How::Sgd => Box::new(Sgd::new(1.0)),
            How::Frozen => Box::new(ParamGroups::new(adamw).freeze("body.*")),
            How::Falling => Box::new(Sgd::new(Exponential::new(0.1, 0.5))),
            How::Sign => Box::new(SignSgd(0.25)),
            How::Misspelt => Box::new(ParamGroups::new(adamw).freeze("boby.*")),
        }
    }
}

fn loader(n: usize, batch: usize, drop_last: bool) -> DataLoader {
    DataLoader::builder(samples(n))
        .batch_size(batch)
        .shuffle(true)
        .seed(5)
        .drop_last(drop_last)
        .build()
        .unwrap()
}

fn fit(
    folder: &Path,
    how: How,
    loader: &DataLoader,
    set: impl Fn(TrainerBuilder) -> TrainerBuilder,
) -> (Vec<f64>, FitSummary) {
    let module = Mlp::new(how);
    let builder = set(trainer(folder).max_epochs(3).enable_checkpointing(false));
    let summary = builder.build().unwrap().fit(&module, loader, None).unwrap();
    (module.weights(), summary)
}

#[test]
fn a_group_of_batches_equals_one_large_batch() {
    let folder = tempfile::tempdir().unwrap();
    // 44 samples: two groups of 16 and one of 12, whose last batch is half padding.
    let whole = fit(folder.path(), How::AdamW, &loader(44, 16, PAD_LAST), |b| b);
    let groups =
        fit(folder.path(), How::AdamW, &loader(44, 8, PAD_LAST), |b| b.accumulate_grad_batches(2));
    assert_eq!((whole.1.global_step, groups.1.global_step), (9, 9));
    assert_close(&groups.0, &whole.0, 1e-5);
    assert!((whole.1.train_loss.unwrap() - groups.1.train_loss.unwrap()).abs() < 1e-5);
    // Five batches in groups of three: the last two batches of an epoch form a group.
    let thirds =
        fit(folder.path(), How::AdamW, &loader(40, 8, DROP_LAST), |b| b.accumulate_grad_batches(3));
    assert_eq!(thirds.1.global_step, 6);
    // One group per epoch, with clipping of the accumulated gradient.
    let whole =
        fit(folder.path(), How::Sgd, &loader(40, 40, DROP_LAST), |b| b.gradient_clip_val(0.05));
    let one = fit(folder.path(), How::Sgd, &loader(40, 8, DROP_LAST), |b| {
        b.accumulate_grad_batches(100).gradient_clip_val(0.05)
    });
    assert_eq!(one.1.global_step, 3);
    assert_close(&one.0, &whole.0, 1e-5);
}

#[test]
fn a_group_of_any_length_is_one_program() {
    let folder = tempfile::tempdir().unwrap();
    let (_, summary) = fit(folder.path(), How::AdamW, &loader(40, 8, DROP_LAST), |b| {
        b.runtime(isolated()).accumulate_grad_batches(2)
    });
    assert_eq!(summary.train_compilations, 1);
}

#[test]
fn a_run_with_groups_resumes_without_them_at_the_same_rate() {
    let folder = tempfile::tempdir().unwrap();
    let data = loader(40, 8, DROP_LAST);
    // Five batches per epoch: one step per epoch, then five.
    let (_, first) = fit(folder.path(), How::Falling, &data, |b| {
        b.max_epochs(2).accumulate_grad_batches(5).enable_checkpointing(true)
    });
    let record = Record::default();
    let (_, summary) = fit(folder.path(), How::Falling, &data, |b| {
        let b = b.ckpt_path(first.last_checkpoint.as_deref().unwrap()).log_every_n_steps(1);
        b.max_epochs(3).callback(record.clone())
    });
    assert_eq!(summary.global_step, 7);
    let logs = record.logs.lock().unwrap();
    let steps: Vec<u64> = logs.iter().map(|point| point.global_step).collect();
    assert_eq!(steps, [3, 4, 5, 6, 7]);
    for point in logs.iter() {
        let rate = point.get("lr").unwrap();
        let expected = 0.1 * 0.5f64.powi(point.global_step as i32 - 1);
        assert!(
            (rate / expected - 1.0).abs() < 1e-6,
            "step {}: {rate} is not {expected}",
            point.global_step
        );
    }
}

#[test]
fn a_wider_gradient_does_not_change_a_parameters_type() {
    let folder = tempfile::tempdir().unwrap();
    let module = Mlp::new(How::Sign);
    let builder =
        trainer(folder.path()).max_epochs(1).precision(Precision::Bf16).accumulate_grad_batches(2);
    let summary = builder.build().unwrap().fit(&module, &loader(16, 8, DROP_LAST), None).unwrap();
    assert_eq!(summary.global_step, 1);
    let other = Mlp::new(How::Sign);
    other.initialize(0);
    for ((name, after), (_, first)) in module.parameters().iter().zip(other.parameters()) {
        assert_eq!(after.ty().dtype, DType::Bf16, "{name}");
        for (after, first) in
            after.get().eval().unwrap().to_f64().iter().zip(first.get().eval().unwrap().to_f64())
        {
            assert!(((after - first).abs() - 0.25).abs() < 0.01, "{name}: {first} became {after}");
        }
    }
}

#[test]
fn gradients_are_clipped_together_or_each() {
    let folder = tempfile::tempdir().unwrap();
    let first = {
        let module = Mlp::new(How::Sgd);
        module.initialize(0);
        module.weights()
    };
    let data = loader(16, 16, DROP_LAST);
    // One step of SGD with a rate of 1: the change of the weights is the gradient.
    let moved = |set: &dyn Fn(TrainerBuilder) -> TrainerBuilder| -> (Vec<f64>, f64) {
        let record = Record::default();
        let (after, _) = fit(folder.path(), How::Sgd, &data, |b| {
            set(b.max_epochs(1).log_every_n_steps(1).log_grad_norm(true).callback(record.clone()))
        });
        let norm = record.logs.lock().unwrap()[0].get("grad_norm").unwrap();
        (first.iter().zip(&after).map(|(b, a)| b - a).collect(), norm)
    };
    let length = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    let (plain, norm) = moved(&|b| b);
    assert!((norm - length(&plain)).abs() < 1e-5, "{norm}");
    let (short, same) = moved(&|b| b.gradient_clip_val(0.1));
    assert!((same - norm).abs() < 1e-6, "the norm before clipping");
    assert_close(&short, &plain.iter().map(|g| g * 0.1 / norm).collect::<Vec<_>>(), 1e-6);
    let (long, _) = moved(&|b| b.gradient_clip_val(100.0));
    assert_close(&long, &plain, 1e-6);
    let (each, _) =
        moved(&|b| b.gradient_clip_val(0.01).gradient_clip_algorithm(GradientClipAlgorithm::Value));
    assert_close(&each, &plain.iter().map(|g| g.clamp(-0.01, 0.01)).collect::<Vec<_>>(), 1e-6);
    assert!(plain.iter().any(|g| g.abs() > 0.011), "some gradient is clipped");
    // Gradients of a scaled loss are clipped without the scale. This also holds for groups of
    // batches.
    let (scaled, norm16) = moved(&|b| b.precision(Precision::F16Mixed).gradient_clip_val(0.1));
    assert!((norm16 / norm - 1.0).abs() < 0.01, "{norm16} {norm}");
    assert_close(&scaled, &short, 2e-3);
}

#[test]
fn eight_devices_clip_and_accumulate_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let run = |devices: u64, strategy: Strategy| {
        let record = Record::default();
        let (weights, _) = fit(folder.path(), How::AdamW, &loader(48, 8, DROP_LAST), |b| {
            let b = b
                .devices(devices as usize)
                .strategy(strategy)
                .accumulate_grad_batches(4)
                .gradient_clip_val(0.2);
            b.log_every_n_steps(1).log_grad_norm(true).callback(record.clone())
        });
        let norms: Vec<f64> =
            record.logs.lock().unwrap().iter().map(|p| p.get("grad_norm").unwrap()).collect();
        (weights, norms)
    };
    let one = run(1, Strategy::Ddp);
    assert_eq!(one.1.len(), 6);
    for strategy in [Strategy::Ddp, Strategy::Fsdp] {
        let eight = run(8, strategy);
        assert_close(&eight.0, &one.0, 1e-5);
        assert_close(&eight.1, &one.1, 1e-5);
    }
}

#[test]
fn a_frozen_parameter_has_no_state_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let module = Mlp::new(How::Frozen);
    module.initialize(0);
    let before: Vec<Vec<f64>> =
        module.parameters().iter().map(|(_, p)| p.get().eval().unwrap().to_f64()).collect();
    let mut trainer = trainer(folder.path()).max_epochs(1).build().unwrap();
    let summary = trainer.fit(&module, &loader(16, 8, DROP_LAST), None).unwrap();
    for ((name, parameter), before) in module.parameters().iter().zip(before) {
        let same = parameter.get().eval().unwrap().to_f64() == before;
        assert_eq!(same, name.starts_with("body."), "{name}");
    }
    let tensors = crate::common::tensors(summary.last_checkpoint.unwrap());
    let state: Vec<&String> =
        tensors.keys().filter(|name| name.starts_with("optimizer/")).collect();
    assert_eq!(state.len(), 4, "{state:?}");
    assert!(state.iter().all(|name| name.contains("/head.")), "{state:?}");
}

#[test]
fn invalid_settings_are_reported_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let data = loader(16, 8, DROP_LAST);
    let error = trainer(folder.path())
        .build()
        .unwrap()
        .fit(&Mlp::new(How::Misspelt), &data, None)
        .unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("the pattern `boby.*` matches no parameter; the nearest are `body."),
        "{message}"
    );
    assert!(message.contains("gradients.rs:"), "{message}");
    for (builder, expected) in [
        (
            trainer(folder.path()).gradient_clip_val(-1.0),
            "gradient_clip_val: -1 is not possible, it must be finite",
        ),
        (
            trainer(folder.path()).gradient_clip_val(f64::NAN),
            "gradient_clip_val: NaN is not possible",
        ),
        (
            trainer(folder.path()).accumulate_grad_batches(0),
            "accumulate_grad_batches: 0 is not possible",
        ),
    ] {
        let Err(error) = builder.build() else { panic!("the build succeeded") };
        assert!(error.to_string().contains(expected), "{error}");
    }
    let error = "most".parse::<GradientClipAlgorithm>().unwrap_err().to_string();
    assert!(
        error.contains("`most` is not a gradient clip algorithm; there are: norm, value"),
        "{error}"
    );
}

/// `w·x` with the gradient `x`, whose squares overflow.
#[derive(Module)]
struct Steep {
    linear: Linear,
}

const STEEP: [f32; 2] = [3e25, 4e25];

impl TrainingModule for Steep {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        batch.mean(self.linear.forward(batch.get("x")).reshape([batch.size()]))
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(1.0))
    }
}

#[test]
fn a_gradient_whose_squared_norm_overflows_is_clipped_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let data = TensorDataset::builder().array("x", [16, 2], STEEP.repeat(16)).build().unwrap();
    let data = DataLoader::builder(data).batch_size(8).build().unwrap();
    for (precision, devices, group, tolerance) in [
        (Precision::F32, 1, 2, 1e-6),
        (Precision::F32, 8, 2, 1e-6),
        (Precision::F32, 1, 1, 1e-6),
        (Precision::Bf16Mixed, 1, 2, 1e-2),
        (Precision::Bf16, 1, 2, 1e-2),
    ] {
        let module = Steep { linear: Linear::new(2, 1).bias(false) };
        let record = Record::default();
        module.linear.weight.set(Tensor::zeros(module.linear.weight.ty().dtype, [1, 2]));
        let builder = trainer(folder.path())
            .max_epochs(1)
            .enable_checkpointing(false)
            .precision(precision)
            .devices(devices)
            .accumulate_grad_batches(group)
            .gradient_clip_val(0.5)
            .log_grad_norm(true)
            .callback(NormMonitor::new())
            .log_every_n_steps(1)
            .callback(record.clone());
        let summary = builder.build().unwrap().fit(&module, &data, None).unwrap();
        let steps = summary.global_step as f64;
        let weight = module.linear.weight.get().to_dtype(DType::F32).eval().unwrap().to_f64();
        let expected = [-0.3 * steps, -0.4 * steps];
        assert_close(&weight, &expected, tolerance);
        let norm = crate::common::logged(&record, "grad_norm")[0];
        assert!((norm / 5e25 - 1.0).abs() < 1e-2, "{precision:?} {devices}: {norm}");
    }
}
