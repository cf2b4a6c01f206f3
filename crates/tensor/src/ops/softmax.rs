//! The softmax family, composed of other operations so that large inputs overflow nowhere. All compute with
//! 16-bit floats as f32.

use super::takes::Takes;
use crate::Tensor;
use crate::autocast::{result_of, wide};

impl Tensor {
    /// `log Σ exp(x)` along one axis, which vanishes, or stays with size 1 if `keepdims`.
    #[track_caller]
    pub fn logsumexp(&self, axis: isize, keepdims: bool) -> Tensor {
        let largest = self.largest("logsumexp", axis);
        if largest.fault().is_some() {
            return largest;
        }
        // ∞ − ∞ would be NaN, where the logarithm of a sum of nothing but e^−∞ is −∞.
        let largest = largest.is_finite().select(&largest, &largest.zeros_like());
        let shifted = (wide(self) - &largest).exp().sum(&[axis], true).log() + largest;
        let shifted = shifted.to_dtype(result_of("logsumexp", self.dtype()));
        if keepdims { shifted } else { shifted.squeeze(axis) }
    }

    /// `x − log Σ exp(x)` along one axis; NaN where all are −∞, or one is ∞.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1000.0f32, 1000.0], [2]);
    /// assert_eq!(x.softmax(-1).eval()?.to_vec::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn log_softmax(&self, axis: isize) -> Tensor {
        let shifted = wide(self) - self.largest("log_softmax", axis);
        (&shifted - shifted.exp().sum(&[axis], true).log()).to_dtype(result_of("log_softmax", self.dtype()))
    }

    /// `exp(x) / Σ exp(x)` along one axis; NaN where all are −∞, or one is ∞.
    #[track_caller]
    pub fn softmax(&self, axis: isize) -> Tensor {
        // XLA knows this pattern on TPUs, and makes one pass of it and of the product that follows. It may have nothing else
        // in it.
        let exp = (wide(self) - self.largest("softmax", axis)).exp();
        (&exp / exp.sum(&[axis], true)).to_dtype(result_of("softmax", self.dtype()))
    }

    /// The largest element along `axis`. It cancels out of each result, so no gradient flows through it.
    /// A tensor or an axis that `method` cannot take gives a fault under its name.
    #[track_caller]
    fn largest(&self, method: &'static str, axis: isize) -> Tensor {
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
        self.detach().max(&[axis], true)
    }
}
