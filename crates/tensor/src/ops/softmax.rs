//! The softmax family, composed of other operations so that large inputs overflow nowhere. All compute with
//! 16-bit floats as f32.

use super::dtype_set::DTypeSet;
use super::reduce::{Reducer, reductions};
use super::unary::methods;
use crate::Tensor;
use crate::autocast::{result_of, wide};
use crate::scope::Refusal;

/// The extremes that nothing is measured from, since ∞ − ∞ would be NaN.
#[derive(Clone, Copy)]
enum Infinities {
    /// For sums, which are ∞ where an element is.
    Both,
    /// For shares of a sum: with ∞ in the row there are none, and each is NaN, as in JAX and PyTorch.
    Negative,
}

reductions! {
    /// `log Σ exp(x)` along `axes`, which vanish. −∞ where all elements are.
    ///
    /// Poisoned if the elements are not floats, or if there is none along an axis.
    logsumexp, logsumexp_keepdim(axes: &[isize]) -> Tensor, |x, keepdim| {
        let largest = x.max_but(axes, Infinities::Both)?;
        let shifted = (wide(x) - &largest).exp().reduce("sum", Reducer::Sum, axes, keepdim).log();
        let largest = if keepdim { largest } else { largest.reshape(shifted.shape()) };
        Ok((shifted + largest).to_dtype(result_of("logsumexp", x.dtype())))
    };
}

methods! {
    /// `x − log Σ exp(x)` along one axis; NaN where all are −∞ or one is ∞.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1000.0f32, 1000.0], [2]);
    /// assert_eq!(x.softmax(-1).eval()?.to_vec::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    log_softmax(axis: isize) -> Tensor, |x| {
        let shifted = wide(x) - x.max_but(&[axis], Infinities::Negative)?;
        let sum = shifted.exp().sum_keepdim(&[axis]);
        Ok((shifted - sum.log()).to_dtype(result_of("log_softmax", x.dtype())))
    };

    /// `exp(x) / Σ exp(x)` along one axis; NaN where all are −∞ or one is ∞.
    softmax(axis: isize) -> Tensor, |x| {
        let exp = (wide(x) - x.max_but(&[axis], Infinities::Negative)?).exp();
        Ok((&exp / exp.sum_keepdim(&[axis])).to_dtype(result_of("softmax", x.dtype())))
    };
}

impl Tensor {
    /// The largest element along `axes`, which stay with size 1, or 0 where it is one of these infinities. It cancels out of
    /// each result, so no gradient flows through it.
    ///
    /// Without the choice of 0, libtpu takes the scores of attention for something to be kept in f32: a block over 1024
    /// positions then moves a quarter more bytes.
    fn max_but(&self, axes: &[isize], zero: Infinities) -> Result<Tensor, Refusal> {
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
