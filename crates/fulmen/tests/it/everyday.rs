//! Typical first lines of code ported from PyTorch and Lightning. They must compile with only the
//! prelude, and do what they say.

use fulmen::prelude::*;

/// A model in its simplest form: it passes results of calls by value, and tensors that it needs
/// again by `&`.
#[derive(Module)]
struct Net {
    body: Sequential,
    skip: Linear,
    head: Linear,
}

impl Net {
    fn new() -> Net {
        let body = Sequential::new()
            .add(Linear::new(4, 16))
            .add(LeakyRelu::new(0.2))
            .add(Dropout::new(0.1))
            .add(Linear::new(16, 8))
            .add(Relu::new());
        Net { body, skip: Linear::new(4, 8).bias(false), head: Linear::new(8, 2) }
    }

    fn forward(&self, x: impl AsTensor) -> Tensor {
        let x = x.as_tensor();
        self.head.forward(self.body.forward(x) + self.skip.forward(x))
    }
}

impl TrainingModule for Net {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let logits = self.forward(batch.get("x"));
        cx.log("train_acc", metrics::correct(&logits, batch.get("y")));
        loss::cross_entropy(logits, batch.get("y"), Reduction::Mean)
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        let logits = self.forward(batch.get("x"));
        cx.log("val_loss", loss::cross_entropy(&logits, batch.get("y"), Reduction::None));
        cx.log_metric(
            "val_recall",
            metrics::Recall::new(2).average(metrics::Average::None).update(logits, batch.get("y")),
        );
    }

    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        let rate =
            schedule::Warmup::new(2, schedule::Linear::new(0.01, plan.total_steps).end_factor(0.1));
        Box::new(optim::Sgd::new(rate).momentum(0.9))
    }
}

/// Keeps the printed log point of the last epoch.
struct LastLogPoint(std::sync::Arc<std::sync::Mutex<String>>);

impl Callback for LastLogPoint {
    fn name(&self) -> &'static str {
        "LastLogPoint"
    }
    fn on_train_epoch_end(&mut self, point: &LogPoint, _: &mut Actions) {
        *self.0.lock().unwrap() = point.to_string();
    }
}

fn data() -> fulmen::data::Result<TensorDataset> {
    let x: Vec<f32> = (0..400).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let y: Vec<i32> = x.chunks(4).map(|row| (row[0] > row[1]) as i32).collect();
    TensorDataset::builder().array("x", [100, 4], x).array("y", [100], y).build()
}

#[test]
fn everyday_lines_compile_and_train() -> Result<(), Box<dyn std::error::Error>> {
    let [train, val] = random_split(data()?, [75, 25], 0)?;
    assert_eq!((train.len(), val.len()), (75, 25));
    let train = DataLoader::builder(train).batch_size(15).shuffle(true).build()?;
    let val = DataLoader::builder(val).batch_size(25).build()?;

    let runs = std::env::temp_dir().join(format!("fulmen-everyday-{}", std::process::id()));
    let printed = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let mut trainer = Trainer::builder()
        .accelerator("cpu")
        .devices(1)
        .strategy("ddp")
        .precision("32-true")
        .matmul_precision("highest")
        .max_epochs(6)
        .accumulate_grad_batches(2)
        .gradient_clip_val(1.0)
        .gradient_clip_algorithm("norm")
        .log_every_n_steps(3)
        .seed(1)
        .default_root_dir(&runs)
        .enable_progress_bar(false)
        .callback(LastLogPoint(printed.clone()))
        .build()?;
    let fit = trainer.fit(&Net::new(), &train, Some(&val))?;
    std::fs::remove_dir_all(&runs)?;
    assert_eq!((fit.epochs, fit.global_step, fit.train_compilations), (6, 18, 1));

    let table = printed.lock().unwrap().clone();
    let last = fit.last_epoch.ok_or("no epoch")?;
    assert_eq!(table, last.to_string());
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines[0], "epoch 5, step 18");
    let recall =
        lines.iter().find(|line| line.trim_start().starts_with("val_recall")).ok_or("no recall")?;
    assert_eq!(recall.split_whitespace().count(), 3, "{table}");
    Ok(())
}

#[test]
fn building_the_trainer_reports_an_unknown_name_with_its_line() {
    let error = Trainer::builder()
        .accelerator("tpux")
        .strategy("ring")
        .max_epochs(3)
        .build()
        .map(|_| ())
        .unwrap_err();
    assert!(error.is_usage());
    let text = error.to_string();
    assert!(
        text.starts_with("accelerator: `tpux` ") && text.contains("auto, cpu, cuda, tpu"),
        "{text}"
    );
    assert!(text.contains("everyday.rs:"), "{text}");
    for builder in [
        Trainer::builder().strategy("ring"),
        Trainer::builder().precision("eight"),
        Trainer::builder().matmul_precision("float32"),
        Trainer::builder().learning_rate_scaling("cubic"),
        Trainer::builder().gradient_clip_algorithm("both"),
    ] {
        assert!(builder.options().unwrap_err().is_usage());
    }
}

/// The names of the prelude together with those of a crate's root: none may be ambiguous.
mod with_another_glob {
    #[test]
    fn layers_are_not_ambiguous() {
        use fulmen::nn::*;
        use fulmen::prelude::*;

        let layer: Linear = Linear::new(2, 2);
        let _: Sequential = Sequential::new().add(layer).add(Identity::new());
        let _ = (Init::zeros(), Reduction::Mean);
    }

    #[test]
    fn tensors_data_and_the_trainer_are_not_ambiguous() {
        use fulmen::data::*;
        use fulmen::prelude::*;
        use fulmen::tensor::*;
        use fulmen::trainer::*;

        let _: Option<(Tensor, DType, TensorDataset, DataLoader)> = None;
        let _: Option<(Trainer, LogPoint, FitSummary, Precision)> = None;
        let _: Option<(Runtime, Shape, Weights, Batch)> = None;
        let _: Option<(Mesh, GradientClipAlgorithm, Buckets)> = None;
        let _ = (Mode::Min, Strategy::Fsdp, Accelerator::Cpu);
    }
}
