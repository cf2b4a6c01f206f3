//! A small module and data for the tests of the Trainer.

#![allow(clippy::unwrap_used, dead_code)] // a test helper may panic, and not every test file uses all of them

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::loss::{Reduction, cross_entropy};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::weights::StateDict;
use fulmen_nn::{BatchNorm2d, Dropout, Linear, Module, metrics};
use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{NamedValue, Plugin};
use fulmen_tensor::{Accelerator, Devices, Literal, Runtime, Tensor};
use fulmen_trainer::{
    Actions, Batch, Callback, LogPoint, Plan, StepContext, Strategy, Trainer, TrainerBuilder,
    TrainingModule,
};

pub(crate) const FEATURES: usize = 6;
pub(crate) const CLASSES: usize = 3;
const HIDDEN: usize = 64;

/// A classifier with batch statistics and random numbers. A resumed run must restore both.
#[derive(Module)]
pub(crate) struct Net {
    fc1: Linear,
    bn: BatchNorm2d,
    dropout: Dropout,
    fc2: Linear,
    pub(crate) learning_rate: f64,
}

impl Net {
    pub(crate) fn new() -> Net {
        Net {
            fc1: Linear::new(FEATURES, HIDDEN),
            bn: BatchNorm2d::new(HIDDEN),
            dropout: Dropout::new(0.2),
            fc2: Linear::new(HIDDEN, CLASSES),
            learning_rate: 0.05,
        }
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Tensor {
        let x = self.fc1.forward(x);
        let n = x.size(0);
        let x = self.bn.forward(&x.reshape([n, HIDDEN, 1, 1])).reshape([n, HIDDEN]).relu();
        self.fc2.forward(&self.dropout.forward(&x))
    }
}

impl TrainingModule for Net {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let logits = self.forward(&batch.get("x"));
        let y = batch.get("y");
        cx.log("train_acc", &metrics::correct(&logits, &y));
        // The number of samples of each class, independent of the model.
        cx.log_metric("train_seen", metrics::ConfusionMatrix::new(CLASSES).update(&y, &y));
        batch.mean(&cross_entropy(&logits, &y, Reduction::None))
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        let logits = self.forward(&batch.get("x"));
        let y = batch.get("y");
        cx.log("val_loss", &cross_entropy(&logits, &y, Reduction::None));
        cx.log("val_acc", &metrics::correct(&logits, &y));
    }

    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        let logits = self.forward(&batch.get("x"));
        let y = batch.get("y");
        cx.log("test_acc", &metrics::correct(&logits, &y));
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(self.learning_rate).momentum(0.9))
    }
}

/// `n` samples, each labeled by the largest of three of its features.
pub(crate) fn samples(n: usize) -> TensorDataset {
    let value = |i: usize| ((i as f32 * 0.754_877_7).fract() - 0.5) * 4.0;
    let x: Vec<f32> = (0..n * FEATURES).map(value).collect();
    let largest =
        |row: &[f32]| (0..CLASSES).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as i32;
    let y: Vec<i32> = x.chunks(FEATURES).map(largest).collect();
    TensorDataset::builder().array("x", [n, FEATURES], x).array("y", [n], y).build().unwrap()
}

/// Values for the option `drop_last` of a loader.
pub(crate) const DROP_LAST: bool = true;
pub(crate) const PAD_LAST: bool = false;

pub(crate) fn train_loader(n: usize, drop_last: bool) -> DataLoader {
    DataLoader::builder(samples(n))
        .batch_size(8)
        .shuffle(true)
        .seed(3)
        .num_workers(2)
        .drop_last(drop_last)
        .build()
        .unwrap()
}

pub(crate) fn val_loader(n: usize) -> DataLoader {
    DataLoader::builder(samples(n)).batch_size(8).drop_last(false).build().unwrap()
}

/// A quiet Trainer that writes under `folder`.
pub(crate) fn trainer(folder: &Path) -> TrainerBuilder {
    Trainer::builder()
        .accelerator(fulmen_tensor::Accelerator::Cpu)
        .default_root_dir(folder)
        .enable_progress_bar(false)
        .enable_model_summary(false)
}

/// A runtime that shares nothing with other runtimes of this process, so that its compilations can
/// be counted.
pub(crate) fn isolated() -> Runtime {
    let plugin = Plugin::load(locate(Platform::Cpu, None).unwrap()).unwrap();
    Runtime::new(
        plugin.create_client(&[("cpu_device_count", NamedValue::Int(1))]).unwrap(),
        &Devices::auto(),
    )
    .unwrap()
}

/// Records every log point.
#[derive(Clone, Default)]
pub(crate) struct Record {
    pub(crate) logs: Arc<Mutex<Vec<LogPoint>>>,
    pub(crate) validations: Arc<Mutex<Vec<LogPoint>>>,
    pub(crate) epochs: Arc<Mutex<Vec<LogPoint>>>,
}

impl Callback for Record {
    fn name(&self) -> &'static str {
        "Record"
    }
    fn on_log(&mut self, point: &LogPoint, _: &mut Actions) {
        self.logs.lock().unwrap().push(point.clone());
    }
    fn on_validation_end(&mut self, point: &LogPoint, _: &mut Actions) {
        self.validations.lock().unwrap().push(point.clone());
    }
    fn on_train_epoch_end(&mut self, point: &LogPoint, _: &mut Actions) {
        self.epochs.lock().unwrap().push(point.clone());
    }
}

impl Record {
    /// The bits of a metric at every log point, by step.
    pub(crate) fn bits(&self, metric: &str) -> Vec<(u64, u64)> {
        let logs = self.logs.lock().unwrap();
        logs.iter().map(|p| (p.global_step, p.get(metric).unwrap().to_bits())).collect()
    }
}

/// This test program, to be run in a process with default signal handling. Signals that the shell
/// makes this process ignore, such as SIGINT in a background job, would otherwise be ignored there
/// too.
pub(crate) fn itself() -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=INT,TERM,HUP").arg(std::env::current_exe().unwrap());
    command
}

/// Longer than any operation on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Sends SIGTERM to this process and waits until it is handled. Handling it starts a thread that
/// waits for the end of `grace`, which must be [`LONG`].
pub(crate) fn terminate() {
    let waiting = || {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names =
            threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
        names.filter(|name| name.trim() == "fulmen-grace").count()
    };
    let before = waiting();
    assert!(
        Command::new("kill")
            .args(["-TERM", &std::process::id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    while waiting() == before {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether this process runs only one test. If not, runs the test in a new process. A test that
/// sends itself a signal, or reads `run.log`, needs its own process: a signal reaches all fits of a
/// process, and the latest of them has the log.
pub(crate) fn has_a_process_of_its_own(test: &str) -> bool {
    const ALONE: &str = "FULMEN_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let output = itself().args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// The tensors of a checkpoint.
pub(crate) fn tensors(path: impl AsRef<Path>) -> BTreeMap<String, Arc<Literal>> {
    let read = StateDict::read(path).unwrap();
    read.iter().map(|(name, _)| (name.to_owned(), read.get(name).unwrap().unwrap())).collect()
}

/// The shard of a checkpoint that one process wrote.
pub(crate) fn shard(path: &Path) -> PathBuf {
    let files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|file| file.extension().is_some_and(|extension| extension == "safetensors"))
        .max()
        .unwrap()
}

/// The names of the files in a folder, sorted.
pub(crate) fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The values with this name, from the log points that have one.
pub(crate) fn logged(record: &Record, name: &str) -> Vec<f64> {
    record.logs.lock().unwrap().iter().filter_map(|point| point.get(name)).collect()
}

/// Checks that two lists have the same length and nearly equal values.
#[track_caller]
pub(crate) fn assert_close(actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len());
    for (a, e) in actual.iter().zip(expected) {
        assert!((a - e).abs() <= tolerance * (1.0 + e.abs()), "{a} is not {e}");
    }
}

/// The training loss of each step.
#[derive(Clone, Default)]
pub(crate) struct Losses(Arc<Mutex<Vec<f64>>>);

impl Losses {
    pub(crate) fn take(&self) -> Vec<f64> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Callback for Losses {
    fn name(&self) -> &'static str {
        "Losses"
    }
    fn on_log(&mut self, point: &LogPoint, _: &mut Actions) {
        self.0.lock().unwrap().extend(point.get("train_loss"));
    }
}

/// A fit of one epoch on CPU devices that logs each step and saves nothing.
pub(crate) fn short_fit(
    devices: impl Into<Devices>,
    strategy: Strategy,
    losses: &Losses,
    folder: &Path,
) -> TrainerBuilder {
    Trainer::builder()
        .accelerator(Accelerator::Cpu)
        .devices(devices)
        .strategy(strategy)
        .max_epochs(1)
        .log_every_n_steps(1)
        .enable_checkpointing(false)
        .enable_progress_bar(false)
        .default_root_dir(folder.join("runs"))
        .callback(losses.clone())
}

/// The parameters and statistics of a module.
pub(crate) fn state_values<M: Module>(module: &M, trainer: &Trainer) -> Vec<Vec<f64>> {
    let values: Vec<Tensor> = module.state().iter().map(|(_, v)| v.get()).collect();
    let values = trainer.runtime().eval_many(&values).unwrap();
    values.iter().map(|v| v.to_f64()).collect()
}
