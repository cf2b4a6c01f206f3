//! Finding a learning rate and a batch size: the results, the restored state, and invalid
//! arguments.

use std::cell::RefCell;

use crate::common::{
    CLASSES, FEATURES, Net, PAD_LAST, Record, isolated, itself, samples, train_loader, trainer,
};
use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::loss::{Reduction, cross_entropy};
use fulmen_nn::optim::{Optimizer, ParamGroups, Sgd};
use fulmen_nn::{Init, Linear, Module, Parameter};
use fulmen_tensor::Tensor;
use fulmen_trainer::tuner::{
    BatchSizeFinder, BatchSizeMode, LearningRateFinder, SweepMode, Verdict,
};
use fulmen_trainer::{Batch, Plan, StepContext, Trainer, TrainingModule};

/// The loss is a parameter times a number. The parameter drops by ten times the rate.
#[derive(Module)]
struct Slope {
    w: Parameter,
}

impl TrainingModule for Slope {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        batch.mean(&(batch.get("x").sum(-1) * self.w.get()))
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        // The finder's rate replaces this rate, but the group's factor still applies.
        Box::new(ParamGroups::new(Sgd::new(123.0)).lr_factor("w", 10.0))
    }
}

fn ones(n: usize) -> DataLoader {
    let data = TensorDataset::builder().array("x", [n, 1], vec![1.0f32; n]).build().unwrap();
    DataLoader::builder(data).batch_size(4).drop_last(true).build().unwrap()
}

#[test]
fn the_rate_rises_from_the_minimum_to_the_maximum() {
    let folder = tempfile::tempdir().unwrap();
    let modes = [(SweepMode::Exponential, 1e-4, 0.01), (SweepMode::Linear, 1e-4, 0.01)];
    for (mode, min, max) in modes {
        let mut trainer = trainer(folder.path()).runtime(isolated()).build().unwrap();
        let module = Slope { w: Parameter::new([], Init::Constant(2.0)) };
        let finder =
            LearningRateFinder::new().min_lr(min).max_lr(max).num_training_steps(30).mode(mode);
        let curve = trainer.lr_find(&module, &ones(20), &finder).unwrap();
        let mut w = 2.0;
        let mut mean = 0.0;
        assert_eq!(curve.losses().len(), 30);
        for (i, (&rate, &loss)) in curve.learning_rates().iter().zip(curve.losses()).enumerate() {
            let share = i as f64 / 29.0;
            let expected = match mode {
                SweepMode::Exponential => 10f64.powf(-4.0 + 2.0 * share),
                SweepMode::Linear => min + (max - min) * share,
            };
            assert!((rate / expected - 1.0).abs() < 1e-9, "{rate} is not {expected}");
            mean = 0.98 * mean + 0.02 * w;
            let smooth = mean / (1.0 - 0.98f64.powi(i as i32 + 1));
            assert!((loss / smooth - 1.0).abs() < 1e-5, "step {i}: {loss} is not {smooth}");
            w -= 10.0 * rate;
        }
        // The search leaves no value, no folder and no log point behind.
        assert!(!module.w.is_set(), "it had no value before");
        assert_eq!(trainer.log_points(), 0);
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
        // A fit uses its own rate, and the module's values.
        let summary = trainer.fit(&module, &ones(20), None).unwrap();
        assert_eq!(summary.train_compilations, 1);
        std::fs::remove_dir_all(folder.path().join("version_0")).unwrap();
    }
}

#[test]
fn a_fit_after_the_search_is_the_fit_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let losses = |search: bool| {
        let record = Record::default();
        let builder =
            trainer(folder.path()).max_epochs(2).log_every_n_steps(1).callback(record.clone());
        let mut trainer = builder.build().unwrap();
        let net = Net::new();
        let data = train_loader(40, PAD_LAST);
        if search {
            trainer
                .lr_find(&net, &data, &LearningRateFinder::new().num_training_steps(20))
                .unwrap();
            let loader = |n| DataLoader::builder(samples(40)).batch_size(n).build();
            trainer.scale_batch_size(&net, loader, &BatchSizeFinder::new().max_trials(2)).unwrap();
            assert!(record.logs.lock().unwrap().is_empty(), "callbacks see nothing of it");
        }
        trainer.fit(&net, &data, None).unwrap();
        record.bits("train_loss")
    };
    assert_eq!(losses(true), losses(false));
}

/// Like [`Slope`], with a validation whose loss is the slope.
#[derive(Module)]
struct Validated {
    w: Parameter,
}

impl TrainingModule for Validated {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        batch.mean(&(batch.get("x").sum(-1) * self.w.get()))
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        cx.log("slope", batch.mean(&(batch.get("x").sum(-1) * self.w.get())));
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(123.0))
    }
}

#[test]
fn the_loss_of_validations_can_be_used_and_the_report_of_the_fit_shows_the_curve() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).max_epochs(1).runtime(isolated()).build().unwrap();
    let module = Validated { w: Parameter::new([], Init::Constant(2.0)) };
    let finder =
        LearningRateFinder::new().min_lr(1e-4).max_lr(0.01).num_training_steps(14).smoothing(0.0);
    let error = trainer.lr_find_validated(&module, &ones(20), ones(8), &finder).unwrap_err();
    assert_eq!(
        error.to_string(),
        "lr_find_validated: the validation logs no `val_loss`, only [slope]; log it in validation_step, or name another \
         value with LearningRateFinder::monitor"
    );
    let finder = finder.monitor("slope").validation_batches(1);
    let curve = trainer.lr_find_validated(&module, &ones(20), ones(8), &finder).unwrap();
    // Unlike the training loss, that of a validation is after the step.
    let mut w = 2.0;
    assert_eq!(curve.losses().len(), 14);
    for (&rate, &loss) in curve.learning_rates().iter().zip(curve.losses()) {
        w -= rate;
        assert!((loss / w - 1.0).abs() < 1e-5, "{loss} is not {w}");
    }
    assert_eq!(trainer.log_points(), 0);
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
    let no_data = trainer.lr_find_validated(&module, &ones(20), None, &finder).unwrap_err();
    assert!(no_data.to_string().contains("there is no validation data"), "{no_data}");

    trainer.fit(&module, &ones(20), None).unwrap();
    drop(trainer);
    let page = std::fs::read_to_string(folder.path().join("version_0/report.html")).unwrap();
    assert!(page.contains("The smoothed slope falls fastest at a learning rate of"));
}

/// A wide layer, so that the step's memory grows with the batch.
#[derive(Module)]
struct Wide {
    body: Linear,
    head: Linear,
}

fn wide() -> Wide {
    Wide { body: Linear::new(FEATURES, 4096), head: Linear::new(4096, CLASSES) }
}

impl TrainingModule for Wide {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let logits = self.head.forward(&self.body.forward(&batch.get("x")).tanh());
        batch.mean(&cross_entropy(&logits, &batch.get("y"), Reduction::None))
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.1))
    }
}

fn wide_loader(batch_size: usize) -> fulmen_data::Result<DataLoader> {
    DataLoader::builder(samples(4096)).batch_size(batch_size).build()
}

#[test]
fn the_compiler_rejects_a_batch_that_does_not_fit_before_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let limit = 10_000_000;
    for (devices, init_val) in [(1, 100), (4, 98)] {
        let mut trainer = trainer(folder.path()).devices(devices).build().unwrap();
        let finder =
            BatchSizeFinder::new().memory_limit(limit).init_val(init_val).steps_per_trial(2);
        let result = trainer.scale_batch_size(&wide(), wide_loader, &finder).unwrap();
        let sizes: Vec<usize> = result.trials.iter().map(|trial| trial.batch_size).collect();
        assert_eq!(sizes, (0..sizes.len()).map(|i| 100 << i).collect::<Vec<_>>());
        for trial in &result.trials {
            let fits = trial.needed_bytes.unwrap() <= limit;
            assert_eq!(
                trial.verdict,
                if fits { Verdict::Fits } else { Verdict::RefusedByCompiler },
                "{trial:?}"
            );
        }
        let last = result.trials.last().unwrap();
        assert_eq!(
            (last.verdict, result.batch_size),
            (Verdict::RefusedByCompiler, last.batch_size / 2)
        );

        // The binary search finds the exact limit, to one row per device.
        let result = trainer
            .scale_batch_size(&wide(), wide_loader, &finder.mode(BatchSizeMode::Binsearch))
            .unwrap();
        let verdict = |size| {
            result.trials.iter().find(|trial| trial.batch_size == size).map(|trial| trial.verdict)
        };
        assert_eq!(verdict(result.batch_size), Some(Verdict::Fits));
        assert_eq!(
            verdict(result.batch_size + devices as usize),
            Some(Verdict::RefusedByCompiler),
            "{result:?}"
        );
    }
}

#[test]
fn the_search_ends_with_the_data_or_the_trials() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).build().unwrap();
    let requested = RefCell::new(Vec::new());
    let loader = |n| {
        requested.borrow_mut().push(n);
        DataLoader::builder(samples(40)).batch_size(n).build()
    };
    let mut find = |finder: BatchSizeFinder| {
        trainer.scale_batch_size(&wide(), loader, &finder).unwrap().batch_size
    };
    assert_eq!((find(BatchSizeFinder::new()), requested.take()), (64, vec![2, 4, 8, 16, 32, 64]));
    assert_eq!((find(BatchSizeFinder::new().max_trials(3)), requested.take()), (8, vec![2, 4, 8]));
}

#[test]
fn invalid_arguments_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).build().unwrap();
    let data = train_loader(40, PAD_LAST);
    fn rates(trainer: &mut Trainer, data: &DataLoader, finder: LearningRateFinder) -> String {
        let error = trainer.lr_find(&Net::new(), data, &finder).unwrap_err();
        assert!(error.is_usage());
        error.to_string().strip_prefix("LearningRateFinder: ").unwrap().to_owned()
    }
    let finder = LearningRateFinder::new;
    for (finder, expected) in [
        (finder().min_lr(0.0), "min_lr must be finite and above 0, but it is 0"),
        (
            finder().max_lr(1e-9),
            "max_lr must be finite and above min_lr, 0.00000001; it is 0.000000001",
        ),
        (
            finder().num_training_steps(1),
            "num_training_steps must be from 2 to 2147483647, but it is 1",
        ),
        (
            finder().early_stop_threshold(Some(1.0)),
            "early_stop_threshold must be above 1, but it is 1; use None for no threshold",
        ),
    ] {
        assert_eq!(rates(&mut trainer, &data, finder), expected);
    }
    let mut sizes = |finder: BatchSizeFinder,
                     loader: fn(usize) -> fulmen_data::Result<DataLoader>| {
        trainer.scale_batch_size(&wide(), loader, &finder).unwrap_err().to_string()
    };
    let finder = BatchSizeFinder::new;
    for (finder, name) in [
        (finder().steps_per_trial(0), "steps_per_trial"),
        (finder().init_val(0), "init_val"),
        (finder().max_trials(0), "max_trials"),
        (finder().memory_limit(0), "memory_limit"),
    ] {
        assert_eq!(
            sizes(finder, wide_loader),
            format!("BatchSizeFinder: {name} must be at least 1, but it is 0")
        );
    }
    let error = sizes(finder().memory_limit(1000).init_val(8), wide_loader);
    assert!(
        error.starts_with(
            "scale_batch_size: no batch size fits in device memory; tried 8, 4, 2, 1."
        ),
        "{error}"
    );
    let error = sizes(finder(), |_| wide_loader(3));
    assert_eq!(error, "scale_batch_size: the loader for a batch size of 2 has a batch size of 3");
}

#[test]
fn a_search_says_what_it_does_before_it_compiles() {
    const CHILD: &str = "FULMEN_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let folder = tempfile::tempdir().unwrap();
        let module = Slope { w: Parameter::new([], Init::Constant(2.0)) };
        let mut trainer = trainer(folder.path()).enable_progress_bar(true).build().unwrap();
        let finder = LearningRateFinder::new().num_training_steps(20);
        trainer.lr_find(&module, &ones(20), &finder).unwrap();
        trainer
            .scale_batch_size(&wide(), wide_loader, &BatchSizeFinder::new().max_trials(1))
            .unwrap();
        return;
    }
    let test = "tuner::a_search_says_what_it_does_before_it_compiles";
    let output = itself().args(["--exact", test, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    for line in [
        "lr_find: compiling the training step, then 20 steps with rates from 0.00000001 to 1 ...",
        "scale_batch_size: compiling the training step for a batch size of 2 ...",
        "scale_batch_size: a batch size of 2 fits",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
    }
}
