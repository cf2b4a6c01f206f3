//! Checkpoints outside of the run's folder, for example in a bucket, and on two levels.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

#[cfg(feature = "cloud")]
#[path = "../../../checkpoint/src/tests/moto.rs"]
mod moto;

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{DROP_LAST, Net, Record, tensors, train_loader, trainer};
use fulmen_trainer::callbacks::{Mode, ModelCheckpoint};
use fulmen_trainer::{FitSummary, Result, Resume};

/// Trains with checkpoints that are written to `local` and copied to `to`, under this folder.
fn run(folder: &Path, to: &Path, epochs: u64, resume: Resume) -> (Record, Result<FitSummary>) {
    let record = Record::default();
    let builder =
        trainer(&folder.join("runs")).max_epochs(epochs).log_every_n_steps(1).resume(resume);
    let builder = builder.checkpoint_dir(to).checkpoint_local(folder.join("local"));
    // The state of the first epoch is the best.
    let best = ModelCheckpoint::new().monitor("train_loss", Mode::Max);
    let mut trainer = builder.callback(best).callback(record.clone()).build().unwrap();
    (record, trainer.fit(&Net::new(), &train_loader(40, DROP_LAST), None))
}

/// Simulates the loss of the machine after two of three epochs.
fn resumes_from(place: impl Fn(&Path) -> PathBuf) {
    let [whole, parts] = [(), ()].map(|()| tempfile::tempdir().unwrap());
    let [to_whole, to] = [whole.path(), parts.path()].map(&place);
    let (expected, _) = run(whole.path(), &to_whole, 3, Resume::Never);
    let (_, summary) = run(parts.path(), &to, 2, Resume::Never);
    let last = to.join("last");
    assert_eq!(summary.unwrap().last_checkpoint.unwrap(), last);
    assert_eq!(tensors(&last).len(), tensors(parts.path().join("local/last")).len());
    assert!(!parts.path().join("runs/version_0/checkpoints").exists());

    let (_, again) = run(parts.path(), &to, 3, Resume::Never);
    let error = again.unwrap_err().to_string();
    assert!(error.contains("there are checkpoints in") && error.contains("resume auto"), "{error}");

    fs::remove_dir_all(parts.path().join("local")).unwrap();
    fs::remove_dir_all(parts.path().join("runs")).unwrap();
    let (resumed, summary) = run(parts.path(), &to, 3, Resume::Auto);
    assert_eq!(summary.unwrap().epochs, 3);
    assert_eq!(resumed.bits("train_loss"), expected.bits("train_loss")[10..]);
    let values = |to: &Path| {
        ["last", "best"].map(|name| tensors(to.join(name))["fc1.weight"].bytes().to_vec())
    };
    assert_eq!(values(&to), values(&to_whole));
    assert_eq!(
        tensors(to.join("best"))["trainer/step"].to_f64(),
        [5.0],
        "the resumed run knows the best one"
    );
}

#[test]
fn a_run_resumes_from_the_copies_of_its_checkpoints() {
    resumes_from(|folder| folder.join("to"));
}

#[cfg(feature = "cloud")]
#[test]
#[ignore = "run by a_run_resumes_from_a_bucket_of_a_real_server, which sets the server's address in the environment"]
fn a_run_resumes_from_a_bucket() {
    if std::env::var_os("AWS_ENDPOINT_URL").is_some() {
        resumes_from(|folder| Path::new("s3://models").join(folder.file_name().unwrap()));
    }
}

#[cfg(feature = "cloud")]
#[test]
fn a_run_resumes_from_a_bucket_of_a_real_server() {
    run_with_bucket("checkpoint_locations::a_run_resumes_from_a_bucket");
}

/// Runs an ignored test, for which there is the bucket `s3://models` of a real server.
#[cfg(feature = "cloud")]
pub(crate) fn run_with_bucket(test: &str) {
    let Some(server) = moto::Server::for_test(test) else { return };
    server.make_bucket("models").unwrap();
    let mut command = crate::common::itself();
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command
        .env("AWS_ENDPOINT_URL", server.url())
        .env("AWS_SKIP_SIGNATURE", "true")
        .env_remove("AWS_PROFILE");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn invalid_checkpoint_folders_are_rejected_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    for (dir, local, expected) in [
        ("", "local", "checkpoint_dir is none"),
        ("here", "here", "other than checkpoint_dir"),
        ("here", "gs://bucket/local", "a folder of this machine"),
        ("http://host/path", "", "or below gs://bucket/path or s3://bucket/path"),
    ] {
        let built = trainer(folder.path()).checkpoint_dir(dir).checkpoint_local(local).build();
        let error = built.err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Trains in another thread until the test lets it end.
struct Waits(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>);

impl fulmen_trainer::Callback for Waits {
    fn name(&self) -> &'static str {
        "Waits"
    }
    fn on_train_start(&mut self, _: &fulmen_trainer::TrainStart<'_>) {
        self.0.send(()).unwrap();
        let _ = self.1.recv();
    }
}

#[test]
fn two_runs_cannot_use_one_folder_of_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("to");
    let (started, start) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let builder = trainer(&folder.path().join("first")).max_epochs(1).checkpoint_dir(&to);
            let mut trainer = builder.callback(Waits(started, ended)).build().unwrap();
            trainer.fit(&Net::new(), &train_loader(40, DROP_LAST), None)
        });
        start.recv().unwrap();
        for resume in [Resume::Never, Resume::Auto] {
            let (_, second) = run(folder.path(), &to, 1, resume);
            let error = second.unwrap_err();
            let expected = format!("the run of process {} on", std::process::id());
            let message = error.to_string();
            assert!(error.is_option() && message.contains(&expected), "{message}");
        }
        end.send(()).unwrap();
        first.join().unwrap().unwrap();
    });
    // The lock ends with the run.
    run(folder.path(), &to, 2, Resume::Auto).1.unwrap();
}
