//! [`Mean`] of computed numbers.

use fulmen_tensor::{AsTensor, Tensor};

use super::labels::count_all;
use super::{Metric, MetricState, Value};
use crate::precision::wide;

/// The mean of all unmasked elements; NaN if there are none.
///
/// ```
/// use fulmen_nn::metrics::Mean;
/// use fulmen_tensor::Tensor;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, f32::NAN], [3]);
/// let mean = Mean::new().update(&x).masked(&Tensor::from_slice(&[1.0f32, 1.0, 0.0], [3]));
/// assert_eq!(mean.eval()?.compute().scalar(), Some(1.5));
/// # Ok::<(), fulmen_nn::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean;

impl Mean {
    /// The mean.
    pub fn new() -> Mean {
        Mean
    }

    /// The state of a batch of floating-point numbers of any shape. Poisoned if the dtype is
    /// invalid.
    #[track_caller]
    pub fn update(&self, values: impl AsTensor) -> MetricState {
        MetricState::record(*self, "Mean", || {
            let values = values.as_tensor().live()?;
            if !values.dtype().is_float() {
                return Err(format!("needs floating-point numbers, got {}", values.ty()).into());
            }
            Ok((vec![values.clone()], values.shape().to_vec()))
        })
    }
}

impl Metric for Mean {
    fn statistics(&self, inputs: &[Tensor], mask: &Tensor) -> Vec<Tensor> {
        inputs.iter().map(|values| sum(&wide(values), mask)).chain([count_all(mask)]).collect()
    }

    fn compute(&self, sums: &[Vec<f64>]) -> Value {
        Value::Scalar(mean(sums))
    }
}

/// The sum where the mask is true. Selected rather than multiplied, because 0 times infinity would
/// be NaN.
pub(super) fn sum(values: &Tensor, mask: &Tensor) -> Tensor {
    mask.select(values, &values.zeros_like()).sum_all()
}

/// The mean from a sum and a number of samples.
pub(super) fn mean(sums: &[Vec<f64>]) -> f64 {
    match sums {
        [sum, count] => sum.first().zip(count.first()).map_or(f64::NAN, |(sum, count)| sum / count),
        _ => f64::NAN,
    }
}
