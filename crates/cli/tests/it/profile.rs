//! `fulmen profile` and a training that answers.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::optim::Sgd;
use fulmen_nn::{Linear, Module};
use fulmen_tensor::Accelerator;
use fulmen_trainer::callbacks::{Event, every, on};
use fulmen_trainer::{Trainer, TrainingFn};
use serde_json::Value;

#[derive(Module)]
struct Line {
    fc: Linear,
}

/// Runs the program in a folder, and gives its exit code and what it said.
fn profile(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    let output = command.current_dir(folder).arg("profile").args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Trains in `folder/runs` until `stop` is set.
fn train(folder: &Path, stop: &Arc<AtomicBool>) {
    let x: Vec<f32> = (0..64).map(|i| i as f32 / 64.0).collect();
    let data = TensorDataset::builder().array("x", [64, 1], x).build().unwrap();
    let loader = DataLoader::builder(data).batch_size(4).num_workers(1).build().unwrap();
    let line = Line { fc: Linear::new(1, 1) };
    let module = TrainingFn::new(
        &line,
        |line, batch, _| (line.fc.forward(&batch.get("x")) - batch.get("x")).pow(2.0).mean_all(),
        |_| Sgd::new(0.1),
    );
    let stop = Arc::clone(stop);
    let trainer = Trainer::builder().accelerator(Accelerator::Cpu).devices(1).max_epochs(1_000_000);
    let trainer = trainer.enable_progress_bar(false).enable_checkpointing(false).default_root_dir(folder.join("runs"));
    let trainer = trainer.callback(on(Event::TrainBatchEnd, every(1), move |_, actions| {
        // A step takes microseconds here; so the trace has a size for a test.
        std::thread::sleep(std::time::Duration::from_millis(2));
        if stop.load(Ordering::Relaxed) {
            actions.stop("the test is over");
        }
    }));
    trainer.build().unwrap().fit(&module, &loader, None).unwrap();
}

#[test]
fn a_training_gives_a_trace_of_its_next_steps_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        // Ends the training also if the test fails.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let training = scope.spawn(|| train(folder.path(), &stop));
        let _stop = Stop(&stop);
        let run = folder.path().join("runs/version_0");
        while !run.join("config.toml").is_file() && !training.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }

        let (code, said) = profile(folder.path(), &["--steps", "20", "--timeout", "600s", "--json"]);
        assert_eq!(code, Some(0), "{said}");
        let answer: Value = serde_json::from_str(&said).unwrap();
        assert!(answer["steps"].as_u64().unwrap() >= 20 && answer["plugin_error"].is_string(), "{answer}");
        let trace = fs::read_to_string(folder.path().join(answer["files"][0].as_str().unwrap())).unwrap();
        let trace: Value = serde_json::from_str(&trace).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        for name in ["step", "wait for batch", "batch", "transfer"] {
            assert!(events.iter().any(|event| event["name"] == name && event["ph"] == "X"), "no {name}");
        }
        let (code, said) = profile(folder.path(), &["--run", "runs/version_0", "--duration", "0.05s"]);
        assert!(code == Some(0) && said.contains("ui.perfetto.dev") && said.contains("has no profiler"), "{said}");
        assert!(!run.join("profile.request").exists());
    });

    fs::write(folder.path().join("runs/version_0/profile.request"), "{}").unwrap();
    for (arguments, code, message) in [
        (&["--steps", "3"][..], 2, "another trace is asked for"),
        (&["--run", "nowhere"], 1, "nowhere"),
        (&["--steps", "0"], 2, "steps"),
        (&["--duration", "2h"], 2, "such as 2s"),
    ] {
        let (found, said) = profile(folder.path(), arguments);
        assert!(found == Some(code) && said.contains(message), "{found:?} {said}");
    }
}
