//! Many uses of the Trainer in one start of a pod: each gives the values and files of one process
//! with as many devices, bit for bit.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fulmen_data::{
    Buckets, DataLoader, DataLoaderBuilder, Dataset, Field, Items, Sample, Stream, StreamItem,
    TensorDataset, WeightedRandomSampler,
};
use fulmen_nn::metrics::{Accuracy, Auroc, ConfusionMatrix};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::{DType, Devices, Mesh, Tensor};
use fulmen_trainer::callbacks::{Mode, ModelCheckpoint};
use fulmen_trainer::tuner::{BatchSizeFinder, LearningRateFinder};
use fulmen_trainer::{
    Batch, Plan, PredictionWriter, Predictions, Result, StepContext, Strategy, TrainerBuilder,
    TrainingModule, WeightAveraging, Weights,
};

use super::{checkpoints, count, start};
use crate::common::{Record, tensors, trainer};
use crate::optimizers::{Gan, two_to_one};
use crate::scanned_layers::{Deep, adamw};
use crate::test_processes::say;

/// All shapes can share a batch of this size.
const BATCH: usize = 24;
/// The last batch is not full.
const SAMPLES: usize = 60;
const FEATURES: usize = 4;

/// A use of the Trainer, by name. It returns the values that it computed.
type Case = (&'static str, fn(&Place) -> Result<Vec<f64>>);

const CASES: &[Case] = &[
    ("shuffled", shuffled),
    ("weighted", weighted),
    ("buckets", buckets),
    ("stream", stream),
    ("shards", shards),
    ("bf16", bf16),
    ("validation within the epoch", validation_within_the_epoch),
    ("averages", averages),
    ("predictions", predictions),
    ("own loop", own_loop),
    ("GAN", gan),
    ("scanned layers", scanned_layers),
    ("tuner", tuner),
    ("mesh", mesh),
];

/// Where a case runs.
struct Place {
    folder: PathBuf,
    devices: Devices,
    strategy: Strategy,
}

impl Place {
    /// A Trainer for two epochs that logs each step to `record`.
    fn trainer(&self, record: &Record) -> TrainerBuilder {
        self.trainer_without_callbacks().callback(record.clone())
    }

    fn trainer_without_callbacks(&self) -> TrainerBuilder {
        trainer(&self.folder)
            .devices(self.devices.clone())
            .strategy(self.strategy)
            .max_epochs(2)
            .log_every_n_steps(1)
    }

    /// The logged values of a fit with this loader.
    fn fit(
        &self,
        module: &impl TrainingModule,
        train: &DataLoader,
        validates: bool,
        set: impl Fn(TrainerBuilder) -> TrainerBuilder,
    ) -> Result<Vec<f64>> {
        let record = Record::default();
        let mut trainer = set(self.trainer(&record)).build()?;
        let validation = loader(20).build().unwrap();
        trainer.fit(module, train, validates.then_some(&validation))?;
        Ok(values(&record))
    }
}

/// All values of all log points.
fn values(record: &Record) -> Vec<f64> {
    let mut values = Vec::new();
    for points in [&record.logs, &record.validations, &record.epochs] {
        for point in points.lock().unwrap().iter() {
            values.push(point.global_step as f64);
            values.extend(point.columns().into_iter().map(|(_, value)| value));
            values.push(point.media.len() as f64);
        }
    }
    values
}

/// Logs the order of samples, metrics, images and texts.
#[derive(Module)]
struct Probe {
    hidden: Linear,
    out: Linear,
}

impl Probe {
    fn new() -> Probe {
        Probe { hidden: Linear::new(FEATURES, 48), out: Linear::new(48, 2) }
    }

    fn scores(&self, batch: &Batch) -> Tensor {
        self.out.forward(&self.hidden.forward(&batch.get("x")).tanh()).softmax(-1)
    }

    fn log(&self, batch: &Batch, cx: &mut StepContext) {
        let scores = self.scores(batch);
        let y = batch.get("y");
        let index = batch.get("index");
        // It differs for any two orders of the samples.
        let place = Tensor::iota(DType::F32, [batch.size()], 0);
        cx.log("order", &(&index * &place));
        cx.log_metric("accuracy", Accuracy::new(2).update(&scores, &y));
        cx.log_metric("auroc", Auroc::new(2).update(&scores, &y));
        cx.log_metric("confusion", ConfusionMatrix::new(2).update(&scores, &y));
        cx.log_image("picture", batch.get("x").narrow(0, 0, 2).reshape([2, 1, 2, 2]).sigmoid());
        cx.log_text("text", batch.get("y").narrow(0, 0, 2).reshape([2, 1]), |ids| {
            format!("{ids:?}")
        });
        cx.log_histogram("scores", scores.narrow(1, 0, 1).reshape([batch.size()]), 4);
    }
}

impl TrainingModule for Probe {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        self.log(batch, cx);
        let y = batch.get("y").one_hot(2).to_dtype(DType::F32);
        batch.mean(&(self.scores(batch) - y).square().sum(-1))
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.log(batch, cx);
    }
    fn predict_step(&self, batch: &Batch) -> Predictions {
        [("score", self.scores(batch)), ("index", batch.get("index"))].into()
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.5).momentum(0.9))
    }
}

fn features(sample: usize) -> [f32; FEATURES] {
    [0, 1, 2, 3].map(|i| (((sample * FEATURES + i) as f32) * 0.754_877_7).fract() - 0.5)
}

fn label(sample: usize) -> i32 {
    i32::from(features(sample)[0] > features(sample)[1])
}

fn data(n: usize) -> TensorDataset {
    TensorDataset::builder()
        .array("x", [n, FEATURES], (0..n).flat_map(features).collect::<Vec<_>>())
        .array("y", [n], (0..n).map(label).collect::<Vec<_>>())
        .array("index", [n], (0..n).map(|i| i as f32).collect::<Vec<_>>())
        .build()
        .unwrap()
}

fn loader(n: usize) -> DataLoaderBuilder {
    DataLoader::builder(data(n)).batch_size(BATCH).num_workers(2)
}

fn shuffled(place: &Place) -> Result<Vec<f64>> {
    let train = loader(SAMPLES).shuffle(true).seed(3).build().unwrap();
    place.fit(&Probe::new(), &train, true, |builder| builder)
}

fn weighted(place: &Place) -> Result<Vec<f64>> {
    let weights: Vec<f64> = (0..SAMPLES).map(|i| 1.0 + (i % 7) as f64).collect();
    let sampler = WeightedRandomSampler::new(&weights, 50, 5).unwrap();
    let train = loader(SAMPLES).sampler(sampler).build().unwrap();
    place.fit(&Probe::new(), &train, false, |builder| builder)
}

/// Rows of different lengths.
struct Rows;

impl Dataset for Rows {
    fn len(&self) -> usize {
        SAMPLES
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("tokens", DType::F32, [8]), Field::new("index", DType::F32, [])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> fulmen_data::Result<()> {
        // A row of a bucket has fewer places.
        let row = sample.values_mut::<f32>(0)?;
        row.iter_mut().take(length(index)).for_each(|value| *value = index as f32);
        sample.write_value(1, index as f32)
    }
}

fn length(sample: usize) -> usize {
    1 + sample * 5 % 8
}

#[derive(Module)]
struct OfRows(Linear);

impl TrainingModule for OfRows {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        cx.log("order", &(batch.get("index") * Tensor::iota(DType::F32, [batch.size()], 0)));
        let sums = batch.get("tokens").sum(-1).reshape([batch.size(), 1]) / 8.0;
        batch.mean(&self.0.forward(&sums).square().sum(-1))
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.01))
    }
}

fn buckets(place: &Place) -> Result<Vec<f64>> {
    let lengths = Buckets::new((0..SAMPLES).map(length).collect::<Vec<_>>(), &[4, 8]).unwrap();
    let train = DataLoader::builder(Rows).batch_size(BATCH).shuffle(true).seed(2).buckets(lengths);
    place.fit(&OfRows(Linear::new(1, 48)), &train.build().unwrap(), false, |builder| builder)
}

/// The numbers of samples, in order.
struct Numbers;

impl Stream for Numbers {
    type Item = usize;
    fn len(&self) -> Option<usize> {
        Some(SAMPLES)
    }
    fn items(&self, _epoch: u64) -> fulmen_data::Result<Items<usize>> {
        let item = |i| Ok(StreamItem { index: i as u64, origin: format!("sample {i}"), item: i });
        Ok(Box::new((0..SAMPLES).map(item)))
    }
    fn fingerprint(&self, fingerprint: &mut fulmen_data::Fingerprint) -> fulmen_data::Result<()> {
        fingerprint.add("count", SAMPLES.to_le_bytes());
        Ok(())
    }
}

fn fields() -> Vec<Field> {
    vec![
        Field::new("x", DType::F32, [FEATURES]),
        Field::new("y", DType::I32, []),
        Field::new("index", DType::F32, []),
    ]
}

fn write(index: usize, sample: &mut Sample<'_>) -> fulmen_data::Result<()> {
    sample.write_slice(0, &features(index))?;
    sample.write_value(1, label(index))?;
    sample.write_value(2, index as f32)
}

fn stream(place: &Place) -> Result<Vec<f64>> {
    let samples = Numbers.shuffle(16, 1).into_dataset(fields(), write);
    let train = DataLoader::from_stream(samples).batch_size(BATCH).num_workers(2).build().unwrap();
    place.fit(&Probe::new(), &train, true, |builder| builder)
}

/// Shards that one process has written, read by all.
fn shards(place: &Place) -> Result<Vec<f64>> {
    let folder = tempfile::tempdir().unwrap();
    let mut writer =
        fulmen_shards::TarShardWriter::builder(folder.path()).max_samples(7).build().unwrap();
    for index in 0..SAMPLES {
        writer.write(&format!("{index:03}"), &[("bin", &[index as u8])]).unwrap();
    }
    writer.finish().unwrap();
    let mut paths: Vec<PathBuf> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "tar"))
        .collect();
    paths.sort();
    assert_eq!(paths.len(), 9);
    let shards = fulmen_shards::TarShards::from_list(paths).unwrap().shuffle_shards(7);
    let samples = shards
        .into_dataset(fields(), |item, sample| write(usize::from(item.files["bin"][0]), sample));
    let train = DataLoader::from_stream(samples).batch_size(BATCH).num_samples(SAMPLES);
    let train = train.num_workers(2).build().unwrap();
    place.fit(&Probe::new(), &train, false, |builder| builder)
}

fn bf16(place: &Place) -> Result<Vec<f64>> {
    let train = loader(SAMPLES).shuffle(true).seed(4).build().unwrap();
    place.fit(&Probe::new(), &train, true, |builder| {
        builder
            .precision("bf16-mixed")
            .accumulate_grad_batches(2)
            .gradient_clip_val(0.5)
            .log_grad_norm(true)
    })
}

fn validation_within_the_epoch(place: &Place) -> Result<Vec<f64>> {
    let train = loader(SAMPLES).build().unwrap();
    place.fit(&Probe::new(), &train, true, |builder| {
        let best = ModelCheckpoint::new().monitor("accuracy", Mode::Max).keep_all(true);
        builder.val_check_interval(2).num_sanity_val_steps(1).callback(best)
    })
}

fn averages(place: &Place) -> Result<Vec<f64>> {
    let train = loader(SAMPLES).build().unwrap();
    place.fit(&Probe::new(), &train, true, |builder| {
        builder.precision("bf16-true").weight_averaging(WeightAveraging::ema(0.9))
    })
}

/// All processes read the predictions. Process 0 writes a file.
fn predictions(place: &Place) -> Result<Vec<f64>> {
    let mut trainer = place.trainer(&Record::default()).build()?;
    let module = Probe::new();
    module.initialize(1);
    let data = loader(SAMPLES).build().unwrap();
    let all = trainer.predict(&module, &data, Weights::Current)?.concat()?;
    fs::create_dir_all(&place.folder).unwrap();
    let writer = PredictionWriter::new(place.folder.join("predictions.csv"))?;
    let written = writer.write(trainer.predict(&module, &data, Weights::Current)?)?;
    let mut values = vec![written as f64, all.num_samples() as f64];
    for name in ["score", "index"] {
        values.extend(all.get(name).unwrap().to_f64());
    }
    Ok(values)
}

fn own_loop(place: &Place) -> Result<Vec<f64>> {
    let mut trainer = place.trainer_without_callbacks().build()?;
    let module = Probe::new();
    let train = loader(SAMPLES).build().unwrap();
    let mut step = trainer.train_step(&module, &train)?;
    let validation = step.eval_step(&loader(20).build().unwrap())?;
    let saved = place.folder.join("saved");
    let mut values = Vec::new();
    for batch in step.batches() {
        let progress = step.run(&batch?)?;
        values.extend(step.logs()?.wait()?.columns().into_iter().map(|(_, value)| value));
        if progress.global_step == 2 {
            step.save(&saved)?;
        }
    }
    values.extend(validation.run(&step)?.columns().into_iter().map(|(_, value)| value));
    step.load(&saved)?;
    values.extend(validation.run(&step)?.columns().into_iter().map(|(_, value)| value));
    Ok(values)
}

fn gan(place: &Place) -> Result<Vec<f64>> {
    place.fit(&Gan::new(two_to_one), &crate::optimizers::loader(3, BATCH), false, |builder| builder)
}

fn scanned_layers(place: &Place) -> Result<Vec<f64>> {
    let data = DataLoader::builder(crate::common::samples(SAMPLES)).batch_size(BATCH);
    place.fit(&Deep::new(true, adamw), &data.build().unwrap(), false, |builder| builder)
}

fn tuner(place: &Place) -> Result<Vec<f64>> {
    let record = Record::default();
    let mut trainer = place.trainer(&record).build()?;
    let module = Probe::new();
    let train = loader(SAMPLES).build().unwrap();
    let finder = LearningRateFinder::new().num_training_steps(8);
    let curve = trainer.lr_find(&module, &train, &finder)?;
    let sizes = BatchSizeFinder::new().init_val(BATCH).max_trials(2).steps_per_trial(2);
    let found = trainer.scale_batch_size(
        &module,
        |size| DataLoader::builder(data(SAMPLES)).batch_size(size).build(),
        &sizes,
    )?;
    let mut values = curve.losses().to_vec();
    values.extend(curve.suggestion());
    values.extend(found.trials.iter().map(|trial| trial.batch_size as f64));
    Ok(values)
}

fn mesh(place: &Place) -> Result<Vec<f64>> {
    let train = loader(SAMPLES).build().unwrap();
    // The devices are eight, six or four.
    let devices = place.trainer(&Record::default()).build()?.num_devices();
    let axes = Mesh::new([("data", devices / 2), ("model", 2)]).unwrap();
    let module = Probe::new();
    let columns = fulmen_tensor::Sharding::new([Some("model"), None]);
    module.hidden.weight.with_sharding(columns);
    place.fit(&module, &train, true, |builder| builder.mesh(axes.clone()))
}

/// Runs all cases with both strategies. Returns a line of bits, or of an error, for each.
fn run_all(folder: &Path, devices: &Devices) -> Vec<(String, String)> {
    let mut outcomes = Vec::new();
    for (name, case) in CASES {
        for strategy in [Strategy::Ddp, Strategy::Fsdp] {
            let title = format!("{name} {strategy}");
            let place = Place { folder: folder.join(&title), devices: devices.clone(), strategy };
            let outcome = match case(&place) {
                Ok(values) => {
                    let bits = values.iter().map(|value| format!("{:x}", value.to_bits()));
                    bits.collect::<Vec<_>>().join(" ")
                }
                Err(error) => format!("error: {error}").replace(['\n', ';', '='], " "),
            };
            outcomes.push((title, outcome));
        }
    }
    outcomes
}

/// The process of a pod.
pub(super) fn member(folder: &Path) {
    // Holds the group: its port is not known in advance, so that it cannot be joined again.
    let _group = trainer(folder).build().unwrap();
    let outcomes = run_all(folder, &Devices::auto());
    let lines = outcomes.iter().map(|(title, outcome)| format!("{title}={outcome}"));
    say(format!("ended {}", lines.collect::<Vec<_>>().join(";")));
}

/// The tensors of all checkpoints below a folder, and the bytes of the other files that do not
/// depend on time, by path.
fn written(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut written = BTreeMap::new();
    let relative = |path: &Path| path.strip_prefix(folder).unwrap().display().to_string();
    let saved = checkpoints(folder);
    for checkpoint in &saved {
        for (name, value) in tensors(checkpoint) {
            written.insert(format!("{}: {name}", relative(checkpoint)), value.bytes().to_vec());
        }
    }
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.extend((!saved.contains(&path)).then_some(path));
                continue;
            }
            // The name of TensorBoard's file has the time and the process.
            if relative(&path).contains("tfevents") {
                continue;
            }
            let is_timeless =
                path.extension().is_some_and(|ending| ending == "csv" || ending == "png");
            let bytes = if is_timeless { fs::read(&path).unwrap() } else { Vec::new() };
            written.insert(relative(&path), bytes);
        }
    }
    written
}

/// The outcomes of all cases, and the files.
type Computed = (Vec<(String, String)>, BTreeMap<String, Vec<u8>>);

/// What one process with this number of devices computes and writes.
fn expected(devices: usize) -> &'static Computed {
    static BY_DEVICES: [OnceLock<Computed>; 9] = [const { OnceLock::new() }; 9];
    BY_DEVICES[devices].get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let outcomes = run_all(folder.path(), &Devices::from(devices));
        let short: Vec<_> = outcomes.iter().filter(|(_, bits)| bits.len() < 40).collect();
        let errors: Vec<_> = outcomes.iter().filter(|(_, bits)| bits.contains("error")).collect();
        assert!(short.is_empty() && errors.is_empty(), "{short:?} {errors:?}");
        (outcomes, written(folder.path()))
    })
}

fn check(shape: &str, devices: usize) {
    let (outcomes, files) = expected(devices);
    let folder = tempfile::tempdir().unwrap();
    let mut processes = start(folder.path(), shape, "list", |_| Vec::new());
    for (process, ending) in processes.endings(0..count(shape)).iter().enumerate() {
        let lines: Vec<(&str, &str)> =
            ending.split(';').map(|line| line.split_once('=').unwrap()).collect();
        assert_eq!(lines.len(), outcomes.len());
        for ((title, outcome), line) in outcomes.iter().zip(lines) {
            assert_eq!(line, (&**title, &**outcome), "{shape}, process {process}: {title}");
        }
    }
    let written = written(folder.path());
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&written), names(files), "{shape}");
    assert!(files.len() > 100);
    for (name, bytes) in files {
        assert_eq!(&written[name], bytes, "{shape}: {name}");
    }
}

#[test]
fn two_processes_of_two_devices_compute_what_one_process_does() {
    check("2x2", 4);
}

#[test]
#[ignore = "slow: ci/slow"]
fn two_processes_of_four_devices_compute_what_one_process_does() {
    check("2x4", 8);
}

#[test]
#[ignore = "slow: ci/slow"]
fn four_processes_of_two_devices_compute_what_one_process_does() {
    check("4x2", 8);
}

#[test]
#[ignore = "slow: ci/slow"]
fn eight_processes_of_one_device_compute_what_one_process_does() {
    check("8x1", 8);
}

#[test]
#[ignore = "slow: ci/slow"]
fn three_processes_of_two_devices_compute_what_one_process_does() {
    check("3x2", 6);
}
