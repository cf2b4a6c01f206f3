//! The values that callbacks see, their order, and the results of their requests: in a fit, a
//! validation, a test and a prediction.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{
    CLASSES, DROP_LAST, FEATURES, Net, Record, isolated, samples, train_loader, trainer, val_loader,
};
use fulmen_data::DataLoader;
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::{DType, Tensor};
use fulmen_trainer::callbacks::{Event, LambdaCallback, ProgressBar, every, on, once, when};
use fulmen_trainer::{
    Actions, Batch, Callback, CheckpointFile, CheckpointRole, Error, EvaluationProgress,
    EvaluationSet, FitStart, FitSummary, LogPoint, Plan, Predicted, Predictions, ProgramOutput,
    Progress, StepContext, Trainer, TrainerBuilder, TrainingModule, Weights,
};

/// Records the name of each called hook.
#[derive(Clone, Default)]
struct Order(Arc<Mutex<Vec<String>>>);

impl Order {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Callback for Order {
    fn name(&self) -> &'static str {
        "Order"
    }
    fn on_fit_start(&mut self, _: &FitStart) {
        self.note("fit start");
    }
    fn load_state(&mut self, state: &serde_json::Value) {
        self.note(format!("state {state}"));
    }
    fn on_load_checkpoint(&mut self, checkpoint: &CheckpointFile) {
        self.note(format!("load step {}", checkpoint.global_step));
    }
    fn on_sanity_check_start(&mut self) {
        self.note("sanity start");
    }
    fn on_sanity_check_end(&mut self) {
        self.note("sanity end");
    }
    fn on_train_epoch_start(&mut self, progress: &Progress, _: &mut Actions) {
        self.note(format!("epoch {} start", progress.epoch));
    }
    fn on_train_batch_start(&mut self, progress: &Progress) {
        self.note(format!("batch start {}", progress.batch));
    }
    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Actions) {
        self.note(format!("batch end {}", progress.batch));
    }
    fn on_validation_start(&mut self, progress: &EvaluationProgress) {
        self.note(format!("validation start of {}", progress.batches));
    }
    fn on_validation_batch_end(&mut self, progress: &EvaluationProgress) {
        self.note(format!("validation batch {}", progress.batch));
    }
    fn on_validation_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        assert!(point.get("val_loss").is_some());
        self.note(format!("validation end, fitting {}", actions.is_fitting()));
    }
    fn on_train_epoch_end(&mut self, point: &LogPoint, _: &mut Actions) {
        assert!(point.get("val_loss").is_some() && point.get("train_loss_epoch").is_some());
        self.note("epoch end");
    }
    fn on_save_checkpoint(&mut self, checkpoint: &CheckpointFile) {
        self.note(format!("save {}", checkpoint.path.file_name().unwrap().to_str().unwrap()));
    }
    fn on_test_start(&mut self, progress: &EvaluationProgress) {
        self.note(format!("test start of {}", progress.batches));
    }
    fn on_test_batch_end(&mut self, progress: &EvaluationProgress) {
        self.note(format!("test batch {}", progress.batch));
    }
    fn on_test_end(&mut self, point: &LogPoint) {
        assert!(point.get("test_acc").is_some());
        self.note("test end");
    }
    fn on_predict_start(&mut self, progress: &EvaluationProgress) {
        self.note(format!("predict start of {}", progress.batches));
    }
    fn on_predict_batch_end(&mut self, progress: &EvaluationProgress, predicted: &Predicted) {
        self.note(format!("predict batch {}: {}", progress.batch, predicted.num_samples()));
    }
    fn on_predict_end(&mut self) {
        self.note("predict end");
    }
    fn on_exception(&mut self, error: &Error, _: &mut Actions) {
        self.note(format!("exception {}", error.is_usage()));
    }
    fn on_fit_end(&mut self, summary: &FitSummary) {
        self.note(format!("fit end {}", summary.global_step));
    }
    fn state(&self) -> Option<serde_json::Value> {
        Some(7.into())
    }
}

#[test]
fn hooks_run_in_their_order_in_every_loop() {
    let folder = tempfile::tempdir().unwrap();
    let order = Order::default();
    let builder = || trainer(folder.path()).callback(order.clone()).callback(ProgressBar::new());
    let net = Net::new();
    let train = train_loader(16, DROP_LAST);
    let val = val_loader(12);
    let mut trainer =
        builder().max_epochs(1).num_sanity_val_steps(1).val_check_interval(0.5).build().unwrap();
    let summary = trainer.fit(&net, &train, Some(&val)).unwrap();
    let validation = [
        "validation start of 2",
        "validation batch 1",
        "validation batch 2",
        "validation end, fitting true",
    ];
    let expected = [
        &[
            "fit start",
            "sanity start",
            "sanity end",
            "epoch 0 start",
            "batch start 0",
            "batch end 1",
        ][..],
        &validation,
        &["save last", "batch start 1", "batch end 2"],
        &validation,
        &["epoch end", "save last", "fit end 2"],
    ];
    assert_eq!(order.take(), expected.concat());

    trainer.validate(&net, &val).unwrap();
    let alone = [
        "validation start of 2",
        "validation batch 1",
        "validation batch 2",
        "validation end, fitting false",
    ];
    assert_eq!(order.take(), alone);
    trainer.test(&net, &val, Weights::Last).unwrap();
    assert_eq!(order.take(), ["test start of 2", "test batch 1", "test batch 2", "test end"]);
    trainer.test(&net, &val, Weights::Best).unwrap_err();
    assert_eq!(order.take(), ["exception true"]);

    let mut resumed =
        builder().max_epochs(2).ckpt_path(summary.last_checkpoint.unwrap()).build().unwrap();
    resumed.fit(&net, &train, Some(&val)).unwrap();
    let calls = order.take();
    assert_eq!(calls[..4], ["fit start", "state 7", "load step 2", "epoch 1 start"]);

    let line = Line::default();
    let predicting = DataLoader::builder(samples(12)).batch_size(8).build().unwrap();
    resumed.predict(&line, &predicting, Weights::Current).unwrap().concat().unwrap();
    assert_eq!(
        order.take(),
        ["predict start of 2", "predict batch 1: 8", "predict batch 2: 4", "predict end"]
    );
}

/// A linear layer with its own hooks and two programs.
#[derive(Module)]
struct Line {
    fc: Linear,
    #[module(skip)]
    order: Order,
}

impl Default for Line {
    fn default() -> Line {
        Line { fc: Linear::new(FEATURES, CLASSES), order: Order::default() }
    }
}

impl TrainingModule for Line {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        batch.mean(&self.fc.forward(&batch.get("x")).square().sum(-1))
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        cx.log("val_loss", &self.fc.forward(&batch.get("x")).square().sum(-1));
    }
    fn predict_step(&self, batch: &Batch) -> Predictions {
        self.fc.forward(&batch.get("x")).into()
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.01))
    }
    fn programs(&self) -> Vec<(&'static str, Predictions)> {
        let ones = Tensor::ones(DType::F32, [2, FEATURES]);
        vec![
            ("of ones", self.fc.forward(&ones).into()),
            (
                "weights",
                [("w", self.fc.weight.get()), ("twice", self.fc.weight.get() * 2.0)].into(),
            ),
        ]
    }
    fn on_fit_start(&self, start: &FitStart) {
        self.order.note(format!("fit start on {}", start.platform));
    }
    fn on_log(&self, point: &LogPoint, _: &mut Actions) {
        self.order.note(format!("log {}", point.global_step));
    }
    fn on_validation_end(&self, _: &LogPoint, actions: &mut Actions) {
        if actions.is_fitting() {
            actions.stop("the module has seen enough");
        }
    }
    fn on_fit_end(&self, summary: &FitSummary) {
        self.order.note(summary.stopped.clone().unwrap_or_default());
    }
}

#[test]
fn a_module_has_the_hooks_too() {
    let folder = tempfile::tempdir().unwrap();
    let line = Line::default();
    let mut trainer =
        trainer(folder.path()).log_every_n_steps(1).val_check_interval(2).build().unwrap();
    let summary = trainer.fit(&line, &train_loader(80, DROP_LAST), Some(&val_loader(8))).unwrap();
    assert_eq!(summary.global_step, 2);
    assert_eq!(
        line.order.take(),
        ["fit start on cpu", "log 1", "log 2", "the module has seen enough"]
    );
}

/// The outputs of the requested programs.
#[derive(Clone, Default)]
struct Outputs(Arc<Mutex<Vec<Output>>>);

/// The name, the step and the first value of an output.
type Output = (String, u64, Vec<f64>);

impl Callback for Outputs {
    fn name(&self) -> &'static str {
        "Outputs"
    }
    fn on_program_end(&mut self, output: &ProgramOutput, _: &mut Actions) {
        let (_, literal) = &output.values.values()[0];
        self.0.lock().unwrap().push((output.name.clone(), output.global_step, literal.to_f64()));
    }
}

#[test]
fn a_program_runs_with_the_weights_of_the_moment_and_is_compiled_before_the_first_step() {
    for devices in [1, 8] {
        let folder = tempfile::tempdir().unwrap();
        let outputs = Outputs::default();
        let builder = trainer(folder.path()).devices(devices).max_epochs(1).log_every_n_steps(100);
        let compilations = Arc::new(AtomicU64::new(0));
        let mut trainer = builder
            .callback(outputs.clone())
            .callback(on(Event::TrainBatchEnd, every(2), |_, actions| {
                actions.run_program("weights")
            }))
            .callback(on(Event::TrainEpochEnd, every(1), |_, actions| {
                actions.run_program("of ones")
            }))
            .callback(Compilations(compilations.clone(), false))
            .build()
            .unwrap();
        let line = Line::default();
        let before = trainer.device_to_host_transfers();
        let summary = trainer.fit(&line, &train_loader(40, DROP_LAST), None).unwrap();
        assert_eq!(summary.global_step, 5);
        // The transfers are two programs during training and one at the end of the epoch, the
        // epoch's values, and the checkpoint.
        assert_eq!(trainer.device_to_host_transfers() - before, 3 + 1 + 1);
        let outputs = outputs.0.lock().unwrap();
        let names: Vec<_> = outputs.iter().map(|(name, step, _)| (name.as_str(), *step)).collect();
        assert_eq!(names, [("weights", 2), ("weights", 4), ("of ones", 5)]);
        assert_ne!(outputs[0].2, outputs[1].2);
        // Computed directly with the final weights.
        let by_hand =
            line.fc.forward(&Tensor::ones(DType::F32, [2, FEATURES])).eval().unwrap().to_f64();
        assert!(
            outputs[2].2.iter().zip(&by_hand).all(|(a, b)| (a - b).abs() < 1e-6),
            "{:?} {by_hand:?}",
            outputs[2]
        );
    }
}

/// Fails if a program is compiled after the first step.
struct Compilations(Arc<AtomicU64>, bool);

impl Callback for Compilations {
    fn name(&self) -> &'static str {
        "Compilations"
    }
    fn on_compile_start(&mut self, program: &str) {
        assert!(!self.1, "{program} was compiled after the first step");
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn on_train_batch_end(&mut self, _: &Progress, _: &mut Actions) {
        self.1 = true;
    }
}

#[test]
fn actions_are_done_after_any_step() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("at-{epoch}-{step}");
    let record = Record::default();
    let mut trainer = trainer(folder.path())
        .log_every_n_steps(1)
        .max_epochs(3)
        .callback(record.clone())
        .callback(
            on(Event::TrainBatchEnd, when(|now| now.global_step == 3), |_, actions| {
                actions.set_learning_rate_factor(0.5);
            })
            .changing_learning_rate(),
        )
        .callback(on(Event::TrainBatchEnd, when(|now| now.global_step == 7), |_, actions| {
            actions.validate()
        }))
        .callback(on(Event::Log, when(|now| now.global_step == 8), move |_, actions| {
            actions.save_checkpoint(&path, CheckpointRole::Extra);
        }))
        .callback(on(Event::TrainBatchEnd, when(|now| now.global_step == 23), |_, actions| {
            actions.stop("enough")
        }))
        .build()
        .unwrap();
    let summary =
        trainer.fit(&Net::new(), &train_loader(80, DROP_LAST), Some(&val_loader(16))).unwrap();
    assert_eq!(
        (summary.global_step, summary.epochs, summary.stopped.as_deref()),
        (23, 2, Some("enough"))
    );
    let rates: Vec<f64> =
        record.logs.lock().unwrap().iter().map(|point| point.get("lr").unwrap()).collect();
    assert!(rates[..3].iter().all(|lr| (lr - 0.05).abs() < 1e-8), "{rates:?}");
    assert!(rates[3..].iter().all(|lr| (lr - 0.025).abs() < 1e-8), "{rates:?}");
    let validated: Vec<u64> =
        record.validations.lock().unwrap().iter().map(|point| point.global_step).collect();
    assert_eq!(validated, [7, 10, 20]);
    let saved: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    let saved = saved
        .iter()
        .filter_map(|name| name.to_str())
        .find(|name| name.starts_with("at-0-"))
        .unwrap();
    // The values of a log point arrive some steps later.
    let step: u64 = saved.strip_prefix("at-0-").unwrap().parse().unwrap();
    assert!((8..=10).contains(&step), "{saved}");
}

#[test]
fn invalid_requests_of_callbacks_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let fails = |callback: LambdaCallback| {
        let mut trainer = trainer(folder.path()).max_epochs(1).callback(callback).build().unwrap();
        trainer.fit(&Line::default(), &train_loader(16, DROP_LAST), None).unwrap_err().to_string()
    };
    let unknown =
        fails(on(Event::TrainBatchEnd, once(), |_, actions| actions.run_program("samples")));
    assert!(
        unknown.contains("the program `samples`") && unknown.contains("`of ones`, `weights`"),
        "{unknown}"
    );
    let factor =
        fails(on(Event::TrainBatchEnd, once(), |_, actions| actions.set_learning_rate_factor(0.1)));
    assert!(factor.contains("changes_learning_rate() must be true"), "{factor}");
    let never = Trainer::builder()
        .callback(on(Event::Log, every(0), |_, _| {}))
        .build()
        .err()
        .unwrap()
        .to_string();
    assert_eq!(never, "LambdaCallback: every(0) never calls the closure; use at least every(1)");
}

#[test]
fn a_filter_counts_over_a_resume() {
    let folder = tempfile::tempdir().unwrap();
    let events = Arc::new(Mutex::new(Vec::new()));
    let run = |epochs: u64, from: &Path| {
        let third = events.clone();
        let first = events.clone();
        let mut trainer = trainer(folder.path())
            .max_epochs(epochs)
            .ckpt_path(from)
            .callback(on(Event::TrainBatchEnd, every(3), move |now, _| {
                third.lock().unwrap().push((3, now.global_step))
            }))
            .callback(on(Event::TrainBatchEnd, once(), move |now, _| {
                first.lock().unwrap().push((1, now.global_step))
            }))
            .build()
            .unwrap();
        trainer
            .fit(&Net::new(), &train_loader(40, DROP_LAST), None)
            .unwrap()
            .last_checkpoint
            .unwrap()
    };
    let checkpoint = run(1, Path::new(""));
    run(2, &checkpoint);
    assert_eq!(*events.lock().unwrap(), [(1, 1), (3, 3), (3, 6), (3, 9)]);
}

/// Logs the length of its set's name.
#[derive(Module)]
struct Named(Net);

impl TrainingModule for Named {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        self.0.training_step(batch, cx)
    }
    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        let length = cx.dataset().len() as f64;
        cx.log("length", batch.mask() * length);
        self.0.test_step(batch, cx);
    }
    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        self.0.configure_optimizers(plan)
    }
}

#[test]
fn a_test_of_several_sets_gives_each_the_values_of_a_test_of_it_alone() {
    let folder = tempfile::tempdir().unwrap();
    let net = Named(Net::new());
    let [short, longer] = [16, 24].map(val_loader);
    let mut trainer = trainer(folder.path()).build().unwrap();
    let sets = [EvaluationSet::new("short", &short), EvaluationSet::new("longer", &longer)];
    let point = trainer.test(&net, sets, Weights::Current).unwrap();
    assert_eq!([point.get("length/short"), point.get("length/longer")], [Some(5.0), Some(6.0)]);
    for (name, loader) in [("test_acc/short", &short), ("test_acc/longer", &longer)] {
        let alone = trainer.test(&net, loader, Weights::Current).unwrap();
        assert_eq!((alone.get("test_acc"), alone.get("length")), (point.get(name), Some(0.0)));
    }
    let twice =
        trainer.validate(&net, vec![EvaluationSet::new("a", &short); 2]).unwrap_err().to_string();
    assert!(twice.contains("two validation sets have the name `a`"), "{twice}");
    let none = trainer.test(&net, None, Weights::Current).unwrap_err().to_string();
    assert!(none.contains("there is no loader to test on"), "{none}");
}

#[test]
fn several_validation_sets_have_names_and_cadences() {
    let folder = tempfile::tempdir().unwrap();
    let record = Record::default();
    let builder =
        || trainer(folder.path()).runtime(isolated()).max_epochs(4).log_every_n_steps(1000);
    let net = Net::new();
    let train = train_loader(40, DROP_LAST);
    let small = val_loader(16);
    let large = val_loader(24);
    let mut trainer = builder().callback(record.clone()).build().unwrap();
    let sets = [
        EvaluationSet::new("small", &small),
        EvaluationSet::new("large", &large).check_val_every_n_epoch(2),
        EvaluationSet::new("often", &small).val_check_interval(7),
    ];
    let summary = trainer.fit(&net, &train, sets).unwrap();
    assert_eq!(
        (summary.train_compilations, summary.eval_compilations),
        (1, 1),
        "they are the same program"
    );
    let names: Vec<Vec<String>> = {
        let epochs = record.epochs.lock().unwrap();
        let names_of = |point: &LogPoint| {
            let names = point.metrics.iter().map(|metric| metric.0.clone());
            names.filter(|name| name.starts_with("val_loss")).collect()
        };
        epochs.iter().map(names_of).collect()
    };
    assert_eq!(
        names,
        [
            vec!["val_loss/small"],
            vec!["val_loss/small", "val_loss/large"],
            vec!["val_loss/small"],
            vec!["val_loss/small", "val_loss/large"]
        ]
    );
    let often: Vec<u64> = {
        let validations = record.validations.lock().unwrap();
        validations
            .iter()
            .filter(|p| p.get("val_loss/often").is_some())
            .map(|p| p.global_step)
            .collect()
    };
    assert_eq!(often, [7, 14]);
    let last = summary.last_epoch.unwrap();
    for (name, loader) in [("val_loss/small", &small), ("val_loss/large", &large)] {
        let alone = trainer.validate(&net, loader).unwrap().get("val_loss").unwrap();
        assert_eq!(last.get(name), Some(alone), "{name}");
    }
    // The sums of all sets are one transfer. There are four epochs with a checkpoint each, and two
    // validations within an epoch, each with a checkpoint that also holds training sums.
    assert_eq!(trainer.device_to_host_transfers() - 2, 4 * 2 + 2 * 3);

    let refused = |sets: Vec<EvaluationSet>| {
        let mut trainer = builder().build().unwrap();
        trainer.fit(&net, &train, sets).unwrap_err().to_string()
    };
    let set = |name: &str| EvaluationSet::new(name, &small);
    assert!(refused(vec![set("a"), set("a")]).contains("two validation sets have the name `a`"));
    assert!(refused(vec![set("a"), set("")]).contains("give each a name"));
    let never = refused(vec![set("a").val_check_interval(1000)]);
    assert!(
        never.contains(
            "the validation set `a`: val_check_interval: 1000 steps are more than the 20"
        ),
        "{never}"
    );
    let both = refused(vec![set("a").val_check_interval(5).check_val_every_n_epoch(2)]);
    assert!(
        both.contains("the validation set `a`") && both.contains("set only one of the two"),
        "{both}"
    );
    assert!(refused(vec![set("a").val_check_interval("often")]).contains("`often` is neither"));
    assert!(refused(vec![set("a").check_val_every_n_epoch(0)]).contains("must be at least 1"));
}

#[test]
fn callbacks_and_loggers_cost_no_transfer() {
    let transfers = |builder: TrainerBuilder| {
        let mut trainer =
            builder.max_epochs(2).log_every_n_steps(5).enable_checkpointing(false).build().unwrap();
        trainer.fit(&Net::new(), &train_loader(80, DROP_LAST), Some(&val_loader(16))).unwrap();
        (trainer.device_to_host_transfers(), trainer.log_points())
    };
    let folder = tempfile::tempdir().unwrap();
    let with_all = trainer(folder.path()).callback(Order::default()).callback(Record::default());
    let with_all = with_all.callback(ProgressBar::new()).callback(on(
        Event::TrainBatchEnd,
        every(1),
        |_, _| {},
    ));
    assert_eq!(transfers(with_all), (4 + 2, 4 + 2), "log points and epochs");
    assert_eq!(transfers(trainer(folder.path())), (4 + 2, 4 + 2));
}
