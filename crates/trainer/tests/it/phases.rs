//! Fits that change during training: parameters that are unfrozen, and gradient accumulation over a
//! changing number of batches.

use std::path::Path;

use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::optim::{Adam, Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::{Devices, Tensor};
use fulmen_trainer::callbacks::{
    BackboneFinetuning, GradientAccumulationScheduler, LearningRateMonitor, ModelCheckpoint,
    NormGroup, NormMonitor, ThroughputMonitor,
};
use fulmen_trainer::{
    Batch, FitSummary, Optimizers, Plan, StepContext, Strategy, TrainDuration, TrainerBuilder,
    TrainingModule, WeightAveraging,
};
use serde_json::Value;

use crate::common::{DROP_LAST, Net, Record, isolated, logged, train_loader, trainer};

const BATCHES: usize = 3;
const BATCH: usize = 4;

#[derive(Module)]
struct Three {
    first: Linear,
    second: Linear,
    head: Linear,
    #[module(skip)]
    optimizer: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Adam,
    Sgd,
    Several,
}

/// Numbers from -1 to 1, as in `reference/finetuning.py`.
fn numbers(start: u64, count: usize) -> Vec<f32> {
    let number = |k: u64| (k * 2_654_435_761 % (1 << 32) / 256) as f32 / (1 << 23) as f32 - 1.0;
    (start..start + count as u64).map(number).collect()
}

fn three_with(optimizer: Kind) -> Three {
    let three = Three {
        first: Linear::new(6, 5),
        second: Linear::new(5, 4),
        head: Linear::new(4, 2),
        optimizer,
    };
    for (i, (_, parameter)) in three.parameters().into_iter().enumerate() {
        let shape = parameter.ty().shape;
        let values: Vec<f32> =
            numbers(i as u64 * 1_000_003, shape.num_elements()).iter().map(|x| x / 2.0).collect();
        parameter.set(Tensor::from_slice(&values, shape.dims()));
    }
    three
}

fn three() -> Three {
    three_with(Kind::Adam)
}

impl TrainingModule for Three {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let hidden = self.second.forward(self.first.forward(&batch.get("x")).tanh()).tanh();
        let loss =
            |hidden: &Tensor| (self.head.forward(hidden) - batch.get("y")).pow(2.0).mean_all();
        if self.optimizer == Kind::Several {
            cx.minimize("body", |_| loss(&hidden));
            return cx.minimize("head", |_| loss(&hidden.detach()));
        }
        loss(&hidden)
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        let body = ["first.*", "second.*"];
        match self.optimizer {
            Kind::Adam => Box::new(Adam::new(0.05)),
            Kind::Sgd => Box::new(Sgd::new(0.1)),
            Kind::Several => Box::new(Optimizers::new().add("body", body, Adam::new(0.05)).add(
                "head",
                ["head.*"],
                Sgd::new(0.1),
            )),
        }
    }
}

impl Three {
    fn values(&self, prefix: &str) -> Vec<f64> {
        let own = self.parameters().into_iter().filter(|(name, _)| name.starts_with(prefix));
        own.flat_map(|(_, parameter)| parameter.get().eval().unwrap().to_f64()).collect()
    }
}

fn data(batch: usize, batches: usize) -> DataLoader {
    let count = batch * batches;
    let data = TensorDataset::builder()
        .array("x", [count, 6], numbers(9_000_000, count * 6))
        .array("y", [count, 2], numbers(10_000_000, count * 2))
        .build()
        .unwrap();
    DataLoader::builder(data).batch_size(batch).drop_last(true).build().unwrap()
}

fn ep(epochs: u64) -> TrainDuration {
    TrainDuration::Epochs(epochs)
}

/// Unfreezes `second` after one epoch, with the full rate, and `first` after two.
fn in_turn(builder: TrainerBuilder) -> TrainerBuilder {
    builder
        .callback(BackboneFinetuning::new("second.*", ep(1)).initial_ratio(1.0).multiplier(1.0))
        .callback(BackboneFinetuning::new("first.*", ep(2)))
}

fn fit(
    folder: &Path,
    module: &Three,
    epochs: u64,
    set: impl Fn(TrainerBuilder) -> TrainerBuilder,
) -> (FitSummary, Record) {
    let record = Record::default();
    let builder = trainer(folder).max_epochs(epochs).log_every_n_steps(1).callback(record.clone());
    let summary = set(builder).build().unwrap().fit(module, &data(BATCH, BATCHES), None).unwrap();
    (summary, record)
}

fn assert_close(actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len());
    for (i, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        assert!(
            (actual - expected).abs() <= tolerance * expected.abs().max(1e-2),
            "{i}: {actual} is not {expected}"
        );
    }
}

#[test]
fn the_losses_of_a_finetuning_match_pytorch() {
    let folder = tempfile::tempdir().unwrap();
    let json: Value = serde_json::from_str(include_str!("../reference/finetuning.json")).unwrap();
    let expected: Vec<f64> =
        json["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect();
    let monitors = |b: TrainerBuilder| {
        let norms = NormMonitor::new().group_by(NormGroup::Layer);
        let b = in_turn(b.runtime(isolated())).callback(LearningRateMonitor::new()).callback(norms);
        b.callback(ThroughputMonitor::new())
    };
    let (summary, record) = fit(folder.path(), &three(), 7, monitors);
    assert_close(&logged(&record, "train_loss"), &expected, 2e-4);
    assert_eq!((summary.global_step, summary.train_compilations), (21, 3));
    // The rates and norms of frozen parameters are 0.
    let ratios = [0.0, 0.0, 0.1, 0.2, 0.4, 0.8, 1.0].map(|ratio| ratio * 0.05);
    let epoch_rates: Vec<f64> =
        logged(&record, "lr/first.*").into_iter().step_by(BATCHES).collect();
    assert_close(&epoch_rates, &ratios, 1e-5);
    let norms = logged(&record, "grad_norm/first");
    assert!(
        norms[..6].iter().all(|&norm| norm == 0.0) && norms[6..].iter().all(|&norm| norm > 0.0),
        "{norms:?}"
    );
    // Matrix products of the forward pass, of the gradients of weights, and of the gradients of the
    // inputs of higher layers.
    let [first, second, head] = [6 * 5, 5 * 4, 4 * 2].map(|weights| (2 * BATCH * weights) as f64);
    let forward = first + second + head;
    let phases =
        [forward + head, forward + 2.0 * head + second, forward + 2.0 * (head + second) + first];
    let expected: Vec<f64> = (1..21).map(|step| phases[(step / BATCHES).min(2)]).collect();
    let [tflops, rates] =
        ["tflops_per_device", "batches_per_second"].map(|name| format!("throughput/{name}"));
    let pairs = logged(&record, &tflops).into_iter().zip(logged(&record, &rates));
    assert_close(
        &pairs.map(|(tflops, rate)| tflops * 1e12 / rate).collect::<Vec<_>>(),
        &expected,
        1e-6,
    );
}

#[test]
fn frozen_parameters_stay_bit_for_bit_and_train_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let module = three();
    let before = three();
    fit(folder.path(), &module, 1, in_turn);
    assert_eq!(module.values("first"), before.values("first"));
    assert_eq!(module.values("second"), before.values("second"));
    assert_ne!(module.values("head"), before.values("head"));
    let (module, summary) = {
        let module = three();
        let summary = fit(folder.path(), &module, 2, |b| in_turn(b.runtime(isolated()))).0;
        (module, summary)
    };
    assert_eq!(summary.train_compilations, 2, "the third phase is not reached");
    assert_eq!(module.values("first"), before.values("first"));
    assert_ne!(module.values("second"), before.values("second"));
}

#[test]
fn a_run_resumes_in_any_phase_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    // One phase begins within an epoch, and one at the beginning of an epoch. The run has groups of
    // several lengths, and averages.
    let run = |from: &Path| {
        let record = Record::default();
        let builder = trainer(folder.path())
            .max_epochs(5)
            .log_every_n_steps(2)
            .ckpt_path(from)
            .weight_averaging(WeightAveraging::ema(0.9))
            .runtime(isolated())
            .callback(record.clone())
            .callback(ModelCheckpoint::new().every_n_train_steps(1).keep_all(true))
            .callback(BackboneFinetuning::new("second.*", TrainDuration::Steps(4)))
            .callback(BackboneFinetuning::new("first.*", ep(2)))
            .callback(GradientAccumulationScheduler::new([(1, 2), (3, 5)]));
        let module = three();
        let summary = builder.build().unwrap().fit(&module, &data(BATCH, 5), None).unwrap();
        (record.bits("train_loss"), module.values(""), summary)
    };
    let whole = run(Path::new(""));
    // Five, three, three, one and one steps per epoch.
    assert_eq!((whole.2.global_step, whole.2.train_compilations), (13, 3));
    for (step, programs) in [(3, 3), (4, 2), (5, 2), (6, 2), (8, 1), (9, 1), (11, 1), (12, 1)] {
        let epoch = [5, 8, 11, 12, 13].iter().position(|&end| step <= end).unwrap();
        let rest =
            run(&folder.path().join(format!("version_0/checkpoints/epoch={epoch}-step={step}")));
        assert_eq!(
            rest.0,
            whole.0.iter().filter(|log| log.0 > step).copied().collect::<Vec<_>>(),
            "step {step}"
        );
        assert_eq!(rest.1, whole.1, "step {step}");
        assert_eq!(
            rest.2.train_compilations, programs,
            "finished phases need no program: step {step}"
        );
    }
}

#[test]
fn phases_train_the_same_on_eight_devices() {
    let folder = tempfile::tempdir().unwrap();
    let run = |devices: usize, strategy: Strategy| {
        let record = Record::default();
        let builder =
            trainer(folder.path()).max_epochs(4).log_every_n_steps(1).callback(record.clone());
        let builder = in_turn(builder.devices(Devices::from(devices as i32)).strategy(strategy));
        builder.build().unwrap().fit(&three(), &data(8, BATCHES), None).unwrap();
        logged(&record, "train_loss")
    };
    let one = run(1, Strategy::Ddp);
    assert_close(&run(8, Strategy::Ddp), &one, 1e-4);
    assert_close(&run(8, Strategy::Fsdp), &one, 1e-4);
}

#[test]
fn each_of_several_optimizers_keeps_frozen_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let module = three_with(Kind::Several);
    let before = three();
    let freeze = |b: TrainerBuilder| b.callback(BackboneFinetuning::new("first.*", ep(1)));
    let path = fit(folder.path(), &module, 1, freeze).0.last_checkpoint.unwrap();
    assert_eq!(module.values("first"), before.values("first"));
    assert_ne!(module.values("second"), before.values("second"));
    let count = |path: &Path| {
        let tensors = crate::common::tensors(path);
        let count = |name: &str| tensors[name].to_f64()[0];
        [count("trainer/updates/body"), count("trainer/unfrozen_updates/first.*/body")]
    };
    assert_eq!(count(&path), [3.0, 0.0]);
    let module = three_with(Kind::Several);
    let path = fit(folder.path(), &module, 3, freeze).0.last_checkpoint.unwrap();
    assert_eq!(count(&path), [9.0, 6.0]);
    assert_ne!(module.values("first"), before.values("first"));
}

#[test]
fn batch_norm_of_a_frozen_backbone_trains_or_is_frozen() {
    let folder = tempfile::tempdir().unwrap();
    let after = |train_bn: bool, epochs: u64| {
        let net = Net::new();
        net.initialize(0);
        let state = || {
            net.state()
                .iter()
                .map(|(n, v)| (n.clone(), v.get().eval().unwrap().to_f64()))
                .collect::<Vec<_>>()
        };
        let before = state();
        let frozen = |pattern: &str| BackboneFinetuning::new(pattern, ep(1)).train_bn(train_bn);
        let builder = trainer(folder.path())
            .max_epochs(epochs)
            .callback(frozen("fc1.*"))
            .callback(frozen("bn.*"));
        builder.build().unwrap().fit(&net, &train_loader(40, DROP_LAST), None).unwrap();
        let changed = state().into_iter().zip(before).filter(|(new, old)| new.1 != old.1);
        changed
            .map(|(new, _)| new.0)
            .filter(|name| name != "bn.num_batches_tracked")
            .collect::<Vec<_>>()
    };
    let head_names = ["fc2.weight", "fc2.bias"];
    assert_eq!(after(false, 1), head_names);
    let with_bn = after(true, 1);
    assert!(
        with_bn.contains(&"bn.weight".into()) && with_bn.contains(&"bn.running_mean".into()),
        "{with_bn:?}"
    );
    assert!(!with_bn.contains(&"fc1.weight".into()), "{with_bn:?}");
    let all = after(false, 2);
    assert!(
        all.contains(&"bn.weight".into()) && all.contains(&"bn.running_mean".into()),
        "{all:?}"
    );
    assert!(all.contains(&"fc1.weight".into()), "{all:?}");
}

#[test]
fn groups_of_batches_grow_by_epochs() {
    let folder = tempfile::tempdir().unwrap();
    let sgd = || three_with(Kind::Sgd);
    let by_hand = sgd();
    let mut from = None;
    for (epochs, every) in [(2, 1), (4, 2), (5, 3)] {
        let summary = fit(folder.path(), &by_hand, epochs, |b| {
            let b = b.accumulate_grad_batches(every);
            if let Some(from) = &from { b.ckpt_path(from) } else { b }
        });
        from = summary.0.last_checkpoint;
    }
    let module = sgd();
    let scheduler = || GradientAccumulationScheduler::new([(4, 3), (2, 2)]);
    let (summary, record) =
        fit(folder.path(), &module, 5, |b| b.runtime(isolated()).callback(scheduler()));
    assert_eq!((summary.global_step, summary.train_compilations), (3 + 3 + 2 + 2 + 1, 1));
    assert_eq!(logged(&record, "train_loss").len(), 11);
    assert_close(&module.values(""), &by_hand.values(""), 1e-5);
    // Limits in steps and in samples take the number of steps in each epoch into account.
    let (summary, _) = fit(folder.path(), &sgd(), 5, |b| b.callback(scheduler()).max_steps(7));
    assert_eq!(
        (summary.global_step, summary.epochs),
        (7, 2),
        "after the first group of the third epoch"
    );
    let samples = TrainDuration::Samples((3 * BATCHES * BATCH) as u64);
    let (summary, _) =
        fit(folder.path(), &sgd(), 5, |b| b.callback(scheduler()).max_duration(samples));
    assert_eq!(summary.global_step, 8);
}

#[test]
fn invalid_settings_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |set: &dyn Fn(TrainerBuilder) -> TrainerBuilder, module: &Three| {
        let trainer = set(trainer(folder.path()).max_epochs(2)).build();
        trainer
            .and_then(|mut trainer| trainer.fit(module, &data(BATCH, BATCHES), None))
            .unwrap_err()
            .to_string()
    };
    for (callback, why) in [
        (
            BackboneFinetuning::new("fist.*", ep(1)),
            "`fist.*` matches no parameter; the nearest are `first.",
        ),
        (BackboneFinetuning::new("*", ep(1)), "all parameters are frozen at first by `*`"),
        (
            BackboneFinetuning::new("first.*", "2h".parse().unwrap()),
            "after epochs (2ep) or steps (500ba), not after 2h",
        ),
        (
            BackboneFinetuning::new("first.*", ep(1)).initial_ratio(-1.0),
            "initial_ratio must be finite and above 0",
        ),
        (
            BackboneFinetuning::new("first.*", ep(1)).multiplier(f64::NAN),
            "multiplier must be finite and above 0",
        ),
    ] {
        let message = refused(&|b| b.callback(callback.clone()), &three());
        assert!(message.contains("BackboneFinetuning: ") && message.contains(why), "{message}");
    }
    let twice = BackboneFinetuning::new("first.*", ep(1));
    let message = refused(&|b| b.callback(twice.clone()).callback(twice.clone()), &three());
    assert!(message.contains("there are two for `first.*`"), "{message}");
    for (scheduling, why) in [
        (Vec::new(), "its list is empty"),
        (vec![(1, 0)], "at least 1 batch"),
        (vec![(1, 2), (1, 3)], "epoch 1 is listed twice"),
    ] {
        let message = refused(
            &|b| b.callback(GradientAccumulationScheduler::new(scheduling.clone())),
            &three(),
        );
        assert!(
            message.contains("GradientAccumulationScheduler: ") && message.contains(why),
            "{message}"
        );
    }
    let both = |b: TrainerBuilder| {
        b.accumulate_grad_batches(2).callback(GradientAccumulationScheduler::new([(1, 4)]))
    };
    let message = refused(&both, &three());
    assert!(
        message.contains("accumulate_grad_batches: it is 2, and there is a Gradient"),
        "{message}"
    );
    let mut trainer = in_turn(trainer(folder.path())).build().unwrap();
    let message = trainer.train_step(&three(), &data(BATCH, BATCHES)).err().unwrap().to_string();
    assert!(message.contains("the callback BackboneFinetuning, which only fit"), "{message}");
}
