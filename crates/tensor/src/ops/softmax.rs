//! The softmax family, composed of other operations without overflow for large inputs. 16-bit
//! floats are computed as f32.

use super::dtype_set::DTypeSet;
use super::reduce::{Reducer, reductions};
use super::unary::methods;
use crate::autocast::{result_dtype, wide};
use crate::scope::Refusal;
use crate::{AsAxes, Tensor};

/// The infinities that are not subtracted as the maximum, since ∞ − ∞ is NaN.
#[derive(Clone, Copy)]
enum Infinities {
    /// For `logsumexp`, which is ∞ if an element is.
    Both,
    /// For softmax: if an element is ∞, the results are NaN, as in JAX and PyTorch.
    Negative,
}

reductions! {
    /// `log Σ exp(x)` along `axes`, which are removed (PyTorch's and SciPy's `logsumexp`); −∞ if
    /// all elements are −∞.
    ///
    /// Poisoned if the elements are not floats, or if an axis is empty.
    logsumexp, logsumexp_keepdim(axes: impl AsAxes) -> Tensor, |x, keepdim| {
        let axes = axes.as_axes();
        let largest = x.max_except(axes, Infinities::Both)?;
        let shifted = (wide(x) - &largest).exp().reduce("sum", Reducer::Sum, axes, keepdim).log();
        let largest = if keepdim { largest } else { largest.reshape(shifted.shape()) };
        Ok((shifted + largest).to_dtype(result_dtype("logsumexp", x.dtype())))
    };
}

methods! {
    /// `x − log Σ exp(x)` along one axis (PyTorch's and JAX's `log_softmax`); NaN if all elements
    /// are −∞ or one is ∞.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1000.0f32, 1000.0], [2]);
    /// assert_eq!(x.softmax(-1).eval()?.to_vec::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    log_softmax(axis: isize) -> Tensor, |x| {
        let shifted = wide(x) - x.max_except(&[axis], Infinities::Negative)?;
        let sum = shifted.exp().sum_keepdim(axis);
        Ok((shifted - sum.log()).to_dtype(result_dtype("log_softmax", x.dtype())))
    };

    /// `exp(x) / Σ exp(x)` along one axis (PyTorch's and JAX's `softmax`); NaN if all elements are
    /// −∞ or one is ∞.
    softmax(axis: isize) -> Tensor, |x| {
        let exp = (wide(x) - x.max_except(&[axis], Infinities::Negative)?).exp();
        Ok((&exp / exp.sum_keepdim(axis)).to_dtype(result_dtype("softmax", x.dtype())))
    };
}

impl Tensor {
    /// The largest element along `axes`, which stay with size 1; 0 where it is one of these
    /// infinities. It cancels out of every result, so no gradient flows through it.
    ///
    /// Without the replacement by 0, libtpu keeps the scores of attention in f32: a block over 1024
    /// positions then moves a quarter more bytes.
    fn max_except(&self, axes: &[isize], zero: Infinities) -> Result<Tensor, Refusal> {
        DTypeSet::Floats.check(self.live()?.dtype())?;
        let shape = self.shape();
        if let Some(&axis) = shape.axes(axes)?.iter().find(|&&a| shape[a] == 0) {
            return Err(format!("{shape} has no element along axis {axis}").into());
        }
        let largest = self.detach().max_keepdim(axes);
        let usable = match zero {
            Infinities::Both => largest.is_finite(),
            Infinities::Negative => largest.ne(f64::NEG_INFINITY),
        };
        Ok(usable.select(&largest, &largest.zeros_like()))
    }
}
