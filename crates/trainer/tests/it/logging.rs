//! Logged values: each reduction against values computed directly, over padding, devices and a
//! resume within an epoch; each value reaches only the sinks that it is meant for; images, texts
//! and histograms only at log points; and an error for each wrong option.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::{Record, isolated, trainer};
use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::metrics::Mean;
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::Tensor;
use fulmen_trainer::loggers::{CsvLogger, Logger};
use fulmen_trainer::{
    Batch, Histogram, Images, LogPoint, Media, Optimizers, Plan, ReduceFx, Sink, StepContext,
    TrainerBuilder, TrainingModule, Weights,
};

const SAMPLES: usize = 20;
const BATCH: usize = 8;

type Log = fn(&Batch, &mut StepContext);

/// Runs a test's log function in every step.
#[derive(Module)]
struct Logs {
    linear: Linear,
    #[module(skip)]
    train: Log,
    #[module(skip)]
    evaluate: Log,
}

impl TrainingModule for Logs {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        (self.train)(batch, cx);
        batch.mean(&self.linear.forward(&batch.get("x").reshape([BATCH, 1])))
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        (self.evaluate)(batch, cx);
    }
    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        (self.evaluate)(batch, cx);
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.001))
    }
}

fn module(train: Log, evaluate: Log) -> Logs {
    Logs { linear: Linear::new(1, 1), train, evaluate }
}

/// Numbers whose largest and smallest are in the middle.
fn values() -> Vec<f32> {
    (0..SAMPLES).map(|i| ((i * i * 7) % 31) as f32 - 12.5).collect()
}

/// The second pixel of each image identifies the sample. The second token is a letter.
fn loader() -> DataLoader {
    let pixels: Vec<u8> = (0..SAMPLES).flat_map(|i| [0, i as u8, 255, 128]).collect();
    let ids: Vec<i32> = (0..SAMPLES).flat_map(|i| [72, 97 + i as i32]).collect();
    let data = TensorDataset::builder()
        .array("x", [SAMPLES], values())
        .array("image", [SAMPLES, 1, 2, 2], pixels)
        .array("input_ids", [SAMPLES, 2], ids);
    DataLoader::builder(data.build().unwrap()).batch_size(BATCH).drop_last(false).build().unwrap()
}

const NAMES: [(&str, ReduceFx); 5] = [
    ("mean", ReduceFx::Mean),
    ("sum", ReduceFx::Sum),
    ("min", ReduceFx::Min),
    ("max", ReduceFx::Max),
    ("last", ReduceFx::Last),
];

/// Logs each reduction of the samples, and of the mean of each batch.
fn log_all(batch: &Batch, cx: &mut StepContext) {
    for (name, reduce_fx) in NAMES {
        cx.log(name, batch.get("x")).reduce_fx(reduce_fx);
        cx.log(format!("batch_{name}"), batch.mean(batch.get("x"))).reduce_fx(reduce_fx);
    }
}

/// The values that [`log_all`] logs over some batches of an epoch.
fn by_hand(batches: std::ops::Range<usize>) -> Vec<(String, f64)> {
    let values = values();
    let batches: Vec<&[f32]> =
        values.chunks(BATCH).skip(batches.start).take(batches.len()).collect();
    let mean =
        |values: &[f32]| values.iter().copied().map(f64::from).sum::<f64>() / values.len() as f64;
    let means: Vec<f64> = batches.iter().map(|batch| mean(batch)).collect();
    let samples: Vec<f64> = batches.concat().into_iter().map(f64::from).collect();
    let smallest = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let largest = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let last = means[means.len() - 1];
    let of_samples = [
        mean(&batches.concat()),
        samples.iter().sum(),
        smallest(&samples),
        largest(&samples),
        last,
    ];
    let of_batches = [of_samples[0], means.iter().sum(), smallest(&means), largest(&means), last];
    let pairs = NAMES.iter().zip(of_samples.iter().zip(of_batches));
    pairs
        .flat_map(|((name, _), (a, b))| [(name.to_string(), *a), (format!("batch_{name}"), b)])
        .collect()
}

fn assert_values(point: &LogPoint, expected: &[(String, f64)], suffix: &str, what: &str) {
    for (name, value) in expected {
        let actual = point
            .get(&format!("{name}{suffix}"))
            .unwrap_or_else(|| panic!("{what}: {name}: {point:?}"));
        assert!(
            (actual - value).abs() <= 1e-5 * value.abs().max(1.0),
            "{what}: {name}{suffix} is {actual}, not {value}"
        );
    }
}

fn builder(folder: &Path, record: &Record) -> TrainerBuilder {
    trainer(folder).max_epochs(2).callback(record.clone())
}

#[test]
fn each_reduction_matches_the_samples_on_any_number_of_devices() {
    for devices in [1, 8] {
        let what = format!("{devices} devices");
        let folder = tempfile::tempdir().unwrap();
        let record = Record::default();
        let builder = builder(folder.path(), &record).devices(devices).log_every_n_steps(2);
        let mut trainer = builder.enable_checkpointing(false).build().unwrap();
        let summary = trainer.fit(&module(log_all, log_all), &loader(), Some(&loader())).unwrap();
        assert!(summary.train_compilations <= 1, "{what}");
        let logs = record.logs.lock().unwrap();
        // An epoch has three batches. Values reported at its end are not in the log points after
        // it.
        let expected = [(2, by_hand(0..2)), (4, by_hand(0..1)), (6, by_hand(1..3))];
        assert_eq!(logs.len(), expected.len());
        for (point, (step, expected)) in logs.iter().zip(expected) {
            assert_eq!(point.global_step, step);
            assert_values(point, &expected, "", &what);
        }
        for point in record.epochs.lock().unwrap().iter() {
            assert_values(point, &by_hand(0..3), "_epoch", &what);
            assert_values(point, &by_hand(0..3), "", &what);
        }
        // Three log points and two ends of epochs are read, each once.
        assert_eq!((trainer.log_points(), trainer.device_to_host_transfers()), (5, 5), "{what}");
    }
}

#[test]
fn a_resume_within_an_epoch_continues_each_reduction() {
    for every in [1, 100] {
        let folder = tempfile::tempdir().unwrap();
        let record = Record::default();
        let run = |record: &Record| builder(folder.path(), record).log_every_n_steps(every);
        let module = || module(log_all, |_, _| {});
        // The run ends between the largest and the latest value.
        let ended = run(&Record::default())
            .max_steps(2)
            .build()
            .unwrap()
            .fit(&module(), &loader(), None)
            .unwrap();
        let checkpoint = ended.last_checkpoint.unwrap();
        let resumed = run(&record)
            .ckpt_path(checkpoint)
            .build()
            .unwrap()
            .fit(&module(), &loader(), None)
            .unwrap();
        let epochs = record.epochs.lock().unwrap();
        assert_eq!(epochs.len(), 2);
        epochs.iter().for_each(|point| {
            assert_values(point, &by_hand(0..3), "_epoch", &format!("every {every}"))
        });

        // The time accounting continues too.
        let goodput = std::fs::read(folder.path().join("version_1/goodput.json")).unwrap();
        let goodput: serde_json::Value = serde_json::from_slice(&goodput).unwrap();
        let runs = goodput["runs"].as_array().unwrap();
        let steps = |run: &serde_json::Value| {
            [&run["first_step"], &run["last_step"]].map(|step| step.as_u64().unwrap())
        };
        assert_eq!(runs.iter().map(steps).collect::<Vec<_>>(), [[0, 2], [2, 6]]);
        let spent: f64 = runs.iter().map(|run| run["seconds"]["start"].as_f64().unwrap()).sum();
        assert!(
            (resumed.goodput.start - spent).abs() < 1e-6 && resumed.goodput.lost == 0.0,
            "{:?}",
            resumed.goodput
        );
    }
}

#[test]
fn each_value_has_its_own_sinks() {
    let log: Log = |batch, cx| {
        let x = batch.get("x");
        cx.log("a", &x).prog_bar(false).on_epoch(false);
        cx.log("b", &x).logger(false).on_step(false);
        cx.log_dict([("c", &x), ("d", &x)]).logger(false).reduce_fx(ReduceFx::Max);
        cx.log_metric("e", Mean::new().update(&x)).prog_bar(false).on_step(false);
    };
    let folder = tempfile::tempdir().unwrap();
    let record = Record::default();
    let builder = builder(folder.path(), &record).max_epochs(1).log_every_n_steps(1);
    let mut trainer = builder.build().unwrap();
    trainer.fit(&module(log, |_, _| {}), &loader(), None).unwrap();
    let names = |point: &LogPoint| point.metrics.iter().map(|m| m.0.clone()).collect::<Vec<_>>();
    let logs = record.logs.lock().unwrap();
    let epochs = record.epochs.lock().unwrap();
    assert_eq!(names(&logs[0]), ["train_loss", "a", "c", "d", "lr"]);
    assert_eq!(names(&epochs[0]), ["train_loss_epoch", "b_epoch", "c_epoch", "d_epoch", "e_epoch"]);
    assert_eq!(names(&logs[0].shown_by(Sink::ProgressBar)), ["train_loss", "c", "d", "lr"]);
    assert_eq!(names(&epochs[0].shown_by(Sink::Logger)), ["train_loss_epoch", "e_epoch"]);
    let table = std::fs::read_to_string(trainer.run_dir().unwrap().join("metrics.csv")).unwrap();
    assert_eq!(
        table.lines().next().unwrap(),
        "epoch,step,train_loss,a,lr,train_loss_epoch,e_epoch"
    );
}

#[test]
fn a_wrong_option_is_an_error_with_its_name_and_line() {
    let nothing: Log = |_, _| {};
    let training: [(Log, &str); 9] = [
        (
            |batch, cx| {
                cx.log("a", batch.get("x")).on_step(false).on_epoch(false);
            },
            "on_step and on_epoch are both off",
        ),
        (
            |batch, cx| {
                cx.log_metric("a", Mean::new().update(&batch.get("x"))).reduce_fx(ReduceFx::Sum);
            },
            "reduce_fx: a metric has its own reduction",
        ),
        (
            |batch, cx| {
                cx.log("a", batch.get("x").max(0)).reduce_fx(ReduceFx::Max);
            },
            "the last batch is padded",
        ),
        (
            |batch, cx| {
                cx.log("a", batch.get("image"));
            },
            "log a scalar or one value per sample, [8]",
        ),
        (|batch, cx| cx.log_image("a", batch.get("x")), "an image is [C, H, W]"),
        (
            |batch, cx| cx.log_text("a", batch.get("x"), |_| String::new()),
            "token ids are [T] or [N, T]",
        ),
        (
            |batch, cx| cx.log_histogram("a", batch.get("x"), 0),
            "a histogram has 1 to 4096 bins, not 0",
        ),
        (
            |batch, cx| cx.log_histogram("a", batch.get("x").reshape([2, 4]), 3),
            "padding would be counted",
        ),
        (
            |batch, cx| {
                cx.log("a", batch.get("x"));
                cx.log_image("a", batch.get("image"));
            },
            "this name was logged before",
        ),
    ];
    let evaluating: [(Log, &str); 2] = [
        (
            |batch, cx| {
                cx.log("a", batch.get("x")).on_step(true);
            },
            "on_step: test_step logs once",
        ),
        (
            |batch, cx| {
                cx.log("a", batch.get("x")).on_epoch(false);
            },
            "on_epoch: test_step logs once",
        ),
    ];
    let check = |result: Result<(), fulmen_trainer::Error>, expected: &str| {
        let error = result.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("log `a`: ") && text.contains(expected), "{text}");
        assert!(text.contains("logging.rs:") && error.is_usage(), "{text}");
    };
    let folder = tempfile::tempdir().unwrap();
    let trainer = || builder(folder.path(), &Record::default()).build().unwrap();
    for (log, expected) in training {
        check(trainer().fit(&module(log, nothing), &loader(), None).map(|_| ()), expected);
    }
    for (log, expected) in evaluating {
        check(
            trainer().test(&module(nothing, log), &loader(), Weights::Current).map(|_| ()),
            expected,
        );
    }
}

/// Images of u8 and of floats, a histogram and texts.
fn log_media(batch: &Batch, cx: &mut StepContext) {
    let image = batch.get("image");
    cx.log_image("bytes", image.narrow(0, 0, 3));
    cx.log_image("a/b", image.to_dtype(fulmen_tensor::DType::F32).narrow(0, 0, 1) / 128.0);
    cx.log_histogram("values", batch.get("x"), 4);
    let text = |ids: &[i64]| ids.iter().filter_map(|&id| char::from_u32(id as u32)).collect();
    cx.log_text("texts", batch.get("input_ids").narrow(0, 0, 2), text);
}

/// The media that [`log_media`] logs for a batch of an epoch.
fn media_by_hand(batch: usize) -> Vec<(String, Media)> {
    let first = batch * BATCH;
    let pixels = (first..first + 3).flat_map(|i| [0, i as u8, 255, 128]).collect();
    let scaled = [0.0, first as f64 / 128.0, 255.0 / 128.0, 1.0]
        .map(|v| (f64::min(v, 1.0) * 255.0).round() as u8);
    let letter = |i: usize| format!("H{}", char::from(97 + i as u8));
    let values = values();
    let bins = 4;
    let x: Vec<f64> =
        values.chunks(BATCH).nth(batch).unwrap().iter().copied().map(f64::from).collect();
    let low = x.iter().copied().fold(f64::MAX, f64::min);
    let high = x.iter().copied().fold(f64::MIN, f64::max);
    let mut counts = vec![0; bins];
    for value in &x {
        counts[(((value - low) / (high - low) * bins as f64) as usize).min(bins - 1)] += 1;
    }
    let sum = x.iter().sum();
    let sum_squares = x.iter().map(|x| x * x).sum();
    vec![
        ("bytes".into(), Media::Image(Images { shape: [3, 1, 2, 2], pixels })),
        ("a/b".into(), Media::Image(Images { shape: [1, 1, 2, 2], pixels: scaled.to_vec() })),
        (
            "values".into(),
            Media::Histogram(Histogram { low, high, sum, sum_squares, counts, non_finite: 0 }),
        ),
        ("texts".into(), Media::Text(vec![letter(first), letter(first + 1)])),
    ]
}

#[test]
fn media_are_those_of_the_step_at_the_log_point() {
    for devices in [1, 8] {
        let folder = tempfile::tempdir().unwrap();
        let record = Record::default();
        let builder =
            builder(folder.path(), &record).devices(devices).log_every_n_steps(3).max_epochs(3);
        let mut trainer = builder.enable_checkpointing(false).build().unwrap();
        let summary =
            trainer.fit(&module(log_media, log_media), &loader(), Some(&loader())).unwrap();
        assert!(summary.train_compilations <= 1 && summary.eval_compilations <= 1);
        // The third step of each epoch, with the padded batch.
        let logs = record.logs.lock().unwrap();
        assert_eq!(logs.len(), 3);
        logs.iter()
            .for_each(|point| assert_eq!(point.media, media_by_hand(2), "{devices} devices"));
        let epochs = record.epochs.lock().unwrap();
        epochs.iter().for_each(|point| {
            assert_eq!(point.media, media_by_hand(0), "the validation's first batch")
        });
        assert_eq!((trainer.log_points(), trainer.device_to_host_transfers()), (6, 6));

        let media = trainer.run_dir().unwrap().join("media");
        let mut reader = png::Decoder::new(std::io::BufReader::new(
            std::fs::File::open(media.join("bytes/6.png")).unwrap(),
        ));
        reader.set_transformations(png::Transformations::IDENTITY);
        let mut reader = reader.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        // The validation's images of the same step and name have replaced those of training.
        assert_eq!((info.width, info.height), (6, 6));
        assert_eq!(
            (pixels[1], pixels[4 + 1], pixels[4 * 6 + 1]),
            (0, 1, 2),
            "the samples side by side and below each other"
        );
        assert_eq!(std::fs::read_to_string(media.join("texts/6.txt")).unwrap(), "Ha\n\nHb\n");
        assert!(
            std::fs::read_to_string(media.join("values/6.csv"))
                .unwrap()
                .starts_with("low,high,count\n-12.5,")
        );
        assert!(media.join("a_b/6.png").is_file());

        // The run's folder records the environment and the times.
        let run = trainer.run_dir().unwrap();
        let read = |name: &str| std::fs::read_to_string(run.join(name)).unwrap();
        let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let environment = json(&read("environment.json"));
        assert_eq!(
            (&environment["platform"], &environment["processes"]),
            (&"cpu".into(), &1.into())
        );
        assert_eq!(environment["devices"].as_array().unwrap().len(), devices);
        assert_eq!(environment["plugin_sha256"].as_str().unwrap().len(), 64);
        let points: Vec<_> = read("metrics.jsonl").lines().map(json).collect();
        assert_eq!((points.len(), &points[5]["step"]), (6, &9.into()));
        let names = std::fs::read_dir(run)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(names.filter(|name| name.starts_with("events.out.tfevents.")).count(), 1);
        let goodput = &json(&read("goodput.json"))["runs"][0];
        assert_eq!((&goodput["first_step"], &goodput["last_step"]), (&0.into(), &9.into()));
        let [steps, validation] =
            ["steps", "validation"].map(|part| goodput["seconds"][part].as_f64().unwrap());
        assert!(steps > 0.0 && validation > 0.0, "{goodput}");
        assert!(
            (summary.goodput.steps - steps).abs() < 1e-6 && summary.goodput.share() < 1.0,
            "{:?}",
            summary.goodput
        );
    }
}

/// A layer that FSDP shards.
#[derive(Module)]
struct Wide(Linear);

impl TrainingModule for Wide {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        cx.log_histogram("weight", self.0.weight.get(), 16);
        log_media(batch, cx);
        let x = batch.get("x").reshape([BATCH, 1]).broadcast_to([BATCH, 64]);
        batch.mean(self.0.forward(&x).mean(1))
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(1e-6))
    }
}

#[test]
fn a_log_point_at_the_end_of_a_group_has_its_last_batch_and_whole_sharded_weights() {
    let weights = |devices: usize, strategy: &str| {
        let folder = tempfile::tempdir().unwrap();
        let record = Record::default();
        let builder =
            builder(folder.path(), &record).devices(devices).strategy(strategy).max_epochs(1);
        let builder =
            builder.accumulate_grad_batches(2).log_every_n_steps(1).enable_checkpointing(false);
        builder.build().unwrap().fit(&Wide(Linear::new(64, 64)), &loader(), None).unwrap();
        let logs = record.logs.lock().unwrap();
        assert_eq!(logs.len(), 2);
        for (point, batch) in logs.iter().zip([1, 2]) {
            assert_eq!(point.media[1..], media_by_hand(batch), "{devices} devices, batch {batch}");
        }
        match &logs[0].media[0].1 {
            Media::Histogram(histogram) => histogram.clone(),
            other => panic!("{other:?}"),
        }
    };
    let one = weights(1, "ddp");
    let eight = weights(8, "fsdp");
    assert_eq!((one.low, one.high, &one.counts), (eight.low, eight.high, &eight.counts));
    assert_eq!(one.counts.iter().sum::<u64>(), 64 * 64);
    assert!(
        (one.sum - eight.sum).abs() < 1e-3 && (one.sum_squares - eight.sum_squares).abs() < 1e-3
    );
}

#[test]
fn a_histogram_counts_non_finite_values_separately_and_no_padding() {
    let log: Log = |batch, cx| {
        let x = batch.get("x");
        cx.log_histogram("broken", x.gt(0.0).select(&x, &(&x / 0.0)), 3);
        cx.log_histogram("same", &x.zeros_like() + 2.0, 2);
        cx.log_histogram("none", &x.zeros_like() / 0.0, 2);
    };
    let folder = tempfile::tempdir().unwrap();
    let mut trainer =
        builder(folder.path(), &Record::default()).runtime(isolated()).build().unwrap();
    let point = trainer.test(&module(|_, _| {}, log), &loader(), Weights::Current).unwrap();
    let histograms: Vec<&Histogram> = point
        .media
        .iter()
        .map(|(_, media)| match media {
            Media::Histogram(histogram) => histogram,
            other => panic!("{other:?}"),
        })
        .collect();
    let positive = values()[..BATCH].iter().filter(|&&x| x > 0.0).count() as u64;
    assert_eq!(
        (histograms[0].counts.iter().sum::<u64>(), histograms[0].non_finite),
        (positive, BATCH as u64 - positive)
    );
    assert_eq!(
        (histograms[1].low, histograms[1].high, &histograms[1].counts[..]),
        (1.5, 2.5, &[0, 8][..])
    );
    assert_eq!(
        (&histograms[2].counts[..], histograms[2].non_finite, histograms[2].sum),
        (&[0, 0][..], 8, 0.0)
    );
}

/// Two linear layers; the second is trained in every second step.
#[derive(Module)]
struct Two {
    a: Linear,
    b: Linear,
    #[module(skip)]
    log: Log,
}

impl TrainingModule for Two {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let x = batch.get("x").reshape([BATCH, 1]);
        cx.minimize("b", |cx| {
            (self.log)(batch, cx);
            batch.mean(self.b.forward(&x))
        });
        cx.minimize("a", |_| batch.mean(self.a.forward(&x)))
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        let optimizers =
            Optimizers::new().add("a", ["a.*"], Sgd::new(0.001)).add("b", ["b.*"], Sgd::new(0.001));
        Box::new(optimizers.every("b", 2))
    }
}

#[test]
fn a_step_that_an_optimizer_skips_logs_nothing_for_it() {
    let two = |log| Two { a: Linear::new(1, 1), b: Linear::new(1, 1), log };
    for devices in [1, 8] {
        let folder = tempfile::tempdir().unwrap();
        let record = Record::default();
        let builder =
            builder(folder.path(), &record).max_epochs(1).devices(devices).log_every_n_steps(1);
        builder.build().unwrap().fit(&two(log_all), &loader(), None).unwrap();
        let logs = record.logs.lock().unwrap();
        for (batch, point) in [(0, &logs[0]), (2, &logs[2])] {
            assert_values(point, &by_hand(batch..batch + 1), "", &format!("step {batch}"));
        }
        for (name, _) in NAMES.iter().filter(|(name, _)| *name != "sum") {
            assert_eq!(logs[1].get(name), None, "{name}");
        }
        // The means over the first batch, over the last batch, and over the epoch.
        let first = by_hand(0..1);
        let last = by_hand(2..3);
        let epoch = &record.epochs.lock().unwrap()[0];
        let value_of = |values: &[(String, f64)], name: &str| {
            values.iter().find(|value| value.0 == name).unwrap().1
        };
        let actual = |name: &str| epoch.get(&format!("{name}_epoch")).unwrap();
        assert_eq!(actual("max"), value_of(&first, "max").max(value_of(&last, "max")));
        assert_eq!(actual("min"), value_of(&first, "min").min(value_of(&last, "min")));
        assert_eq!(actual("sum"), value_of(&first, "sum") + value_of(&last, "sum"));
        assert_eq!(actual("last"), value_of(&last, "last"));
    }
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = builder(folder.path(), &Record::default()).build().unwrap();
    let error = trainer.fit(&two(log_media), &loader(), None).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "log `bytes`: images, histograms and texts cannot be logged within the loss"
        ),
        "{error}"
    );
}

/// Records its calls.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<String>>>);

impl Logger for Calls {
    fn start(&mut self, _: &Path) -> std::io::Result<()> {
        self.0.lock().unwrap().push("start".into());
        Ok(())
    }
    fn log_hyperparams(
        &mut self,
        hyperparameters: &serde_json::Map<String, serde_json::Value>,
    ) -> std::io::Result<()> {
        self.0.lock().unwrap().push(serde_json::to_string(hyperparameters).unwrap());
        Ok(())
    }
    /// The error does not end training.
    fn log(&mut self, _: &LogPoint) -> std::io::Result<()> {
        Err(std::io::Error::other("no room"))
    }
}

#[test]
fn hyperparameters_go_into_checkpoints_and_to_loggers() {
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Config {
        width: usize,
        name: String,
    }
    let config = Config { width: 3, name: "wide".into() };
    let folder = tempfile::tempdir().unwrap();
    let calls = Calls::default();
    let builder =
        trainer(folder.path()).max_epochs(1).logger(calls.clone()).logger(CsvLogger::new());
    let mut fitted = builder.hyperparameters(&config).build().unwrap();
    let nothing: Log = |_, _| {};
    let summary = fitted.fit(&module(nothing, nothing), &loader(), None).unwrap();
    assert_eq!(*calls.0.lock().unwrap(), ["start", r#"{"name":"wide","width":3}"#]);
    let checkpoint = summary.last_checkpoint.unwrap();
    assert_eq!(fulmen_trainer::load_hyperparameters::<Config>(&checkpoint).unwrap(), config);

    // The options of the run are stored next to its checkpoints, in the format of `--config`.
    let options = std::fs::read_to_string(fitted.run_dir().unwrap().join("config.toml")).unwrap();
    assert!(
        options.starts_with("[trainer]\n")
            && options.contains("\nmax-epochs = 1  # the program\nmax-steps = 0\n"),
        "{options}"
    );

    // A resumed run has only its own hyperparameters.
    let resumed = trainer(folder.path()).max_epochs(2).ckpt_path(&checkpoint).build().unwrap();
    let summary = { resumed }.fit(&module(nothing, nothing), &loader(), None).unwrap();
    let error = fulmen_trainer::load_hyperparameters::<Config>(summary.last_checkpoint.unwrap())
        .unwrap_err();
    assert!(
        error.is_checkpoint() && error.to_string().contains("it has no hyperparameters"),
        "{error}"
    );
    let error =
        fulmen_trainer::load_hyperparameters::<Vec<u8>>(&checkpoint).unwrap_err().to_string();
    assert!(error.contains("don't have the requested type"), "{error}");
    let error = trainer(folder.path()).hyperparameters(3).build().err().unwrap().to_string();
    assert!(
        error.starts_with("hyperparameters: expected a struct or a map")
            && error.contains("logging.rs:"),
        "{error}"
    );
}
