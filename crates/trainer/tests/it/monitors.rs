//! Monitors of a step: rates by group, and norms of gradients, parameters and updates, against
//! values computed directly.

use std::path::Path;

use crate::common::{CLASSES, FEATURES, Record, isolated, samples, trainer};
use fulmen_data::DataLoader;
use fulmen_nn::loss::{Reduction, cross_entropy};
use fulmen_nn::optim::{AdamW, Optimizer, ParamGroups, Sgd};
use fulmen_nn::schedule::Exponential;
use fulmen_nn::{Linear, Module};
use fulmen_tensor::Tensor;
use fulmen_trainer::callbacks::{
    DeviceStatsMonitor, LearningRateMonitor, NormGroup, NormMonitor, ThroughputMonitor,
};
use fulmen_trainer::{
    Batch, LogPoint, Plan, StepContext, Strategy, TrainerBuilder, TrainingModule,
};

#[derive(Module)]
struct Mlp {
    body: Linear,
    head: Linear,
    groups: bool,
}

fn mlp(groups: bool) -> Mlp {
    Mlp { body: Linear::new(FEATURES, 16), head: Linear::new(16, CLASSES), groups }
}

impl TrainingModule for Mlp {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let logits = self.head.forward(&self.body.forward(&batch.get("x")).tanh());
        batch.mean(&cross_entropy(&logits, &batch.get("y"), Reduction::None))
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        if self.groups {
            let adam = AdamW::new(Exponential::new(0.02, 0.5)).betas(0.8, 0.99);
            let sgd = Sgd::new(Exponential::new(0.1, 0.5)).momentum(Exponential::new(0.9, 0.5));
            Box::new(ParamGroups::new(sgd).lr_factor("body.weight", 3.0).group("head.*", adam))
        } else {
            Box::new(Sgd::new(1.0))
        }
    }
}

fn loader() -> DataLoader {
    DataLoader::builder(samples(64)).batch_size(16).drop_last(true).build().unwrap()
}

/// The named weights before and after some steps, and the log points.
type Trained = (Vec<(String, Vec<f64>)>, Vec<(String, Vec<f64>)>, Vec<LogPoint>);

fn fit(folder: &Path, module: &Mlp, set: impl Fn(TrainerBuilder) -> TrainerBuilder) -> Trained {
    let weights = || {
        let value =
            |(name, p): (String, fulmen_nn::Parameter)| (name, p.get().eval().unwrap().to_f64());
        module.parameters().into_iter().map(value).collect()
    };
    module.initialize(0);
    let before = weights();
    let record = Record::default();
    let builder = trainer(folder).max_epochs(1).log_every_n_steps(1).callback(record.clone());
    set(builder.enable_checkpointing(false)).build().unwrap().fit(module, &loader(), None).unwrap();
    let logs = record.logs.lock().unwrap().clone();
    (before, weights(), logs)
}

fn assert_is(point: &LogPoint, name: &str, expected: f64) {
    let actual = point.get(name).unwrap_or_else(|| panic!("{name}: {point}"));
    assert!((actual / expected - 1.0).abs() < 1e-5, "{name}: {actual} is not {expected}");
}

#[test]
fn rates_and_momenta_are_logged_by_group() {
    let folder = tempfile::tempdir().unwrap();
    let (_, _, logs) = fit(folder.path(), &mlp(true), |b| {
        b.callback(LearningRateMonitor::new().log_momentum(true))
    });
    assert_eq!(logs.len(), 4);
    for (i, point) in logs.iter().enumerate() {
        let half = 0.5f64.powi(i as i32);
        for (name, expected) in [
            ("lr", 0.1 * half),
            ("lr/body.weight", 0.3 * half),
            ("lr/head.*", 0.02 * half),
            ("momentum", 0.9 * half),
            ("momentum/body.weight", 0.9 * half),
            ("momentum/head.*", 0.8),
        ] {
            assert_is(point, name, expected);
        }
        assert_eq!(point.metrics.len(), 7, "{point}");
    }
    // Without groups, there are no rates besides `lr`. Plain gradient descent has no momentum.
    let (_, _, logs) = fit(folder.path(), &mlp(false), |b| {
        b.callback(LearningRateMonitor::new().log_momentum(true))
    });
    assert!(
        logs.iter().all(|point| point.metrics.len() == 2 && point.get("lr") == Some(1.0)),
        "{}",
        logs[0]
    );
}

fn norm<'a>(values: impl IntoIterator<Item = &'a f64>) -> f64 {
    values.into_iter().map(|v| v * v).sum::<f64>().sqrt()
}

#[test]
fn norms_match_the_weights_and_their_changes() {
    let folder = tempfile::tempdir().unwrap();
    for (what, devices, strategy, by, every) in [
        ("layers", 1, Strategy::Ddp, NormGroup::Layer, 1),
        ("parameters", 1, Strategy::Ddp, NormGroup::Parameter, 1),
        ("a group on many", 8, Strategy::Ddp, NormGroup::Layer, 4),
        ("fully sharded", 8, Strategy::Fsdp, NormGroup::Layer, 1),
    ] {
        // One step of gradient descent with a rate of 1: the change is the gradient.
        let (before, after, logs) = fit(folder.path(), &mlp(false), |b| {
            let b =
                b.max_steps(1).accumulate_grad_batches(every).devices(devices).strategy(strategy);
            b.callback(NormMonitor::new().group_by(by)).log_grad_norm(true)
        });
        let [point] = &logs[..] else { panic!("{what}: {logs:?}") };
        let mut groups: Vec<String> = Vec::new();
        for (name, _) in &after {
            let layer = name.split('.').next().unwrap();
            let group = if by == NormGroup::Layer { layer } else { name };
            if !groups.contains(&group.to_owned()) {
                groups.push(group.to_owned());
            }
        }
        groups.push(String::new());
        assert_eq!(point.metrics.len(), 2 + 3 * groups.len(), "{what}: {point}");
        for group in &groups {
            let members_of = |weights: &[(String, Vec<f64>)]| -> Vec<f64> {
                let members = weights.iter().filter(|(name, _)| name.starts_with(group.as_str()));
                members.flat_map(|(_, values)| values.clone()).collect()
            };
            let before = members_of(&before);
            let after = members_of(&after);
            let change: Vec<f64> = before.iter().zip(&after).map(|(b, a)| a - b).collect();
            let suffix = if group.is_empty() { String::new() } else { format!("/{group}") };
            assert_is(point, &format!("param_norm{suffix}"), norm(&after));
            for name in ["grad_norm", "update_norm"] {
                assert_is(point, &format!("{name}{suffix}"), norm(&change));
            }
        }
    }
}

#[test]
fn norms_follow_the_groups_of_the_optimizer() {
    let folder = tempfile::tempdir().unwrap();
    let monitor = || NormMonitor::new().gradients(false);
    let (_, after, logs) = fit(folder.path(), &mlp(true), |b| b.callback(monitor()));
    let weights_of = |prefix: &str| {
        after
            .iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .flat_map(|(_, w)| w.clone())
            .collect::<Vec<_>>()
    };
    let point = logs.last().unwrap();
    for (group, prefix) in
        [("", ""), ("/head.*", "head"), ("/body.weight", "body.weight"), ("/default", "body.bias")]
    {
        assert_is(point, &format!("param_norm{group}"), norm(&weights_of(prefix)));
    }
    assert!(
        point.get("grad_norm").is_none() && point.get("update_norm/head.*").is_some(),
        "{point}"
    );
}

#[test]
fn monitors_compile_and_read_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let builder = trainer(folder.path()).runtime(isolated()).max_epochs(3).log_every_n_steps(2);
    let builder = builder.enable_checkpointing(false).callback(NormMonitor::new());
    let mut trainer =
        builder.callback(LearningRateMonitor::new().log_momentum(true)).build().unwrap();
    let summary = trainer.fit(&mlp(true), &loader(), None).unwrap();
    assert_eq!(summary.train_compilations, 1);
    assert!(trainer.device_to_host_transfers() <= trainer.log_points());
    let error = crate::common::trainer(folder.path())
        .callback(NormMonitor::new().gradients(false).parameters(false).updates(false))
        .build()
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.starts_with("NormMonitor: gradients, parameters and updates are all off"),
        "{error}"
    );
}

#[test]
fn throughput_is_logged_with_the_operations_of_the_step() {
    let folder = tempfile::tempdir().unwrap();
    let record = Record::default();
    for (devices, every) in [(1, 1), (4, 1), (1, 2)] {
        record.logs.lock().unwrap().clear();
        let builder =
            trainer(folder.path()).devices(devices).max_epochs(6).log_every_n_steps(2 / every);
        let builder = builder.accumulate_grad_batches(every).callback(ThroughputMonitor::new());
        let mut trainer =
            builder.callback(record.clone()).enable_checkpointing(false).build().unwrap();
        trainer.fit(&mlp(false), &loader(), None).unwrap();
        assert!(trainer.device_to_host_transfers() <= trainer.log_points());
        // The forward pass, and the gradients of the weights and of the second layer's input.
        let rows = 16.0 / devices as f64;
        let flops = 2.0 * rows * 16.0 * (2 * FEATURES + 3 * CLASSES) as f64;
        let logs = record.logs.lock().unwrap();
        assert_eq!(logs.len(), 12);
        for point in &logs[1..] {
            let rate =
                point.get("throughput/batches_per_second").unwrap_or_else(|| panic!("{point}"));
            assert!(rate > 0.0 && rate.is_finite());
            assert_is(point, "throughput/samples_per_second", 16.0 * rate);
            assert_is(point, "throughput/tflops_per_device", flops * rate / 1e12);
            assert_eq!(point.get("throughput/mfu"), None, "the peak of a CPU is not known");
        }
    }
}

#[test]
fn memory_is_logged_where_it_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let (_, _, logs) = fit(folder.path(), &mlp(false), |b| b.callback(DeviceStatsMonitor::new()));
    for point in &logs {
        let [resident, available] =
            ["resident", "available"].map(|kind| point.get(&format!("memory/host/{kind}_bytes")));
        assert!(resident > Some(1e6) && available > Some(1e6), "{point}");
        // The CPU plugin reports nothing about its devices.
        assert_eq!(point.metrics.len(), 4, "{point}");
    }
    assert_eq!(logs.len(), 4);
}
