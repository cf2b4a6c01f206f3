//! Outlier steps are skipped as in the NumPy reference, on one device and on several, in groups,
//! and after a resume.

use std::path::Path;
use std::sync::Arc;

use crate::common::{Record, isolated, trainer};
use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Init, Module, Parameter};
use fulmen_tensor::{DType, Tensor};
use fulmen_trainer::callbacks::{LearningRateMonitor, NormMonitor, SpikeGuard};
use fulmen_trainer::tuner::LearningRateFinder;
use fulmen_trainer::{
    Batch, Callback, Candidate, FitSummary, Optimizers, Plan, Precision, StepContext, StepInputs,
    StepRule, Strategy, TrainerBuilder, TrainingModule, UpdatedStep,
};
use serde_json::Value;

const SAMPLES: usize = 4;
const FEATURES: usize = 8;

/// A line through the origin. Its loss grows with the batch's values.
#[derive(Module)]
struct Line {
    w: Parameter,
}

impl Line {
    fn new() -> Line {
        Line { w: Parameter::new([FEATURES], Init::Constant(1.0)) }
    }

    fn weights(&self) -> Vec<f64> {
        self.w.get().eval().unwrap().to_f64()
    }
}

impl TrainingModule for Line {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        batch.mean(&((batch.get("x") * self.w.get()).sum(-1) / FEATURES as f64))
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.01).momentum(0.9))
    }
}

fn reference() -> Value {
    serde_json::from_str(include_str!("../reference/callbacks.json")).unwrap()
}

/// The batches of the reference, in order, in epochs of a third of them, with values times
/// `factor`.
fn loader(reference: &Value, factor: f32) -> DataLoader {
    let mut scales: Vec<f32> = reference["scales"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s.as_f64().unwrap() as f32 * factor)
        .collect();
    scales[reference["not_finite"].as_u64().unwrap() as usize] = f32::NAN;
    let row = |i: usize| 1.0 + 0.1 * (i % 5) as f32;
    let x: Vec<f32> =
        scales.iter().flat_map(|s| (0..SAMPLES * FEATURES).map(move |i| s * row(i))).collect();
    let rows = scales.len() * SAMPLES;
    let data = TensorDataset::builder().array("x", [rows, FEATURES], x).build().unwrap();
    DataLoader::builder(data).batch_size(SAMPLES).drop_last(true).build().unwrap()
}

fn guard() -> SpikeGuard {
    SpikeGuard::new().deviations(4.0).window(8).warmup(4).gradients(true)
}

fn fit(
    folder: &Path,
    loader: &DataLoader,
    set: impl Fn(TrainerBuilder) -> TrainerBuilder,
) -> (Line, Record, FitSummary) {
    let module = Line::new();
    let record = Record::default();
    let builder = trainer(folder)
        .max_epochs(1)
        .log_every_n_steps(1)
        .callback(record.clone())
        .callback(guard());
    let summary = set(builder).build().unwrap().fit(&module, loader, None).unwrap();
    (module, record, summary)
}

/// The numbers of the skipped steps, according to the log point of every step.
fn skipped(record: &Record) -> Vec<u64> {
    let logs = record.logs.lock().unwrap();
    let mut numbers = Vec::new();
    for point in logs.iter() {
        let count = point.get("skipped_steps").unwrap() as usize;
        if count > numbers.len() {
            numbers.push(point.get("last_skipped_step").unwrap() as u64);
            assert_eq!(numbers.last(), Some(&point.global_step));
        }
        assert_eq!(count, numbers.len());
    }
    numbers
}

fn assert_is(case: &Value, module: &Line, record: &Record, what: &str) {
    let numbers: Vec<u64> =
        case["skipped"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    assert!(numbers.len() > 5, "{case}");
    assert_eq!(skipped(record), numbers, "{what}");
    for (actual, expected) in module.weights().iter().zip(case["weights"].as_array().unwrap()) {
        let expected = expected.as_f64().unwrap();
        assert!((actual / expected - 1.0).abs() < 1e-5, "{what}: {actual} is not {expected}");
    }
}

#[test]
fn the_same_spikes_are_skipped_as_in_numpy() {
    let folder = tempfile::tempdir().unwrap();
    let reference = reference();
    let data = loader(&reference, 1.0);
    let [single, pairs] = [0, 1].map(|i| &reference["spikes"][i]);
    for (what, devices, strategy, every) in [
        ("one device", 1, Strategy::Ddp, 1),
        ("pairs", 1, Strategy::Ddp, 2),
        ("pairs on many", 4, Strategy::Ddp, 2),
        ("fully sharded", 4, Strategy::Fsdp, 1),
    ] {
        let (module, record, _) = fit(folder.path(), &data, |b| {
            b.devices(devices)
                .strategy(strategy)
                .accumulate_grad_batches(every)
                .gradient_clip_val(100.0)
        });
        assert_is(if every == 1 { single } else { pairs }, &module, &record, what);
    }
}

/// A line whose data is larger by a power of two. Its rate is smaller, so that its weights move as
/// those of a [`Line`].
#[derive(Module)]
struct Steep {
    line: Line,
}

/// Squares of the losses, and of the gradients' norms, overflow.
const STEEPNESS: f32 = (1u128 << 80) as f32;

impl TrainingModule for Steep {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        self.line.training_step(batch, cx)
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.01 / f64::from(STEEPNESS)).momentum(0.9))
    }
}

#[test]
fn spikes_among_losses_whose_squares_overflow_are_skipped_too() {
    let folder = tempfile::tempdir().unwrap();
    let reference = reference();
    let module = Steep { line: Line::new() };
    let record = Record::default();
    let builder = trainer(folder.path()).max_epochs(1).log_every_n_steps(1);
    let mut trainer = builder.callback(record.clone()).callback(guard()).build().unwrap();
    trainer.fit(&module, &loader(&reference, STEEPNESS), None).unwrap();
    assert_is(&reference["spikes"][0], &module.line, &record, "steep");
}

/// Two lines. The second one learns from every second batch.
#[derive(Module)]
struct Lines {
    a: Line,
    b: Line,
}

impl TrainingModule for Lines {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let loss =
            |line: &Line| batch.mean(&((batch.get("x") * line.w.get()).sum(-1) / FEATURES as f64));
        let first = cx.minimize("a", |_| loss(&self.a));
        cx.minimize("b", |_| loss(&self.b));
        first
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        let sgd = || Sgd::new(0.01).momentum(0.9);
        Box::new(Optimizers::new().add("a", ["a.*"], sgd()).add("b", ["b.*"], sgd()).every("b", 2))
    }
}

#[test]
fn each_of_several_optimizers_is_guarded_and_monitored_separately() {
    let folder = tempfile::tempdir().unwrap();
    let reference = reference();
    let record = Record::default();
    let module = Lines { a: Line::new(), b: Line::new() };
    let builder = trainer(folder.path())
        .runtime(isolated())
        .max_epochs(1)
        .log_every_n_steps(1)
        .callback(guard());
    let builder = builder
        .callback(NormMonitor::new())
        .callback(LearningRateMonitor::new().log_momentum(true));
    let mut trainer = builder.callback(record.clone()).build().unwrap();
    let summary = trainer.fit(&module, &loader(&reference, 1.0), None).unwrap();
    assert_eq!(summary.train_compilations, 1);
    let logs = record.logs.lock().unwrap();
    for (optimizer, line, case, every) in [("a", &module.a, 0, 1), ("b", &module.b, 2, 2)] {
        let case = &reference["spikes"][case];
        let mut numbers: Vec<u64> = Vec::new();
        for point in logs.iter().filter(|point| (point.global_step - 1).is_multiple_of(every)) {
            let value = |name: &str| {
                point
                    .get(&format!("{name}-{optimizer}"))
                    .unwrap_or_else(|| panic!("{name}-{optimizer}: {point}"))
            };
            let skips = value("skipped_steps") as usize > numbers.len();
            if skips {
                numbers.push(value("last_skipped_step") as u64);
                assert_eq!(numbers.last(), Some(&point.global_step));
            }
            assert_eq!(value("update_norm") == 0.0, skips, "{point}");
            assert!(value("param_norm") > 0.0 && (value("momentum") - 0.9).abs() < 1e-6, "{point}");
            assert!(value("grad_norm") > 0.0 || value("grad_norm").is_nan(), "{point}");
        }
        // Skipped steps are numbered by the steps of the training. The optimizer makes every second
        // one.
        let expected = case["skipped"]
            .as_array()
            .unwrap()
            .iter()
            .map(|n| (n.as_u64().unwrap() - 1) * every + 1);
        assert_eq!(numbers, expected.collect::<Vec<_>>(), "{optimizer}");
        for (actual, expected) in line.weights().iter().zip(case["weights"].as_array().unwrap()) {
            assert!(
                (actual / expected.as_f64().unwrap() - 1.0).abs() < 1e-5,
                "{optimizer}: {actual} is not {expected}"
            );
        }
    }
    // In a step that it skips, an optimizer logs only its rate.
    assert!(
        logs[1].get("skipped_steps-b").is_none() && logs[1].get("skipped_steps-a").is_some(),
        "{}",
        logs[1]
    );
    let error = trainer
        .lr_find(&module, &loader(&reference, 1.0), &LearningRateFinder::new())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("lr_find: the module has the optimizers `a`, `b`, but lr_find tries only one learning rate"),
        "{error}"
    );
}

#[test]
fn a_guard_costs_no_compilation_and_no_transfer() {
    let folder = tempfile::tempdir().unwrap();
    let reference = reference();
    let data = loader(&reference, 1.0);
    let mut trainer = trainer(folder.path())
        .runtime(isolated())
        .max_epochs(2)
        .log_every_n_steps(10)
        .enable_checkpointing(false)
        .callback(guard())
        .build()
        .unwrap();
    let summary = trainer.fit(&Line::new(), &data, None).unwrap();
    assert_eq!(summary.train_compilations, 1);
    assert_eq!(trainer.device_to_host_transfers(), trainer.log_points());
}

#[test]
fn a_resumed_run_skips_the_same_steps() {
    let folder = tempfile::tempdir().unwrap();
    let reference = reference();
    let data = loader(&reference, 1.0);
    for every in [1, 2] {
        let (module, whole, _) = fit(folder.path(), &data, |b| b.accumulate_grad_batches(every));
        // End the run between two spikes, within the steps of one log point.
        let stop = 32 / every - 3;
        let (_, _, first) =
            fit(folder.path(), &data, |b| b.accumulate_grad_batches(every).max_steps(stop));
        let (resumed, rest, _) = fit(folder.path(), &data, |b| {
            b.accumulate_grad_batches(every).ckpt_path(first.last_checkpoint.as_deref().unwrap())
        });
        for metric in ["train_loss", "skipped_steps", "last_skipped_step"] {
            assert_eq!(rest.bits(metric), whole.bits(metric)[stop as usize..], "{metric}");
        }
        let bits = |module: &Line| module.weights().iter().map(|w| w.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&resumed), bits(&module));
    }
}

#[test]
fn an_overflow_in_f16_is_not_a_spike() {
    let folder = tempfile::tempdir().unwrap();
    let reference = reference();
    // The first loss scale is too large for this batch.
    let data = TensorDataset::builder()
        .array("x", [160, FEATURES], vec![30.0f32; 160 * FEATURES])
        .build()
        .unwrap();
    let steady = DataLoader::builder(data).batch_size(SAMPLES).build().unwrap();
    let (module, record, summary) =
        fit(folder.path(), &steady, |b| b.precision(Precision::F16Mixed));
    assert_eq!((skipped(&record), summary.global_step), (Vec::new(), 40));
    assert!(module.weights()[0] < 1.0, "steps were made after the overflows");
    // NaN is always skipped, for any scale.
    let (module, _, _) =
        fit(folder.path(), &loader(&reference, 1.0), |b| b.precision(Precision::F16Mixed));
    assert!(module.weights().iter().all(|w| w.is_finite()), "{:?}", module.weights());
}

/// Skips every third of the steps that other rules let pass, or breaks a promise.
#[derive(Clone, Copy, Debug)]
enum Thirds {
    Right,
    NotBoolean,
    OtherType,
    Slash,
}

impl StepRule for Thirds {
    fn name(&self) -> &'static str {
        if matches!(self, Thirds::Slash) { "a/b" } else { "thirds" }
    }

    fn init(&self) -> Vec<(&'static str, Tensor)> {
        vec![("seen", Tensor::zeros(DType::I32, []))]
    }

    fn inputs(&self) -> StepInputs {
        StepInputs { loss: true, ..StepInputs::default() }
    }

    fn accepts(&self, step: &Candidate, state: &mut [Tensor]) -> Option<Tensor> {
        if matches!(self, Thirds::NotBoolean) {
            return step.loss.clone();
        }
        state[0] = &state[0] + 1.0;
        let accepts = state[0].remainder(3.0).ne(0.0);
        if matches!(self, Thirds::OtherType) {
            state[0] = state[0].to_dtype(DType::F32);
        }
        Some(accepts)
    }

    fn logged(&self, _: &UpdatedStep, state: &[Tensor]) -> Vec<(String, Tensor)> {
        vec![("thirds_seen".into(), state[0].clone())]
    }
}

struct ThirdsGuard(Thirds);

impl Callback for ThirdsGuard {
    fn name(&self) -> &'static str {
        "ThirdsGuard"
    }

    fn step_rule(&self) -> Option<Arc<dyn StepRule>> {
        Some(Arc::new(self.0))
    }
}

#[test]
fn a_rule_of_ones_own_decides_about_the_steps_that_the_guard_lets_pass() {
    let folder = tempfile::tempdir().unwrap();
    let reference = reference();
    let data = loader(&reference, 1.0);
    let mut weights = Vec::new();
    for devices in [1, 4] {
        let run = |stop: Option<u64>, from: &Path| {
            fit(folder.path(), &data, |b| {
                let b = b.devices(devices).ckpt_path(from).callback(ThirdsGuard(Thirds::Right));
                match stop {
                    Some(steps) => b.max_steps(steps),
                    None => b,
                }
            })
        };
        let (module, record, _) = run(None, Path::new(""));
        let skipped_by_guard = skipped(&record).len() as f64;
        let seen = record.logs.lock().unwrap().last().unwrap().get("thirds_seen").unwrap();
        let steps = record.logs.lock().unwrap().len() as f64;
        assert!(skipped_by_guard > 5.0);
        assert_eq!(seen, steps - skipped_by_guard);
        let (_, _, first) = run(Some(25), Path::new(""));
        let (resumed, rest, _) = run(None, first.last_checkpoint.as_deref().unwrap());
        assert_eq!(rest.bits("thirds_seen"), record.bits("thirds_seen")[25..]);
        assert_eq!(resumed.weights(), module.weights());
        weights.push(module.weights());
    }
    // Without the rule, the weights are others.
    let (guarded, _, _) = fit(folder.path(), &data, |b| b);
    assert!(weights.iter().all(|weights| (weights[0] - guarded.weights()[0]).abs() > 1e-3));
    assert!((weights[0][0] / weights[1][0] - 1.0).abs() < 1e-5, "{weights:?}");
}

#[test]
fn a_rule_of_ones_own_that_breaks_a_promise_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = loader(&reference(), 1.0);
    let error = |thirds: &[Thirds]| {
        let builder = trainer(folder.path()).max_epochs(1);
        let builder = thirds.iter().fold(builder, |b, &rule| b.callback(ThirdsGuard(rule)));
        let fit = builder.build().and_then(|mut trainer| trainer.fit(&Line::new(), &data, None));
        fit.unwrap_err().to_string()
    };
    for (rules, expected) in [
        (
            &[Thirds::NotBoolean][..],
            "the rule `thirds`: accepts() must return a Boolean scalar, but it returned f32[]",
        ),
        (
            &[Thirds::OtherType],
            "the rule `thirds`: it changed the type of its state from i32[] to f32[]",
        ),
        (&[Thirds::Slash], "ThirdsGuard: `a/b` is not a valid name for a rule"),
        (&[Thirds::Right; 2], "ThirdsGuard: there are two of them; keep one"),
    ] {
        assert!(error(rules).contains(expected), "{}", error(rules));
    }
}

#[test]
fn invalid_settings_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |guards: Vec<SpikeGuard>| {
        let builder = guards.into_iter().fold(trainer(folder.path()), TrainerBuilder::callback);
        builder.build().err().map(|error| error.to_string()).unwrap_or_default()
    };
    let check = |guard: SpikeGuard, expected: &str| {
        assert_eq!(refused(vec![guard]), format!("SpikeGuard: {expected}"))
    };
    check(guard().deviations(0.0), "deviations must be finite and above 0, but it is 0");
    check(guard().deviations(f64::NAN), "deviations must be finite and above 0, but it is NaN");
    check(guard().window(1), "window must be from 2 to 1048576 steps, but it is 1");
    check(guard().warmup(1), "warmup must be from 2 to 2147483647 steps, but it is 1");
    assert_eq!(refused(vec![guard(), guard()]), "SpikeGuard: there are two of them; keep one");

    let reference = reference();
    let what = "skipped_steps";
    let data = loader(&reference, 1.0);
    /// Logs a name that the guard logs.
    #[derive(Module)]
    struct Same(Line);
    impl TrainingModule for Same {
        fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
            cx.log("skipped_steps", batch.mask());
            self.0.training_step(batch, cx)
        }
        fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
            self.0.configure_optimizers(plan)
        }
    }
    let mut trainer = trainer(folder.path()).max_epochs(1).callback(guard()).build().unwrap();
    let error = trainer.fit(&Same(Line::new()), &data, None).unwrap_err().to_string();
    let expected =
        format!("log `{what}`: the rule `spikes` logs a value of this name; choose another\n  at ");
    assert!(error.starts_with(&expected) && error.contains("spikes.rs:"), "{error}");
}
