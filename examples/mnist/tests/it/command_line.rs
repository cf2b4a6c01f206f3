//! Tests the subcommands and the configuration file from the command line.

use std::path::Path;
use std::process::{Command, Output};

use fulmen::data::{Dataset, HostBatch, Mnist, Split};
use fulmen::nn::safetensors;
use serde_json::Value;

#[path = "../../../../crates/pjrt/tests/it/common/libtpu.rs"]
mod libtpu;

fn mnist(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mnist"));
    command.env("FULMEN_COMPILE_CACHE", "off");
    command.current_dir(folder).args(args).envs(env.iter().copied()).output().unwrap()
}

/// Runs a command that must succeed, and returns its standard output.
fn succeeds(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> String {
    let output = mnist(folder, args, env);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(stdout: &str) -> Value {
    serde_json::from_str(stdout.lines().last().unwrap()).unwrap()
}

#[test]
#[ignore = "slow: ci/slow"]
fn a_trained_model_is_validated_and_tested_and_predicts() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| succeeds(folder.path(), args, &[]);
    let fit = json(&run(&[
        "--max-epochs",
        "1",
        "--batch-size",
        "100",
        "--enable-progress-bar=false",
        "--json",
    ]));
    let accuracy = fit["test_accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.8 && fit["test"]["test_acc"] == fit["test_accuracy"], "{fit}");

    let checkpoint =
        ["--batch-size", "64", "--ckpt-path", "runs/version_0/checkpoints/best", "--json"];
    let test = json(&run(&[&["test"][..], &checkpoint].concat()));
    assert_eq!(test["metrics"]["test_acc"].as_f64(), Some(accuracy));
    // By name: the newest run with a checkpoint counts, and the test in between has none.
    let by_name = json(&run(&["test", "--batch-size", "64", "--ckpt-path", "best", "--json"]));
    assert_eq!(by_name, test);
    let validation = json(&run(&[&["validate"][..], &checkpoint].concat()));
    assert!(validation["metrics"]["val_acc"].as_f64().unwrap() > 0.8, "{validation}");

    // The predictions are for the 1,000 test digits in order, although the last batch of 64 is
    // padded.
    let predicted = json(&run(&[&["predict", "--output", "digits.csv"][..], &checkpoint].concat()));
    assert_eq!(
        (predicted["predictions"].as_u64(), predicted["output"].as_str()),
        (Some(1000), Some("digits.csv"))
    );
    let csv = std::fs::read_to_string(folder.path().join("digits.csv")).unwrap();
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("file,digit,probability"));
    let mut digits: Vec<i32> = Vec::new();
    for (index, line) in lines.enumerate() {
        let (rest, _probability) = line.rsplit_once(',').unwrap();
        let (file, digit) = rest.rsplit_once(',').unwrap();
        assert!(file.contains(&format!("t10k-images-idx3-ubyte.gz, image {index}")), "{file}");
        digits.push(digit.parse().unwrap());
    }
    let samples =
        Mnist::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("data"), Split::Test).unwrap();
    let batch = HostBatch::collate(&samples, &(0..samples.len()).collect::<Vec<_>>()).unwrap();
    let label = batch.fields().iter().position(|field| field.name == "label").unwrap();
    let labels = batch.values::<i32>(label).unwrap();
    let correct = digits.iter().zip(labels).filter(|(digit, label)| digit == label).count();
    assert_eq!((digits.len(), correct as f64 / 1000.0), (1000, accuracy));

    run(&[&["predict"][..], &checkpoint].concat());
    let (tensors, _) = safetensors::read(folder.path().join("predictions.safetensors")).unwrap();
    assert_eq!(tensors["digit"].to_vec::<i32>().unwrap(), digits);
    assert_eq!(tensors["probability"].ty().shape.dims(), [1000]);
    let files: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files.len(), 3, "runs and two files, without temporary files: {files:?}");
}

#[test]
fn flags_override_the_file_and_the_file_overrides_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let env =
        [("FULMEN_MAX_EPOCHS", "5"), ("FULMEN_SEED", "11"), ("FULMEN_LOG_EVERY_N_STEPS", "3")];
    std::fs::write(
        folder.path().join("run.toml"),
        "batch_size = 16\n[trainer]\nseed = 12\nlog-every-n-steps = 4\n",
    )
    .unwrap();
    let args = ["fit", "--config", "run.toml", "--log-every-n-steps", "6", "--print-config"];
    let printed = succeeds(folder.path(), &args, &env);
    for line in ["batch-size = 16", "max-epochs = 5", "seed = 12", "log-every-n-steps = 6"] {
        assert!(printed.lines().any(|printed| printed == line), "{line} in\n{printed}");
    }
    // The printed configuration is complete: it needs no flags and no environment.
    std::fs::write(folder.path().join("all.toml"), &printed).unwrap();
    assert_eq!(
        succeeds(folder.path(), &["fit", "--config", "all.toml", "--print-config"], &[]),
        printed
    );
    assert!(!folder.path().join("runs").exists(), "printing must not start a run");
}

#[test]
fn fake_data_needs_no_folder_and_a_fast_dev_run_leaves_none() {
    let folder = tempfile::tempdir().unwrap();
    let run = json(&succeeds(
        folder.path(),
        &["--fake-data", "--data-dir", "none", "--fast-dev-run", "--json"],
        &[],
    ));
    assert!(run["test_accuracy"].as_f64().is_some() && run["steps"].as_u64() == Some(1), "{run}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
#[ignore = "slow: ci/slow"]
fn preflight_analyzes_the_step_and_opens_no_device() {
    let Some(libtpu) = libtpu::path() else { return };
    // With an empty cache, opening a CPU device would download its plugin.
    let folder = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let env = [
        ("XDG_CACHE_HOME", cache.path().to_str().unwrap()),
        ("TPU_LIBRARY_PATH", libtpu.to_str().unwrap()),
    ];
    let args = [
        "preflight",
        "--topology",
        "v5e:2x4,v3:2x2",
        "--price",
        "--against",
        "h100,rtx3090",
        "--loader-seconds",
        "1",
        "--batch-size",
        "64",
        "--json",
    ];
    let stdout = succeeds(folder.path(), &args, &env);
    let report = json(&stdout);
    let names: Vec<_> = report["topologies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["topology"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["v5e:2x4", "v3:2x2"]);
    for topology in report["topologies"].as_array().unwrap() {
        assert_eq!(
            (topology["fits"].as_bool(), topology["steps_per_epoch"].as_u64()),
            (Some(true), Some(8100 / 64))
        );
        assert!(
            topology["flops"].as_f64() > Some(1e6)
                && topology["usd_per_epoch"].as_f64() > Some(0.0),
            "{topology}"
        );
        // A picture has 28 × 28 bytes, and its label may be a number of 4 bytes.
        let data = &topology["data"];
        let bytes = data["bytes_per_s"].as_f64().unwrap() / data["samples_per_s"].as_f64().unwrap();
        assert!((784.0..5000.0).contains(&bytes), "{topology}");
        assert!(data["estimated_host_supply_samples_per_s"].as_f64() > Some(0.0), "{topology}");
        let gpus: Vec<_> = topology["against"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| (row["gpu"].as_str().unwrap(), row["usd_per_epoch"].as_f64() > Some(0.0)))
            .collect();
        assert_eq!(gpus, [("h100", true), ("3090", true)], "{topology}");
    }
    assert!(report["loader"]["samples"].as_u64() >= Some(64), "{}", report["loader"]);
    assert!(stdout.contains("v3:2x2: 4 chips, 8 devices"), "{stdout}");
    assert!(stdout.contains("samples/s measured here with "), "{stdout}");
    for folder in [folder, cache] {
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            0,
            "preflight must not download or write files"
        );
    }
}

#[test]
fn mistakes_end_with_a_message_and_an_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("typo.toml"), "[trainer]\nmax_epoch = 3\n").unwrap();
    let ends = |args: &[&str], code: i32, message: &str| {
        let output = mnist(folder.path(), args, &[]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), stderr.starts_with("error: ")),
            (Some(code), true),
            "{args:?}: {stderr}"
        );
        assert!(stderr.contains(message), "{args:?}: {stderr}");
        assert!(!stderr.contains("stack backtrace") && !stderr.contains("Error {"), "{stderr}");
    };
    ends(&["tset"], 2, "unrecognized subcommand 'tset'");
    ends(&["fit", "--max-epoch", "3"], 2, "a similar argument exists: '--max-epochs'");
    ends(
        &["--config", "typo.toml"],
        2,
        "typo.toml:2: there is no option `max_epoch`; did you mean `max-epochs`?",
    );
    ends(&["preflight"], 2, "--topology <SLICES>");
    ends(&["preflight", "--topology", "v5e:2x4,v9:1x1"], 2, "there is no generation `v9`");
    ends(
        &["preflight", "--topology", "v5e:2x4", "--against", "a100,h1000"],
        2,
        "there is no GPU `h1000`; there are v100, t4, a100",
    );
    ends(
        &["preflight", "--topology", "v5e:2x4", "--price", "none.toml"],
        1,
        "cannot read the price table none.toml",
    );
    ends(&["fit", "--config", "none.toml"], 2, "none.toml");
    ends(&["test", "--ckpt-path", "none"], 1, "checkpoint none: ");
    ends(
        &["test", "--ckpt-path", "best"],
        2,
        "ckpt_path: best: no run of this program under runs has such a checkpoint",
    );
    ends(
        &["fit", "--resume", "always"],
        2,
        "`always` is not a resume mode; there are: never, auto",
    );
    ends(
        &["fit", "--resume", "auto", "--ckpt-path", "x"],
        2,
        "resume: auto means the newest checkpoint",
    );
    ends(&["fit", "--grace", "25"], 2, "expected a time, such as 25s or 1m30s");
    ends(&["predict", "--output", "digits.txt"], 2, "must end in .csv or .safetensors");
    ends(&["predict", "--output", "no/digits.csv"], 2, "there is no folder no");
    // A host of a TPU, without a plugin for it.
    let tpu_host = [
        ("TPU_WORKER_ID", "0"),
        ("TPU_WORKER_HOSTNAMES", "localhost"),
        ("TPU_LIBRARY_PATH", "/no/such/libtpu.so"),
        ("FULMEN_PJRT_PLUGIN", ""),
    ];
    let output = mnist(folder.path(), &["fit"], &tpu_host);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("the accelerator `auto` is `tpu` on this machine"), "{stderr}");
    assert!(!folder.path().join("runs").exists(), "nothing was written");
}
