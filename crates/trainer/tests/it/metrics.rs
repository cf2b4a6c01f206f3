//! Metrics in a fit: they are exact over the samples of an epoch, without padding, on any number of
//! devices. Also their values in callbacks and loggers.

use crate::common::{DROP_LAST, PAD_LAST, Record, isolated, trainer};
use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::metrics::{
    Accuracy, Auroc, Average, ConfusionMatrix, F1, Mean, MeanSquaredError, Metric, MetricState,
    Perplexity, Value,
};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::{DType, Tensor};
use fulmen_trainer::callbacks::{EarlyStopping, Mode, ModelCheckpoint};
use fulmen_trainer::{Batch, LogPoint, LoggedArray, Plan, StepContext, TrainingModule, Weights};

const CLASSES: usize = 3;
const TOKENS: usize = 2;

/// Logs metrics of the batch; the scores do not depend on the model.
#[derive(Module)]
struct Probe {
    linear: Linear,
}

fn probe() -> Probe {
    Probe { linear: Linear::new(1, 1) }
}

fn log(stage: &str, batch: &Batch, cx: &mut StepContext) {
    let scores = batch.get("scores");
    let y = batch.get("y");
    cx.log_metric(format!("{stage}_acc"), Accuracy::new(CLASSES).update(&scores, &y));
    cx.log_metric(
        format!("{stage}_f1"),
        F1::new(CLASSES).average(Average::Macro).update(&scores, &y),
    );
    cx.log_metric(
        format!("{stage}_f1s"),
        F1::new(CLASSES).average(Average::None).update(&scores, &y),
    );
    cx.log_metric(format!("{stage}_confusion"), ConfusionMatrix::new(CLASSES).update(&scores, &y));
    cx.log_metric(
        format!("{stage}_auroc"),
        Auroc::binary().update(&scores.narrow(1, 0, 1).reshape([batch.size()]), &y.eq(0.0)),
    );
    cx.log_metric(
        format!("{stage}_mse"),
        MeanSquaredError::new().update(&scores, &scores.zeros_like()),
    );
    let logits =
        scores.reshape([batch.size(), 1, CLASSES]).broadcast_to([batch.size(), TOKENS, CLASSES]);
    let tokens = y.reshape([batch.size(), 1]).broadcast_to([batch.size(), TOKENS]);
    // In class 0, the second token is masked.
    let real = Tensor::iota(DType::I32, [batch.size(), TOKENS], 1).eq(0.0).or(tokens.ne(0.0));
    cx.log_metric(
        format!("{stage}_perplexity"),
        Perplexity::new().update(&logits, &tokens).masked(&real),
    );
    // Each token is a sample of this metric. The samples are not rows of the batch, so the metric
    // needs the mask.
    let mask = batch.mask().reshape([batch.size(), 1]).broadcast_to([batch.size(), TOKENS]);
    let rows = [batch.size() * TOKENS];
    let flat =
        Accuracy::new(CLASSES).update(&logits.reshape([rows[0], CLASSES]), &tokens.reshape(rows));
    cx.log_metric(format!("{stage}_token_acc"), flat.masked(&mask.reshape(rows)));
}

impl TrainingModule for Probe {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        log("train", batch, cx);
        let x = batch.get("scores").sum_keepdim(1);
        let output = self.linear.forward(&x);
        // Several values per sample.
        batch.mean(&(&output * &output))
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        log("val", batch, cx);
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(1e-5))
    }
}

/// Scores on the thresholds of a curve, and classes that they often predict.
fn samples(len: usize) -> (Vec<f32>, Vec<i32>) {
    let scores: Vec<f32> =
        (0..len * CLASSES).map(|i| ((i * 83 % 197) as f64 / 199.0) as f32).collect();
    let largest = |row: &[f32]| (0..CLASSES).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
    let classes = scores.chunks(CLASSES).enumerate();
    let classes =
        classes.map(|(i, row)| if i % 3 == 0 { i % 2 } else { largest(row) } as i32).collect();
    (scores, classes)
}

fn loader(len: usize, shuffle: bool) -> DataLoader {
    let (scores, classes) = samples(len);
    let data =
        TensorDataset::builder().array("scores", [len, CLASSES], scores).array("y", [len], classes);
    DataLoader::builder(data.build().unwrap())
        .batch_size(16)
        .shuffle(shuffle)
        .num_workers(1)
        .build()
        .unwrap()
}

/// The metrics over all samples at once, computed directly.
fn by_hand(stage: &str, len: usize) -> (Vec<(String, f64)>, Vec<Vec<f64>>) {
    let (scores, classes) = samples(len);
    let predicted: Vec<usize> = scores
        .chunks(CLASSES)
        .map(|row| (0..CLASSES).fold(0, |best, k| if row[k] > row[best] { k } else { best }))
        .collect();
    let mut confusion = vec![vec![0.0; CLASSES]; CLASSES];
    for (&y, &p) in classes.iter().zip(&predicted) {
        confusion[y as usize][p] += 1.0;
    }
    let hits: f64 = (0..CLASSES).map(|k| confusion[k][k]).sum();
    let f1 = |k: usize| {
        let row: f64 = confusion[k].iter().sum();
        let column: f64 = confusion.iter().map(|row| row[k]).sum();
        2.0 * confusion[k][k] / (row + column)
    };
    let macro_f1 = (0..CLASSES).map(f1).sum::<f64>() / CLASSES as f64;
    let mut pairs = 0.0;
    let mut won = 0.0;
    for (a, _) in classes.iter().enumerate().filter(|(_, y)| **y == 0) {
        for (b, _) in classes.iter().enumerate().filter(|(_, y)| **y != 0) {
            let a = scores[a * CLASSES];
            let b = scores[b * CLASSES];
            pairs += 1.0;
            won += if a > b {
                1.0
            } else if a == b {
                0.5
            } else {
                0.0
            };
        }
    }
    let mse =
        scores.iter().map(|&s| f64::from(s) * f64::from(s)).sum::<f64>() / scores.len() as f64;
    let mut nll = 0.0;
    let mut tokens = 0.0;
    for (row, &y) in scores.chunks(CLASSES).zip(&classes) {
        let sum: f64 = row.iter().map(|&s| f64::from(s).exp()).sum();
        let times = if y == 0 { 1.0 } else { 2.0 };
        nll += times * (sum.ln() - f64::from(row[y as usize]));
        tokens += times;
    }
    let values = [
        ("acc", hits / len as f64),
        ("f1", macro_f1),
        ("f1s/0", f1(0)),
        ("f1s/2", f1(2)),
        ("confusion/1/0", confusion[1][0]),
        ("auroc", won / pairs),
        ("mse", mse),
        ("perplexity", (nll / tokens).exp()),
        ("token_acc", hits / len as f64),
    ];
    (values.map(|(name, value)| (format!("{stage}_{name}"), value)).to_vec(), confusion)
}

fn assert_metrics(point: &LogPoint, expected: &[(String, f64)], suffix: &str, what: &str) {
    for (name, value) in expected {
        let (base, element) = name
            .split_once('/')
            .map_or((name.as_str(), String::new()), |(b, e)| (b, format!("/{e}")));
        let actual = point
            .get(&format!("{base}{suffix}{element}"))
            .unwrap_or_else(|| panic!("{name}: {point:?}"));
        let summed = name.ends_with("mse") || name.ends_with("perplexity");
        let tolerance = if summed { 2e-6 } else { 1e-12 };
        assert!(
            (actual - value).abs() <= tolerance * value.abs(),
            "{what}: {name} is {actual}, not {value}"
        );
    }
}

#[test]
fn metrics_are_exact_over_the_samples_on_any_number_of_devices() {
    for len in [50, 64] {
        let (expected, confusion) = by_hand("val", len);
        let (over_epoch, _) = by_hand("train", len);
        let mut first: Option<LogPoint> = None;
        for devices in [1, 2, 8] {
            let what = format!("{len} samples on {devices} devices");
            let folder = tempfile::tempdir().unwrap();
            let record = Record::default();
            let builder =
                trainer(folder.path()).devices(devices).max_epochs(2).log_every_n_steps(2);
            let mut trainer =
                builder.enable_checkpointing(false).callback(record.clone()).build().unwrap();
            assert_eq!(loader(len, false).pads(), len != 64);
            trainer.fit(&probe(), &loader(len, true), Some(&loader(len, false))).unwrap();
            for point in record.epochs.lock().unwrap().iter() {
                assert_metrics(point, &expected, "", &what);
                assert_metrics(point, &over_epoch, "_epoch", &what);
                assert_eq!(
                    point.array("val_confusion"),
                    Some(&LoggedArray::Matrix(confusion.clone())),
                    "{what}"
                );
                assert_eq!(
                    point.array("train_confusion_epoch"),
                    Some(&LoggedArray::Matrix(confusion.clone())),
                    "{what}"
                );
            }
            let logs = record.logs.lock().unwrap();
            assert_eq!(logs.len(), 2 * 4 / 2);
            for point in logs.iter() {
                let Some(LoggedArray::Matrix(rows)) = point.array("train_confusion") else {
                    panic!("{what}: {point:?}")
                };
                let samples: f64 = rows.iter().flatten().sum();
                // 50 samples are three batches of 16 and one of 2.
                assert!(samples == 32.0 || len == 50 && samples == 18.0, "{what}: {samples}");
            }
            let point = trainer.validate(&probe(), &loader(len, false)).unwrap();
            let first = first.get_or_insert_with(|| point.clone());
            for (name, value) in &first.metrics {
                // Counts are equal; sums of floats are computed in a different order.
                let actual = point.get(name).unwrap();
                let tolerance =
                    if name.ends_with("mse") || name.ends_with("perplexity") { 1e-6 } else { 0.0 };
                assert!(
                    (actual - value).abs() <= tolerance,
                    "{what}: {name} is {actual}, not {value}"
                );
            }
            assert_eq!(first.arrays, point.arrays, "{what}");
        }
    }
}

#[test]
fn metrics_compile_nothing_more_and_read_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let record = Record::default();
    let builder = trainer(folder.path()).runtime(isolated()).max_epochs(3).log_every_n_steps(2);
    let builder = builder.callback(record.clone());
    // One callback monitors an element of a metric, another a value that training logged over the
    // epoch.
    let builder =
        builder.callback(ModelCheckpoint::new().monitor("val_f1s/1", Mode::Max).keep_all(true));
    let builder = builder.callback(EarlyStopping::new("train_f1s/2", Mode::Max).patience(1));
    let mut trainer = builder.build().unwrap();
    let summary = trainer.fit(&probe(), &loader(50, true), Some(&loader(50, false))).unwrap();
    assert_eq!((summary.train_compilations, summary.eval_compilations), (1, 1));
    // Each epoch has the same samples, so nothing improves after the first.
    assert_eq!((summary.epochs, summary.global_step), (2, 8));
    assert!(summary.stopped.is_some_and(|reason| reason.contains("train_f1s/2")));
    assert!(trainer.device_to_host_transfers() <= trainer.log_points() + 2);
    assert!(summary.best_checkpoint.is_some());

    let table = std::fs::read_to_string(trainer.run_dir().unwrap().join("metrics.csv")).unwrap();
    let header = table.lines().next().unwrap();
    for column in ["train_acc", "train_f1s/0", "train_f1s_epoch/2", "val_f1s/1", "val_auroc"] {
        assert!(header.split(',').any(|name| name == column), "{column}: {header}");
    }
    assert!(!header.contains("confusion"), "{header}");
    let expected = record.epochs.lock().unwrap()[1].get("val_f1s/1").unwrap();
    let column = header.split(',').position(|name| name == "val_f1s/1").unwrap();
    let written: f64 =
        table.lines().last().unwrap().split(',').nth(column).unwrap().parse().unwrap();
    assert_eq!(written, expected);
}

/// Runs a test's log function.
#[derive(Module)]
struct Logs {
    linear: Linear,
    #[module(skip)]
    log: fn(&Batch, &mut StepContext),
}

impl TrainingModule for Logs {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        batch.mean(&self.linear.forward(&batch.get("x").reshape([batch.size(), 1])))
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        (self.log)(batch, cx);
    }
    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        (self.log)(batch, cx);
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.1))
    }
}

fn validated(
    values: Vec<f32>,
    drop_last: bool,
    log: fn(&Batch, &mut StepContext),
) -> fulmen_trainer::Result<LogPoint> {
    let folder = tempfile::tempdir().unwrap();
    let data = TensorDataset::builder().array("x", [values.len()], values).build().unwrap();
    let loader = DataLoader::builder(data).batch_size(2).drop_last(drop_last).build().unwrap();
    let mut trainer = trainer(folder.path()).build().unwrap();
    trainer.test(&Logs { linear: Linear::new(1, 1), log }, &loader, Weights::Current)
}

/// A metric with constant statistics for each batch.
#[derive(Debug)]
struct Many;

impl Metric for Many {
    fn statistics(&self, _: &[Tensor], _: &Tensor) -> Vec<Tensor> {
        vec![Tensor::scalar(i32::MAX), Tensor::scalar(0.1f32)]
    }
    fn compute(&self, sums: &[Vec<f64>]) -> Value {
        Value::Vector(sums.concat())
    }
}

#[test]
fn counters_and_sums_exceed_32_bits() {
    // One large number, and then small ones that an f32 sum would lose.
    let values: Vec<f32> = [1e8].into_iter().chain((1..600).map(|_| 1.0)).collect();
    let point = validated(values, PAD_LAST, |batch, cx| {
        cx.log("mean", &batch.get("x"));
        cx.log_metric("metric", Mean::new().update(&batch.get("x")));
        cx.log_metric("many", MetricState::new(Many, &[&batch.get("x")], &[batch.size()]));
    })
    .unwrap();
    let expected = (1e8 + 598.0 + 0.0) / 600.0;
    for name in ["mean", "metric"] {
        let actual = point.get(name).unwrap();
        // The first batch itself is summed in f32.
        assert!((actual - expected).abs() < 8.0 / 600.0, "{name}: {actual}, not {expected}");
    }
    assert_eq!(point.get("many/0"), Some(300.0 * f64::from(i32::MAX)));
    let tenth = point.get("many/1").unwrap() / 300.0;
    assert!((tenth - f64::from(0.1f32)).abs() < 1e-12, "{tenth}");
}

#[test]
fn a_metric_that_would_count_padding_is_rejected_with_its_line() {
    let log = |batch: &Batch, cx: &mut StepContext| {
        let pairs = Tensor::concatenate(&[&batch.get("x"), &batch.get("x")], 0);
        cx.log_metric("pairs", Mean::new().update(&pairs));
    };
    let error = validated(vec![1.0; 5], PAD_LAST, log).unwrap_err().to_string();
    assert!(
        error.contains(
            "log `pairs`: the last batch is padded, and the metric's samples [4] are not its 2 rows"
        ),
        "{error}"
    );
    assert!(error.contains("metrics.rs:"), "{error}");
    assert_eq!(validated(vec![1.0; 4], PAD_LAST, log).unwrap().get("pairs"), Some(1.0));
    assert_eq!(validated(vec![1.0; 5], DROP_LAST, log).unwrap().get("pairs"), Some(1.0));
}

#[test]
fn a_metric_of_unsuitable_tensors_is_rejected_with_its_line() {
    let error = validated(vec![1.0; 4], PAD_LAST, |batch, cx| {
        cx.log_metric("f1", F1::new(3).update(&batch.get("x"), &batch.get("x")));
    });
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("F1: needs scores [.., 3] and the integer index of each right class")
            && text.contains("metrics.rs:"),
        "{text}"
    );
    let error = validated(vec![1.0; 5], PAD_LAST, |batch, cx| {
        cx.log("x", &batch.mean(&Tensor::scalar(1.0f32)));
    });
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("mean: needs at least one value per sample, [2, ..], got f32[]"),
        "{text}"
    );
}
