//! Bad input: each mistake ends in an `Err` that says what is wrong, where, and what to do.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use std::sync::Mutex;

use crate::common::{
    CLASSES, DROP_LAST, FEATURES, Net, PAD_LAST, itself, samples, train_loader, trainer, val_loader,
};
use fulmen_data::{DataLoader, Dataset, Field, Sample, TensorDataset};
use fulmen_nn::loss::{Reduction, cross_entropy};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_pjrt::HostBuffer;
use fulmen_tensor::Tensor;
use fulmen_trainer::{Batch, Error, Plan, StepContext, TrainingModule, Weights};

/// A linear classifier with a test's own training step.
#[derive(Module)]
struct Custom {
    fc: Linear,
    #[module(skip)]
    step: fn(&Custom, &Batch, &mut StepContext) -> Tensor,
}

impl TrainingModule for Custom {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        (self.step)(self, batch, cx)
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.1))
    }
}

fn custom(step: fn(&Custom, &Batch, &mut StepContext) -> Tensor) -> Custom {
    Custom { fc: Linear::new(FEATURES, CLASSES), step }
}

/// The error message of a fit with this step on 20 samples in batches of 8.
fn fit(drop_last: bool, step: fn(&Custom, &Batch, &mut StepContext) -> Tensor) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).max_epochs(1).build().unwrap();
    trainer.fit(&custom(step), &train_loader(20, drop_last), None).unwrap_err().to_string()
}

/// Checks that a message starts as expected and names a line of this file.
#[track_caller]
fn check(message: &str, expected: &str) {
    assert!(message.starts_with(expected), "{message}");
    assert!(message.contains("mistakes.rs:"), "{message}");
}

#[test]
fn an_invalid_step_names_the_users_line() {
    let message = fit(DROP_LAST, |m, batch, _| m.fc.forward(&batch.get("x").t()).mean_all());
    check(&message, "Linear");
    let message = fit(DROP_LAST, |m, batch, _| m.fc.forward(&batch.get("image")).mean_all());
    check(&message, "batch: there is no field `image`; the data set has: x, y");
}

#[test]
fn shape_errors_return_the_users_line() {
    static LINE: Mutex<u32> = Mutex::new(0);
    let folder = tempfile::tempdir().unwrap();
    let module = custom(|m, batch, _| {
        *LINE.lock().unwrap() = line!() + 1;
        let logits = m.fc.forward(&batch.get("x").t());
        logits.mean_all()
    });
    let mut trainer = trainer(folder.path()).max_epochs(1).build().unwrap();
    let error = trainer.fit(&module, &train_loader(20, DROP_LAST), None).unwrap_err();
    let location = error.location().unwrap();
    assert!(location.file().ends_with("mistakes.rs"), "{error}");
    assert_eq!(location.line(), *LINE.lock().unwrap());
    assert_eq!(error.fault().map(|fault| fault.location()), Some(location));
    assert!(error.is_usage() && !error.is_runtime() && !error.is_out_of_memory(), "{error}");
}

#[test]
fn out_of_memory_in_a_worker_is_recognized_in_the_error_of_the_fit() {
    /// A dataset that requests more memory than there is.
    struct Huge(TensorDataset);
    impl Dataset for Huge {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn fields(&self) -> Vec<Field> {
            self.0.fields()
        }
        fn read(&self, _: usize, _: &mut Sample<'_>) -> fulmen_data::Result<()> {
            HostBuffer::zeroed(1 << 60).map(drop).map_err(fulmen_data::Error::new)
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let loader =
        DataLoader::builder(Huge(samples(16))).batch_size(8).num_workers(1).build().unwrap();
    let mut trainer = trainer(folder.path()).max_epochs(1).build().unwrap();
    let error = trainer.fit(&Net::new(), &loader, None).unwrap_err();
    assert!(error.is_out_of_memory() && error.is_data() && !error.is_usage(), "{error}");
    assert!(error.to_string().starts_with("sample "), "{error}");
}

#[test]
fn reading_a_value_in_a_step_is_rejected_at_the_users_line() {
    static ERRORS: Mutex<Vec<(String, u32)>> = Mutex::new(Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let module = custom(|m, batch, _| {
        let loss = m.fc.forward(&batch.get("x")).mean_all();
        ERRORS.lock().unwrap().push((loss.eval().unwrap_err().to_string(), line!()));
        ERRORS.lock().unwrap().push((m.fc.weight.get().eval().unwrap_err().to_string(), line!()));
        loss
    });
    let mut trainer = trainer(folder.path()).max_epochs(1).build().unwrap();
    trainer.fit(&module, &train_loader(20, DROP_LAST), None).unwrap();
    let errors = ERRORS.lock().unwrap();
    assert!(!errors.is_empty());
    for ((error, line), input) in errors.iter().zip(["batch.x", "fc.weight"].into_iter().cycle()) {
        assert!(
            error.contains(&format!("depends on `{input}`, an input of training_step")),
            "{error}"
        );
        assert!(
            error.contains("cx.log(") && error.contains(&format!("mistakes.rs:{line}:")),
            "{error}"
        );
        assert!(!error.contains("batch.rs"), "{error}");
    }
}

#[test]
fn the_loss_must_be_a_scalar_that_depends_on_the_mask() {
    let message = fit(DROP_LAST, |m, batch, _| m.fc.forward(&batch.get("x")));
    check(
        &message,
        "training_step: the loss must be a floating-point scalar, but it is f32[8, 3]; take its mean",
    );
    let message = fit(PAD_LAST, |m, batch, _| {
        cross_entropy(&m.fc.forward(&batch.get("x")), &batch.get("y"), Reduction::Mean)
    });
    check(
        &message,
        "training_step: the last batch is padded, but the loss does not depend on the batch's mask",
    );
}

#[test]
fn logged_values_need_their_own_names_and_a_value_per_sample() {
    let message = fit(DROP_LAST, |m, batch, cx| {
        let loss = m.fc.forward(&batch.get("x")).mean_all();
        cx.log("a", &loss);
        cx.log("a", &(&loss * 2.0));
        loss
    });
    check(&message, "log `a`: this name was logged before in the same step; choose another");
    let message = fit(DROP_LAST, |m, batch, cx| {
        let logits = m.fc.forward(&batch.get("x"));
        cx.log("logits", &logits);
        logits.mean_all()
    });
    check(
        &message,
        "log `logits`: the value is f32[8, 3]; log a scalar or one value per sample, [8]",
    );
    let message = fit(PAD_LAST, |m, batch, cx| {
        let logits = m.fc.forward(&batch.get("x"));
        cx.log("mean", &logits.mean_all());
        batch.mean(&logits.mean(1))
    });
    check(
        &message,
        "log `mean`: the last batch is padded, and this scalar does not depend on the batch's mask",
    );
}

#[test]
fn a_nan_loss_stops_at_its_step_and_the_last_good_checkpoint_stays() {
    // The 13th sample in reading order is NaN. Batches are not shuffled, so it is in the second
    // batch of an epoch.
    let folder = tempfile::tempdir().unwrap();
    let loader = |poison: bool| {
        let mut x = vec![0.5f32; 24 * FEATURES];
        if poison {
            x[13 * FEATURES] = f32::NAN;
        }
        let data =
            TensorDataset::builder().array("x", [24, FEATURES], x).array("y", [24], vec![1i32; 24]);
        DataLoader::builder(data.build().unwrap()).batch_size(8).build().unwrap()
    };
    let module = Net::new();
    let builder = || trainer(folder.path()).max_epochs(2).log_every_n_steps(100);
    let mut good = builder().build().unwrap();
    let saved = good.fit(&module, &loader(false), None).unwrap().last_checkpoint.unwrap();
    let before = std::fs::read(saved.join("manifest.json")).unwrap();

    let mut strict = builder().detect_nan(true).build().unwrap();
    let error = strict.fit(&module, &loader(true), None).unwrap_err();
    assert_eq!(error.not_finite_step(), Some(2), "{error}");
    let message = error.to_string();
    assert!(
        message.starts_with("the training loss `train_loss` became NaN or infinite at step 2;"),
        "{message}"
    );
    assert_eq!(std::fs::read(saved.join("manifest.json")).unwrap(), before);
    assert!(!strict.run_dir().unwrap().join("checkpoints/last").exists(), "nothing bad was saved");

    // Without detect_nan, training continues, and its values show NaN.
    let summary = builder().build().unwrap().fit(&Net::new(), &loader(true), None).unwrap();
    assert!(summary.train_loss.unwrap().is_nan());
}

#[test]
fn an_unwritable_checkpoint_folder_is_rejected_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file");
    std::fs::write(&file, "in the way").unwrap();
    let mut trainer = trainer(&file).build().unwrap();
    let error = trainer.fit(&Net::new(), &train_loader(20, DROP_LAST), None).unwrap_err();
    assert!(error.is_checkpoint());
    let message = error.to_string();
    assert!(
        message.contains("a file") && message.contains("choose another default_root_dir"),
        "{message}"
    );
    assert_eq!(std::fs::read(&file).unwrap(), b"in the way");
}

#[test]
fn a_checkpoint_that_does_not_fit_lists_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let train = train_loader(20, DROP_LAST);
    let saved = trainer(folder.path())
        .max_epochs(1)
        .build()
        .unwrap()
        .fit(&Net::new(), &train, None)
        .unwrap()
        .last_checkpoint
        .unwrap();
    let other = custom(|m, batch, _| m.fc.forward(&batch.get("x")).mean_all());
    other.initialize(5);
    let bits = || {
        other.parameters().iter().map(|(_, p)| p.get().eval().unwrap().to_f64()).collect::<Vec<_>>()
    };
    let before = bits();
    let mut resumed = trainer(folder.path()).ckpt_path(saved.as_path()).build().unwrap();
    let error = resumed.fit(&other, &train, None).unwrap_err();
    let message = error.to_string();
    assert!(error.is_checkpoint());
    assert!(message.contains("last: it does not fit:"), "{message}");
    assert!(message.contains("`fc.weight` (f32[3, 6]) is missing"), "{message}");
    // The module that could not be trained keeps all of its values.
    assert_eq!(bits(), before);
    let error = resumed.test(&other, &val_loader(8), Weights::File(saved)).unwrap_err();
    assert!(
        error.is_checkpoint() && error.to_string().contains("missing in the file: fc.weight"),
        "{error}"
    );
    assert_eq!(bits(), before);
}

#[test]
fn diverged_weights_are_never_saved_as_a_checkpoint() {
    // An epoch is one batch. The step changes the weights to infinity although the loss before it
    // was finite.
    let folder = tempfile::tempdir().unwrap();
    let mut module = Net::new();
    module.learning_rate = f64::from(f32::MAX);
    let mut trainer = trainer(folder.path()).max_epochs(3).detect_nan(true).build().unwrap();
    let error = trainer.fit(&module, &train_loader(8, DROP_LAST), None).unwrap_err();
    assert!(error.not_finite_step().is_some(), "{error}");
    if let Some(kept) = trainer.last_checkpoint() {
        let tensors = crate::common::tensors(kept);
        let finite = |l: &fulmen_tensor::Literal| l.to_f64().iter().all(|v| v.is_finite());
        assert!(tensors.values().all(|value| finite(value)), "{error}");
    }
}

#[test]
fn padding_does_not_affect_batch_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).build().unwrap();
    let error =
        trainer.fit(&Net::new(), &train_loader(20, PAD_LAST), None).unwrap_err().to_string();
    let expected = "the last batch is padded, but the statistics `bn.running_mean` would include the padding; let the \
                    training loader drop the last batch";
    assert!(error.starts_with(expected) && error.contains("common/mod.rs:"), "{error}");
}

#[test]
fn names_that_the_trainer_uses_itself_are_rejected() {
    let message = fit(DROP_LAST, |m, batch, cx| {
        let loss = m.fc.forward(&batch.get("x")).mean_all();
        cx.log("lr", &loss);
        loss
    });
    check(
        &message,
        "log `lr`: this name belongs to a value that the Trainer logs itself; choose another",
    );
}

#[test]
fn a_panic_in_a_callback_leaves_the_module_its_values() {
    struct Panics;
    impl fulmen_trainer::Callback for Panics {
        fn name(&self) -> &'static str {
            "Panics"
        }
        fn on_train_epoch_end(
            &mut self,
            _: &fulmen_trainer::LogPoint,
            _: &mut fulmen_trainer::Actions,
        ) {
            panic!("on purpose");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let module = Net::new();
    let mut trainer = trainer(folder.path()).callback(Panics).build().unwrap();
    let fit =
        std::panic::AssertUnwindSafe(|| trainer.fit(&module, &train_loader(20, DROP_LAST), None));
    assert!(std::panic::catch_unwind(fit).is_err());
    assert!(module.parameters().iter().all(|(_, p)| p.get().eval().is_ok()));
}

#[test]
fn a_missing_or_broken_checkpoint_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let message = |path: &std::path::Path| {
        let mut trainer = trainer(folder.path()).ckpt_path(path).build().unwrap();
        trainer.fit(&Net::new(), &train_loader(20, DROP_LAST), None).unwrap_err().to_string()
    };
    let missing = folder.path().join("none");
    assert!(message(&missing).contains("none"));
    let broken = folder.path().join("broken.safetensors");
    std::fs::write(&broken, [7u8; 100]).unwrap();
    assert!(message(&broken).contains("broken.safetensors"));
}

#[test]
fn testing_needs_a_test_step_and_weights() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).build().unwrap();
    let module = custom(|m, batch, _| m.fc.forward(&batch.get("x")).mean_all());
    let message = |e: Error| e.to_string();
    assert_eq!(
        message(trainer.test(&module, &val_loader(8), Weights::Current).unwrap_err()),
        "the module's test_step logs nothing, so there is nothing to evaluate"
    );
    assert_eq!(
        message(trainer.test(&module, &val_loader(8), Weights::Best).unwrap_err()),
        "there is no best checkpoint: the last fit saved none"
    );
}

#[test]
fn two_tensors_with_one_name_are_rejected() {
    #[derive(Module)]
    struct Twice {
        #[module(flatten)]
        a: Linear,
        #[module(flatten)]
        b: Linear,
    }
    impl TrainingModule for Twice {
        fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
            (self.a.forward(&batch.get("x")) + self.b.forward(&batch.get("x"))).mean_all()
        }
        fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
            Box::new(Sgd::new(0.1))
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let module = Twice { a: Linear::new(FEATURES, CLASSES), b: Linear::new(FEATURES, CLASSES) };
    let mut trainer = trainer(folder.path()).build().unwrap();
    let message = trainer.fit(&module, &train_loader(20, DROP_LAST), None).unwrap_err().to_string();
    assert!(
        message.starts_with("two tensors of the model have the name `weight`; rename one of them"),
        "{message}"
    );
}

#[test]
fn a_variable_that_the_program_overrides_is_noted_once() {
    if std::env::var_os("FULMEN_MAX_EPOCHS").is_some() {
        for _ in 0..2 {
            let folder = tempfile::tempdir().unwrap();
            trainer(folder.path()).max_epochs(3).build().unwrap();
        }
        return;
    }
    let test = "mistakes::a_variable_that_the_program_overrides_is_noted_once";
    let mut command = itself();
    command.args(["--exact", test, "--nocapture"]);
    let output = command.env("FULMEN_MAX_EPOCHS", "5").env("FULMEN_SEED", "1").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let line = "note: FULMEN_MAX_EPOCHS=5 has no effect: the program or its command line sets max_epochs to 3\n";
    assert!(output.status.success() && text.matches(line).count() == 1, "{text}");
    assert!(!text.contains("FULMEN_SEED"), "{text}");
}
