//! What a fit does: how often it compiles and reads the device, what it logs, and which files it
//! leaves.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use crate::common::{DROP_LAST, Net, Record, isolated, samples, train_loader, trainer, val_loader};
use fulmen_data::DataLoader;
use fulmen_nn::Module;
use fulmen_nn::loss::{Reduction, cross_entropy};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_tensor::{DType, Literal, Tensor};
use fulmen_trainer::callbacks::{EarlyStopping, Mode, ModelCheckpoint, ProgressBar};
use fulmen_trainer::{
    Actions, Batch, Callback, Plan, Progress, StepContext, Trainer, TrainingModule, Weights,
};

#[test]
fn one_compilation_a_step_and_no_read_but_at_log_points() {
    let folder = tempfile::tempdir().unwrap();
    let record = Record::default();
    let mut trainer = trainer(folder.path())
        .runtime(isolated())
        .max_epochs(5)
        .log_every_n_steps(4)
        .callback(record.clone())
        .callback(ProgressBar::new())
        .callback(ModelCheckpoint::new().monitor("val_loss", Mode::Min).keep_all(true))
        .build()
        .unwrap();
    // 85 samples: ten batches of 8 and a partial one, which is dropped. The validation batch is
    // padded.
    let train = train_loader(85, DROP_LAST);
    let val = val_loader(21);
    let module = Net::new();
    let summary = trainer.fit(&module, &train, Some(&val)).unwrap();
    let tested = trainer.test(&module, &val, Weights::Best).unwrap();

    assert_eq!((summary.epochs, summary.global_step), (5, 50));
    assert_eq!((summary.train_compilations, summary.eval_compilations), (1, 1));
    assert_eq!(trainer.log_points(), 12 + 5 + 1);
    assert!(trainer.device_to_host_transfers() <= trainer.log_points() + 5);
    assert_eq!(record.logs.lock().unwrap().len(), 12);
    assert!(tested.get("test_acc").unwrap() > 0.5);

    let epochs = record.epochs.lock().unwrap();
    let losses: Vec<f64> = epochs.iter().map(|e| e.get("train_loss_epoch").unwrap()).collect();
    assert!(losses[4] < losses[0] * 0.8, "{losses:?}");
    assert_eq!(summary.train_loss, Some(losses[4]));
}

#[test]
fn a_second_fit_compiles_nothing_new() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).runtime(isolated()).max_epochs(1).build().unwrap();
    let train = train_loader(40, DROP_LAST);
    let val = val_loader(16);
    let module = Net::new();
    assert_eq!(trainer.fit(&module, &train, Some(&val)).unwrap().train_compilations, 1);
    let again = trainer.fit(&module, &train, Some(&val)).unwrap();
    assert_eq!((again.train_compilations, again.eval_compilations), (0, 0));
}

#[test]
fn each_compiled_program_has_a_line_with_its_seconds_unless_quiet() {
    if let Ok(quiet) = std::env::var("FULMEN_TEST_QUIET") {
        let runtime = isolated();
        // With a different seed, the programs are the same.
        for seed in [0u64, 1] {
            let folder = tempfile::tempdir().unwrap();
            let builder = trainer(folder.path()).runtime(runtime.clone()).max_epochs(1).seed(seed);
            let mut trainer = builder.enable_progress_bar(quiet == "0").build().unwrap();
            let train = train_loader(40, DROP_LAST);
            let val = val_loader(16);
            let module = Net::new();
            trainer.fit(&module, &train, Some(&val)).unwrap();
            trainer.test(&module, &val, Weights::Current).unwrap();
        }
        return;
    }
    for quiet in ["0", "1"] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "fit::each_compiled_program_has_a_line_with_its_seconds_unless_quiet",
                "--exact",
            ])
            .env("FULMEN_TEST_QUIET", quiet)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "{stderr}");
        let lines: Vec<&str> =
            stderr.lines().filter(|line| line.starts_with("Compiled ")).collect();
        let programs = if quiet == "0" {
            &["starting values", "training step", "validation step", "test step"][..]
        } else {
            &[]
        };
        assert_eq!(lines.len(), programs.len(), "each once, although used twice\n{stderr}");
        for (line, program) in lines.iter().zip(programs) {
            let seconds = line.strip_prefix(&format!("Compiled the {program} in ")).unwrap();
            let (number, unit) = seconds.split_once(' ').unwrap();
            assert!(number.parse::<f64>().is_ok() && ["ms", "s"].contains(&unit), "{line}");
        }
    }
}

#[test]
fn padded_validation_counts_each_sample_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).build().unwrap();
    let module = Net::new();
    module.initialize(0);
    let padded = trainer.validate(&module, &val_loader(21)).unwrap();

    // Compute the same values directly, over all samples at once.
    module.eval();
    let data = samples(21);
    let whole = DataLoader::builder(data).batch_size(21).build().unwrap();
    let batch = whole.epoch(0).next().unwrap().unwrap();
    let x = Tensor::from_slice(batch.values::<f32>(0).unwrap(), [21, crate::common::FEATURES]);
    let y = Tensor::from_slice(batch.values::<i32>(1).unwrap(), [21]);
    let logits = module.forward(&x);
    let loss = cross_entropy(&logits, &y, Reduction::Mean);
    let accuracy = logits.argmax(-1).eq(&y).to_dtype(DType::F32).mean_all();
    let by_hand = |t: &Tensor| t.eval().unwrap().to_f64()[0];
    assert!((padded.get("val_loss").unwrap() - by_hand(&loss)).abs() < 1e-6);
    assert!((padded.get("val_acc").unwrap() - by_hand(&accuracy)).abs() < 1e-6);
}

/// A linear layer, trained by SGD with momentum on the mean over the real samples.
#[derive(Module)]
struct Linear {
    fc: fulmen_nn::Linear,
    learning_rate: f64,
}

impl TrainingModule for Linear {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        batch.mean(&cross_entropy(
            &self.fc.forward(&batch.get("x")),
            &batch.get("y"),
            Reduction::None,
        ))
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(self.learning_rate).momentum(0.9))
    }
}

#[test]
fn a_padded_training_batch_counts_its_real_samples_only() {
    let folder = tempfile::tempdir().unwrap();
    let module = Linear {
        fc: fulmen_nn::Linear::new(crate::common::FEATURES, crate::common::CLASSES),
        learning_rate: 0.0,
    };
    let loss_in = |batch_size: usize| {
        let loader = DataLoader::builder(samples(20)).batch_size(batch_size).build().unwrap();
        let summary = trainer(folder.path())
            .max_epochs(1)
            .build()
            .unwrap()
            .fit(&module, &loader, None)
            .unwrap();
        summary.train_loss.unwrap()
    };
    let whole = loss_in(20);
    let padded = loss_in(8);
    assert!((whole - padded).abs() < 1e-6, "{whole} {padded}");
}

#[test]
fn padding_cannot_make_a_gradient_nan() {
    // Each sample is divided by its norm, which would be 0 for a row of zeros.
    #[derive(Module)]
    struct Normalized {
        fc: fulmen_nn::Linear,
    }
    impl TrainingModule for Normalized {
        fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
            let x = batch.get("x");
            let x = &x / (&x * &x).sum_keepdim(-1).sqrt();
            batch.mean(&cross_entropy(&self.fc.forward(&x), &batch.get("y"), Reduction::None))
        }
        fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
            Box::new(Sgd::new(0.1))
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let module =
        Normalized { fc: fulmen_nn::Linear::new(crate::common::FEATURES, crate::common::CLASSES) };
    let loader = DataLoader::builder(samples(20)).batch_size(8).build().unwrap();
    trainer(folder.path()).max_epochs(2).build().unwrap().fit(&module, &loader, None).unwrap();
    let weights = module.fc.weight.get().eval().unwrap().to_f64();
    assert!(weights.iter().all(|w| w.is_finite()), "{weights:?}");
}

#[test]
fn a_parameter_that_the_loss_does_not_use_is_left_alone() {
    #[derive(Module)]
    struct Spare {
        fc: fulmen_nn::Linear,
        unused: fulmen_nn::Linear,
    }
    impl TrainingModule for Spare {
        fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
            cross_entropy(&self.fc.forward(&batch.get("x")), &batch.get("y"), Reduction::Mean)
        }
        fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
            Box::new(fulmen_nn::optim::AdamW::new(0.1).weight_decay(0.5))
        }
    }
    let linear = || fulmen_nn::Linear::new(crate::common::FEATURES, crate::common::CLASSES);
    let module = Spare { fc: linear(), unused: linear() };
    module.initialize(0);
    let before = module.unused.weight.get().eval().unwrap().to_f64();
    let folder = tempfile::tempdir().unwrap();
    let train = train_loader(40, DROP_LAST);
    trainer(folder.path()).max_epochs(2).build().unwrap().fit(&module, &train, None).unwrap();
    assert_eq!(module.unused.weight.get().eval().unwrap().to_f64(), before);
}

#[test]
fn a_training_metric_can_be_monitored_by_its_plain_name() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = ModelCheckpoint::new().monitor("train_loss", Mode::Min);
    let mut trainer = trainer(folder.path()).max_epochs(1).callback(checkpoint).build().unwrap();
    let summary = trainer.fit(&Net::new(), &train_loader(40, DROP_LAST), None).unwrap();
    assert!(summary.best_checkpoint.is_some());
}

#[test]
fn the_first_steps_are_those_of_sgd_written_by_hand() {
    // One batch: w ← w − lr·v, v ← 0.9·v + ∇ of the mean cross-entropy.
    let n = 4;
    let f = crate::common::FEATURES;
    let c = crate::common::CLASSES;
    let loader = DataLoader::builder(samples(n)).batch_size(n).build().unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    let x = batch.values::<f32>(0).unwrap();
    let y = batch.values::<i32>(1).unwrap();

    let module = Linear { fc: fulmen_nn::Linear::new(f, c), learning_rate: 0.5 };
    module.initialize(1);
    let value = |name: &str| {
        let parameter = module.parameters().into_iter().find(|p| p.0 == name).unwrap().1;
        parameter.get().eval().unwrap().to_f64()
    };
    let mut w = value("fc.weight");
    let mut b = value("fc.bias");
    let mut vw = vec![0.0; w.len()];
    let mut vb = vec![0.0; b.len()];
    for _ in 0..3 {
        let mut gw = vec![0.0; w.len()];
        let mut gb = vec![0.0; b.len()];
        for (row, &label) in x.chunks(f).zip(y) {
            let logits: Vec<f64> = (0..c)
                .map(|k| b[k] + (0..f).map(|i| w[k * f + i] * f64::from(row[i])).sum::<f64>())
                .collect();
            let total: f64 = logits.iter().map(|l| l.exp()).sum();
            for k in 0..c {
                let g =
                    (logits[k].exp() / total - f64::from(u8::from(k as i32 == label))) / n as f64;
                gb[k] += g;
                (0..f).for_each(|i| gw[k * f + i] += g * f64::from(row[i]));
            }
        }
        for (value, velocity, gradient) in [(&mut w, &mut vw, &gw), (&mut b, &mut vb, &gb)] {
            for i in 0..value.len() {
                velocity[i] = 0.9 * velocity[i] + gradient[i];
                value[i] -= 0.5 * velocity[i];
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    trainer(folder.path()).max_epochs(3).build().unwrap().fit(&module, &loader, None).unwrap();
    for (actual, by_hand) in [(value("fc.weight"), w), (value("fc.bias"), b)] {
        for (a, b) in actual.iter().zip(&by_hand) {
            assert!((a - b).abs() < 1e-5, "{actual:?} {by_hand:?}");
        }
    }
}

#[test]
fn the_csv_has_a_row_for_each_log_point() {
    let folder = tempfile::tempdir().unwrap();
    let record = Record::default();
    let mut trainer = trainer(folder.path())
        .max_epochs(2)
        .log_every_n_steps(3)
        .callback(record.clone())
        .build()
        .unwrap();
    trainer.fit(&Net::new(), &train_loader(40, DROP_LAST), Some(&val_loader(16))).unwrap();
    let text = std::fs::read_to_string(trainer.run_dir().unwrap().join("metrics.csv")).unwrap();
    let mut lines = text.lines();
    assert_eq!(
        lines.next().unwrap(),
        "epoch,step,train_loss,train_acc,lr,train_loss_epoch,train_acc_epoch,val_loss,val_acc"
    );
    let first = record.logs.lock().unwrap()[0].clone();
    let cells: Vec<&str> = lines.next().unwrap().split(',').collect();
    assert_eq!((cells[0], cells[1]), ("0", "3"));
    assert_eq!(cells[2].parse::<f64>().unwrap(), first.get("train_loss").unwrap());
    assert_eq!(text.lines().count() as u64, 1 + trainer.log_points());
}

#[test]
fn frozen_parameters_stay_and_the_module_has_its_values_back() {
    let folder = tempfile::tempdir().unwrap();
    let module = Net::new();
    module.initialize(0);
    let frozen = module.parameters().into_iter().find(|p| p.0 == "fc1.weight").unwrap().1;
    frozen.set_requires_grad(false);
    let before = frozen.get().eval().unwrap();
    let moving = module.parameters().into_iter().find(|p| p.0 == "fc2.weight").unwrap().1;
    let started = moving.get().eval().unwrap();
    trainer(folder.path())
        .max_epochs(1)
        .build()
        .unwrap()
        .fit(&module, &train_loader(40, DROP_LAST), None)
        .unwrap();
    let bytes = |literal: &Literal| literal.bytes().to_vec();
    assert_eq!(bytes(&frozen.get().eval().unwrap()), bytes(&before));
    assert_ne!(bytes(&moving.get().eval().unwrap()), bytes(&started));
    module.eval();
    assert!(
        module.forward(&Tensor::zeros(DType::F32, [1, crate::common::FEATURES])).eval().is_ok()
    );
}

#[test]
fn each_fit_has_a_folder_and_a_start_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path())
        .max_epochs(2)
        .callback(ModelCheckpoint::new().monitor("val_acc", Mode::Max))
        .build()
        .unwrap();
    let train = train_loader(40, DROP_LAST);
    let val = val_loader(16);
    let first = trainer.fit(&Net::new(), &train, Some(&val)).unwrap();
    let read = |path: Option<std::path::PathBuf>| {
        std::fs::read(crate::common::shard(&path.unwrap())).unwrap()
    };
    let saved = read(first.last_checkpoint.clone());
    let mut other = Net::new();
    other.learning_rate = 0.0;
    let second = trainer.fit(&other, &train, Some(&val)).unwrap();
    assert!(second.best_checkpoint.is_some(), "the scores of the first fit are reset");
    assert_ne!(first.last_checkpoint, second.last_checkpoint);
    assert_eq!(read(first.last_checkpoint), saved);
}

#[test]
fn after_a_fit_the_module_can_be_used_with_dropout_too() {
    let folder = tempfile::tempdir().unwrap();
    let module = Net::new();
    let mut trainer = trainer(folder.path()).max_epochs(1).build().unwrap();
    trainer.fit(&module, &train_loader(40, DROP_LAST), Some(&val_loader(16))).unwrap();
    let x = Tensor::ones(DType::F32, [4, crate::common::FEATURES]);
    let rows = || {
        let logits = module.forward(&x).eval().unwrap().to_f64();
        assert!(logits.iter().all(|value| value.is_finite()), "{logits:?}");
        logits.chunks(crate::common::CLASSES).map(<[f64]>::to_vec).collect::<Vec<_>>()
    };
    // All rows of the input are equal; only dropout makes them differ.
    module.train();
    let dropped = rows();
    assert!(dropped.iter().any(|row| *row != dropped[0]), "{dropped:?}");
    module.eval();
    let whole = rows();
    assert!(whole.iter().all(|row| *row == whole[0]), "{whole:?}");
}

#[test]
fn early_stopping_ends_the_fit_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let mut module = Net::new();
    module.learning_rate = 0.0;
    let mut trainer = trainer(folder.path())
        .max_epochs(50)
        .callback(EarlyStopping::new("train_loss_epoch", Mode::Min).patience(2).min_delta(10.0))
        .build()
        .unwrap();
    let summary = trainer.fit(&module, &train_loader(40, DROP_LAST), None).unwrap();
    assert_eq!(summary.epochs, 3);
    let reason = summary.stopped.unwrap();
    assert!(
        reason.starts_with("train_loss_epoch has not improved 2 times in a row; its best"),
        "{reason}"
    );
}

#[test]
fn the_metrics_report_has_the_grammar_of_pytorch_xla() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).runtime(isolated()).max_epochs(1).build().unwrap();
    let module = Net::new();
    trainer.fit(&module, &train_loader(40, DROP_LAST), None).unwrap();
    let report = trainer.metrics_report();
    for name in ["CompileTime", "ExecuteTime", "TransferFromDeviceTime", "InboundData"] {
        let start = report
            .find(&format!("Metric: {name}\n  TotalSamples: "))
            .unwrap_or_else(|| panic!("{report}"));
        assert!(
            report[start..].contains("Accumulator: ")
                && report[start..].contains("Percentiles: 1%="),
            "{report}"
        );
    }
    assert!(report.contains("Counter: UncachedCompile\n  Value: 2\n"), "{report}");
    let value = |name| trainer.runtime().metrics().value(name);
    assert_eq!(value("CreateCompileHandles"), 2);
    let created = value("CreateDataHandles");
    let destroyed = value("DestroyDataHandles");
    assert!(
        created > destroyed && destroyed > 0,
        "the module's values are still there: {created}, {destroyed}"
    );
    for part in [
        "Data loader: 5 batches, 40 samples, filled by ",
        "\nread  ",
        "on the device: ",
        "\n4 steps: ",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    let json = trainer.metrics_json();
    assert_eq!(
        (&json["counters"]["UncachedCompile"], &json["metrics"]["CompileTime"]["total_samples"]),
        (&2.into(), &2.into())
    );
    let seconds = &json["metrics"]["CompileTime"];
    assert!(seconds["unit"] == "seconds" && seconds["accumulator"].as_f64() > Some(0.0), "{json}");
    assert!(json["data_loader"].as_str().is_some_and(|loader| report.contains(loader)), "{json}");
}

/// Reads a value from the device after each batch.
struct Reads;

impl Callback for Reads {
    fn name(&self) -> &'static str {
        "Reads"
    }
    fn on_train_batch_end(&mut self, _: &Progress, _: &mut Actions) {
        Tensor::from_slice(&[1.0f32, 2.0], [2]).sum_all().eval().unwrap();
    }
}

#[test]
fn reads_in_each_step_are_reported_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let builder =
        trainer(folder.path()).strategy("xla_debug").enable_checkpointing(false).callback(Reads);
    let mut trainer = builder.max_epochs(6).build().unwrap();
    trainer.fit(&Net::new(), &train_loader(40, DROP_LAST), None).unwrap();
    let summary = std::fs::read(trainer.run_dir().unwrap().join("summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
    let texts = [
        trainer.metrics_report(),
        trainer.metrics_json()["advice"].to_string(),
        summary["advice"].to_string(),
    ];
    for text in texts {
        let read = "read a value from the device 30 times in 30 steps";
        assert!(text.contains("tests/it/fit.rs:") && text.contains(read), "{text}");
    }
}

#[test]
fn a_metrics_port_is_opened_or_rejected_when_the_trainer_is_built() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error =
        Trainer::builder().accelerator("cpu").metrics_port(port).build().err().unwrap().to_string();
    let expected = if cfg!(feature = "prometheus") {
        format!("metrics_port: cannot listen at 127.0.0.1:{port}")
    } else {
        "metrics_port: needs a build with the feature `prometheus`".to_owned()
    };
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn a_trainer_can_be_built_from_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let trainer = Trainer::builder().default_root_dir(folder.path()).build().unwrap();
    assert_eq!(trainer.options().max_epochs, 10);
    assert!(trainer.run_dir().is_none(), "nothing is written before something runs");
}
