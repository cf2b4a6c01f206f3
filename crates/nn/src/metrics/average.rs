//! [`Average`]: how the scores of the classes become one.

use super::Value;

/// How the scores of the classes become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Average {
    /// The score of all classes' counts together.
    Micro,
    /// The mean over the classes.
    Macro,
    /// The mean over the classes, each weighted by how often it is the target. Where no label ever is, 0 of decisions, as
    /// in torchmetrics, and NaN of curves.
    Weighted,
    /// Each for itself: a [`Value::Vector`].
    None,
}

/// The scores of classes under an average that is not `Micro`. A class counts where `counts` says so.
pub(super) fn average(average: Average, scores: Vec<f64>, support: &[f64], counts: impl Fn(usize) -> bool) -> Value {
    let mean = |weight: &dyn Fn(usize) -> f64| {
        let sum: f64 = (0..scores.len()).filter(|&k| weight(k) > 0.0).map(|k| weight(k) * scores[k]).sum();
        sum / (0..scores.len()).map(weight).sum::<f64>()
    };
    Value::Scalar(match average {
        Average::None => return Value::Vector(scores),
        Average::Weighted => mean(&|k| if counts(k) { support[k] } else { 0.0 }),
        Average::Macro | Average::Micro => mean(&|k| if counts(k) { 1.0 } else { 0.0 }),
    })
}

/// `a / b`, and 0 where there is nothing to divide by.
pub(super) fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}

/// `value` with NaN for each of its numbers.
pub(super) fn unknown(value: Value) -> Value {
    match value {
        Value::Scalar(_) => Value::Scalar(f64::NAN),
        Value::Vector(values) => Value::Vector(vec![f64::NAN; values.len()]),
        Value::Matrix(rows) => Value::Matrix(rows.iter().map(|row| vec![f64::NAN; row.len()]).collect()),
    }
}
