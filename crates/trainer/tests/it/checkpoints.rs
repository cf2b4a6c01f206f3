//! The checkpoints that a run writes and keeps, their names, and their uses.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{
    DROP_LAST, Net, Record, files, samples, tensors, train_loader, trainer, val_loader,
};
use fulmen_data::{DataLoader, Dataset, Field, Sample, TensorDataset};
use fulmen_nn::Module;
use fulmen_nn::weights::{Strictness, load_weights};
use fulmen_trainer::callbacks::{EarlyStopping, Event, Mode, ModelCheckpoint, every, on, when};
use fulmen_trainer::{
    Callback, CheckpointFile, CheckpointRole, FitSummary, Trainer, TrainerBuilder, Weights,
};

/// The step and the name of each written checkpoint.
#[derive(Clone, Default)]
struct Saves(Arc<Mutex<Vec<(u64, String)>>>);

impl Callback for Saves {
    fn name(&self) -> &'static str {
        "Saves"
    }
    fn on_save_checkpoint(&mut self, checkpoint: &CheckpointFile) {
        let name = checkpoint.path.file_name().unwrap().to_str().unwrap();
        self.0.lock().unwrap().push((checkpoint.global_step, name.to_owned()));
    }
}

impl Saves {
    fn last(&self) -> Vec<u64> {
        self.0.lock().unwrap().iter().filter(|save| save.1 == "last").map(|save| save.0).collect()
    }
}

/// Trains with ten steps per epoch.
fn fit(builder: TrainerBuilder, checkpoint: ModelCheckpoint) -> (Trainer, FitSummary, Saves) {
    let saves = Saves::default();
    let mut trainer = builder.callback(checkpoint).callback(saves.clone()).build().unwrap();
    let summary =
        trainer.fit(&Net::new(), &train_loader(80, DROP_LAST), Some(&val_loader(16))).unwrap();
    (trainer, summary, saves)
}

#[test]
fn a_state_is_saved_at_intervals_of_steps_epochs_or_minutes() {
    let folder = tempfile::tempdir().unwrap();
    let builder = || trainer(folder.path()).max_epochs(4).check_val_every_n_epoch(100);
    let saved = |checkpoint| fit(builder(), checkpoint).2.last();
    assert_eq!(saved(ModelCheckpoint::new()), [10, 20, 30, 40], "half an hour has not passed");
    assert_eq!(saved(ModelCheckpoint::new().every_n_train_steps(15)), [10, 15, 20, 30, 30, 40]);
    assert_eq!(saved(ModelCheckpoint::new().every_n_epochs(2)), [20, 40]);
    let interval = Duration::from_nanos(1);
    let every_step: Vec<u64> =
        (1..=40).flat_map(|step| vec![step; 1 + usize::from(step % 10 == 0)]).collect();
    assert_eq!(saved(ModelCheckpoint::new().train_time_interval(interval)), every_step);
    // An optimizer step counts once, for any number of batches.
    let accumulating = builder().accumulate_grad_batches(4).max_epochs(2);
    assert_eq!(
        fit(accumulating, ModelCheckpoint::new().every_n_train_steps(2)).2.last(),
        [2, 3, 4, 6, 6]
    );
}

#[test]
fn a_run_resumes_from_any_of_its_states() {
    let folder = tempfile::tempdir().unwrap();
    let run = |from: &Path| {
        let record = Record::default();
        let builder = trainer(folder.path())
            .max_epochs(2)
            .log_every_n_steps(3)
            .val_check_interval(4)
            .ckpt_path(from);
        let checkpoint = ModelCheckpoint::new().every_n_train_steps(1).keep_all(true);
        let summary = fit(builder.callback(record.clone()), checkpoint).1;
        (record.bits("train_loss"), record.validations.lock().unwrap().clone(), summary.last_epoch)
    };
    let whole = run(Path::new(""));
    for step in [2, 3, 4, 8, 9, 10, 13, 16, 20] {
        let epoch = (step - 1) / 10;
        let rest =
            run(&folder.path().join(format!("version_0/checkpoints/epoch={epoch}-step={step}")));
        assert_eq!(
            rest.0,
            whole.0.iter().filter(|log| log.0 > step).copied().collect::<Vec<_>>(),
            "step {step}"
        );
        // A validation that was due when the state was saved still runs, except for the state at
        // the end of its epoch.
        let remaining = whole
            .1
            .iter()
            .filter(|point| point.global_step >= step && !(step == 20 && point.global_step == 20));
        assert_eq!(rest.1, remaining.cloned().collect::<Vec<_>>(), "step {step}");
        assert!(step == 20 || rest.2 == whole.2, "step {step}");
    }
}

#[test]
fn an_epoch_that_ends_after_a_resume_counts_for_early_stopping() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("before-the-end");
    let run = |from: &Path| {
        let path = path.clone();
        let mut trainer = trainer(folder.path())
            .max_epochs(5)
            .ckpt_path(from)
            .callback(EarlyStopping::new("train_loss", Mode::Min).patience(1).min_delta(10.0))
            .callback(on(
                Event::TrainBatchEnd,
                when(|now| now.global_step == 20),
                move |_, actions| {
                    actions.save_checkpoint(&path, CheckpointRole::Extra);
                },
            ))
            .build()
            .unwrap();
        trainer.fit(&Net::new(), &train_loader(80, DROP_LAST), None).unwrap().global_step
    };
    assert_eq!((run(Path::new("")), run(&path)), (20, 20));
}

#[test]
fn the_best_states_are_kept_and_the_others_removed() {
    let folder = tempfile::tempdir().unwrap();
    let record = Record::default();
    let checkpoint = ModelCheckpoint::new().monitor("val_loss", Mode::Min).save_top_k(3);
    let checkpoint = checkpoint.filename("{epoch:02d}-{val_loss:.5f}").save_weights_only(true);
    let builder = trainer(folder.path()).max_epochs(8).callback(record.clone());
    let (mut trainer, summary, _) = fit(builder, checkpoint);
    let mut losses: Vec<(f64, u64)> = record
        .epochs
        .lock()
        .unwrap()
        .iter()
        .map(|point| (point.get("val_loss").unwrap(), point.epoch))
        .collect();
    losses.sort_by(|a, b| a.0.total_cmp(&b.0));
    let name = |(loss, epoch): &(f64, u64)| format!("epoch={epoch:02}-val_loss={loss:.5}");
    let mut expected: Vec<String> = losses[..3].iter().map(name).chain(["last".into()]).collect();
    expected.sort();
    let checkpoints = trainer.run_dir().unwrap().join("checkpoints");
    assert_eq!(files(&checkpoints), expected);
    let best = summary.best_checkpoint.unwrap();
    assert_eq!(best.file_name().unwrap().to_str(), Some(name(&losses[0]).as_str()));

    // The checkpoint also loads as a weights file.
    let loaded = Net::new();
    let report = load_weights(&loaded, &best, Strictness::Strict).unwrap();
    assert_eq!(report.loaded.len(), loaded.state().len());
    let report = load_weights(&loaded, checkpoints.join("last"), Strictness::Lenient).unwrap();
    assert!(
        report
            .unexpected
            .iter()
            .all(|name| name.starts_with("optimizer/") || name.starts_with("trainer/"))
    );
    assert_eq!(
        loaded.state()[0].1.get().eval().unwrap().to_f64(),
        tensors(checkpoints.join("last"))["fc1.weight"].to_f64()
    );

    // Weights alone are enough for a test, but not for resuming.
    let tested = trainer.test(&Net::new(), &val_loader(16), Weights::Best).unwrap();
    assert!(tested.get("test_acc").unwrap() > 0.5);
    let bytes =
        |checkpoint: &Path| std::fs::metadata(crate::common::shard(checkpoint)).unwrap().len();
    assert!(bytes(&best) < bytes(&checkpoints.join("last")));
    let resume = |from: &str| {
        let mut trainer =
            crate::common::trainer(folder.path()).max_epochs(9).ckpt_path(from).build().unwrap();
        trainer
            .fit(&Net::new(), &train_loader(80, DROP_LAST), None)
            .map(|summary| summary.global_step)
    };
    assert_eq!(resume("last").unwrap(), 90);
    std::fs::remove_dir_all(folder.path().join("version_1")).unwrap();
    let refused = resume("best").unwrap_err().to_string();
    assert!(refused.contains("it has only the weights (save_weights_only)"), "{refused}");
}

#[test]
fn a_resumed_run_knows_the_best_states_of_the_earlier_run_and_keeps_them() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = || ModelCheckpoint::new().monitor("val_loss", Mode::Min).save_top_k(2);
    let checkpoints_of = |run: &str| files(&folder.path().join(run).join("checkpoints"));
    let (_, first, _) = fit(trainer(folder.path()).max_epochs(3), checkpoint());
    let before = checkpoints_of("version_0");
    assert_eq!(before.len(), 3);
    let resumed = trainer(folder.path()).max_epochs(12).ckpt_path(first.last_checkpoint.unwrap());
    let (_, second, _) = fit(resumed, checkpoint());
    assert_eq!(checkpoints_of("version_0"), before, "the files of an earlier run stay");
    assert_eq!(checkpoints_of("version_1").len(), 3, "{:?}", checkpoints_of("version_1"));
    assert!(second.best_checkpoint.unwrap().starts_with(folder.path().join("version_1")));
}

#[test]
fn a_resumed_run_removes_the_state_that_a_killed_run_dropped_but_did_not_remove() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = folder.path().join("checkpoints");
    let checkpoint = || {
        let best = ModelCheckpoint::new().monitor("val_loss", Mode::Min);
        best.filename("{epoch}-{step}")
    };
    let run = |epochs| trainer(folder.path()).checkpoint_dir(&checkpoints).max_epochs(epochs);
    let (_, first, _) = fit(run(1), checkpoint());
    let old = first.best_checkpoint.unwrap();
    let copy = folder.path().join("copy");
    let copied = |from: &Path, to: &Path| {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    };
    copied(&old, &copy);
    let (_, second, _) = fit(run(4).resume("auto"), checkpoint());
    assert!(!old.exists() && second.best_checkpoint.unwrap() != old, "it was dropped");
    // As if the run had been killed after the save of the better one.
    copied(&copy, &old);
    // A state without a value is not one of the best: it stays.
    let mine = checkpoints.join("mine");
    copied(&checkpoints.join("last"), &mine);
    fit(run(5).resume("auto"), checkpoint());
    assert!(!old.exists() && mine.exists());
}

/// A dataset with one sample that cannot be read.
struct Broken(TensorDataset, usize);

impl Dataset for Broken {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn fields(&self) -> Vec<Field> {
        self.0.fields()
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> fulmen_data::Result<()> {
        if index == self.1 {
            Err(fulmen_data::Error::new("the disk is full of holes"))
        } else {
            self.0.read(index, sample)
        }
    }
}

#[test]
fn a_fit_that_fails_can_save_its_state() {
    let folder = tempfile::tempdir().unwrap();
    let loader =
        |hole: usize| DataLoader::builder(Broken(samples(80), hole)).batch_size(8).build().unwrap();
    let run = |hole: usize, from: &str, checkpoint: ModelCheckpoint| {
        let record = Record::default();
        let builder = trainer(folder.path()).max_epochs(1).log_every_n_steps(1).ckpt_path(from);
        let mut trainer = builder.callback(checkpoint).callback(record.clone()).build().unwrap();
        let result = trainer.fit(&Net::new(), &loader(hole), None);
        (
            record.bits("train_loss"),
            result.map_err(|error| error.is_data()),
            trainer.run_dir().unwrap().to_owned(),
        )
    };
    let whole = run(1000, "", ModelCheckpoint::new()).0;
    let (_, failed, run_dir) = run(45, "", ModelCheckpoint::new());
    assert!(failed.is_err_and(|is_data| is_data) && files(&run_dir.join("checkpoints")).is_empty());
    let (_, failed, run_dir) = run(45, "", ModelCheckpoint::new().save_on_exception(true));
    assert!(failed.is_err());
    let saved = run_dir.join("checkpoints/exception");
    let (rest, done, _) = run(1000, saved.to_str().unwrap(), ModelCheckpoint::new());
    assert_eq!(done.unwrap().global_step, 10);
    assert_eq!(rest, whole[5..], "each batch is trained on once");
}

#[test]
fn a_state_that_cannot_be_resumed_does_not_replace_one_that_can() {
    let folder = tempfile::tempdir().unwrap();
    let saves = Saves::default();
    let loader = DataLoader::builder(samples(80))
        .batch_size(8)
        .num_workers(2)
        .ordered(false)
        .build()
        .unwrap();
    let checkpoint =
        ModelCheckpoint::new().every_n_train_steps(3).train_time_interval(Duration::from_nanos(1));
    let builder = trainer(folder.path()).max_epochs(2).val_check_interval(0.5).callback(checkpoint);
    builder
        .callback(saves.clone())
        .build()
        .unwrap()
        .fit(&Net::new(), &loader, Some(&val_loader(8)))
        .unwrap();
    assert_eq!(saves.last(), [10, 20]);
}

#[test]
fn removals_keep_the_best_and_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("version_0/checkpoints");
    let remove = on(Event::TrainEpochEnd, every(1), move |_, actions| {
        for name in ["last", "best", "epoch=0-step=10"] {
            actions.remove_checkpoint(kept.join(name));
        }
    });
    let checkpoint = ModelCheckpoint::new().monitor("val_loss", Mode::Min).keep_all(true);
    let (trainer, ..) = fit(trainer(folder.path()).max_epochs(2).callback(remove), checkpoint);
    let names = files(&trainer.run_dir().unwrap().join("checkpoints"));
    assert_eq!(names, ["best", "epoch=1-step=20", "last"]);
}

#[test]
fn contradictory_settings_are_rejected_by_name() {
    for (checkpoint, why) in [
        (ModelCheckpoint::new().save_top_k(2), "save_top_k keeps the best states, but no metric"),
        (ModelCheckpoint::new().monitor("val_loss", Mode::Min).save_top_k(0), "save_top_k is 0"),
        (
            ModelCheckpoint::new().monitor("val_loss", Mode::Min).save_top_k(2).keep_all(true),
            "save_top_k removes states that keep_all keeps",
        ),
        (
            ModelCheckpoint::new().keep_all(true).every_n_train_steps(5).filename("{val_loss}"),
            "filename has a metric, but a state that every_n_train_steps saves has none",
        ),
        (ModelCheckpoint::new().filename("{epoch}"), "filename has no effect on the last state"),
        (
            ModelCheckpoint::new().keep_all(true).filename("a/b"),
            "filename `a/b`: a file name cannot contain",
        ),
        (
            ModelCheckpoint::new().keep_all(true).filename("best"),
            "filename `best`: the Trainer reserves this name",
        ),
        (
            ModelCheckpoint::new().save_weights_only(true),
            "save_weights_only has no effect on the last state",
        ),
        (ModelCheckpoint::new().every_n_train_steps(0), "every_n_train_steps must be at least 1"),
        (ModelCheckpoint::new().every_n_epochs(0), "every_n_epochs must be at least 1"),
        (
            ModelCheckpoint::new().train_time_interval(Duration::ZERO),
            "train_time_interval must be more",
        ),
    ] {
        let error = Trainer::builder().callback(checkpoint).build().err().unwrap().to_string();
        assert!(error.starts_with("ModelCheckpoint: ") && error.contains(why), "{error}");
    }
}
