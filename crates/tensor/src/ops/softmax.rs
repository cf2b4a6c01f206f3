//! The softmax family, composed of other operations so that large inputs overflow nowhere. All compute with
//! 16-bit floats as f32.

use super::takes::Takes;
use crate::Tensor;
use crate::autocast::{result_of, wide};

impl Tensor {
    /// `log Σ exp(x)` along one axis, which vanishes, or stays with size 1 if `keepdims`.
    #[track_caller]
    pub fn logsumexp(&self, axis: isize, keepdims: bool) -> Tensor {
        let largest = self.finite_max("logsumexp", axis);
        if largest.fault().is_some() {
            return largest;
        }
        let shifted = (wide(self) - &largest).exp().sum(&[axis], true).log() + largest;
        let shifted = shifted.to_dtype(result_of("logsumexp", self.dtype()));
        if keepdims { shifted } else { shifted.squeeze(axis) }
    }

    /// `x − log Σ exp(x)` along one axis; NaN where all are −∞.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1000.0f32, 1000.0], [2]);
    /// assert_eq!(x.softmax(-1).eval()?.to_vec::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn log_softmax(&self, axis: isize) -> Tensor {
        let shifted = wide(self) - self.finite_max("log_softmax", axis);
        (&shifted - shifted.exp().sum(&[axis], true).log()).to_dtype(result_of("log_softmax", self.dtype()))
    }

    /// `exp(x) / Σ exp(x)` along one axis; NaN where all are −∞.
    #[track_caller]
    pub fn softmax(&self, axis: isize) -> Tensor {
        let exp = (wide(self) - self.finite_max("softmax", axis)).exp();
        (&exp / exp.sum(&[axis], true)).to_dtype(result_of("softmax", self.dtype()))
    }

    /// The largest element along `axis`, or 0 where that is infinite, since ∞ − ∞ would be NaN. It cancels out of each
    /// result, so no gradient flows through it.
    /// A tensor or an axis that `method` cannot take gives a fault under its name.
    ///
    /// Without the choice of 0, libtpu takes the scores of attention for something to be kept in f32: a block over 1024
    /// positions then moves a quarter more bytes.
    #[track_caller]
    fn finite_max(&self, method: &'static str, axis: isize) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        let size = match Takes::Floats.check(self.dtype()).and_then(|()| self.shape().axis(axis)) {
            Ok(axis) => self.shape()[axis],
            Err(message) => return Tensor::poison(method, message),
        };
        if size == 0 {
            return Tensor::poison(method, format!("{} has no element along axis {axis}", self.shape()));
        }
        let largest = self.detach().max(&[axis], true);
        largest.is_finite().select(&largest, &largest.zeros_like())
    }
}
