//! A run that was interrupted within an epoch continues with the remaining samples, even on other
//! devices, but not with a different loader. The test runs in its own process, because the
//! interrupt reaches the whole process.

use std::path::Path;

use crate::common::{LONG, Net, Record, has_a_process_of_its_own, samples, terminate, trainer};
use fulmen_data::{DataLoader, DataLoaderBuilder};
use fulmen_trainer::{Actions, Callback, Progress, TrainerBuilder};

const SAMPLES: usize = 1000;

/// Interrupts after the fourth batch of the second epoch.
struct Interrupt;

impl Callback for Interrupt {
    fn name(&self) -> &'static str {
        "Interrupt"
    }
    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Actions) {
        if progress.epoch == 1 && progress.batch == 4 {
            terminate();
        }
    }
}

fn loader() -> DataLoaderBuilder {
    DataLoader::builder(samples(SAMPLES))
        .batch_size(8)
        .shuffle(true)
        .seed(3)
        .num_workers(2)
        .drop_last(true)
}

fn builder(folder: &Path, devices: usize, record: &Record) -> TrainerBuilder {
    trainer(folder)
        .grace(LONG)
        .devices(devices)
        .max_epochs(3)
        .log_every_n_steps(1)
        .callback(record.clone())
}

#[test]
fn an_interrupted_epoch_continues_with_the_remaining_samples() {
    if !has_a_process_of_its_own(
        "resume_within_an_epoch::an_interrupted_epoch_continues_with_the_remaining_samples",
    ) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let whole = Record::default();
    let mut trainer = builder(folder.path(), 1, &whole).build().unwrap();
    trainer.fit(&Net::new(), &loader().build().unwrap(), None).unwrap();

    let before = Record::default();
    let mut trainer = builder(folder.path(), 8, &before).callback(Interrupt).build().unwrap();
    let summary = trainer.fit(&Net::new(), &loader().build().unwrap(), None).unwrap();
    assert_eq!(summary.stopped.as_deref(), Some("interrupted by SIGTERM"));
    let checkpoint = summary.last_checkpoint.unwrap();
    assert_eq!(summary.global_step, 129);

    let refused = |loader: DataLoaderBuilder, shown: &str| {
        let mut trainer =
            builder(folder.path(), 2, &Record::default()).ckpt_path(&checkpoint).build().unwrap();
        let error =
            trainer.fit(&Net::new(), &loader.build().unwrap(), None).unwrap_err().to_string();
        assert!(
            error.contains("1000 of 1000 samples, 125 batches of 8, RandomSampler(seed 3)"),
            "{error}"
        );
        assert!(
            error.contains(shown) && error.contains("Resume with the loader of that run"),
            "{error}"
        );
    };
    let mut trainer =
        builder(folder.path(), 2, &Record::default()).ckpt_path(&checkpoint).build().unwrap();
    let error = trainer
        .fit(&Net::new(), &loader().ordered(false).build().unwrap(), None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("come in any order (ordered(false))")
            && error.contains("at the end of an epoch"),
        "{error}"
    );
    assert_eq!(
        trainer.runtime().metrics().value("UncachedCompile"),
        0,
        "before anything is compiled"
    );
    refused(loader().seed(4), "125 batches of 8, RandomSampler(seed 4)");
    refused(loader().shuffle(false), "125 batches of 8, SequentialSampler");
    refused(loader().batch_size(16), "62 batches of 16, RandomSampler(seed 3)");

    // The same batches from a loader that is built in another way, on a third number of devices.
    let after = Record::default();
    let mut trainer = builder(folder.path(), 2, &after).ckpt_path(&checkpoint).build().unwrap();
    let spelled =
        DataLoader::builder(samples(SAMPLES)).per_device_batch_size(4).shuffle(true).seed(3);
    let spelled = spelled.drop_last(true);
    trainer.fit(&Net::new(), &spelled.build().unwrap(), None).unwrap();

    let steps = |record: &Record| -> Vec<(u64, f64)> {
        let logs = record.logs.lock().unwrap();
        logs.iter().map(|point| (point.global_step, point.get("train_loss").unwrap())).collect()
    };
    let parts = [steps(&before), steps(&after)].concat();
    assert_eq!(parts.len(), 375);
    for ((step, loss), (expected_step, expected)) in parts.into_iter().zip(steps(&whole)) {
        assert_eq!(step, expected_step);
        // Another number of devices adds in a different order, and the steps amplify the
        // difference, by 1e-4 at most. With other samples, the losses would differ much more.
        assert!(
            (loss - expected).abs() <= 1e-2 * expected.abs().max(1e-4),
            "step {step}: {loss} and {expected}"
        );
    }

    let arrays = |record: &Record| {
        record.epochs.lock().unwrap()[..].iter().map(|p| p.arrays.clone()).collect::<Vec<_>>()
    };
    let all = arrays(&whole);
    let resumed = arrays(&after);
    assert_eq!(all[0].iter().flat_map(|array| array.1.elements()).sum::<f64>(), SAMPLES as f64);
    assert_eq!(resumed, all[1..], "the interrupted epoch has counted each of its samples once");

    // Interrupted between two log points: the counts since the last log point continue too.
    let before = Record::default();
    let after = Record::default();
    let rare =
        |record: &Record| builder(folder.path(), 2, record).log_every_n_steps(100).max_epochs(2);
    let summary = rare(&before).callback(Interrupt).build().unwrap().fit(
        &Net::new(),
        &loader().build().unwrap(),
        None,
    );
    let checkpoint = summary.unwrap().last_checkpoint.unwrap();
    let mut trainer = rare(&after).ckpt_path(&checkpoint).build().unwrap();
    trainer.fit(&Net::new(), &loader().build().unwrap(), None).unwrap();
    assert_eq!(arrays(&after), all[1..2]);
}
