//! Runs that are ended from outside: by SIGTERM before there is anything to save, and by SIGKILL within a write.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::common::{Net, train_loader, trainer};
use fulmen_data::LastBatch;
use fulmen_trainer::{Callback, FitStart, Progress};

const FOLDER: &str = "FULMEN_TEST_KILLS";

/// Sends a signal to this process before the first step, and waits for the end.
struct SignalAtStart(&'static str);

impl Callback for SignalAtStart {
    fn name(&self) -> &'static str {
        "SignalAtStart"
    }
    fn on_fit_start(&mut self, _: &FitStart) {
        assert!(Command::new("kill").args([self.0, &std::process::id().to_string()]).status().unwrap().success());
        std::thread::sleep(Duration::from_secs(30));
    }
    fn on_train_batch_end(&mut self, progress: &Progress) {
        println!("step {} ran", progress.global_step);
    }
}

/// Runs a test of this file in a process of its own.
fn child(test: &str, folder: &Path) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("kills::{test}"), "--ignored", "--nocapture"]).env(FOLDER, folder);
    command.output().unwrap()
}

fn fit(folder: &Path, signal: Option<&'static str>) {
    let mut builder = trainer(folder).max_epochs(1);
    if let Some(signal) = signal {
        builder = builder.callback(SignalAtStart(signal));
    }
    builder.build().unwrap().fit(&Net::new(), &train_loader(20, LastBatch::Drop), None).unwrap();
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
#[ignore = "run by a_signal_before_the_first_step_ends_the_program_at_once"]
fn terminated_before_the_first_step() {
    if let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) {
        fit(&folder, Some("-TERM"));
    }
}

#[test]
#[ignore = "run by a_signal_before_the_first_step_ends_the_program_at_once"]
fn interrupted_before_the_first_step() {
    if let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) {
        fit(&folder, Some("-INT"));
    }
}

#[test]
fn a_signal_before_the_first_step_ends_the_program_at_once() {
    for test in ["terminated_before_the_first_step", "interrupted_before_the_first_step"] {
        let folder = tempfile::tempdir().unwrap();
        let output = child(test, folder.path());
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("ran"), "{said}");
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(said.contains("there is nothing to save"), "{said}");
        assert!(files(&folder.path().join("version_0/checkpoints")).is_empty());
    }
}

#[test]
#[ignore = "run by what_a_killed_run_left_is_removed_when_the_next_begins"]
fn killed_while_it_writes() {
    if let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) {
        fulmen_durable::write(&folder.join("last.safetensors"), None, |file| {
            std::io::Write::write_all(file, &[1; 3 << 20])?;
            Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status()?;
            std::thread::sleep(Duration::from_secs(30));
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn what_a_killed_run_left_is_removed_when_the_next_begins() {
    let folder = tempfile::tempdir().unwrap();
    fit(folder.path(), None);
    let checkpoints = folder.path().join("version_0/checkpoints");
    assert_eq!(files(&checkpoints), ["last.safetensors"]);
    let whole = std::fs::read(checkpoints.join("last.safetensors")).unwrap();
    assert_eq!(child("killed_while_it_writes", &checkpoints).status.signal(), Some(9));
    assert_eq!(files(&checkpoints).len(), 2, "{:?}", files(&checkpoints));

    fit(folder.path(), None);
    assert_eq!(files(folder.path()), ["version_0", "version_1"]);
    assert_eq!(files(&checkpoints), ["last.safetensors"]);
    assert_eq!(std::fs::read(checkpoints.join("last.safetensors")).unwrap(), whole);
}
