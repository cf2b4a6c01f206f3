//! A NaN in the first batch is named: its field, its row, and the file of its sample.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use crate::common::trainer;
use fulmen_data::{DType, DataLoader, Dataset, Field, Sample};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::Tensor;
use fulmen_trainer::{Batch, Plan, StepContext, TrainerBuilder, TrainingModule};

/// Rows of a table. One has a value that is not finite.
struct Rows {
    bad: usize,
    value: f32,
}

impl Dataset for Rows {
    fn len(&self) -> usize {
        16
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::F32, [2]), Field::new("w", DType::F32, [])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> fulmen_data::Result<()> {
        sample.write_slice(0, &[index as f32, 1.0])?;
        sample.write_value(1, if index == self.bad { self.value } else { 0.5 })
    }
    fn origin(&self, index: usize) -> Option<String> {
        Some(format!("rows.csv, line {}", index + 2))
    }
}

#[derive(Module)]
struct Weighted(Linear);

impl TrainingModule for Weighted {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        (self.0.forward(&batch.get("x")).squeeze(-1) * batch.get("w")).mean_all()
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.01))
    }
}

/// The error of a fit on batches of 8 rows.
fn message(rows: Rows, with: impl Fn(TrainerBuilder) -> TrainerBuilder) -> String {
    let folder = tempfile::tempdir().unwrap();
    let loader = DataLoader::builder(rows).batch_size(8).num_workers(2).build().unwrap();
    let mut trainer = with(trainer(folder.path()).max_epochs(1)).build().unwrap();
    let error = trainer.fit(&Weighted(Linear::new(2, 1)), &loader, None).unwrap_err();
    assert!(error.not_finite_step().is_some(), "{error}");
    error.to_string()
}

#[test]
fn a_nan_in_the_first_batch_is_named_with_its_field_row_and_file() {
    let nan = || Rows { bad: 5, value: f32::NAN };
    let detect = |b: TrainerBuilder| b.detect_nan(true);
    let cause = "field `w` in row 5 of the first batch is NaN (sample 5, rows.csv, line 7)";
    let error = message(nan(), detect);
    assert!(
        error.starts_with(&format!(
            "the training loss `train_loss` became NaN or infinite at step 1: {cause}"
        )),
        "{error}"
    );
    let error = message(nan(), |b| detect(b).devices(8usize));
    assert!(error.contains(cause), "{error}");
    let error = message(nan(), |b| b.detect_anomaly(true));
    assert!(
        error.starts_with("detect_anomaly: in step 1 `batch.w`") && error.contains(cause),
        "{error}"
    );
    let error = message(Rows { bad: 2, value: f32::INFINITY }, detect);
    assert!(
        error.contains(
            "field `w` in row 2 of the first batch is infinite (sample 2, rows.csv, line 4)"
        ),
        "{error}"
    );
    // The second batch is not searched, so the message gives the general advice.
    let error = message(Rows { bad: 9, value: f32::NAN }, detect);
    assert!(error.contains("at step 2;") && error.contains("check the data"), "{error}");
}
