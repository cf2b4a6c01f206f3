//! The softmax family, composed of other operations so that large inputs overflow nowhere. All compute with
//! 16-bit floats as f32.

use super::takes::Takes;
use crate::Tensor;
use crate::autocast::{result_of, wide};

/// The extremes that nothing is measured from, since ∞ − ∞ would be NaN.
#[derive(Clone, Copy)]
enum Infinities {
    /// For sums, which are ∞ where an element is.
    Both,
    /// For shares of a sum: beside ∞ there are none, and each is NaN, as in JAX and PyTorch.
    Negative,
}

impl Tensor {
    /// `log Σ exp(x)` along `axes`, which vanish, or stay with size 1 if `keepdims`. −∞ where all elements are.
    ///
    /// Poisoned if the elements are no floats, or if there is none along an axis.
    #[track_caller]
    pub fn logsumexp(&self, axes: &[isize], keepdims: bool) -> Tensor {
        let largest = self.max_but("logsumexp", axes, Infinities::Both);
        if largest.fault().is_some() {
            return largest;
        }
        let shifted = (wide(self) - &largest).exp().sum(axes, keepdims).log();
        let largest = if keepdims { largest } else { largest.reshape(shifted.shape()) };
        (shifted + largest).to_dtype(result_of("logsumexp", self.dtype()))
    }

    /// `x − log Σ exp(x)` along one axis; NaN where all are −∞ or one is ∞.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1000.0f32, 1000.0], [2]);
    /// assert_eq!(x.softmax(-1).eval()?.to_vec::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn log_softmax(&self, axis: isize) -> Tensor {
        let shifted = wide(self) - self.max_but("log_softmax", &[axis], Infinities::Negative);
        (&shifted - shifted.exp().sum(&[axis], true).log()).to_dtype(result_of("log_softmax", self.dtype()))
    }

    /// `exp(x) / Σ exp(x)` along one axis; NaN where all are −∞ or one is ∞.
    #[track_caller]
    pub fn softmax(&self, axis: isize) -> Tensor {
        let exp = (wide(self) - self.max_but("softmax", &[axis], Infinities::Negative)).exp();
        (&exp / exp.sum(&[axis], true)).to_dtype(result_of("softmax", self.dtype()))
    }

    /// The largest element along `axes`, which stay with size 1, or 0 where it is one of these infinities. It cancels out of
    /// each result, so no gradient flows through it.
    /// A tensor or an axis that `method` cannot take gives a fault under its name.
    ///
    /// Without the choice of 0, libtpu takes the scores of attention for something to be kept in f32: a block over 1024
    /// positions then moves a quarter more bytes.
    #[track_caller]
    fn max_but(&self, method: &'static str, axes: &[isize], zero: Infinities) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        let found = match Takes::Floats.check(self.dtype()).and_then(|()| self.shape().axes(axes)) {
            Ok(found) => found,
            Err(message) => return Tensor::poison(method, message),
        };
        if let Some(&axis) = found.iter().find(|&&a| self.shape()[a] == 0) {
            return Tensor::poison(method, format!("{} has no element along axis {axis}", self.shape()));
        }
        let largest = self.detach().max(axes, true);
        let usable = match zero {
            Infinities::Both => largest.is_finite(),
            Infinities::Negative => largest.ne(f64::NEG_INFINITY),
        };
        usable.select(&largest, &largest.zeros_like())
    }
}
