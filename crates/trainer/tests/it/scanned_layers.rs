//! Layers that run as a scan train like layers in a loop. They have the same names in checkpoints,
//! in logged values and in the module.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{
    CLASSES, DROP_LAST, FEATURES, Record, tensors, train_loader, trainer, val_loader,
};
use fulmen_nn::loss::{Reduction, cross_entropy};
use fulmen_nn::optim::{AdamW, Lamb, Muon, Optimizer, ParamGroups, Sgd};
use fulmen_nn::{LayerNorm, Linear, Module, scan_layers};
use fulmen_tensor::Tensor;
use fulmen_trainer::callbacks::{BackboneFinetuning, NormGroup, NormMonitor};
use fulmen_trainer::{
    Batch, LogPoint, Plan, StepContext, Strategy, TrainDuration, TrainerBuilder, TrainingModule,
    WeightAveraging,
};

const LAYERS: usize = 4;
const WIDTH: usize = 16;

#[derive(Module)]
struct Layer {
    norm: LayerNorm,
    fc: Linear,
}

#[derive(Module)]
pub(crate) struct Deep {
    embed: Linear,
    layers: Vec<Layer>,
    head: Linear,
    scan: bool,
    #[module(skip)]
    optimizer: fn() -> Box<dyn Optimizer>,
}

impl Deep {
    pub(crate) fn new(scan: bool, optimizer: fn() -> Box<dyn Optimizer>) -> Deep {
        let layer = |_| Layer { norm: LayerNorm::new([WIDTH]), fc: Linear::new(WIDTH, WIDTH) };
        let embed = Linear::new(FEATURES, WIDTH);
        let head = Linear::new(WIDTH, CLASSES);
        Deep { embed, layers: (0..LAYERS).map(layer).collect(), head, scan, optimizer }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let x = self.embed.forward(x);
        let layer = |layer: &Layer, x: &Tensor| x + layer.fc.forward(layer.norm.forward(x)).tanh();
        self.head.forward(if self.scan {
            scan_layers(&self.layers, &x, layer)
        } else {
            self.layers.iter().fold(x, |x, own| layer(own, &x))
        })
    }
}

impl TrainingModule for Deep {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        batch.mean(&cross_entropy(&self.forward(&batch.get("x")), &batch.get("y"), Reduction::None))
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        cx.log(
            "val_loss",
            &cross_entropy(&self.forward(&batch.get("x")), &batch.get("y"), Reduction::None),
        );
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        (self.optimizer)()
    }
}

pub(crate) fn adamw() -> Box<dyn Optimizer> {
    Box::new(ParamGroups::new(AdamW::new(1e-2).weight_decay(0.1)).no_decay_on_biases_and_norms())
}

/// One layer has a higher learning rate, and another one is frozen.
fn grouped() -> Box<dyn Optimizer> {
    Box::new(
        ParamGroups::new(Sgd::new(0.1).momentum(0.9))
            .lr_factor("layers.1.*", 3.0)
            .freeze("layers.2.fc.*"),
    )
}

/// All layers form one group, with a different optimizer from the rest.
fn one_group() -> Box<dyn Optimizer> {
    Box::new(
        ParamGroups::new(Sgd::new(0.1))
            .group("layers.*", AdamW::new(1e-2))
            .freeze("layers.*.norm.bias"),
    )
}

/// Small steps: two programs may round a number to different bf16 numbers.
fn muon() -> Box<dyn Optimizer> {
    Box::new(ParamGroups::new(AdamW::new(1e-2)).matrices("layers.*", Muon::new(1e-4)))
}

fn sgd() -> Box<dyn Optimizer> {
    Box::new(Sgd::new(0.1).momentum(0.9))
}

type Set = fn(TrainerBuilder) -> TrainerBuilder;

/// A name, the number of entries of [`ON`] to train with, the optimizer, and further settings.
type Setting = (&'static str, usize, fn() -> Box<dyn Optimizer>, Set);

const ON: [(&str, Set); 2] =
    [("one device", |b| b), ("fsdp on eight", |b| b.devices(8).strategy(Strategy::Fsdp))];

fn builder(folder: &Path, epochs: u64) -> TrainerBuilder {
    trainer(folder).max_epochs(epochs).log_every_n_steps(1)
}

/// The values of a module by name.
fn values(module: &impl Module) -> BTreeMap<String, Vec<f64>> {
    module.state().into_iter().map(|(name, v)| (name, v.get().eval().unwrap().to_f64())).collect()
}

#[track_caller]
fn assert_close(
    what: &str,
    expected: &BTreeMap<String, Vec<f64>>,
    actual: &BTreeMap<String, Vec<f64>>,
) {
    assert!(
        expected.keys().eq(actual.keys()),
        "{what}: {:?} and {:?}",
        expected.keys(),
        actual.keys()
    );
    for (name, expected) in expected {
        let scale = expected.iter().fold(1e-2f64, |most, x| most.max(x.abs()));
        let off =
            expected.iter().zip(&actual[name]).fold(0.0f64, |off, (a, b)| off.max((a - b).abs()));
        assert!(off <= 2e-5 * scale, "{what}: `{name}` is off by {off:e} of {scale}");
    }
}

#[test]
#[ignore = "slow: ci/slow"]
fn a_scan_trains_like_layers_in_a_loop() {
    let settings: [Setting; 9] = [
        ("sgd", 1, sgd, |b| b),
        ("adamw, clipped, accumulated", 2, adamw, |b| {
            b.gradient_clip_val(0.3).accumulate_grad_batches(2)
        }),
        ("lamb", 2, || Box::new(Lamb::new(1e-2)), |b| b),
        ("muon", 2, muon, |b| b),
        ("groups", 1, grouped, |b| b),
        ("one group", 2, one_group, |b| b),
        ("averaged", 1, adamw, |b| b.weight_averaging(WeightAveraging::ema(0.8))),
        ("one layer averaged", 1, adamw, |b| {
            b.weight_averaging(WeightAveraging::ema(0.8).only("layers.1.*"))
        }),
        ("unfrozen later", 1, sgd, |b| {
            b.callback(BackboneFinetuning::new("layers.*", TrainDuration::Epochs(1)))
        }),
    ];
    for (name, places, optimizer, set) in settings {
        for (on, devices) in &ON[..places] {
            let train = |scan: bool| {
                let folder = tempfile::tempdir().unwrap();
                let module = Deep::new(scan, optimizer);
                let record = Record::default();
                let builder = devices(set(builder(folder.path(), 2))).callback(record.clone());
                let mut trainer = builder.enable_checkpointing(false).build().unwrap();
                trainer.fit(&module, &train_loader(80, DROP_LAST), Some(&val_loader(24))).unwrap();
                let points = record
                    .logs
                    .lock()
                    .unwrap()
                    .iter()
                    .map(|p| p.get("train_loss").unwrap())
                    .collect();
                let validations = record.validations.lock().unwrap();
                let validated = validations.iter().map(|p| p.get("val_loss").unwrap()).collect();
                let logged: [Vec<f64>; 2] = [points, validated];
                let losses = logged
                    .into_iter()
                    .enumerate()
                    .map(|(i, losses)| (format!("losses {i}"), losses));
                values(&module).into_iter().chain(losses).collect::<BTreeMap<_, _>>()
            };
            assert_close(&format!("{name} on {on}"), &train(false), &train(true));
        }
    }
}

#[test]
fn a_frozen_layer_does_not_change() {
    let folder = tempfile::tempdir().unwrap();
    let module = Deep::new(true, sgd);
    module.layers[1].set_requires_grad(false);
    module.initialize(7);
    let before = values(&module);
    let mut trainer = builder(folder.path(), 1).enable_checkpointing(false).build().unwrap();
    trainer.fit(&module, &train_loader(80, DROP_LAST), None).unwrap();
    for (name, after) in values(&module) {
        assert_eq!(before[&name] == after, name.starts_with("layers.1."), "{name}");
    }
}

#[test]
fn a_checkpoint_does_not_depend_on_the_scan() {
    let set: Set = |b| b.accumulate_grad_batches(2).weight_averaging(WeightAveraging::ema(0.8));
    for (on, devices) in ON {
        let folder = tempfile::tempdir().unwrap();
        let fit = |scan: bool, epochs: u64, from: Option<&Path>| {
            let module = Deep::new(scan, adamw);
            let mut builder =
                devices(set(builder(&folder.path().join(format!("{scan} {epochs}")), epochs)));
            if let Some(from) = from {
                builder = builder.ckpt_path(from);
            }
            let summary =
                builder.build().unwrap().fit(&module, &train_loader(72, DROP_LAST), None).unwrap();
            (values(&module), summary.last_checkpoint.unwrap())
        };
        let [scanned, unrolled] = [true, false].map(|scan| fit(scan, 1, None).1);
        let [of_scan, of_layers] = [&scanned, &unrolled].map(|path| {
            tensors(path)
                .into_iter()
                .map(|(name, value)| (name, value.to_f64()))
                .collect::<BTreeMap<_, _>>()
        });
        assert!(
            of_scan.contains_key("optimizer/exp_avg/layers.3.fc.weight"),
            "{:?}",
            of_scan.keys()
        );
        assert_close(on, &of_layers, &of_scan);
        let shape = tensors(&scanned)["layers.3.fc.weight"].ty().to_string();
        assert_eq!(shape, format!("f32[{WIDTH}, {WIDTH}]"));
        let (expected, _) = fit(false, 2, None);
        for (scan, from) in [(false, &scanned), (true, &unrolled), (true, &scanned)] {
            assert_close(&format!("{on}, to {scan}"), &expected, &fit(scan, 2, Some(from)).0);
        }
    }
}

#[test]
fn a_scan_resumes_from_a_checkpoint_bit_for_bit() {
    let bits = |point: &LogPoint| {
        point.columns().into_iter().map(|(name, value)| (name, value.to_bits())).collect()
    };
    for (on, devices) in ON {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let run = |stop: usize, from: Option<&Path>| {
            let module = Deep::new(true, adamw);
            let set = devices(builder(folder.path(), 2))
                .accumulate_grad_batches(3)
                .gradient_clip_val(0.3);
            let mut trainer = set.build().unwrap();
            let mut step = trainer.train_step(&module, &train_loader(64, DROP_LAST)).unwrap();
            if let Some(from) = from {
                step.load(from).unwrap();
            }
            let mut points: Vec<Vec<(String, u64)>> = Vec::new();
            for batch in step.batches().take(stop) {
                step.run(&batch.unwrap()).unwrap();
                points.push(bits(&step.logs().unwrap().wait().unwrap()));
            }
            if stop < 16 {
                step.save(&path).unwrap();
            }
            drop(step);
            (points, values(&module))
        };
        // Within a group of batches.
        let (whole, values) = run(16, None);
        let (first, _) = run(5, None);
        let (rest, resumed) = run(16, Some(&path));
        assert_eq!([first, rest].concat(), whole, "{on}");
        assert_eq!(resumed, values, "{on}");
    }
}

#[test]
fn norms_are_logged_for_each_layer() {
    let train = |scan: bool| {
        let folder = tempfile::tempdir().unwrap();
        let record = Record::default();
        let monitor = NormMonitor::new().group_by(NormGroup::Parameter);
        let builder = builder(folder.path(), 1)
            .callback(record.clone())
            .callback(monitor)
            .log_grad_norm(true);
        let mut trainer = builder.enable_checkpointing(false).build().unwrap();
        trainer.fit(&Deep::new(scan, sgd), &train_loader(24, DROP_LAST), None).unwrap();
        let points = record.logs.lock().unwrap();
        points[1]
            .columns()
            .into_iter()
            .map(|(name, value)| (name, vec![value]))
            .collect::<BTreeMap<_, _>>()
    };
    let expected = train(false);
    let actual = train(true);
    assert!(actual.contains_key("update_norm/layers.2.fc.weight"), "{:?}", actual.keys());
    assert_close("norms", &expected, &actual);
}

#[test]
fn a_second_fit_continues_from_the_modules_values() {
    let train = |scan: bool| {
        let module = Deep::new(scan, adamw);
        let folder = tempfile::tempdir().unwrap();
        for epochs in [1, 2] {
            let builder = builder(folder.path(), epochs).enable_checkpointing(false);
            builder.build().unwrap().fit(&module, &train_loader(40, DROP_LAST), None).unwrap();
        }
        for (name, variable) in module.state() {
            assert!(variable.get().array().is_some(), "`{name}` is on no device");
        }
        values(&module)
    };
    assert_close("two fits", &train(false), &train(true));
}
