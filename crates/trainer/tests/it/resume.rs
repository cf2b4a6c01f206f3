//! Determinism: the same seed gives the same bits, and a resumed run equals an uninterrupted one.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use std::path::Path;

use crate::common::{DROP_LAST, Net, Record, train_loader, trainer, val_loader};
use fulmen_trainer::FitSummary;
use fulmen_trainer::callbacks::{Mode, ModelCheckpoint};

/// Trains with 5 batches per epoch, and logs each step.
fn run(folder: &Path, epochs: u64, seed: u64, resume: Option<&Path>) -> (Record, FitSummary) {
    let record = Record::default();
    let mut builder = trainer(folder)
        .max_epochs(epochs)
        .seed(seed)
        .log_every_n_steps(1)
        .callback(record.clone())
        .callback(ModelCheckpoint::new().monitor("val_loss", Mode::Min).keep_all(true));
    if let Some(path) = resume {
        builder = builder.ckpt_path(path);
    }
    let mut trainer = builder.build().unwrap();
    let summary =
        trainer.fit(&Net::new(), &train_loader(40, DROP_LAST), Some(&val_loader(19))).unwrap();
    (record, summary)
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = run(folder.path(), 3, 7, None);
    let (second, _) = run(folder.path(), 3, 7, None);
    let (other, _) = run(folder.path(), 3, 8, None);
    assert_eq!(first.bits("train_loss").len(), 15);
    assert_eq!(first.bits("train_loss"), second.bits("train_loss"));
    assert_ne!(first.bits("train_loss"), other.bits("train_loss"));
}

#[test]
fn a_run_resumed_after_epoch_2_continues_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, whole_summary) = run(folder.path(), 5, 7, None);
    let checkpoint = folder.path().join("version_0/checkpoints/epoch=1-step=10");
    // The run uses the checkpoint's seed, not that of the options.
    let (resumed, resumed_summary) = run(folder.path(), 5, 999, Some(&checkpoint));
    assert_eq!(resumed.bits("train_loss"), whole.bits("train_loss")[10..]);
    assert_eq!(resumed_summary.last_epoch, whole_summary.last_epoch);
    assert_eq!((resumed_summary.epochs, resumed_summary.global_step), (5, 25));
}

#[test]
fn a_finished_run_resumed_does_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let (_, summary) = run(folder.path(), 2, 7, None);
    let (record, again) = run(folder.path(), 2, 7, summary.last_checkpoint.as_deref());
    assert!(record.logs.lock().unwrap().is_empty());
    assert_eq!((again.epochs, again.global_step), (2, 10));
    assert_eq!(
        (again.last_checkpoint, again.best_checkpoint),
        (summary.last_checkpoint, summary.best_checkpoint)
    );
}
