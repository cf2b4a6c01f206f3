//! `tune`: a learning rate and a batch size, on a CPU.

use std::cell::RefCell;

use fulmen_nn::loss;

use super::*;

#[derive(Module)]
struct Slope(Linear);

impl Slope {
    fn loss(&self, batch: &Batch) -> Tensor {
        loss::mse_loss(self.0.forward(batch.get("x")), batch.get("y"), loss::Reduction::Mean)
    }
}

impl TrainingModule for Slope {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        self.loss(batch)
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        cx.log("val_loss", self.loss(batch));
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.1))
    }
}

fn points(n: usize, batch_size: usize) -> Result<DataLoader> {
    let x: Vec<f32> = (0..n).map(|i| (i * 37 % n) as f32 / n as f32).collect();
    let y: Vec<f32> = x.iter().map(|x| 3.0 * x + 1.0).collect();
    let data = TensorDataset::builder().array("x", [n, 1], x).array("y", [n, 1], y).build()?;
    Ok(DataLoader::builder(data).batch_size(batch_size).drop_last(true).build()?)
}

thread_local! {
    /// The batch sizes of the loaders that the app made.
    static BATCH_SIZES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Fits a line
#[derive(clap::Args)]
struct App {
    #[arg(long, default_value_t = 8)]
    batch_size: usize,
    #[arg(long)]
    no_validation: bool,
}

impl CliApp for App {
    type Module = Slope;
    fn module(&self) -> Result<Slope> {
        Ok(Slope(Linear::new(1, 1)))
    }
    fn fit_data(&self, _: &Options) -> Result<FitData> {
        BATCH_SIZES.with_borrow_mut(|sizes| sizes.push(self.batch_size));
        let validation = if self.no_validation { None.into() } else { points(8, 4)?.into() };
        Ok(FitData { train: points(64, self.batch_size)?, validation })
    }
}

fn tune(folder: &std::path::Path, args: &[&str]) -> std::result::Result<ExitCode, Failure> {
    let root = folder.to_str().unwrap();
    let common = ["prog", "tune", "--accelerator", "cpu", "--default-root-dir", root];
    let args = common.iter().chain(args).map(OsString::from);
    run::run::<App>(args.collect())
}

#[test]
fn a_learning_rate_is_found_with_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--sweep_steps", "30", "--lowest-rate", "1e-4", "--highest-rate", "0.1"];
    let code = tune(folder.path(), &args).map_err(|f| message(&f)).unwrap();
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
    let page = std::fs::read_to_string(folder.path().join("tune.html")).unwrap();
    assert!(page.contains("<svg"));
    let text = page.rsplit("<p>").next().unwrap_or_default();
    assert!(text.starts_with("The smoothed train_loss falls fastest at"), "{text}");

    let other = folder.path().join("pages/validated.html");
    let args = ["--validation-batches", "1", "--sweep-steps", "15", "--highest-rate", "0.1"];
    let page = ["--page", other.to_str().unwrap()];
    tune(folder.path(), &[&args[..], &page].concat()).map_err(|f| message(&f)).unwrap();
    let page = std::fs::read_to_string(&other).unwrap();
    let text = page.rsplit("<p>").next().unwrap_or_default();
    assert!(text.starts_with("The smoothed val_loss falls fastest at"), "{text}");

    for (args, expected) in [
        (
            &["--no-validation", "--validation-batches", "2"][..],
            "this program has no validation data",
        ),
        (&["--smoothing", "1.5"], "smoothing must be at least 0 and below 1, but it is 1.5"),
        (&["--validation-batches", "0"], "validation_batches must be at least 1, but it is 0"),
    ] {
        let text = message(&tune(folder.path(), args).unwrap_err());
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_batch_size_is_found_with_the_programs_own_argument() {
    let folder = tempfile::tempdir().unwrap();
    BATCH_SIZES.with_borrow_mut(Vec::clear);
    let args = ["--find", "batch-size", "--first-batch-size", "16", "--batch-size", "8"];
    tune(folder.path(), &args).map_err(|f| message(&f)).unwrap();
    // The last one covers the epoch.
    assert_eq!(BATCH_SIZES.take(), [16, 32, 64]);
    let args = ["--find", "batch-size", "--batch-argument", "batchsize"];
    let text = message(&tune(folder.path(), &args).unwrap_err());
    let expected = "--batch-argument: this program has no argument --batchsize; name the one that sets its batch size";
    assert_eq!(text, expected);
}
