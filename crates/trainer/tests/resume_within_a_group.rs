//! A run that was interrupted between two batches of one optimizer step goes on bit for bit. Alone in its file: the
//! interrupt is the process's.
#![allow(clippy::unwrap_used, reason = "a helper of a test may panic as the test may")]

mod common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Net, Record, train_loader, trainer};
use fulmen_data::LastBatch;
use fulmen_trainer::{Callback, Progress, TrainerBuilder};

/// Presses Ctrl-C after the fourth batch of the second epoch, and leaves time for it to arrive.
struct Interrupt;

impl Callback for Interrupt {
    fn name(&self) -> &'static str {
        "Interrupt"
    }
    fn on_train_batch_end(&mut self, progress: &Progress) {
        if progress.epoch == 1 && progress.batch == 4 {
            assert!(Command::new("kill").args(["-INT", &std::process::id().to_string()]).status().unwrap().success());
        }
        if progress.epoch == 1 && progress.batch >= 4 {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn builder(folder: &Path, every: u64, record: &Record) -> TrainerBuilder {
    let builder = trainer(folder).max_epochs(3u64).log_every_n_steps(1u64).callback(record.clone());
    // Longer than the time that the interrupt takes, so that it comes within a group.
    builder.accumulate_grad_batches(every).gradient_clip_val(0.5).log_grad_norm(true)
}

#[test]
fn a_group_of_batches_goes_on_where_it_was_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    // 50 batches an epoch: steps after batch 20, 40 and 50.
    let train = || train_loader(400, LastBatch::Drop);
    let whole = Record::default();
    builder(folder.path(), 20, &whole).build().unwrap().fit(&Net::new(), &train(), None).unwrap();

    let before = Record::default();
    let mut trainer = builder(folder.path(), 20, &before).callback(Interrupt).build().unwrap();
    let summary = trainer.fit(&Net::new(), &train(), None).unwrap();
    assert!(summary.interrupted);
    assert_eq!(summary.global_step, 3, "within the first group of the second epoch");
    let checkpoint = summary.last_checkpoint.unwrap();

    let mut other = builder(folder.path(), 10, &Record::default()).ckpt_path(&checkpoint).build().unwrap();
    let error = other.fit(&Net::new(), &train(), None).unwrap_err().to_string();
    assert!(error.contains("accumulate_grad_batches 20, and here it is 10. Resume with 20"), "{error}");

    let after = Record::default();
    let mut trainer = builder(folder.path(), 20, &after).ckpt_path(&checkpoint).build().unwrap();
    let resumed = trainer.fit(&Net::new(), &train(), None).unwrap();
    assert_eq!(resumed.global_step, 9);
    for metric in ["train_loss", "grad_norm", "lr"] {
        let parts = [before.bits(metric), after.bits(metric)].concat();
        assert_eq!(parts, whole.bits(metric), "{metric}");
    }
    // At the end of an epoch there is no group, and a run may go on with others.
    let mut longer = builder(folder.path(), 1, &Record::default()).ckpt_path(resumed.last_checkpoint.unwrap());
    longer = longer.max_epochs(4u64);
    assert_eq!(longer.build().unwrap().fit(&Net::new(), &train(), None).unwrap().global_step, 59);
}
