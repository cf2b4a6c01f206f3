//! The program as a user runs it: its JSON, its messages, and Ctrl-C.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn mnist(runs: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mnist"));
    command.arg("--default-root-dir").arg(runs).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> (String, String) {
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (lossy(&output.stdout), lossy(&output.stderr))
}

#[test]
fn three_epochs_on_real_digits() {
    let runs = tempfile::tempdir().unwrap();
    let output = mnist(runs.path(), &["--max-epochs", "3", "--json"]).output().unwrap();
    let (stdout, stderr) = text(&output);
    assert!(output.status.success(), "{stderr}");
    let json: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert!(json["test_accuracy"].as_f64().unwrap() >= 0.96, "{json}");
    assert_eq!((json["train_compilations"].as_u64(), json["eval_compilations"].as_u64()), (Some(1), Some(1)));
    assert_eq!((json["steps"].as_u64(), json["epochs"].as_u64()), (Some(3 * 253), Some(3)));
    let number = |name: &str| json[name].as_u64().unwrap();
    assert!(number("device_to_host_transfers") <= number("log_points") + 3, "{json}");
    for name in ["train_loss", "images_per_second", "step_ms_p50", "time_to_first_step_s"] {
        assert!(json[name].as_f64().unwrap() > 0.0, "{name}: {json}");
    }
    assert_eq!((json["accelerator"].as_str(), json["devices"].as_u64()), (Some("cpu"), Some(1)));
    for file in ["checkpoints/best.safetensors", "checkpoints/last.safetensors", "metrics.csv"] {
        assert!(runs.path().join("version_0").join(file).is_file(), "{file}");
    }
    assert!(stderr.contains("Epoch 3/3: train_loss_epoch="), "not a terminal, so plain lines: {stderr}");
}

#[test]
fn eight_devices_reach_the_same_accuracy() {
    let runs = tempfile::tempdir().unwrap();
    for strategy in ["ddp", "fsdp"] {
        let args = ["--max-epochs", "3", "--devices", "8", "--strategy", strategy, "--json"];
        let output = mnist(runs.path(), &args).output().unwrap();
        let (stdout, stderr) = text(&output);
        assert!(output.status.success(), "{stderr}");
        let json: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
        assert!(json["test_accuracy"].as_f64().unwrap() >= 0.96, "{json}");
        assert_eq!((json["devices"].as_u64(), json["train_compilations"].as_u64()), (Some(8), Some(1)));
    }
}

/// The rows of `metrics.csv` in a run's folder, without the header.
fn rows(run: &Path) -> Vec<String> {
    let csv = std::fs::read_to_string(run.join("metrics.csv")).unwrap();
    csv.lines().skip(1).map(str::to_owned).collect()
}

#[test]
fn ctrl_c_saves_and_the_resumed_run_is_the_uninterrupted_one() {
    let runs = tempfile::tempdir().unwrap();
    let args = ["--max-epochs", "2", "--batch-size", "128", "--log-every-n-steps", "5"];
    assert!(mnist(runs.path(), &args).output().unwrap().status.success());

    let child = mnist(runs.path(), &args).spawn().unwrap();
    let csv = runs.path().join("version_1/metrics.csv");
    let deadline = Instant::now() + Duration::from_secs(120);
    while std::fs::read_to_string(&csv).map_or(0, |text| text.lines().count()) < 3 {
        assert!(Instant::now() < deadline, "no log point has arrived");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let (stdout, stderr) = text(&output);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("Stopped: interrupted by Ctrl-C"), "{stderr}");
    let line = stdout.lines().find(|line| line.contains("--ckpt-path ")).unwrap();
    let path = line.split("--ckpt-path ").nth(1).unwrap().to_owned();

    let other = mnist(runs.path(), &["--batch-size", "64", "--ckpt-path", &path]).output().unwrap();
    let (_, stderr) = text(&other);
    assert!(!other.status.success() && stderr.contains("Resume with the loader of that run"), "{stderr}");

    let resumed = mnist(runs.path(), &[&args[..], &["--ckpt-path", &path]].concat()).output().unwrap();
    assert!(resumed.status.success(), "{}", text(&resumed).1);
    // From the resume on the rows are the same, bit for bit; the last is that of the test.
    let (whole, resumed) = (rows(&runs.path().join("version_0")), rows(&runs.path().join("version_2")));
    assert_eq!(resumed[..], whole[whole.len() - resumed.len()..]);
}

#[test]
fn wrong_arguments_are_explained() {
    let runs = tempfile::tempdir().unwrap();
    let says = |args: &[&str], expected: &str| {
        let output = mnist(runs.path(), args).output().unwrap();
        let (_, stderr) = text(&output);
        assert!(!output.status.success() && stderr.contains(expected), "{stderr}");
    };
    says(&["--data-dir", "/nowhere"], "/nowhere");
    says(&["--batch-size", "0"], "batch");
    says(&["--max-epochs", "0"], "max_epochs: 0 is not possible, it must be at least 1");
    says(&["--accelerator", "tpux"], "auto, cpu, cuda, tpu");
    assert_eq!(std::fs::read_dir(runs.path()).unwrap().count(), 0, "nothing was written");
}
