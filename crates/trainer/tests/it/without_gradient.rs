//! Losses without a gradient, and parameters without one.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use crate::common::{CLASSES, DROP_LAST, FEATURES, itself, train_loader, trainer};
use fulmen_nn::loss::{Reduction, cross_entropy};
use fulmen_nn::optim::{AdamW, Optimizer};
use fulmen_nn::{Linear, Module, metrics};
use fulmen_tensor::{DType, Tensor};
use fulmen_trainer::{Batch, Optimizers, Plan, StepContext, TrainingModule};

/// Three layers. A step may use some of them.
#[derive(Module)]
struct Pair {
    body: Linear,
    head: Linear,
    unused: Linear,
    #[module(skip)]
    loss: fn(&Pair, &Batch, &mut StepContext) -> Tensor,
    #[module(skip)]
    by_name: bool,
}

impl Pair {
    fn new(loss: fn(&Pair, &Batch, &mut StepContext) -> Tensor) -> Pair {
        Pair {
            body: Linear::new(FEATURES, FEATURES),
            head: Linear::new(FEATURES, CLASSES),
            unused: Linear::new(2, 2),
            loss,
            by_name: false,
        }
    }

    fn logits(&self, batch: &Batch) -> Tensor {
        self.head.forward(&self.body.forward(&batch.get("x")).relu())
    }
}

impl TrainingModule for Pair {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        (self.loss)(self, batch, cx)
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        let optimizer = AdamW::new(0.1).weight_decay(0.5);
        if self.by_name {
            Box::new(Optimizers::new().add("all", ["*"], optimizer))
        } else {
            Box::new(optimizer)
        }
    }
}

/// The message of a fit that fails.
fn message(module: &Pair) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).max_epochs(1).build().unwrap();
    let error = trainer.fit(module, &train_loader(16, DROP_LAST), None).unwrap_err();
    assert!(error.is_usage(), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was trained");
    error.to_string()
}

/// Checks that the message names the line at which the gradient ends, if there is one, and that it
/// ends with the line of the loss.
#[track_caller]
fn check(message: &str, source: &str, end: Option<u32>, line: u32) {
    match end {
        None => assert!(
            message.starts_with(&format!("{source}: the loss depends on none of its parameters")),
            "{message}"
        ),
        Some(end) => assert!(
            message.starts_with(&format!("{source}: the loss has no gradient"))
                && message.contains("the gradient ends at ")
                && message.contains(&format!("without_gradient.rs:{end}:")),
            "{message}"
        ),
    }
    let last = message.lines().last().unwrap();
    assert!(last.contains(&format!("without_gradient.rs:{line}:")), "{message}");
}

#[test]
fn a_loss_without_a_gradient_is_an_error_at_its_line() {
    let line = line!() + 2;
    let detached = Pair::new(|m, batch, _| {
        let logits = m.logits(batch).detach();
        cross_entropy(&logits, &batch.get("y"), Reduction::Mean)
    });
    check(&message(&detached), "training_step", Some(line), line + 1);

    let accuracy =
        Pair::new(|m, batch, _| metrics::correct(&m.logits(batch), &batch.get("y")).mean_all());
    check(&message(&accuracy), "training_step", Some(line!() - 1), line!() - 1);

    let rounded = Pair::new(|m, batch, _| m.logits(batch).round().mean_all());
    check(&message(&rounded), "training_step", Some(line!() - 1), line!() - 1);

    let data = Pair::new(|_, batch, _| batch.get("x").mean_all());
    check(&message(&data), "training_step", None, line!() - 1);

    let mut minimized = Pair::new(|m, batch, cx| {
        cx.minimize("all", |_| m.logits(batch).argmax(1).to_dtype(DType::F32).mean_all())
    });
    minimized.by_name = true;
    let at = line!() - 3;
    check(&message(&minimized), "minimize(\"all\")", Some(at), at);
}

#[test]
fn a_users_own_loop_gets_the_error_too() {
    let module = Pair::new(|m, batch, _| m.logits(batch).detach().mean_all());
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).max_epochs(1).build().unwrap();
    let Err(error) = trainer.train_step(&module, &train_loader(16, DROP_LAST)) else {
        panic!("there is no error")
    };
    check(&error.to_string(), "training_step", Some(line!() - 6), line!() - 6);
}

/// Trains with a detached body, two unused parameters and one frozen one.
#[test]
#[ignore = "another test starts this one and reads what it prints"]
fn trains_with_unused_parameters() {
    let module = Pair::new(|m, batch, _| {
        let features = m.body.forward(&batch.get("x")).relu().detach();
        cross_entropy(m.head.forward(&features), &batch.get("y"), Reduction::Mean)
    });
    module.unused.bias.as_ref().unwrap().set_requires_grad(false);
    module.initialize(0);
    let value = || module.body.weight.get().eval().unwrap().to_vec::<f32>().unwrap();
    let before = value();
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).max_epochs(2).build().unwrap();
    trainer.fit(&module, &train_loader(16, DROP_LAST), None).unwrap();
    // As in PyTorch, where the gradient is None, weight decay does not change it either.
    assert_eq!(value(), before);
}

#[test]
fn parameters_without_a_gradient_are_named_in_one_warning() {
    let test = "without_gradient::trains_with_unused_parameters";
    let output = itself().args(["--exact", test, "--ignored", "--nocapture"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let warnings: Vec<&str> = text.lines().filter(|line| line.contains("no gradient")).collect();
    assert_eq!(
        warnings,
        [
            "warning: the loss has no gradient with respect to 3 parameters (`body.weight`, `body.bias`, `unused.weight`), so \
          training does not change them. If that is intended, freeze them with set_requires_grad(false)"
        ]
    );
}
