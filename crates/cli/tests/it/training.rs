//! `fulmen profile` and `fulmen top --run` with a running training program.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use fulmen_data::{DataLoader, Dataset, Field, Result, Sample};
use fulmen_nn::optim::Sgd;
use fulmen_nn::{Linear, Module};
use fulmen_tensor::{Accelerator, DType};
use fulmen_trainer::callbacks::{Event, every, on};
use fulmen_trainer::{Trainer, TrainingFn};
use serde_json::Value;

#[derive(Module)]
struct Line {
    fc: Linear,
}

/// Samples that take longer than a step.
struct SlowDataset;

impl Dataset for SlowDataset {
    fn len(&self) -> usize {
        64
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::F32, [1])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        sleep(Duration::from_millis(1));
        sample.write_value(0, index as f32 / 64.0)
    }
}

/// Runs the program in a folder; returns its exit code and its output.
fn fulmen(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    let output = command.current_dir(folder).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// A port without a listener, which no program gets by chance.
const UNUSED_PORT: &str = "1";

/// A port without a listener, from a range that the system gives to no program that asks for any port.
fn free_port() -> u16 {
    let first = 20_000 + (std::process::id() % 10_000) as u16;
    (first..first + 2_000).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

/// Trains in `folder/runs` until `stop` is set, and serves its metrics.
fn train(folder: &Path, port: u16, stop: &Arc<AtomicBool>) {
    let loader = DataLoader::builder(SlowDataset).batch_size(4).num_workers(1).build().unwrap();
    let line = Line { fc: Linear::new(1, 1) };
    let module = TrainingFn::new(
        &line,
        |line, batch, _| (line.fc.forward(&batch.get("x")) - batch.get("x")).pow(2.0).mean_all(),
        |_| Sgd::new(0.1),
    );
    let stop = Arc::clone(stop);
    let trainer = Trainer::builder().accelerator(Accelerator::Cpu).devices(1).max_epochs(1_000_000);
    let trainer = trainer
        .enable_progress_bar(false)
        .enable_checkpointing(false)
        .default_root_dir(folder.join("runs"));
    let trainer = trainer.metrics_port(port).callback(on(
        Event::TrainBatchEnd,
        every(1),
        move |_, actions| {
            if stop.load(Ordering::Relaxed) {
                actions.stop("the test is over");
            }
        },
    ));
    trainer.build().unwrap().fit(&module, &loader, None).unwrap();
}

#[test]
fn a_running_training_writes_a_trace_and_reports_its_input_wait() {
    let folder = tempfile::tempdir().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let port = free_port();
    std::thread::scope(|scope| {
        // Ends the training even if the test fails.
        struct StopOnDrop<'a>(&'a AtomicBool);
        impl Drop for StopOnDrop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let training = scope.spawn(|| train(folder.path(), port, &stop));
        let _stop = StopOnDrop(&stop);
        let run = folder.path().join("runs/version_0");
        while !run.join("config.toml").is_file() && !training.is_finished() {
            sleep(Duration::from_millis(20));
        }

        let (code, printed) =
            fulmen(folder.path(), &["profile", "--steps", "20", "--timeout", "600s", "--json"]);
        assert_eq!(code, Some(0), "{printed}");
        let answer: Value = serde_json::from_str(&printed).unwrap();
        assert!(
            answer["steps"].as_u64().unwrap() >= 20 && answer["plugin_error"].is_string(),
            "{answer}"
        );
        let trace =
            fs::read_to_string(folder.path().join(answer["files"][0].as_str().unwrap())).unwrap();
        let trace: Value = serde_json::from_str(&trace).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        for name in ["step", "wait for batch", "batch", "transfer"] {
            assert!(
                events.iter().any(|event| event["name"] == name && event["ph"] == "X"),
                "no {name}"
            );
        }
        let (code, printed) =
            fulmen(folder.path(), &["profile", "--run", "runs/version_0", "--duration", "0.05s"]);
        assert!(
            code == Some(0)
                && printed.contains("ui.perfetto.dev")
                && printed.contains("has no profiler"),
            "{printed}"
        );
        assert!(!run.join("profile.request").exists());

        let port = port.to_string();
        let unused = format!("127.0.0.1:{UNUSED_PORT}");
        let top = [
            "top",
            "--address",
            &unused,
            "--run",
            &port,
            "--interval",
            "0.2",
            "--count",
            "2",
            "--json",
        ];
        // On a busy machine, an update may see no step.
        let sees_steps = (0..100).any(|_| {
            let (code, printed) = fulmen(folder.path(), &top);
            let look: Value = serde_json::from_str(printed.lines().nth(1).unwrap()).unwrap();
            assert!(code == Some(0) && look["run"]["global_step"].as_u64() > Some(20), "{printed}");
            look["run"]["step_seconds"].is_number()
                && look["run"]["input_wait"].as_f64() > Some(0.0)
        });
        assert!(sees_steps);
    });

    fs::write(folder.path().join("runs/version_0/profile.request"), "{}").unwrap();
    for (arguments, code, message) in [
        (&["profile", "--steps", "3"][..], 2, "another trace has been requested"),
        (&["profile", "--run", "nowhere"], 1, "nowhere"),
        (&["profile", "--steps", "0"], 2, "steps"),
        (&["profile", "--duration", "2h"], 2, "such as 2s"),
        (
            &["top", "--address", "127.0.0.1:1", "--run", UNUSED_PORT, "--count", "1"],
            1,
            "no training answers there",
        ),
    ] {
        let (actual, printed) = fulmen(folder.path(), arguments);
        assert!(actual == Some(code) && printed.contains(message), "{actual:?} {printed}");
    }
}
