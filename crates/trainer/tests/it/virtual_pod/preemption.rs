//! SIGTERM to one process, at each point of a fit and outside of a fit: all end with the exit code of
//! a preemption. The run continues from where it was.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use fulmen_tensor::Devices;
use fulmen_trainer::{
    Actions, Callback, CheckpointFile, EvaluationProgress, FitSummary, Progress, Result, Resume,
    Signal, Weights,
};

use super::{checkpoints, start};
use crate::common::{DROP_LAST, LONG, Net, tensors, terminate, train_loader, trainer, val_loader};
use crate::test_processes::say;

/// Where a process sends itself the signal.
const POINT: &str = "FULMEN_TEST_SIGNAL_AT";

/// The points, in the order in which a run meets them, each with the process that gets the signal.
/// Before the first step, there is nothing to save.
const POINTS: [(&str, usize, bool); 6] = [
    ("compile", 1, false),
    ("sanity check", 0, false),
    ("first step", 1, false),
    ("step", 0, true),
    ("validation", 1, true),
    ("save", 0, true),
];

/// Sends this process SIGTERM at one point.
struct SignalAt(String);

impl SignalAt {
    fn is_at(&mut self, point: &str) -> bool {
        let is_here = self.0 == point;
        if is_here {
            self.0.clear();
        }
        is_here
    }

    /// The signal ends the process.
    fn end_at(&mut self, point: &str) {
        if self.is_at(point) {
            let pid = std::process::id().to_string();
            assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
            sleep(LONG);
        }
    }

    /// The signal asks the process to end.
    fn ask_at(&mut self, point: &str) {
        if self.is_at(point) {
            terminate();
        }
    }
}

impl Callback for SignalAt {
    fn name(&self) -> &'static str {
        "SignalAt"
    }
    fn on_compile_start(&mut self, _: &str) {
        self.end_at("compile");
    }
    fn on_sanity_check_start(&mut self) {
        self.end_at("sanity check");
    }
    fn on_train_batch_start(&mut self, _: &Progress) {
        self.end_at("first step");
    }
    fn on_test_batch_end(&mut self, _: &EvaluationProgress) {
        self.end_at("test");
    }
    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Actions) {
        if progress.batch == 2 {
            self.ask_at("step");
        }
    }
    // Each start must make a step before there is something to save.
    fn on_validation_batch_end(&mut self, progress: &EvaluationProgress) {
        if progress.epoch == 1 {
            self.ask_at("validation");
        }
        self.end_at("validate");
    }
    fn on_save_checkpoint(&mut self, checkpoint: &CheckpointFile) {
        if checkpoint.epoch == 3 {
            self.ask_at("save");
        }
    }
}

/// Continues the run in this folder. Returns the signal that ended it.
fn continue_run(folder: &Path, devices: Devices, point: &str) -> Result<Option<Signal>> {
    let mut trainer = trainer(folder)
        .devices(devices)
        .max_epochs(4)
        .num_sanity_val_steps(1)
        .resume(Resume::Auto)
        .grace(LONG)
        .callback(SignalAt(point.to_owned()))
        .build()?;
    let summary = trainer.fit(&Net::new(), &train_loader(24, DROP_LAST), Some(&val_loader(16)))?;
    Ok(summary.signal)
}

/// The process of a pod. It exits as `fulmen::cli` does.
pub(super) fn member(folder: &Path) -> ! {
    let point = std::env::var(POINT).unwrap_or_default();
    let signal = match continue_run(folder, Devices::auto(), &point) {
        Ok(signal) => signal,
        Err(error) => {
            say(format!("failed {:?} {error}", error.processes()).replace('\n', " "));
            std::process::exit(
                error.signal().and_then(Signal::from_number).map_or(1, Signal::exit_code).into(),
            );
        }
    };
    std::process::exit(signal.map_or(0, Signal::exit_code).into());
}

/// What a process does outside of a fit. The signal comes meanwhile.
const OUTSIDE: [(&str, usize); 6] = [
    ("before a fit", 1),
    ("between two fits", 0),
    ("between two fits", 1),
    (DURING_AN_END, 1),
    ("validate", 0),
    ("test", 1),
];

/// The fit of one process has ended. The other is still in the last part of its fit.
const DURING_AN_END: &str = "while another process ends its fit";

/// Makes the end of a fit long.
struct LongEnd;

impl Callback for LongEnd {
    fn name(&self) -> &'static str {
        "LongEnd"
    }
    fn on_fit_end(&mut self, _: &FitSummary) {
        sleep(Duration::from_secs(2));
    }
}

/// The process of a pod that is outside of a fit at this point.
pub(super) fn outside(folder: &Path, point: &str) -> ! {
    let mut signal = SignalAt(std::env::var(POINT).unwrap_or_default());
    let mut builder = trainer(folder).max_epochs(1).num_sanity_val_steps(0);
    if point == DURING_AN_END && signal.0.is_empty() {
        builder = builder.callback(LongEnd);
    }
    let mut trainer = builder.callback(SignalAt(signal.0.clone())).build().unwrap();
    let net = Net::new();
    let mut pause = || {
        signal.end_at(point);
        sleep(LONG);
    };
    if point == "before a fit" {
        pause();
    }
    trainer.fit(&net, &train_loader(24, DROP_LAST), None).unwrap();
    let error = match point {
        "validate" => trainer.validate(&net, &val_loader(16)).unwrap_err(),
        "test" => trainer.test(&net, &val_loader(16), Weights::Current).unwrap_err(),
        _ => {
            pause();
            unreachable!("the signal ends both processes");
        }
    };
    say(format!("failed {error}").replace('\n', " "));
    std::process::exit(
        error.signal().and_then(Signal::from_number).map_or(1, Signal::exit_code).into(),
    );
}

/// The newest checkpoint.
fn last(folder: &Path) -> Option<std::path::PathBuf> {
    checkpoints(folder).into_iter().rfind(|path| path.ends_with("last"))
}

#[test]
fn a_signal_to_one_process_at_any_point_ends_all_with_the_code_of_a_preemption() {
    let [pod, one] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    assert_eq!(continue_run(one.path(), Devices::from(2), "").unwrap(), None);
    for (point, signaled, saves) in POINTS {
        let before = last(pod.path());
        let mut processes = start(pod.path(), "2x1", "preemption", |process| {
            if process == signaled { vec![(POINT, point.to_owned())] } else { Vec::new() }
        });
        if !saves {
            let error = processes.wait_for(1 - signaled, "failed ");
            let named = format!("[{signaled}] process {signaled} (");
            assert!(error.starts_with(&named), "{point}: {error}");
            assert!(error.contains("SIGTERM before its first step"), "{point}: {error}");
        }
        assert_eq!(processes.exit_codes(0..2), [75, 75], "{point}");
        assert_eq!(last(pod.path()) != before, saves, "{point}");
    }
    let mut processes = start(pod.path(), "2x1", "preemption", |_| Vec::new());
    assert_eq!(processes.exit_codes(0..2), [0, 0]);
    let [saved, expected] = [&pod, &one].map(|folder| tensors(last(folder.path()).unwrap()));
    assert_eq!(saved.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, value) in &expected {
        assert_eq!(saved[name].bytes(), value.bytes(), "{name}");
    }
}

#[test]
#[ignore = "slow: ci/slow"]
fn a_signal_to_one_process_outside_of_a_fit_ends_all_with_its_code() {
    for (point, signaled) in OUTSIDE {
        let folder = tempfile::tempdir().unwrap();
        let mut processes = start(folder.path(), "2x1", &format!("outside: {point}"), |process| {
            // Without heartbeats, the others would notice the end after a time that fails the test.
            let mut variables = vec![("FULMEN_HEARTBEAT_TIMEOUT", "600".to_owned())];
            if process == signaled {
                variables.push((POINT, point.to_owned()));
            }
            variables
        });
        if ["validate", "test"].contains(&point) {
            let error = processes.wait_for(1 - signaled, "failed ");
            let named = format!("process {signaled} (");
            assert!(error.starts_with(&named), "{point}: {error}");
            assert!(error.ends_with("ended: SIGTERM outside of a fit"), "{point}: {error}");
        }
        assert_eq!(processes.exit_codes(0..2), [75, 75], "{point}");
    }
}
