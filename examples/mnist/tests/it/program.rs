//! Tests the program from the command line: its JSON, messages, signals and exit codes.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn mnist(runs: &Path, args: &[&str]) -> Command {
    // Reset signals that the shell of the tests ignores, such as SIGINT in a background job.
    let mut command = Command::new("env");
    command.env("FULMEN_COMPILE_CACHE", "off");
    command.args([
        "--default-signal=INT,TERM,HUP",
        env!("CARGO_BIN_EXE_mnist"),
        "--default-root-dir",
    ]);
    command.arg(runs).args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
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
    assert_eq!(
        (json["train_compilations"].as_u64(), json["eval_compilations"].as_u64()),
        (Some(1), Some(1))
    );
    assert_eq!((json["steps"].as_u64(), json["epochs"].as_u64()), (Some(3 * 253), Some(3)));
    let number = |name: &str| json[name].as_u64().unwrap();
    assert!(number("device_to_host_transfers") <= number("log_points") + 3, "{json}");
    for name in ["train_loss", "images_per_second", "step_ms_p50", "time_to_first_step_s"] {
        assert!(json[name].as_f64().unwrap() > 0.0, "{name}: {json}");
    }
    assert_eq!((json["accelerator"].as_str(), json["devices"].as_u64()), (Some("cpu"), Some(1)));
    for file in ["checkpoints/best/manifest.json", "checkpoints/last/manifest.json", "metrics.csv"]
    {
        assert!(runs.path().join("version_0").join(file).is_file(), "{file}");
    }
    assert!(
        stderr.contains("Epoch 3/3: train_loss_epoch="),
        "without a terminal, the output is plain lines: {stderr}"
    );
}

#[test]
#[ignore = "slow: ci/slow"]
fn eight_devices_reach_the_same_accuracy() {
    let runs = tempfile::tempdir().unwrap();
    for strategy in ["ddp", "fsdp"] {
        let args = ["--max-epochs", "3", "--devices", "8", "--strategy", strategy, "--json"];
        let output = mnist(runs.path(), &args).output().unwrap();
        let (stdout, stderr) = text(&output);
        assert!(output.status.success(), "{stderr}");
        let json: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
        assert!(json["test_accuracy"].as_f64().unwrap() >= 0.96, "{json}");
        assert_eq!(
            (json["devices"].as_u64(), json["train_compilations"].as_u64()),
            (Some(8), Some(1))
        );
    }
}

/// The rows of `metrics.csv` in a run's folder, without the header and without trailing empty
/// columns.
fn rows(run: &Path) -> Vec<String> {
    let csv = std::fs::read_to_string(run.join("metrics.csv")).unwrap();
    csv.lines().skip(1).map(|row| row.trim_end_matches(',').to_owned()).collect()
}

const TWO_EPOCHS: [&str; 6] =
    ["--max-epochs", "2", "--batch-size", "128", "--log-every-n-steps", "5"];

/// Waits until a run has written some log points.
fn wait_for_log_points(run: &Path, lines: usize) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while std::fs::read_to_string(run.join("metrics.csv")).map_or(0, |text| text.lines().count())
        < lines
    {
        assert!(Instant::now() < deadline, "no log point has arrived");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn send(signal: &str, child: &Child) {
    assert!(
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success()
    );
}

#[test]
#[ignore = "slow: ci/slow"]
fn ctrl_c_saves_and_the_resumed_run_matches_an_uninterrupted_one() {
    let runs = tempfile::tempdir().unwrap();
    assert!(mnist(runs.path(), &TWO_EPOCHS).output().unwrap().status.success());

    let child = mnist(runs.path(), &TWO_EPOCHS).spawn().unwrap();
    wait_for_log_points(&runs.path().join("version_1"), 3);
    send("-INT", &child);
    let output = child.wait_with_output().unwrap();
    let (stdout, stderr) = text(&output);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("Stopped: interrupted by Ctrl-C"), "{stderr}");
    let line = stdout.lines().find(|line| line.contains("--ckpt-path ")).unwrap();
    let path = line.split("--ckpt-path ").nth(1).unwrap().to_owned();

    let other = mnist(runs.path(), &["--batch-size", "64", "--ckpt-path", &path]).output().unwrap();
    let (_, stderr) = text(&other);
    assert!(
        !other.status.success() && stderr.contains("Resume with the loader of that run"),
        "{stderr}"
    );

    let resumed =
        mnist(runs.path(), &[&TWO_EPOCHS[..], &["--ckpt-path", &path]].concat()).output().unwrap();
    assert!(resumed.status.success(), "{}", text(&resumed).1);
    // After the resume, all rows are the same, bit for bit, including the last one from the test.
    let whole = rows(&runs.path().join("version_0"));
    let resumed = rows(&runs.path().join("version_2"));
    assert_eq!(resumed[..], whole[whole.len() - resumed.len()..]);
}

/// How a supervisor starts a program.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    Normal,
    /// With SIGHUP ignored.
    Nohup,
    /// With SIGINT ignored, as by a shell without job control.
    Background,
    OwnSession,
}

impl Start {
    /// A command that starts the program this way, with the process id of the command.
    fn command(self, runs: &Path) -> Command {
        let program = env!("CARGO_BIN_EXE_mnist");
        // Reset signals that the shell of the tests ignores.
        let mut command = Command::new("env");
        command.env("FULMEN_COMPILE_CACHE", "off");
        command.arg("--default-signal=INT,TERM,HUP");
        match self {
            Start::Normal => command.arg(program),
            Start::Nohup => command.args(["nohup", program]),
            Start::Background => {
                command.args(["sh", "-c", "trap '' INT; exec \"$0\" \"$@\"", program])
            }
            Start::OwnSession => command.args(["setsid", program]),
        };
        command.arg("--default-root-dir").arg(runs).args([
            "--max-epochs",
            "1",
            "--log-every-n-steps",
            "5",
        ]);
        command.args(["--resume", "auto"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn ignores(self, signal: &str) -> bool {
        matches!((self, signal), (Start::Nohup, "-HUP") | (Start::Background, "-INT"))
    }
}

#[test]
#[ignore = "slow: ci/slow"]
fn exit_codes_tell_how_a_run_ended_and_the_same_command_resumes_it() {
    let runs = tempfile::tempdir().unwrap();
    // There is no checkpoint, so the run starts from the beginning.
    let whole = runs.path().join("whole");
    let output = Start::Normal.command(&whole).output().unwrap();
    assert!(
        output.status.success() && text(&output).1.contains("starting from the beginning"),
        "{}",
        text(&output).1
    );
    let whole = rows(&whole.join("version_0"));
    for start in [Start::Normal, Start::Nohup, Start::Background, Start::OwnSession] {
        let root = runs.path().join(format!("{start:?}"));
        let ends = [("-TERM", "SIGTERM", 75), ("-HUP", "SIGHUP", 75), ("-INT", "Ctrl-C", 130)];
        for (n, (signal, mut name, mut code)) in ends.into_iter().enumerate() {
            let case = format!("{start:?} {signal}");
            let child = start.command(&root).spawn().unwrap();
            let run = root.join(format!("version_{n}"));
            wait_for_log_points(&run, 3);
            send(signal, &child);
            if start.ignores(signal) {
                // This signal stays ignored, and the others still work.
                wait_for_log_points(&run, 6);
                send("-TERM", &child);
                (name, code) = ("SIGTERM", 75);
            }
            let output = child.wait_with_output().unwrap();
            let (stdout, stderr) = text(&output);
            assert_eq!(output.status.code(), Some(code), "{case}: {stderr}");
            assert!(
                stderr.contains(&format!("Stopped: interrupted by {name}")),
                "{case}: {stderr}"
            );
            assert!(stdout.contains("to resume, run the same command again\n"), "{case}: {stdout}");
        }
        let end = start.command(&root).output().unwrap();
        assert!(end.status.success(), "{start:?}: {}", text(&end).1);
        // Together, the runs have the rows of the uninterrupted run, bit for bit.
        let parts: Vec<Vec<String>> =
            (0..4).map(|n| rows(&root.join(format!("version_{n}")))).collect();
        assert!(parts.iter().all(|part| part.len() >= 2), "{start:?}: {parts:?}");
        assert_eq!(parts.concat(), whole, "{start:?}");
    }
}

/// Presses Ctrl-C in a terminal.
#[test]
fn ctrl_c_on_a_terminal_saves_and_exits_with_130() {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: there is no program `script`, which makes a terminal");
        return;
    }
    let runs = tempfile::tempdir().unwrap();
    let run = "exec \"$PROGRAM\" --max-epochs 1 --log-every-n-steps 5 --default-root-dir \"$RUNS\"";
    let mut command = Command::new("env");
    command.env("FULMEN_COMPILE_CACHE", "off");
    command.args(["--default-signal=INT,TERM,HUP", "script", "-qec", run, "/dev/null"]);
    command
        .env("SHELL", "/bin/sh")
        .env("PROGRAM", env!("CARGO_BIN_EXE_mnist"))
        .env("RUNS", runs.path());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_log_points(&runs.path().join("version_0"), 3);
    child.stdin.as_ref().unwrap().write_all(b"\x03").unwrap();
    let keyboard = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(keyboard);
    let (screen, _) = text(&output);
    assert_eq!(output.status.code(), Some(130), "{screen}");
    assert!(screen.contains("Stopped: interrupted by Ctrl-C"), "{screen}");
    assert!(runs.path().join("version_0/checkpoints/last/manifest.json").is_file());
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
