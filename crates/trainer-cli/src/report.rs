//! The results of a command, as text and as JSON.

use std::path::Path;
use std::time::Duration;

use fulmen_trainer::{FitSummary, LogPoint, LoggedArray, Trainer};
use serde_json::{Map, Value, json};

fn metrics_json(point: &LogPoint) -> Value {
    let scalars = point.metrics.iter().map(|(name, value)| (name.clone(), json!(value)));
    let arrays = point.arrays.iter().map(|(name, value)| (name.clone(), array_json(value)));
    scalars.chain(arrays).collect::<Map<_, _>>().into()
}

fn array_json(value: &LoggedArray) -> Value {
    match value {
        LoggedArray::Vector(values) => json!(values),
        LoggedArray::Matrix(rows) => json!(rows),
    }
}

/// The results of a fit and of the test after it. `test_accuracy` is the test's metric of that
/// name, or `test_acc`.
pub(crate) fn fit(
    trainer: &Trainer,
    fit: &FitSummary,
    tested: Option<&LogPoint>,
    before_fit: Duration,
) -> Value {
    let accuracy =
        tested.and_then(|point| point.get("test_accuracy").or_else(|| point.get("test_acc")));
    json!({
        "test_accuracy": accuracy,
        "test": tested.map(metrics_json),
        "train_loss": fit.train_loss,
        "steps": fit.global_step,
        "epochs": fit.epochs,
        "interrupted": fit.interrupted,
        "signal": fit.signal.map(|signal| signal.to_string()),
        "train_compilations": fit.train_compilations,
        "eval_compilations": trainer.eval_compilations(),
        "device_to_host_transfers": trainer.device_to_host_transfers(),
        "log_points": trainer.log_points(),
        "images_per_second": fit.samples_per_second,
        "step_ms_p50": fit.step_time_p50.as_secs_f64() * 1e3,
        "data_wait_share": fit.data_wait_share,
        "bad_samples": fit.bad_samples,
        "time_to_first_step_s": (before_fit + fit.time_to_first_step).as_secs_f64(),
        "accelerator": trainer.runtime().client().platform_name(),
        "devices": trainer.num_devices(),
        "precision": trainer.precision().name(),
    })
}

/// The results of a validation or a test.
pub(crate) fn evaluation(trainer: &Trainer, point: &LogPoint) -> Value {
    json!({
        "metrics": metrics_json(point),
        "eval_compilations": trainer.eval_compilations(),
        "accelerator": trainer.runtime().client().platform_name(),
        "devices": trainer.num_devices(),
        "precision": trainer.precision().name(),
    })
}

/// The results of a prediction.
pub(crate) fn predictions(trainer: &Trainer, samples: usize, output: &Path) -> Value {
    json!({
        "predictions": samples,
        "output": output.to_string_lossy(),
        "eval_compilations": trainer.eval_compilations(),
        "accelerator": trainer.runtime().client().platform_name(),
        "devices": trainer.num_devices(),
        "precision": trainer.precision().name(),
    })
}
