//! [`Average`]: how the scores of classes are averaged.

use super::Value;

/// How the scores of classes are averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Average {
    /// The score of the counts of all classes together.
    Micro,
    /// The mean over the classes.
    Macro,
    /// The mean over the classes, weighted by how often each is the target. If no class is ever the
    /// target, the average is 0 for decisions, as in torchmetrics, and NaN for curves.
    Weighted,
    /// No average: a [`Value::Vector`].
    None,
}

/// The average of class scores, except `Micro`. Only classes for which `counts` is true count.
pub(super) fn average(
    average: Average,
    scores: Vec<f64>,
    support: &[f64],
    counts: impl Fn(usize) -> bool,
) -> Value {
    let mean = |weight: &dyn Fn(usize) -> f64| {
        let sum: f64 =
            (0..scores.len()).filter(|&k| weight(k) > 0.0).map(|k| weight(k) * scores[k]).sum();
        sum / (0..scores.len()).map(weight).sum::<f64>()
    };
    Value::Scalar(match average {
        Average::None => return Value::Vector(scores),
        Average::Weighted => mean(&|k| if counts(k) { support[k] } else { 0.0 }),
        Average::Macro | Average::Micro => mean(&|k| if counts(k) { 1.0 } else { 0.0 }),
    })
}

/// `a / b`, or 0 if `b` is 0.
pub(super) fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}

/// `value` with all numbers replaced by NaN.
pub(super) fn unknown(value: Value) -> Value {
    match value {
        Value::Scalar(_) => Value::Scalar(f64::NAN),
        Value::Vector(values) => Value::Vector(vec![f64::NAN; values.len()]),
        Value::Matrix(rows) => {
            Value::Matrix(rows.iter().map(|row| vec![f64::NAN; row.len()]).collect())
        }
    }
}
