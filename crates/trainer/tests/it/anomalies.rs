//! `detect_anomaly` names the operation and the line that caused the first NaN or infinity:
//! forward, backward or in the optimizer. It ignores values that are never used.

use crate::common::trainer;
use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module, Parameter};
use fulmen_tensor::Tensor;
use fulmen_trainer::{Batch, Plan, StepContext, Trainer, TrainingModule};

type Loss = fn(&Tensor, &Tensor) -> Tensor;

/// A loss computed from the samples and a weight.
#[derive(Module)]
struct Net {
    weight: Parameter,
    #[module(skip)]
    loss: Loss,
    learning_rate: f64,
}

impl TrainingModule for Net {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        (self.loss)(&batch.get("x"), &self.weight.get())
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(self.learning_rate))
    }
}

/// Ones, with a 0 in the third batch.
fn loader() -> DataLoader {
    let x: Vec<f32> = (0..32).map(|i| if i == 17 { 0.0 } else { 1.0 }).collect();
    let data = TensorDataset::builder().array("x", [32, 1], x).build().unwrap();
    DataLoader::builder(data).batch_size(8).build().unwrap()
}

fn fit(loss: Loss, learning_rate: f64, devices: usize) -> fulmen_trainer::Result<f64> {
    let folder = tempfile::tempdir().unwrap();
    let weight = Linear::new(1, 1).bias(false).weight.clone();
    weight.set(Tensor::full(fulmen_tensor::DType::F32, [1, 1], 1.0));
    let builder = trainer(folder.path()).devices(devices).max_epochs(2).detect_anomaly(true);
    let mut trainer: Trainer = builder.enable_checkpointing(false).build().unwrap();
    let summary = trainer.fit(&Net { weight, loss, learning_rate }, &loader(), None)?;
    assert!(summary.train_compilations <= 1);
    Ok(summary.train_loss.unwrap())
}

#[test]
fn the_first_operation_is_named_with_its_line() {
    // Forward: the logarithm gives -infinity, which another operation turns into NaN. The error
    // names the line of the logarithm.
    let line = line!() + 1;
    let forward = (|x, w| (x.log() * 0.0 * w).mean([0, 1])) as Loss;
    // Backward: the loss is finite, but the derivative of the root is not.
    let backward: Loss = |x, w| (x * w).sqrt().mean([0, 1]);
    // The optimizer: the gradient is finite, but the step is too large.
    let optimizer: Loss = |x, w| (x * w * 1e30).mean([0, 1]);
    for devices in [1, 8] {
        for (loss, learning_rate, step, operation, line) in [
            (forward, 0.1, 3, "`log` made an infinity", line),
            (backward, 0.1, 3, "infinity", line + 2),
            (optimizer, 1e30, 1, "infinity", 0),
        ] {
            let error = fit(loss, learning_rate, devices).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.not_finite_step(), Some(step), "{text}");
            assert!(
                text.starts_with(&format!("detect_anomaly: in step {step} "))
                    && text.contains(operation),
                "{text}"
            );
            assert!(line == 0 || text.contains(&format!("anomalies.rs:{line}:")), "{text}");
        }
    }
    let text = fit(forward, 0.1, 1).unwrap_err().to_string();
    assert!(text.contains("from which `mul` made NaN"), "{text}");
}

#[test]
fn an_unused_infinity_is_not_reported() {
    // Values that are not used: a mask of -infinity before a softmax, and a logarithm of 0 that is
    // not selected.
    let masked: Loss = |x, w| {
        let scores = Tensor::concatenate(&[&(x * w), &(x.zeros_like() - f64::INFINITY)], 1);
        scores.softmax(1).square().mean([0, 1])
    };
    let selected: Loss =
        |x, w| x.gt(0.0).select(&x.log(), &x.zeros_like()).mean([0, 1]) + (w * w).mean([0, 1]);
    for loss in [masked, selected] {
        assert!(fit(loss, 0.1, 1).unwrap().is_finite());
    }
}
