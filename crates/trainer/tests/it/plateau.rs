//! The learning rate drops when a metric stops improving, without another compilation.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use std::path::Path;

use crate::common::{DROP_LAST, FEATURES, Record, isolated, train_loader, trainer, val_loader};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::Tensor;
use fulmen_trainer::callbacks::{Mode, ReduceLROnPlateau};
use fulmen_trainer::{
    Actions, Batch, Callback, FitSummary, LogPoint, Plan, StepContext, TrainerBuilder,
    TrainingModule,
};

/// A module whose validation metric never changes.
#[derive(Module)]
struct Flat(Linear);

impl TrainingModule for Flat {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        batch.mean(&self.0.forward(&batch.get("x")).sum(-1))
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        cx.log("val_loss", batch.mask());
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.5))
    }
}

fn fit(
    folder: &Path,
    epochs: u64,
    set: impl Fn(TrainerBuilder) -> TrainerBuilder,
) -> (Record, FitSummary) {
    let record = Record::default();
    let builder = trainer(folder).max_epochs(epochs).log_every_n_steps(5).callback(record.clone());
    let mut trainer = set(builder).build().unwrap();
    let module = Flat(Linear::new(FEATURES, 1));
    let summary =
        trainer.fit(&module, &train_loader(40, DROP_LAST), Some(&val_loader(16))).unwrap();
    (record, summary)
}

fn plateau() -> ReduceLROnPlateau {
    ReduceLROnPlateau::new("val_loss", Mode::Min).patience(1).factor(0.5).min_lr(0.1)
}

fn rates(record: &Record) -> Vec<f64> {
    record.logs.lock().unwrap().iter().map(|point| point.get("lr").unwrap()).collect()
}

#[test]
fn a_smaller_rate_needs_no_compilation_and_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, summary) = fit(folder.path(), 9, |b| b.runtime(isolated()).callback(plateau()));
    assert_eq!((summary.train_compilations, summary.eval_compilations), (1, 1));
    let expected = [0.5, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.1f32, 0.1];
    for (actual, expected) in rates(&whole).iter().zip(expected) {
        assert!((actual / f64::from(expected) - 1.0).abs() < 1e-6, "{actual} is not {expected}");
    }
    assert_eq!(rates(&whole).len(), 9);

    let (_, first) = fit(folder.path(), 4, |b| b.callback(plateau()));
    let checkpoint = first.last_checkpoint.unwrap();
    let (resumed, _) = fit(folder.path(), 9, |b| b.callback(plateau()).ckpt_path(&checkpoint));
    assert_eq!(resumed.bits("lr"), whole.bits("lr")[4..]);
    // Without the callback, the rate is the optimizer's again.
    let (plain, _) = fit(folder.path(), 5, |b| b.ckpt_path(&checkpoint));
    assert_eq!(rates(&plain), [0.5]);
    // A run without the callback continues with it at the optimizer's rate.
    let (_, first) = fit(folder.path(), 2, |b| b);
    let checkpoint = first.last_checkpoint.unwrap();
    let (resumed, _) = fit(folder.path(), 4, |b| b.callback(plateau()).ckpt_path(&checkpoint));
    assert_eq!(rates(&resumed), [0.5, 0.5]);
}

#[test]
fn two_callbacks_multiply_their_factors_of_the_rate() {
    let folder = tempfile::tempdir().unwrap();
    let both = |b: TrainerBuilder| {
        let slow = plateau().min_lr(0.0).patience(3).factor(0.1);
        b.callback(plateau().min_lr(0.0)).callback(slow)
    };
    let (whole, _) = fit(folder.path(), 8, both);
    let expected = [0.5, 0.5, 0.5, 0.25, 0.25, 0.0125, 0.0125, 0.00625];
    assert_eq!(rates(&whole).len(), expected.len());
    for (actual, expected) in rates(&whole).iter().zip(expected) {
        assert!((actual / expected - 1.0).abs() < 1e-6, "{actual} is not {expected}");
    }
    let (_, first) = fit(folder.path(), 6, both);
    let checkpoint = first.last_checkpoint.unwrap();
    let (resumed, _) = fit(folder.path(), 8, |b| both(b).ckpt_path(&checkpoint));
    assert_eq!(resumed.bits("lr"), whole.bits("lr")[6..]);
}

#[test]
fn invalid_settings_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let refused =
        |callback: ReduceLROnPlateau| match trainer(folder.path()).callback(callback).build() {
            Ok(_) => panic!("the build succeeded"),
            Err(error) => error.to_string(),
        };
    assert_eq!(
        refused(plateau().factor(1.0)),
        "ReduceLROnPlateau: the factor must be at least 0 and below 1, but it is 1"
    );
    assert_eq!(
        refused(plateau().min_lr(-1.0)),
        "ReduceLROnPlateau: min_lr must be at least 0, but it is -1"
    );

    struct Silent;
    impl Callback for Silent {
        fn name(&self) -> &'static str {
            "Silent"
        }
        fn on_train_epoch_end(&mut self, _: &LogPoint, actions: &mut Actions) {
            assert_eq!(actions.learning_rate(), 0.5);
            actions.set_learning_rate_factor(0.5);
        }
    }
    let mut trainer = trainer(folder.path()).callback(Silent).max_epochs(1).build().unwrap();
    let module = Flat(Linear::new(FEATURES, 1));
    let error = trainer.fit(&module, &train_loader(40, DROP_LAST), None).unwrap_err().to_string();
    assert!(error.contains("its changes_learning_rate() must be true"), "{error}");
}
