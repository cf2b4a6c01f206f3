//! The arguments of a binary are saved in its checkpoints, so that `test` builds the model that was
//! trained.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use fulmen::cli::{self, CliApp, FitData, Secret, clap};
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
    // A file can name the checkpoint.
    let file = folder.path().join("test.toml");
    std::fs::write(&file, format!("[trainer]\nckpt_path = {checkpoint:?}\n")).unwrap();
    assert_eq!(run::<Wide>(folder.path(), &["test", "--config", file.to_str().unwrap()]), success);
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

/// A binary that needs a token.
#[derive(clap::Args)]
struct WithToken {
    #[command(flatten)]
    wide: Wide,
    #[arg(long, short = 't')]
    upload: Option<Secret>,
    /// Secret by its name.
    #[arg(long)]
    hub_token: Option<String>,
}

impl CliApp for WithToken {
    type Module = Net;
    fn module(&self) -> cli::Result<Net> {
        if self.upload.as_ref().map(Secret::expose) != Some(UPLOAD)
            || self.hub_token.as_deref() != Some(HUB)
        {
            return Err("the secrets did not arrive".into());
        }
        self.wide.module()
    }
    fn fit_data(&self, options: &Options) -> cli::Result<FitData> {
        self.wide.fit_data(options)
    }
    fn trainer(&self, builder: TrainerBuilder) -> TrainerBuilder {
        let upload = self.upload.as_ref().map(Secret::expose).unwrap_or_default();
        builder.hyperparameters(BTreeMap::from([("url", format!("https://me:{upload}@host"))]))
    }
}

const UPLOAD: &str = "upload-secret-5b1f";
const HUB: &str = "hub-secret-93d0";

/// All files under a folder.
fn files_under(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files_under(&path) } else { vec![path] }).collect()
}

#[test]
fn a_secret_is_used_but_written_nowhere() {
    let success = format!("{:?}", ExitCode::from(0));
    let fit = ["fit", "--width", "5", "--max-epochs", "1", "-t", UPLOAD, "--hub-token", HUB];
    if let Some(root) = std::env::var_os("FULMEN_TEST_CHILD") {
        let root = Path::new(&root);
        assert_eq!(run::<WithToken>(root, &fit), success);
        assert_eq!(run::<WithToken>(root, &[&fit[..], &["--print-config"]].concat()), success);
        // Secrets do not come from the checkpoint, so the module reports that they are missing.
        let last = root.join("version_0/checkpoints/last");
        let resume = ["fit", "--ckpt-path", last.to_str().unwrap(), "--max-epochs", "2"];
        assert_ne!(run::<WithToken>(root, &resume), success);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // The child ignores these filters of tests, and records its command line.
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "command_line::a_secret_is_used_but_written_nowhere", "--nocapture"])
        .args(["--skip", UPLOAD, "--skip", HUB])
        .env("FULMEN_TEST_CHILD", folder.path())
        .output()
        .unwrap();
    let texts = [output.stdout, output.stderr];
    let shown = texts.iter().map(|text| String::from_utf8_lossy(text)).collect::<String>();
    assert!(output.status.success() && shown.contains("the secrets did not arrive"), "{shown}");
    let files = files_under(folder.path());
    for name in [
        "config.toml",
        "environment.json",
        "manifest.json",
        "metrics.jsonl",
        "report.html",
        "tfevents",
    ] {
        let is_it = |file: &PathBuf| file.file_name().unwrap().to_string_lossy().contains(name);
        assert!(files.iter().any(is_it), "{name}: {files:?}");
    }
    // Recorded as `***`, they would be read again as such.
    let read = |name| std::fs::read_to_string(folder.path().join("version_0").join(name)).unwrap();
    let is_secret = |line: &str| line.starts_with("upload") || line.starts_with("hub-token");
    assert!(!read("config.toml").lines().any(is_secret));
    let manifest = read("checkpoints/last/manifest.json");
    assert!(manifest.contains("\"width\":") && !manifest.contains("\"hub-token\":"), "{manifest}");
    let written =
        files.iter().map(|file| (file.display().to_string(), std::fs::read(file).unwrap()));
    let printed = texts.into_iter().map(|text| ("the output".to_owned(), text));
    for (name, bytes) in written.chain(printed) {
        for secret in [UPLOAD, HUB] {
            let is_there = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
            assert!(!is_there, "{secret} is in {name}");
        }
    }
}

#[test]
fn a_program_does_not_train_on_the_cpu_of_a_machine_with_a_tpu() {
    if let Some(root) = std::env::var_os("FULMEN_TEST_CHILD") {
        let root = Path::new(&root);
        let fit = ["wide", "fit", "--width", "5", "--max-epochs", "1", "--default-root-dir"];
        let code = cli::main_from::<Wide>(fit.into_iter().chain(root.to_str()));
        assert_ne!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
        assert!(!root.join("version_0/checkpoints").exists());
        return;
    }
    if !fulmen_pjrt::diagnosis::device_files(fulmen_pjrt::locate::Platform::Tpu).is_empty() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let test = "command_line::a_program_does_not_train_on_the_cpu_of_a_machine_with_a_tpu";
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("FULMEN_TEST_CHILD", folder.path())
        .env("FULMEN_PJRT_PLUGIN", "")
        .env("TPU_LIBRARY_PATH", "/no/such/libtpu.so")
        .env("TPU_VISIBLE_CHIPS", "0")
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shown}");
    assert!(shown.contains("the accelerator `auto` is `tpu` on this machine"), "{shown}");
}

#[test]
fn a_checkpoint_sets_only_the_arguments_of_the_program() {
    let [success, usage_error] = [0, 2].map(|code| format!("{:?}", ExitCode::from(code)));
    let folder = tempfile::tempdir().unwrap();
    let stolen = folder.path().join("stolen");
    let stolen_path = stolen.to_str().unwrap();
    let data = || DataLoader::builder(samples(32).unwrap()).batch_size(8).build().unwrap();
    for (name, value) in [
        ("default-root-dir", stolen_path),
        ("default_root_dir", stolen_path),
        ("dump-dir", stolen_path),
        ("metrics-port", "1"),
        ("json", "true"),
        ("output", stolen_path),
    ] {
        let arguments = [("width".to_owned(), 5.into()), (name.to_owned(), value.into())];
        let root = tempfile::tempdir_in(folder.path()).unwrap();
        let mut trainer = Trainer::builder()
            .accelerator("cpu")
            .max_epochs(1)
            .default_root_dir(root.path())
            .enable_progress_bar(false)
            .program_arguments(arguments.into_iter().collect(), None)
            .build()
            .unwrap();
        let net = Net { hidden: Linear::new(FEATURES, 5), out: Linear::new(5, CLASSES) };
        let last = trainer.fit(&net, &data(), None).unwrap().last_checkpoint.unwrap();
        let resume = ["fit", "--max-epochs", "2", "--ckpt-path", last.to_str().unwrap()];
        assert_eq!(run::<Wide>(root.path(), &resume), usage_error, "{name}");
        assert!(!stolen.exists(), "{name}");
        let ignore = ["--ignore-saved-arguments", "--width", "5"];
        assert_eq!(run::<Wide>(root.path(), &[&resume[..], &ignore].concat()), success, "{name}");
    }
}

#[test]
fn a_mistake_in_a_variable_is_wrong_usage() {
    let fit = ["fit", "--width", "5", "--max-epochs", "1"];
    if let Some(root) = std::env::var_os("FULMEN_TEST_CHILD") {
        println!("the exit code is {}", run::<Wide>(root.as_ref(), &fit));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, value) in [
        ("FULMEN_SEED", "many"),
        ("FULMEN_MAX_EPOCH", "3"),
        ("FULMEN_PJRT_PLUGIN", "/no/such/plugin.so"),
        ("FULMEN_COMPILE_CACHE_MB", "some"),
        ("XLA_FLAGS", "--xla_dump_to=/nowhere"),
        ("FULMEN_COORDINATOR", "nowhere"),
        ("FULMEN_PROCESS_ID", "1"),
        ("FULMEN_NUM_PROCESSES", "two"),
        ("FULMEN_RUN_TOKEN", "short"),
        ("FULMEN_JOIN_TIMEOUT", "soon"),
        ("FULMEN_HEARTBEAT_TIMEOUT", "-1"),
        ("FULMEN_FILE_TIMEOUT", "late"),
        ("FULMEN_STORE_GIVE_UP_SECONDS", "20s"),
    ] {
        // Only object stores read it.
        if name.contains("STORE") && !cfg!(feature = "cloud") {
            continue;
        }
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "command_line::a_mistake_in_a_variable_is_wrong_usage",
                "--nocapture",
            ])
            .env("FULMEN_TEST_CHILD", folder.path())
            // A test has no cache otherwise.
            .env("FULMEN_COMPILE_CACHE", folder.path())
            .env(name, value)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let expected = format!("the exit code is {:?}", ExitCode::from(2));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(&expected) && error.contains(name), "{name}: {text}{error}");
    }
}
