//! Averages of weights: tests their values, and that validation, tests, checkpoints and resumed
//! runs use them.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use std::path::Path;

use crate::common::{
    CLASSES, DROP_LAST, FEATURES, Net, Record, assert_close, isolated, samples, train_loader,
    trainer, val_loader,
};
use fulmen_data::DataLoader;
use fulmen_nn::loss::{Reduction, cross_entropy};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::Tensor;
use fulmen_trainer::callbacks::{Mode, ModelCheckpoint};
use fulmen_trainer::{
    Batch, FitSummary, Plan, Precision, StepContext, Strategy, TrainerBuilder, TrainingModule,
    WeightAveraging, Weights,
};

#[derive(Module)]
struct Classifier(Linear);

impl TrainingModule for Classifier {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        batch.mean(&cross_entropy(
            &self.0.forward(&batch.get("x")),
            &batch.get("y"),
            Reduction::None,
        ))
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        cx.log(
            "val_loss",
            &cross_entropy(&self.0.forward(&batch.get("x")), &batch.get("y"), Reduction::None),
        );
    }
    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.validation_step(batch, cx);
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.5).momentum(0.9))
    }
}

fn loader() -> DataLoader {
    DataLoader::builder(samples(40))
        .batch_size(8)
        .shuffle(true)
        .seed(5)
        .drop_last(true)
        .build()
        .unwrap()
}

type Run = (Vec<f64>, FitSummary, Record);

fn fit(folder: &Path, epochs: u64, set: &dyn Fn(TrainerBuilder) -> TrainerBuilder) -> Run {
    let record = Record::default();
    let builder = trainer(folder).max_epochs(epochs).log_every_n_steps(1).callback(record.clone());
    let builder =
        builder.callback(ModelCheckpoint::new().monitor("val_loss", Mode::Min).keep_all(true));
    let module = Classifier(Linear::new(FEATURES, CLASSES));
    let summary =
        set(builder).build().unwrap().fit(&module, &loader(), Some(&val_loader(20))).unwrap();
    (module.0.weight.get().eval().unwrap().to_f64(), summary, record)
}

/// The weights after each of the first steps, computed by hand.
fn path(steps: usize) -> Vec<Vec<f64>> {
    let mut path = Vec::new();
    let module = Classifier(Linear::new(FEATURES, CLASSES));
    module.initialize(0);
    let mut velocity = (vec![0.0; FEATURES * CLASSES], vec![0.0; CLASSES]);
    let eval = |t: &Tensor| t.eval().unwrap().to_f64();
    let mut w = eval(&module.0.weight.get());
    let mut b = eval(&module.0.bias.as_ref().unwrap().get());
    let loader = loader();
    for epoch in 0..steps as u64 {
        for batch in loader.epoch(epoch) {
            let batch = batch.unwrap();
            let x = batch.values::<f32>(0).unwrap();
            let y = batch.values::<i32>(1).unwrap();
            let mut gw = vec![0.0; w.len()];
            let mut gb = vec![0.0; b.len()];
            for (row, &label) in x.chunks(FEATURES).zip(y) {
                let logit = |k: usize| {
                    b[k] + (0..FEATURES)
                        .map(|i| w[k * FEATURES + i] * f64::from(row[i]))
                        .sum::<f64>()
                };
                let logits: Vec<f64> = (0..CLASSES).map(logit).collect();
                let total: f64 = logits.iter().map(|l| l.exp()).sum();
                for k in 0..CLASSES {
                    let g = (logits[k].exp() / total - f64::from(u8::from(k as i32 == label)))
                        / y.len() as f64;
                    gb[k] += g;
                    (0..FEATURES).for_each(|i| gw[k * FEATURES + i] += g * f64::from(row[i]));
                }
            }
            for (value, velocity, gradient) in
                [(&mut w, &mut velocity.0, &gw), (&mut b, &mut velocity.1, &gb)]
            {
                for i in 0..value.len() {
                    velocity[i] = 0.9 * velocity[i] + gradient[i];
                    value[i] -= 0.5 * velocity[i];
                }
            }
            path.push(w.clone());
        }
    }
    path.truncate(steps);
    path
}

#[test]
fn averages_match_the_weights_of_the_steps() {
    let folder = tempfile::tempdir().unwrap();
    // Three epochs of five steps.
    let path = path(15);
    let average = |averaging: WeightAveraging| {
        fit(folder.path(), 3, &|b| b.weight_averaging(averaging.clone())).0
    };
    let mix = |a: &[f64], b: &[f64], share: f64| {
        a.iter().zip(b).map(|(a, b)| a + (b - a) * share).collect::<Vec<_>>()
    };
    assert_close(&fit(folder.path(), 3, &|b| b).0, &path[14], 1e-5);

    let ema = path[1..].iter().fold(path[0].clone(), |a, w| mix(&a, w, 0.2));
    assert_close(&average(WeightAveraging::ema(0.8)), &ema, 1e-5);
    let mut warm = path[0].clone();
    for (n, w) in path.iter().enumerate().skip(1) {
        warm = mix(&warm, w, 1.0 - ((1.0 + n as f64) / (10.0 + n as f64)).min(0.3));
    }
    assert_close(&average(WeightAveraging::ema(0.3).warmup(true)), &warm, 1e-5);
    // After steps 6, 8, …, 14.
    let late = [7, 9, 11, 13].iter().fold(path[5].clone(), |a, &i| mix(&a, &path[i], 0.2));
    assert_close(&average(WeightAveraging::ema(0.8).start_step(4).every_n_steps(2)), &late, 1e-5);

    let swa = mix(&path[9], &path[14], 0.5);
    assert_close(&average(WeightAveraging::swa(1)), &swa, 1e-5);
    // Before averaging begins, the average equals the weights.
    assert_close(&average(WeightAveraging::swa(7)), &path[14], 1e-5);
}

#[test]
fn the_average_is_validated_tested_saved_and_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let ema = |b: TrainerBuilder| b.weight_averaging(WeightAveraging::ema(0.9));
    let (weights, summary, whole) = fit(folder.path(), 4, &|b| ema(b).runtime(isolated()));
    assert_eq!((summary.train_compilations, summary.eval_compilations), (1, 1));
    let last = summary.last_epoch.as_ref().unwrap().get("val_loss").unwrap();
    let (_, plain, record) = fit(folder.path(), 4, &|b| b);
    assert!(
        (plain.last_epoch.unwrap().get("val_loss").unwrap() - last).abs() > 1e-4,
        "validated with the average"
    );
    assert_eq!(record.bits("train_loss"), whole.bits("train_loss"), "trained without it");

    let checkpoint = summary.last_checkpoint.unwrap();
    let tensors = crate::common::tensors(&checkpoint);
    assert_eq!(tensors["0.weight"].to_f64(), weights);
    assert_ne!(tensors["trainer/current/0.weight"].to_f64(), weights);
    let module = Classifier(Linear::new(FEATURES, CLASSES));
    let mut tester = trainer(folder.path()).build().unwrap();
    let tested = tester.test(&module, &val_loader(20), Weights::File(checkpoint)).unwrap();
    assert!((tested.get("val_loss").unwrap() - last).abs() < 1e-6);

    let middle = folder.path().join("version_0/checkpoints/epoch=1-step=10");
    let (resumed, _, record) = fit(folder.path(), 4, &|b| ema(b).ckpt_path(&middle));
    assert_eq!(record.bits("train_loss"), whole.bits("train_loss")[10..]);
    assert_eq!(resumed, weights);
    // A run without averages continues with the trained weights. A run with averages can continue
    // from a plain checkpoint.
    let (_, _, record) = fit(folder.path(), 4, &|b| b.ckpt_path(&middle));
    assert_eq!(record.bits("train_loss"), whole.bits("train_loss")[10..]);
    let plain = folder.path().join("version_1/checkpoints/epoch=1-step=10");
    let (_, _, record) = fit(folder.path(), 4, &|b| ema(b).ckpt_path(&plain));
    assert_eq!(record.bits("train_loss"), whole.bits("train_loss")[10..]);
}

#[test]
fn a_run_resumes_with_other_groups_or_another_rule() {
    let folder = tempfile::tempdir().unwrap();
    let averaged = |averaging: &WeightAveraging, epochs: u64, every: u64, from: Option<&Path>| {
        let (weights, summary, _) = fit(folder.path(), epochs, &|b| {
            let b = b.weight_averaging(averaging.clone()).accumulate_grad_batches(every);
            if let Some(from) = from { b.ckpt_path(from) } else { b }
        });
        let checkpoint = summary.last_checkpoint.unwrap();
        let tensors = crate::common::tensors(&checkpoint);
        (weights, tensors["trainer/averaged"].to_f64()[0], checkpoint)
    };
    // The end of an epoch counts once, whatever the number of optimizer steps in the epoch.
    let swa = WeightAveraging::swa(0);
    let (_, count, first) = averaged(&swa, 1, 1, None);
    assert_eq!(count, 1.0);
    assert_eq!(averaged(&swa, 4, 2, Some(&first)).1, 4.0);
    assert_eq!(averaged(&WeightAveraging::swa(1).every_n_epochs(2), 5, 2, None).1, 2.0);

    // A different rule starts again from the weights. The same rule continues, even if it was
    // created on another line.
    let (_, count, ema) = averaged(&WeightAveraging::ema(0.9), 2, 1, None);
    assert_eq!(count, 10.0);
    assert_eq!(averaged(&WeightAveraging::ema(0.9), 3, 1, Some(&ema)).1, 15.0);
    let (_, plain, _) = fit(folder.path(), 2, &|b| b);
    let late = WeightAveraging::swa(2);
    let (weights, count, _) = averaged(&late, 4, 1, Some(&ema));
    assert_eq!(count, 2.0);
    assert_eq!(weights, averaged(&late, 4, 1, plain.last_checkpoint.as_deref()).0);
}

#[test]
fn an_average_of_sixteen_bit_weights_is_kept_in_f32_and_split_like_them() {
    let folder = tempfile::tempdir().unwrap();
    let ema = |b: TrainerBuilder| {
        b.weight_averaging(WeightAveraging::ema(0.99)).precision(Precision::Bf16)
    };
    let (one, summary, _) = fit(folder.path(), 2, &ema);
    let tensors = crate::common::tensors(summary.last_checkpoint.unwrap());
    assert_eq!(tensors["0.weight"].ty().to_string(), "f32[3, 6]");
    assert_eq!(tensors["trainer/current/0.weight"].ty().to_string(), "bf16[3, 6]");
    let (split, ..) = fit(folder.path(), 2, &|b| ema(b).devices(2usize).strategy(Strategy::Fsdp));
    assert_close(&split, &one, 0.02);
}

#[test]
fn running_statistics_are_averaged_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let statistics = |averaging: Option<WeightAveraging>| {
        let mut builder = trainer(folder.path()).max_epochs(2);
        if let Some(averaging) = averaging {
            builder = builder.weight_averaging(averaging);
        }
        let module = Net::new();
        builder.build().unwrap().fit(&module, &train_loader(40, DROP_LAST), None).unwrap();
        let mean =
            module.state().into_iter().find(|(name, _)| name == "bn.running_mean").unwrap().1;
        mean.get().eval().unwrap().to_f64()
    };
    let plain = statistics(None);
    assert_eq!(statistics(Some(WeightAveraging::ema(0.9).use_buffers(false))), plain);
    assert_ne!(statistics(Some(WeightAveraging::ema(0.9))), plain);
}

#[test]
fn an_invalid_average_is_reported_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |averaging: WeightAveraging| match trainer(folder.path())
        .weight_averaging(averaging)
        .build()
    {
        Ok(_) => panic!("the build succeeded"),
        Err(error) => error.to_string(),
    };
    let line = line!() + 1;
    let error = refused(WeightAveraging::ema(1.5));
    assert!(
        error.contains("WeightAveraging: the decay must be between 0 and 1, not 1.5"),
        "{error}"
    );
    assert!(error.contains(&format!("averaging.rs:{line}:")), "{error}");
    assert!(refused(WeightAveraging::swa(1).every_n_steps(0)).contains("not 0"));
}
