//! A run that was interrupted between two batches of one optimizer step resumes bit for bit. The
//! test runs in its own process, because the interrupt reaches the whole process.

use std::path::Path;

use crate::common::{
    DROP_LAST, LONG, Net, Record, has_a_process_of_its_own, terminate, train_loader, trainer,
};
use fulmen_nn::Module;
use fulmen_nn::optim::Optimizer;
use fulmen_tensor::Tensor;
use fulmen_trainer::callbacks::{Mode, ReduceLROnPlateau, ThresholdMode};
use fulmen_trainer::{
    Actions, Batch, Callback, Plan, Precision, Progress, StepContext, TrainerBuilder,
    TrainingModule,
};

/// Interrupts after this batch of the second epoch.
struct Interrupt(u64);

impl Callback for Interrupt {
    fn name(&self) -> &'static str {
        "Interrupt"
    }
    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Actions) {
        if progress.epoch == 1 && progress.batch == self.0 {
            terminate();
        }
    }
}

/// A loss whose gradients are too large for f16.
#[derive(Module)]
struct Loud(Net);

impl TrainingModule for Loud {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        self.0.training_step(batch, cx) * 1e6
    }
    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        self.0.configure_optimizers(plan)
    }
}

fn builder(folder: &Path, every: u64, record: &Record) -> TrainerBuilder {
    let builder =
        trainer(folder).grace(LONG).max_epochs(3).log_every_n_steps(1).callback(record.clone());
    builder.accumulate_grad_batches(every).gradient_clip_val(0.5).log_grad_norm(true)
}

#[test]
fn a_group_of_batches_continues_where_it_was_interrupted() {
    if !has_a_process_of_its_own(
        "resume_within_a_group::a_group_of_batches_continues_where_it_was_interrupted",
    ) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // 50 batches per epoch: steps after batches 20, 40 and 50.
    let train = || train_loader(400, DROP_LAST);
    let whole = Record::default();
    builder(folder.path(), 20, &whole).build().unwrap().fit(&Net::new(), &train(), None).unwrap();

    let before = Record::default();
    let mut trainer = builder(folder.path(), 20, &before).callback(Interrupt(4)).build().unwrap();
    let summary = trainer.fit(&Net::new(), &train(), None).unwrap();
    assert!(summary.interrupted);
    assert_eq!(summary.global_step, 3, "within the first group of the second epoch");
    let checkpoint = summary.last_checkpoint.unwrap();

    let mut other =
        builder(folder.path(), 10, &Record::default()).ckpt_path(&checkpoint).build().unwrap();
    let error = other.fit(&Net::new(), &train(), None).unwrap_err().to_string();
    assert!(
        error.contains(
            "20 batches per optimizer step, but now there are 10. Set accumulate_grad_batches,"
        ),
        "{error}"
    );

    let after = Record::default();
    let mut trainer = builder(folder.path(), 20, &after).ckpt_path(&checkpoint).build().unwrap();
    let resumed = trainer.fit(&Net::new(), &train(), None).unwrap();
    assert_eq!(resumed.global_step, 9);
    for metric in ["train_loss", "grad_norm", "lr"] {
        let parts = [before.bits(metric), after.bits(metric)].concat();
        assert_eq!(parts, whole.bits(metric), "{metric}");
    }
    // At the end of an epoch no group is open, and the run may resume with other groups.
    let mut longer =
        builder(folder.path(), 1, &Record::default()).ckpt_path(resumed.last_checkpoint.unwrap());
    longer = longer.max_epochs(4);
    assert_eq!(longer.build().unwrap().fit(&Net::new(), &train(), None).unwrap().global_step, 59);

    // The run is interrupted after the last batch, which is a log point. The work at the end of the
    // epoch remains.
    let plateau = |record: &Record| {
        let never = ReduceLROnPlateau::new("train_loss_epoch", Mode::Min)
            .patience(0)
            .threshold(1e9, ThresholdMode::Abs);
        builder(folder.path(), 20, record).callback(never)
    };
    let whole = Record::default();
    let before = Record::default();
    let after = Record::default();
    plateau(&whole).build().unwrap().fit(&Net::new(), &train(), None).unwrap();
    let mut trainer = plateau(&before).callback(Interrupt(50)).build().unwrap();
    let summary = trainer.fit(&Net::new(), &train(), None).unwrap();
    assert!(
        summary.interrupted && summary.global_step == 6 && summary.epochs == 1,
        "after the last batch"
    );
    let mut trainer = plateau(&after).ckpt_path(summary.last_checkpoint.unwrap()).build().unwrap();
    trainer.fit(&Net::new(), &train(), None).unwrap();
    let rates = whole.bits("lr");
    assert!(rates[6].1 < rates[5].1, "the plateau has been seen");
    assert_eq!([before.bits("lr"), after.bits("lr")].concat(), rates);

    // A sum of gradients that overflowed does not prevent a checkpoint.
    let loud = builder(folder.path(), 20, &Record::default())
        .precision(Precision::F16Mixed)
        .detect_nan(true);
    let mut trainer = loud.callback(Interrupt(4)).build().unwrap();
    let summary = trainer.fit(&Loud(Net::new()), &train(), None).unwrap();
    let tensors = crate::common::tensors(summary.last_checkpoint.unwrap());
    let sums = tensors.iter().filter(|(name, _)| name.starts_with("trainer/gradients/"));
    assert!(
        sums.flat_map(|(_, sum)| sum.to_f64()).any(|value| !value.is_finite()),
        "it did overflow"
    );
}
