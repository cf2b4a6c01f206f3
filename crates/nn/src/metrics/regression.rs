//! Metrics of predicted numbers: squared and absolute error, and the coefficient of determination.

use fulmen_tensor::{AsTensor, DType, Refusal, Tensor};

use super::labels::count_all;
use super::mean::{mean, sum};
use super::{Metric, MetricState, Value};
use crate::library::live;
use crate::precision::{precision, wide};

/// A prediction and a target of the same shape, in the dtype of the computation; or a poisoned
/// tensor.
fn pair(prediction: &Tensor, target: &Tensor) -> Result<(Tensor, Tensor), Refusal> {
    live(&[prediction, target])?;
    if !prediction.dtype().is_float() || prediction.shape() != target.shape() {
        let message = format!(
            "needs floating-point predictions and targets of their shape, got {} and {}",
            prediction.ty(),
            target.ty()
        );
        return Err(message.into());
    }
    Ok((wide(prediction), target.to_dtype(precision(prediction.dtype()))))
}

/// The mean of `(prediction − target)²` over all elements, or its square root.
///
/// ```
/// use fulmen_nn::metrics::MeanSquaredError;
/// use fulmen_tensor::{DType, Tensor};
/// let x = Tensor::from_slice(&[3.0f32, -4.0], [2]);
/// let y = Tensor::zeros(DType::F32, [2]);
/// assert_eq!(MeanSquaredError::new().update(&x, &y).eval()?.compute().scalar(), Some(12.5));
/// assert_eq!(MeanSquaredError::new().squared(false).update(&x, &y).eval()?.compute().scalar(), Some(12.5f64.sqrt()));
/// # Ok::<(), fulmen_nn::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct MeanSquaredError {
    squared: bool,
}

impl MeanSquaredError {
    /// The mean of the squares.
    pub fn new() -> MeanSquaredError {
        MeanSquaredError { squared: true }
    }

    /// Whether the value is the mean of the squares, or its root (RMSE).
    pub fn squared(mut self, squared: bool) -> MeanSquaredError {
        self.squared = squared;
        self
    }

    /// The state of a batch: floating-point predictions and targets of the same shape. Poisoned if
    /// shapes or dtypes are invalid.
    #[track_caller]
    pub fn update(&self, prediction: impl AsTensor, target: impl AsTensor) -> MetricState {
        MetricState::record(*self, "MeanSquaredError", || {
            let (prediction, target) = pair(prediction.as_tensor(), target.as_tensor())?;
            let difference = prediction - target;
            Ok((vec![&difference * &difference], difference.shape().to_vec()))
        })
    }
}

impl Default for MeanSquaredError {
    fn default() -> MeanSquaredError {
        MeanSquaredError::new()
    }
}

impl Metric for MeanSquaredError {
    fn statistics(&self, inputs: &[Tensor], mask: &Tensor) -> Vec<Tensor> {
        inputs.iter().map(|errors| sum(errors, mask)).chain([count_all(mask)]).collect()
    }

    fn compute(&self, sums: &[Vec<f64>]) -> Value {
        let mean = mean(sums);
        Value::Scalar(if self.squared { mean } else { mean.sqrt() })
    }
}

/// The mean of `|prediction − target|` over all elements.
///
/// ```
/// use fulmen_nn::metrics::MeanAbsoluteError;
/// use fulmen_tensor::{DType, Tensor};
/// let x = Tensor::from_slice(&[3.0f32, -4.0], [2]);
/// let y = Tensor::zeros(DType::F32, [2]);
/// assert_eq!(MeanAbsoluteError::new().update(&x, &y).eval()?.compute().scalar(), Some(3.5));
/// # Ok::<(), fulmen_nn::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeanAbsoluteError;

impl MeanAbsoluteError {
    /// The mean.
    pub fn new() -> MeanAbsoluteError {
        MeanAbsoluteError
    }

    /// The state of a batch: floating-point predictions and targets of the same shape. Poisoned if
    /// shapes or dtypes are invalid.
    #[track_caller]
    pub fn update(&self, prediction: impl AsTensor, target: impl AsTensor) -> MetricState {
        MetricState::record(*self, "MeanAbsoluteError", || {
            let (prediction, target) = pair(prediction.as_tensor(), target.as_tensor())?;
            let errors = (prediction - target).abs();
            Ok((vec![errors.clone()], errors.shape().to_vec()))
        })
    }
}

impl Metric for MeanAbsoluteError {
    fn statistics(&self, inputs: &[Tensor], mask: &Tensor) -> Vec<Tensor> {
        inputs.iter().map(|errors| sum(errors, mask)).chain([count_all(mask)]).collect()
    }

    fn compute(&self, sums: &[Vec<f64>]) -> Value {
        Value::Scalar(mean(sums))
    }
}

/// `R² = 1 − Σ(target − prediction)² / Σ(target − mean target)²` for predictions `[samples]`, or
/// the mean over outputs for predictions `[samples, outputs]`. If all targets are equal, it is 1
/// for exact predictions, else 0.
///
/// The variance of the targets is the difference of two sums, which have about 14 digits. If it is
/// below the rounding error, `2⁻⁴⁰` (or, for many samples, `2⁻⁴⁶` times their number) of the sum of
/// squared targets, it counts as zero. Center targets whose mean is a million times larger than
/// their spread.
///
/// ```
/// use fulmen_nn::metrics::R2Score;
/// use fulmen_tensor::Tensor;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 4.0], [3]);
/// let y = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]);
/// assert_eq!(R2Score::new().update(&x, &y).eval()?.compute().scalar(), Some(0.5));
/// # Ok::<(), fulmen_nn::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct R2Score;

impl R2Score {
    /// The score.
    pub fn new() -> R2Score {
        R2Score
    }

    /// The state of a batch: floating-point predictions and targets of the same shape, `[samples]`
    /// or `[samples, outputs]`. Poisoned if shapes or dtypes are invalid.
    #[track_caller]
    pub fn update(&self, prediction: impl AsTensor, target: impl AsTensor) -> MetricState {
        MetricState::record(*self, "R2Score", || {
            let (prediction, target) = pair(prediction.as_tensor(), target.as_tensor())?;
            let (samples, outputs) = match *prediction.shape().dims() {
                [samples] => (samples, 1),
                [samples, outputs] => (samples, outputs),
                _ => {
                    let ty = prediction.ty();
                    return Err(format!(
                        "needs predictions [samples] or [samples, outputs], got {ty}"
                    )
                    .into());
                }
            };
            let inputs = [prediction, target].map(|x| x.reshape([samples, outputs]));
            Ok((inputs.to_vec(), vec![samples]))
        })
    }
}

impl Metric for R2Score {
    fn statistics(&self, inputs: &[Tensor], mask: &Tensor) -> Vec<Tensor> {
        let [prediction, target] = inputs else { return Vec::new() };
        let real = mask.reshape([mask.size(0), 1]);
        let error = target - prediction;
        let sum = |x: &Tensor| real.select(x, &x.zeros_like()).sum(0);
        let target = target.to_dtype(DType::F64);
        let [high, low] = halves(&sum(&target));
        let [high_square, low_square] = halves(&sum(&(&target * &target)));
        vec![high, low, high_square, low_square, sum(&(&error * &error)), count_all(mask)]
    }

    fn compute(&self, sums: &[Vec<f64>]) -> Value {
        let [high, low, high_squares, low_squares, errors, count] = sums else {
            return Value::Scalar(f64::NAN);
        };
        let outputs = errors.len();
        let Some(&count) = count.first() else { return Value::Scalar(f64::NAN) };
        if count == 0.0
            || [high, low, high_squares, low_squares].iter().any(|sums| sums.len() != outputs)
        {
            return Value::Scalar(f64::NAN);
        }
        let rounding = (-40f64).exp2().max(count * (-46f64).exp2());
        let score = |k: usize| {
            let sum = high[k] + low[k];
            let squares = high_squares[k] + low_squares[k];
            let spread = squares - sum * sum / count;
            match (spread > squares * rounding, errors[k] == 0.0) {
                (true, _) => 1.0 - errors[k] / spread,
                (false, true) => 1.0,
                // NaN takes none of these branches.
                (false, false) => {
                    if spread.is_nan() {
                        f64::NAN
                    } else {
                        0.0
                    }
                }
            }
        };
        Value::Scalar((0..outputs).map(score).sum::<f64>() / outputs as f64)
    }
}

/// Splits an f64 sum into two f32 sums by masking bits. A compiler may remove a conversion to f32
/// and back, and the second sum would be 0.
pub(super) fn halves(sum: &Tensor) -> [Tensor; 2] {
    let high = sum
        .to_dtype(DType::F32)
        .bitcast(DType::U32)
        .and(f64::from(0xFFFF_FFFEu32))
        .bitcast(DType::F32);
    let low = (sum - high.to_dtype(DType::F64)).to_dtype(DType::F32);
    [high, low]
}
