//! What the Trainer reports about its data: the time that the device waited, and samples that could
//! not be read.

use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use crate::common::{has_a_process_of_its_own, isolated, trainer};
use fulmen_data::{Buckets, DataLoader, Dataset, Error, Field, OnError, Sample};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_pjrt::compile_cache::CompileCache;
use fulmen_tensor::{DType, Tensor};
use fulmen_trainer::{Batch, Callback, Plan, StepContext, TrainingModule, Weights};

/// One number per sample. Reading may be slow, and a sample may be missing.
struct Numbers {
    delay: Duration,
    missing: Option<usize>,
}

impl Dataset for Numbers {
    fn len(&self) -> usize {
        32
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::F32, [1])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<(), Error> {
        sleep(self.delay);
        if self.missing == Some(index) {
            Err(Error::new("it is not there"))
        } else {
            sample.write_value(0, index as f32)
        }
    }
}

/// A dataset in which a changing set of samples cannot be read.
struct Torn(Arc<Mutex<Vec<usize>>>);

impl Dataset for Torn {
    fn len(&self) -> usize {
        32
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::F32, [1])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<(), Error> {
        if self.0.lock().unwrap().contains(&index) {
            Err(Error::new("it is torn"))
        } else {
            sample.write_value(0, index as f32)
        }
    }
}

#[derive(Module)]
struct Line {
    linear: Linear,
}

impl TrainingModule for Line {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        cx.log("seen", &batch.get("x").reshape([batch.size()]));
        let y = self.linear.forward(&batch.get("x")).reshape([batch.size()]);
        batch.mean(&(&y * &y))
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        cx.log("val_seen", &batch.get("x").reshape([batch.size()]));
    }

    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        cx.log("test_seen", &batch.get("x").reshape([batch.size()]));
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(1e-6))
    }
}

#[test]
fn a_fit_whose_data_is_slow_is_input_bound() {
    let dir = tempfile::tempdir().unwrap();
    let data = Numbers { delay: Duration::from_millis(25), missing: None };
    let loader = DataLoader::builder(data).batch_size(4).build().unwrap();
    let mut trainer = trainer(dir.path()).max_epochs(2).build().unwrap();
    let summary = trainer.fit(&Line { linear: Linear::new(1, 1) }, &loader, None).unwrap();
    // Each batch sleeps for 100 ms, and a step takes almost no time, even on a busy machine.
    assert!(summary.data_wait_share > 0.3, "{}", summary.data_wait_share);
    assert!(trainer.runtime().metrics().value("InputWait") > 0, "{}", trainer.metrics_report());
    let steps = trainer.runtime().metrics().range_within("StepTime", Duration::MAX).unwrap();
    assert!(steps.count > 0 && steps.min > 0.0, "{}", trainer.metrics_report());
    let verdict = summary.loader.unwrap().bottleneck();
    assert!(
        verdict.starts_with("input-bound: ") && verdict.contains("write is the slow stage"),
        "{verdict}"
    );
}

#[test]
fn skipped_samples_are_counted_and_do_not_affect_values() {
    let dir = tempfile::tempdir().unwrap();
    let data = Numbers { delay: Duration::ZERO, missing: Some(7) };
    let loader = DataLoader::builder(data).batch_size(4).on_error(OnError::Skip).build().unwrap();
    let mut trainer = trainer(dir.path()).max_epochs(2).build().unwrap();
    let summary = trainer.fit(&Line { linear: Linear::new(1, 1) }, &loader, None).unwrap();
    assert_eq!(summary.bad_samples, 2);
    assert_eq!(summary.loader.unwrap().batches, 2 * 8);
    let mean = (31.0 * 32.0 / 2.0 - 7.0) / 31.0;
    assert!((summary.last_epoch.unwrap().get("seen_epoch").unwrap() - mean).abs() < 1e-5);
}

#[test]
fn a_summary_counts_only_the_reads_of_its_own_fit() {
    let dir = tempfile::tempdir().unwrap();
    let data = Numbers { delay: Duration::ZERO, missing: Some(7) };
    let loader = DataLoader::builder(data).batch_size(4).on_error(OnError::Skip).build().unwrap();
    for epochs in [3, 1] {
        let mut trainer = trainer(dir.path()).max_epochs(epochs).build().unwrap();
        let summary = trainer.fit(&Line { linear: Linear::new(1, 1) }, &loader, None).unwrap();
        assert_eq!((summary.bad_samples, summary.loader.unwrap().batches), (epochs, 8 * epochs));
    }
    assert_eq!(loader.bad_samples().count, 4);
}

/// Runs in its own process, so that the test can read its standard error.
#[test]
fn bad_samples_of_training_validation_and_test_are_reported() {
    if std::env::var_os("FULMEN_TEST_CHILD").is_some() {
        let dir = tempfile::tempdir().unwrap();
        let loader = |missing| {
            let data = Numbers { delay: Duration::ZERO, missing: Some(missing) };
            let loader = DataLoader::builder(data).batch_size(4).on_error(OnError::Skip);
            // At the end of an epoch, the missing sample of the next one has not been read.
            loader.device_prefetch(2).build().unwrap()
        };
        let mut trainer = trainer(dir.path()).max_epochs(3).build().unwrap();
        let module = Line { linear: Linear::new(1, 1) };
        let test = loader(13);
        trainer.fit(&module, &loader(11), Some(&loader(12))).unwrap();
        trainer.test(&module, &test, Weights::Current).unwrap();
        trainer.test(&module, &test, Weights::Current).unwrap();
        let torn = Arc::new(Mutex::new(Vec::new()));
        let loader = DataLoader::builder(Torn(torn.clone()))
            .batch_size(4)
            .on_error(OnError::Skip)
            .build()
            .unwrap();
        for sample in [21, 22, 22] {
            *torn.lock().unwrap() = vec![sample];
            trainer.test(&module, &loader, Weights::Current).unwrap();
        }
        *torn.lock().unwrap() = (1..32).collect();
        let error = trainer.fit(&module, &loader, None).unwrap_err();
        assert!(error.to_string().contains("most of the data is damaged"), "{error}");
        return;
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["input::bad_samples_of_training_validation_and_test_are_reported", "--exact"])
        .env("FULMEN_TEST_CHILD", "1")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{stderr}");
    for (what, sample, times) in [("training", 11, 1), ("validation", 12, 3), ("test", 13, 2)] {
        let line = format!(
            "warning: {what} data: 1 sample could not be read\n  sample {sample}: it is not there"
        );
        assert_eq!(stderr.matches(&line).count(), times, "{line}\n{stderr}");
    }
    assert!(
        stderr.contains("warning: training data: a sample could not be read 3 times\n  sample 11"),
        "{stderr}"
    );
    // A loader that was used before reports only the samples of this pass, even if an error ends
    // the pass.
    for (sample, times) in [(21, 1), (22, 2)] {
        let line = format!(
            "warning: test data: 1 sample could not be read\n  sample {sample}: it is torn"
        );
        assert_eq!(stderr.matches(&line).count(), times, "{line}\n{stderr}");
    }
    assert!(stderr.contains("warning: training data: samples could not be read "), "{stderr}");
}

/// Records the compiled programs and their compile times.
#[derive(Clone, Default)]
struct Compilations(Arc<Mutex<Vec<Compilation>>>);

/// The name of a program, and its compile time once known.
type Compilation = (String, Option<Duration>);

impl Callback for Compilations {
    fn name(&self) -> &'static str {
        "Compilations"
    }
    fn on_compile_start(&mut self, program: &str) {
        self.0.lock().unwrap().push((program.to_owned(), None));
    }
    fn on_compile_end(&mut self, program: &str, time: Option<Duration>) {
        let mut all = self.0.lock().unwrap();
        let last = all.last_mut().unwrap();
        assert_eq!(last.0, program);
        last.1 = time;
    }
}

/// Lists of numbers with different lengths. Only their sum matters.
struct Lists(Vec<usize>);

impl Dataset for Lists {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::F32, [8])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<(), Error> {
        sample.values_mut::<f32>(0)?[..self.0[index]].fill(1.0);
        Ok(())
    }
}

#[derive(Module)]
struct Sum {
    linear: Linear,
}

impl TrainingModule for Sum {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let sum = batch.get("x").sum_keepdim(-1);
        cx.log("sum", &sum.reshape([batch.size()]));
        let y = self.linear.forward(&sum).reshape([batch.size()]);
        batch.mean(&(&y * &y))
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        cx.log("val_sum", &batch.get("x").sum(-1));
        let width = batch.get("x").size(1) as f64;
        cx.log("val_width", &(batch.get("x").sum(-1) * 0.0 + width));
    }

    fn predict_step(&self, batch: &Batch) -> fulmen_trainer::Predictions {
        batch.get("x").sum(-1).into()
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(1e-3))
    }
}

#[test]
fn samples_of_different_lengths_train_with_a_program_for_each_bucket() {
    // Another fit would take the log of the process's latest run.
    const NAME: &str = "input::samples_of_different_lengths_train_with_a_program_for_each_bucket";
    if !has_a_process_of_its_own(NAME) {
        return;
    }
    let lengths: Vec<usize> = (0..40).map(|i| 1 + i * 5 % 8).collect();
    let loader = |buckets: bool| {
        let builder = DataLoader::builder(Lists(lengths.clone())).batch_size(4);
        let builder = if buckets {
            builder.buckets(Buckets::new(&lengths, &[2, 4, 8]).unwrap())
        } else {
            builder
        };
        builder.build().unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let compiled = Compilations::default();
    let runtime =
        isolated().with_compile_cache(CompileCache::new(dir.path().join("cache"), 1 << 30));
    let builder = trainer(dir.path()).runtime(runtime).max_epochs(2);
    let mut trainer = builder.callback(compiled.clone()).build().unwrap();
    let module = Sum { linear: Linear::new(1, 1) };
    let summary = trainer.fit(&module, &loader(true), Some(&loader(true))).unwrap();
    assert_eq!(summary.train_compilations, 3);
    let programs: Vec<String> =
        compiled.0.lock().unwrap().iter().map(|(program, _)| program.clone()).collect();
    let steps = [2, 4, 8].map(|length| format!("step for x [{length}]"));
    let expected = ["training", "validation"]
        .map(|which| steps.clone().map(|step| format!("{which} {step}")))
        .concat();
    assert_eq!(programs[0], "starting values");
    assert_eq!(programs[1..], expected);
    assert!(
        compiled.0.lock().unwrap().iter().all(|(_, time)| time.is_some_and(|time| !time.is_zero()))
    );
    assert_eq!(summary.global_step, 2 * loader(true).len() as u64);
    // The cache has no earlier program of any of them: the others of this fit are no earlier ones.
    let log = std::fs::read_to_string(trainer.run_dir().unwrap().join("run.log")).unwrap();
    assert!(!log.contains("the compile cache has a different"), "{log}");

    // The amount of padding changes nothing.
    let mean =
        |f: &dyn Fn(usize) -> usize| lengths.iter().map(|&l| f(l) as f64).sum::<f64>() / 40.0;
    let epoch = summary.last_epoch.unwrap();
    for name in ["sum_epoch", "val_sum"] {
        assert!((epoch.get(name).unwrap() - mean(&|length| length)).abs() < 1e-6, "{name}");
    }
    let width = mean(&|length| [2, 4, 8].into_iter().find(|&bucket| length <= bucket).unwrap());
    assert!((epoch.get("val_width").unwrap() - width).abs() < 1e-6);

    let error = trainer.predict(&module, &loader(true), Weights::Current).err().unwrap();
    assert!(error.to_string().contains("without buckets"), "{error}");
    assert!(trainer.predict(&module, &loader(false), Weights::Current).is_ok());
}
