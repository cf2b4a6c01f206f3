//! Checkpoints elsewhere than in the folder of the run, and on two levels.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use std::fs;
use std::path::Path;

use crate::common::{Net, Record, tensors, train_loader, trainer};
use fulmen_data::LastBatch;
use fulmen_trainer::{FitSummary, Result, Resume};

/// Trains with checkpoints in `to`, and first in `near`, under this folder.
fn run(folder: &Path, epochs: u64, resume: Resume) -> (Record, Result<FitSummary>) {
    let record = Record::default();
    let builder = trainer(&folder.join("runs")).max_epochs(epochs).log_every_n_steps(1).resume(resume);
    let builder = builder.checkpoint_dir(folder.join("to")).checkpoint_local(folder.join("near"));
    let mut trainer = builder.callback(record.clone()).build().unwrap();
    (record, trainer.fit(&Net::new(), &train_loader(40, LastBatch::Drop), None))
}

#[test]
fn a_run_resumes_from_the_place_that_its_checkpoints_were_copied_to() {
    let [whole, parts] = [(), ()].map(|()| tempfile::tempdir().unwrap());
    let (expected, _) = run(whole.path(), 3, Resume::Never);
    let (_, summary) = run(parts.path(), 2, Resume::Never);
    let last = parts.path().join("to/last");
    assert_eq!(summary.unwrap().last_checkpoint.unwrap(), last);
    assert_eq!(tensors(&last).len(), tensors(parts.path().join("near/last")).len());
    assert!(!parts.path().join("runs/version_0/checkpoints").exists());

    let (_, again) = run(parts.path(), 3, Resume::Never);
    let error = again.unwrap_err().to_string();
    assert!(error.contains("there are checkpoints in") && error.contains("resume auto"), "{error}");

    // The machine is lost.
    fs::remove_dir_all(parts.path().join("near")).unwrap();
    fs::remove_dir_all(parts.path().join("runs")).unwrap();
    let (resumed, summary) = run(parts.path(), 3, Resume::Auto);
    assert_eq!(summary.unwrap().epochs, 3);
    assert_eq!(resumed.bits("train_loss"), expected.bits("train_loss")[10..]);
    let values = |folder: &Path| tensors(folder.join("to/last"))["fc1.weight"].bytes().to_vec();
    assert_eq!(values(parts.path()), values(whole.path()));
}

#[test]
fn places_that_cannot_be_are_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    for (dir, near, expected) in [
        ("", "near", "checkpoint_dir is none"),
        ("here", "here", "other than checkpoint_dir"),
        ("here", "gs://bucket/near", "a folder of this machine"),
        ("http://host/path", "", "or below gs://bucket/path or s3://bucket/path"),
    ] {
        let built = trainer(folder.path()).checkpoint_dir(dir).checkpoint_local(near).build();
        let error = built.err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
