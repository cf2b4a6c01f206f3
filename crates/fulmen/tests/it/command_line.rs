//! The arguments of a binary are saved in its checkpoints, so that `test` builds the model that was
//! trained.

use std::path::Path;
use std::process::ExitCode;

use fulmen::cli::{self, CliApp, FitData, clap};
use fulmen::nn::weights::StateDict;
use fulmen::prelude::*;

const FEATURES: usize = 6;
const CLASSES: usize = 3;

fn samples(n: usize) -> fulmen::data::Result<TensorDataset> {
    let x: Vec<f32> = (0..n * FEATURES).map(|i| (i * i % 23) as f32 / 23.0).collect();
    let y: Vec<i32> = (0..n).map(|i| (i % CLASSES) as i32).collect();
    TensorDataset::builder().array("x", [n, FEATURES], x).array("y", [n], y).build()
}

#[derive(Module)]
struct Net {
    hidden: Linear,
    out: Linear,
}

impl Net {
    fn losses(&self, batch: &Batch) -> Tensor {
        let logits = self.out.forward(self.hidden.forward(batch.get("x")).relu());
        loss::cross_entropy(&logits, batch.get("y"), Reduction::None)
    }
}

impl TrainingModule for Net {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        batch.mean(self.losses(batch))
    }
    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        cx.log("test_loss", self.losses(batch));
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(optim::Sgd::new(0.1))
    }
}

/// A binary whose arguments define its model.
#[derive(clap::Args)]
struct Wide {
    /// The number of neurons of the hidden layer. Required.
    #[arg(long)]
    width: usize,
    #[arg(long, default_value_t = 8)]
    batch_size: usize,
}

impl CliApp for Wide {
    type Module = Net;
    fn module(&self) -> cli::Result<Net> {
        Ok(Net { hidden: Linear::new(FEATURES, self.width), out: Linear::new(self.width, CLASSES) })
    }
    fn fit_data(&self, _: &Options) -> cli::Result<FitData> {
        let train = DataLoader::builder(samples(32)?).batch_size(self.batch_size).build()?;
        Ok(FitData { train, validation: None.into() })
    }
    fn test_data(&self, _: &Options) -> cli::Result<EvaluationSets> {
        Ok((&DataLoader::builder(samples(16)?).batch_size(self.batch_size).build()?).into())
    }
}

/// A later version of the binary, without `--width`.
#[derive(clap::Args)]
struct Renamed {
    #[arg(long, default_value_t = 5)]
    neurons: usize,
    #[arg(long, default_value_t = 8)]
    batch_size: usize,
}

impl CliApp for Renamed {
    type Module = Net;
    fn module(&self) -> cli::Result<Net> {
        Wide { width: self.neurons, batch_size: self.batch_size }.module()
    }
    fn fit_data(&self, _: &Options) -> cli::Result<FitData> {
        Err("not in this test".into())
    }
    fn test_data(&self, options: &Options) -> cli::Result<EvaluationSets> {
        Wide { width: self.neurons, batch_size: self.batch_size }.test_data(options)
    }
}

fn run<A: CliApp>(root: &Path, args: &[&str]) -> String {
    let root = root.to_str().unwrap();
    let common =
        ["--accelerator", "cpu", "--enable-progress-bar", "false", "--default-root-dir", root];
    format!("{:?}", cli::main_from::<A>(["wide"].iter().chain(args).chain(&common)))
}

#[test]
fn a_test_of_a_checkpoint_builds_the_model_that_was_trained() {
    let [success, usage_error, failure] =
        [0, 2, 1].map(|code| format!("{:?}", ExitCode::from(code)));
    let folder = tempfile::tempdir().unwrap();
    let run_dir = |n: usize| folder.path().join(format!("version_{n}"));
    assert_eq!(run::<Wide>(folder.path(), &["fit", "--width", "5", "--max-epochs", "1"]), success);
    let checkpoint_path = run_dir(0).join("checkpoints/last");
    let checkpoint = checkpoint_path.to_str().unwrap();

    // The width and the batch size need not be repeated.
    assert_eq!(run::<Wide>(folder.path(), &["test", "--ckpt-path", checkpoint]), success);
    assert_eq!(
        run::<Wide>(folder.path(), &["test", "--ckpt-path", checkpoint, "--batch-size", "4"]),
        success
    );
    // The command line overrides the saved arguments, and the weights do not fit another model.
    assert_eq!(
        run::<Wide>(folder.path(), &["test", "--ckpt-path", checkpoint, "--width", "6"]),
        failure
    );
    assert_eq!(
        run::<Wide>(
            folder.path(),
            &["test", "--ckpt-path", checkpoint, "--ignore-saved-arguments"]
        ),
        usage_error
    );
    // The binary has changed since.
    assert_eq!(run::<Renamed>(folder.path(), &["test", "--ckpt-path", checkpoint]), usage_error);
    assert_eq!(
        run::<Renamed>(
            folder.path(),
            &["test", "--ckpt-path", checkpoint, "--ignore-saved-arguments"]
        ),
        success
    );

    // The config file in the run's folder reproduces the run.
    let config_path = run_dir(0).join("config.toml");
    let config = std::fs::read_to_string(&config_path).unwrap();
    for line in ["width = 5  # command line", "batch-size = 8", "max-epochs = 1  # command line"] {
        assert!(config.lines().any(|l| l == line), "{line}: {config}");
    }
    let second = tempfile::tempdir().unwrap();
    assert_eq!(
        run::<Wide>(second.path(), &["fit", "--config", config_path.to_str().unwrap()]),
        success
    );
    let bytes = |root: &Path| {
        let path = root.join("version_0/checkpoints/last");
        StateDict::read(&path).unwrap().get("hidden.weight").unwrap().unwrap().bytes().to_vec()
    };
    assert_eq!(bytes(second.path()), bytes(folder.path()));
}

#[test]
fn a_fit_takes_the_programs_that_preflight_saves() {
    let [success, usage_error, failure] =
        [0, 2, 1].map(|code| format!("{:?}", ExitCode::from(code)));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("step.fulmen");
    let path = file.to_str().unwrap();
    assert_eq!(run::<Wide>(folder.path(), &["preflight", "--width", "5"]), usage_error);
    assert_eq!(
        run::<Wide>(
            folder.path(),
            &["preflight", "--width", "5", "--topology", "v5e:1x1,v6e:1x1", "--save", path]
        ),
        usage_error
    );
    assert_eq!(run::<Wide>(folder.path(), &["preflight", "--width", "5", "--save", path]), success);
    assert_eq!(
        run::<Wide>(folder.path(), &["fit", "--width", "5", "--aot", path, "--max-epochs", "1"]),
        success
    );
    std::fs::write(&file, "something else").unwrap();
    assert_eq!(
        run::<Wide>(folder.path(), &["fit", "--width", "5", "--aot", path, "--max-epochs", "1"]),
        failure
    );
}
