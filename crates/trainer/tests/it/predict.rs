//! `Trainer::predict`: one row per sample, in order, from one program.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use crate::common::{FEATURES, isolated, samples, trainer as builder};
use fulmen_data::{DataLoader, Dataset, Field, OnError, Sample};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::{DType, Tensor};
use fulmen_trainer::{
    Batch, Plan, PredictionWriter, Predictions, StepContext, Strategy, TrainingFn, TrainingModule,
    Weights,
};

type Step = fn(&Net, &Batch) -> Predictions;

/// Predicts with a test's own step.
#[derive(Module)]
struct Net {
    linear: Linear,
    #[module(skip)]
    step: Step,
}

impl Net {
    fn new(step: Step) -> Net {
        Net { linear: Linear::new(FEATURES, 2), step }
    }
}

impl TrainingModule for Net {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        batch.mean(&self.linear.forward(&batch.get("x")).sum(-1))
    }
    fn predict_step(&self, batch: &Batch) -> Predictions {
        (self.step)(self, batch)
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.1))
    }
}

fn both(net: &Net, batch: &Batch) -> Predictions {
    let y = net.linear.forward(&batch.get("x"));
    [("y", y.clone()), ("class", y.argmax(-1)), ("label", batch.get("y"))].into()
}

fn data(n: usize, batch_size: usize) -> DataLoader {
    DataLoader::builder(samples(n)).batch_size(batch_size).num_workers(2).build().unwrap()
}

#[test]
fn each_sample_has_a_row_in_order_and_padding_has_none() {
    let runs = tempfile::tempdir().unwrap();
    let net = Net::new(both);
    // The number of batches is below, at and above the number in flight. Some batches are padded.
    for (n, batch_size) in [(1, 4), (8, 4), (10, 4), (23, 4), (5, 1)] {
        let mut trainer = builder(runs.path()).runtime(isolated()).build().unwrap();
        let batches: Vec<_> = trainer
            .predict(&net, &data(n, batch_size), Weights::Current)
            .unwrap()
            .map(|batch| batch.map(|batch| batch.num_samples()))
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!((batches.len(), batches.iter().sum::<usize>()), (n.div_ceil(batch_size), n));
        let all = trainer
            .predict(&net, &data(n, batch_size), Weights::Current)
            .unwrap()
            .concat()
            .unwrap();
        assert_eq!(trainer.eval_compilations(), 1, "the same program again");
        assert_eq!((trainer.log_points(), trainer.run_dir()), (0, None), "nothing is logged");

        // Compute the same predictions on the host, one sample at a time.
        let weight = net.linear.weight.get();
        let bias = net.linear.bias.as_ref().unwrap().get();
        let weight: Vec<f32> = weight.eval().unwrap().to_vec().unwrap();
        let bias: Vec<f32> = bias.eval().unwrap().to_vec().unwrap();
        let whole =
            fulmen_data::HostBatch::collate(&samples(n), &(0..n).collect::<Vec<_>>()).unwrap();
        let x = whole.values::<f32>(0).unwrap();
        let row = |i: usize, o: usize| {
            let products = (0..FEATURES).map(|k| x[i * FEATURES + k] * weight[o * FEATURES + k]);
            products.sum::<f32>() + bias[o]
        };
        let y: Vec<f32> = all.get("y").unwrap().to_vec().unwrap();
        let class: Vec<i32> = all.get("class").unwrap().to_vec().unwrap();
        assert_eq!((all.num_samples(), y.len(), class.len()), (n, 2 * n, n));
        for i in 0..n {
            for o in 0..2 {
                assert!(
                    (y[2 * i + o] - row(i, o)).abs() < 1e-5,
                    "sample {i}: {} {}",
                    y[2 * i + o],
                    row(i, o)
                );
            }
            assert_eq!(class[i], i32::from(y[2 * i + 1] > y[2 * i]));
        }
        assert_eq!(
            all.get("label").unwrap().to_vec::<i32>().unwrap(),
            whole.values::<i32>(1).unwrap()
        );
        let names: Vec<&str> = all.values().iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["y", "class", "label"]);
    }
}

#[test]
fn closures_predict_as_a_module_does() {
    let runs = tempfile::tempdir().unwrap();
    let linear = Linear::new(FEATURES, 2);
    let module = TrainingFn::new(
        &linear,
        |linear, batch, _| batch.mean(&linear.forward(&batch.get("x")).sum(-1)),
        |_| Sgd::new(0.1),
    );
    let mut trainer = builder(runs.path()).build().unwrap();
    let error = trainer.predict(&module, &data(5, 4), Weights::Current).err().unwrap();
    assert!(error.is_usage(), "{error}");
    let module = module.predict_step(|linear, batch| linear.forward(&batch.get("x")));
    let all = trainer.predict(&module, &data(5, 4), Weights::Current).unwrap().concat().unwrap();
    let predicted = all.get("prediction").unwrap().to_vec::<f32>().unwrap();

    let whole = fulmen_data::HostBatch::collate(&samples(5), &[0, 1, 2, 3, 4]).unwrap();
    let x = Tensor::from_slice(whole.values::<f32>(0).unwrap(), [5, FEATURES]);
    let expected: Vec<f32> = linear.forward(&x).eval().unwrap().to_vec().unwrap();
    assert!(predicted.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "{predicted:?}");
    assert_eq!(predicted.len(), expected.len());
}

#[test]
fn several_devices_predict_the_same() {
    let runs = tempfile::tempdir().unwrap();
    let net = Net::new(both);
    let predict = |devices: usize, strategy: Strategy, batch_size: usize| {
        let mut trainer = builder(runs.path()).devices(devices).strategy(strategy).build().unwrap();
        assert_eq!(trainer.num_devices(), devices);
        let all = trainer.predict(&net, &data(21, batch_size), Weights::Current)?.concat()?;
        Ok::<_, fulmen_trainer::Error>((
            all.get("y").unwrap().to_vec::<f32>()?,
            all.get("class").unwrap().to_vec::<i32>()?,
        ))
    };
    let one = predict(1, Strategy::Ddp, 8).unwrap();
    assert_eq!(one.1.len(), 21);
    for strategy in [Strategy::Ddp, Strategy::Fsdp] {
        let (y, class) = predict(4, strategy, 8).unwrap();
        assert!(
            y.len() == one.0.len() && y.iter().zip(&one.0).all(|(a, b)| (a - b).abs() < 1e-5),
            "{y:?} {one:?}"
        );
        assert_eq!(class, one.1);
    }
    let uneven = predict(4, Strategy::Ddp, 6).unwrap_err();
    assert!(uneven.is_usage() && uneven.to_string().contains("a batch size of 6"), "{uneven}");
}

#[test]
fn the_weights_of_a_checkpoint_are_loaded() {
    let runs = tempfile::tempdir().unwrap();
    let net = Net::new(|net, batch| net.linear.forward(&batch.get("x")).into());
    let mut trainer = builder(runs.path()).max_epochs(1).build().unwrap();
    trainer.fit(&net, &data(8, 4), None).unwrap();
    let predict = |trainer: &mut fulmen_trainer::Trainer, net: &Net, weights| {
        let all = trainer.predict(net, &data(8, 4), weights).unwrap().concat().unwrap();
        all.get("prediction").unwrap().to_vec::<f32>().unwrap()
    };
    let trained = predict(&mut trainer, &net, Weights::Current);
    let other = Net::new(net.step);
    let file = Weights::File(trainer.last_checkpoint().unwrap().to_owned());
    assert_ne!(
        predict(&mut builder(runs.path()).seed(9).build().unwrap(), &other, Weights::Current),
        trained
    );
    assert_eq!(predict(&mut builder(runs.path()).build().unwrap(), &other, file), trained);
    let missing = builder(runs.path())
        .build()
        .unwrap()
        .predict(&other, &data(8, 4), Weights::Best)
        .err()
        .unwrap();
    assert!(missing.is_usage(), "{missing}");
}

#[test]
fn invalid_predictions_are_rejected() {
    let runs = tempfile::tempdir().unwrap();
    let refused = |step: Step, expected: &str| {
        let mut trainer = builder(runs.path()).build().unwrap();
        let error = trainer.predict(&Net::new(step), &data(8, 4), Weights::Current).err().unwrap();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(trainer.eval_compilations(), 0);
        error
    };
    assert!(refused(|_, _| Predictions::default(), "implement predict_step()").is_usage());
    let scalar = refused(
        |_, batch| batch.mean(batch.mask()).into(),
        "it must have a row for each sample of the batch, [4, …]",
    );
    assert!(scalar.to_string().contains("predict.rs:"), "{scalar}");
    refused(|_, _| Tensor::zeros(DType::F32, [5, 4]).into(), "`prediction` is f32[5, 4]");
    refused(
        |_, batch| [("a", batch.get("x")), ("a", batch.get("y"))].into(),
        "`a` is empty or names two tensors",
    );
    refused(|_, batch| batch.get("z").into(), "there is no field `z`");
}

/// Six samples. The fifth cannot be read.
struct Broken;

impl Dataset for Broken {
    fn len(&self) -> usize {
        6
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::F32, [FEATURES])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> fulmen_data::Result<()> {
        if index == 4 {
            Err(std::io::Error::other("a scratch").into())
        } else {
            sample.write_slice(0, &[1.0f32; FEATURES])
        }
    }
}

#[test]
fn a_sample_that_cannot_be_read_ends_the_predictions() {
    let runs = tempfile::tempdir().unwrap();
    let loader = DataLoader::builder(Broken).batch_size(2).build().unwrap();
    let net = Net::new(|net, batch| net.linear.forward(&batch.get("x")).into());
    let mut trainer = builder(runs.path()).build().unwrap();
    let batches: Vec<_> = trainer.predict(&net, &loader, Weights::Current).unwrap().collect();
    let failed = batches.last().unwrap().as_ref().unwrap_err();
    assert!(failed.is_data() && failed.to_string().contains("a scratch"), "{failed}");
    assert!(
        batches.len() == 3 && batches[..2].iter().all(Result::is_ok),
        "the earlier batches arrive"
    );
}

#[test]
fn a_loader_that_skips_or_replaces_samples_is_rejected() {
    let runs = tempfile::tempdir().unwrap();
    let net = Net::new(|net, batch| net.linear.forward(&batch.get("x")).into());
    let mut trainer = builder(runs.path()).build().unwrap();
    for on_error in [OnError::Skip, OnError::Replace] {
        let loader = DataLoader::builder(Broken).batch_size(2).on_error(on_error).build().unwrap();
        let error = trainer.predict(&net, &loader, Weights::Current).err().unwrap();
        assert!(
            error.is_usage() && error.to_string().contains("cannot be matched to samples"),
            "{error}"
        );
    }
}

/// Samples from files: two in each.
struct Pages(usize);

impl Dataset for Pages {
    fn len(&self) -> usize {
        self.0
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::F32, [FEATURES])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> fulmen_data::Result<()> {
        sample.write_slice(0, &[index as f32; FEATURES])
    }
    fn origin(&self, index: usize) -> Option<String> {
        Some(format!("page {}, line {}", index / 2, index % 2))
    }
}

#[test]
fn predictions_have_the_files_of_their_samples() {
    let folder = tempfile::tempdir().unwrap();
    let net = Net::new(|_, batch| [("x", batch.get("x").sum(-1))].into());
    let mut trainer = builder(folder.path()).runtime(isolated()).build().unwrap();
    // In any order, and with a last batch that is padded.
    let loader = DataLoader::builder(Pages(7)).batch_size(3).shuffle(true).seed(5).build().unwrap();
    let expected: Vec<(String, f64)> = trainer
        .predict(&net, &loader, Weights::Current)
        .unwrap()
        .flat_map(|batch| {
            let batch = batch.unwrap();
            let values = batch.get("x").unwrap().to_f64();
            batch.origins().unwrap().iter().cloned().zip(values).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(expected.len(), 7);
    for (origin, value) in &expected {
        let index = (value / FEATURES as f64) as usize;
        assert_eq!(*origin, format!("page {}, line {}", index / 2, index % 2));
    }
    let write = |name: &str, trainer: &mut fulmen_trainer::Trainer, loader: &DataLoader| {
        let path = folder.path().join(name);
        let predicted = trainer.predict(&net, loader, Weights::Current).unwrap();
        PredictionWriter::new(&path).unwrap().write(predicted).unwrap();
        path
    };
    let csv = std::fs::read_to_string(write("p.csv", &mut trainer, &loader)).unwrap();
    let lines = expected.iter().map(|(origin, value)| format!("\"{origin}\",{value}\n"));
    assert_eq!(csv, format!("file,x\n{}", lines.collect::<String>()));
    let (_, metadata) =
        fulmen_nn::safetensors::read(&write("p.safetensors", &mut trainer, &loader)).unwrap();
    let files: Vec<String> = serde_json::from_str(&metadata["files"]).unwrap();
    assert_eq!(files, expected.iter().map(|(origin, _)| origin.clone()).collect::<Vec<_>>());

    // A limit leaves out the last files, and arrays have no files.
    let limit = builder(folder.path()).limit_predict_batches(1).runtime(isolated());
    let csv =
        std::fs::read_to_string(write("p.csv", &mut limit.build().unwrap(), &loader)).unwrap();
    assert_eq!(csv.lines().count(), 4);
    let csv = std::fs::read_to_string(write("p.csv", &mut trainer, &data(4, 2))).unwrap();
    assert!(csv.starts_with("x\n"), "{csv}");
    // A value of the module's own that is named `file` is kept.
    let named = Net::new(|_, batch| [("file", batch.get("x").sum(-1))].into());
    let predicted = trainer.predict(&named, &loader, Weights::Current).unwrap();
    let path = folder.path().join("named.csv");
    PredictionWriter::new(&path).unwrap().write(predicted).unwrap();
    assert!(std::fs::read_to_string(path).unwrap().starts_with("file\n"));
}

#[test]
fn predictions_are_written_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let net = Net::new(both);
    let path = |name: &str| folder.path().join(name);
    let mut trainer = builder(folder.path()).build().unwrap();
    for name in ["p.csv", "p.safetensors"] {
        let writer = PredictionWriter::new(path(name)).unwrap();
        let predicted = trainer.predict(&net, &data(10, 4), Weights::Current).unwrap();
        assert_eq!(writer.write(predicted).unwrap(), 10);
    }
    let all = trainer.predict(&net, &data(10, 4), Weights::Current).unwrap().concat().unwrap();
    let (read, _) = fulmen_nn::safetensors::read(&path("p.safetensors")).unwrap();
    let csv = std::fs::read_to_string(path("p.csv")).unwrap();
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0], ["y_0", "y_1", "class", "label"]);
    for name in ["y", "class", "label"] {
        assert_eq!(read[name].bytes(), all.get(name).unwrap().bytes(), "{name}");
    }
    for (row, y) in rows[1..].iter().zip(all.get("y").unwrap().to_vec::<f32>().unwrap().chunks(2)) {
        assert_eq!(row[..2].iter().map(|cell| cell.parse::<f32>().unwrap()).collect::<Vec<_>>(), y);
    }
    // A user's own format gets the batches in order, without padding.
    let labels = |name: &str| {
        PredictionWriter::with_format(path(name), "txt", |file, batch| {
            let labels = batch.get("label").map(|label| label.to_f64()).unwrap_or_default();
            writeln!(file, "{labels:?}")
        })
    };
    let predicted = trainer.predict(&net, &data(10, 4), Weights::Current).unwrap();
    assert_eq!(labels("p.txt").unwrap().write(predicted).unwrap(), 10);
    let label = all.get("label").unwrap().to_f64();
    let lines: Vec<String> = label.chunks(4).map(|batch| format!("{batch:?}\n")).collect();
    assert_eq!(std::fs::read_to_string(path("p.txt")).unwrap(), lines.concat());
    let error = labels("p.md").unwrap_err().to_string();
    assert!(error.ends_with("p.md: the name must end in .txt, .csv or .safetensors"), "{error}");
    // A sample that cannot be read leaves no new file behind.
    let writer = PredictionWriter::new(path("q.csv")).unwrap();
    let bad = DataLoader::builder(Broken).batch_size(2).build().unwrap();
    let net = Net::new(|net, batch| net.linear.forward(&batch.get("x")).into());
    assert!(writer.write(trainer.predict(&net, &bad, Weights::Current).unwrap()).is_err());
    assert!(!path("q.csv").exists());

    let refused = |name: &str| PredictionWriter::new(path(name)).unwrap_err().to_string();
    assert!(
        refused("p.txt").ends_with("p.txt: the name must end in .csv or .safetensors"),
        "{}",
        refused("p.txt")
    );
    assert!(refused("no/p.csv").contains("there is no folder"), "{}", refused("no/p.csv"));
}
