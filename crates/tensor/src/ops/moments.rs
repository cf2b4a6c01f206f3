//! Mean, variance and standard deviation. They are composed of other operations; 16-bit elements
//! are computed as f32.

use super::dtype_set::DTypeSet;
use super::reduce::{Reducer, reductions};
use super::unary::methods;
use crate::autocast::{result_dtype, wide};
use crate::scope::Refusal;
use crate::{AsAxes, DType, Tensor};

methods! {
    /// The arithmetic mean of all elements: a scalar.
    mean_all() -> Tensor, |x| Ok(x.mean(&x.all_axes()));
}

impl Tensor {
    /// The number of elements along `axes`. An error for complex numbers.
    fn count_along(&self, axes: &[isize]) -> Result<f64, String> {
        DTypeSet::NumbersAndBooleans.check(self.dtype())?;
        // The largest tensor has 2^47 bytes, but an empty one may have long axes.
        let count = self
            .shape()
            .axes(axes)?
            .iter()
            .map(|&a| self.shape()[a])
            .fold(1, usize::saturating_mul);
        Ok(count as f64)
    }

    /// This tensor if it is floating-point, else converted to f32.
    fn floating(&self) -> Tensor {
        if self.dtype().is_float() { self.clone() } else { self.to_dtype(DType::F32) }
    }

    /// The variance, or its root, for `method`.
    fn spread(
        &self,
        method: &'static str,
        axes: &[isize],
        correction: f64,
        keepdim: bool,
        root: bool,
    ) -> Result<Tensor, Refusal> {
        let count = self.count_along(axes)?;
        if !correction.is_finite() {
            return Err(format!("the correction must be a finite number, not {correction}").into());
        }
        let floats = self.floating();
        let from = wide(&floats);
        let centered = &from - from.mean_keepdim(axes);
        let squares = (&centered * &centered).reduce(method, Reducer::Sum, axes, keepdim);
        let variance = squares / (count - correction).max(0.0);
        let spread = if root { variance.safe_sqrt() } else { variance };
        Ok(spread.to_dtype(result_dtype(method, floats.dtype())))
    }

    /// The square root, with 0 as its derivative at 0 instead of infinity.
    pub(super) fn safe_sqrt(&self) -> Tensor {
        let zero = self.eq(0.0);
        zero.select(&self.zeros_like(), &zero.select(&self.ones_like(), self).sqrt())
    }
}

reductions! {
    /// The arithmetic mean along `axes`, which are removed; NaN if there are no elements. 16-bit
    /// floats are summed as f32. The mean, variance and standard deviation of integers and booleans
    /// are f32, as in JAX.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let hits = Tensor::from_slice(&[true, false, true, true], [4]);
    /// assert_eq!(hits.mean(0).eval()?.to_vec::<f32>()?, [0.75]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    mean, mean_keepdim(axes: impl AsAxes) -> Tensor, |x, keepdim| {
        let axes = axes.as_axes();
        let count = x.count_along(axes)?;
        // The sum, and even the number of elements, may overflow 16 bits.
        let from = x.floating();
        let sum = wide(&from).reduce("mean", Reducer::Sum, axes, keepdim);
        Ok((sum / count).to_dtype(result_dtype("mean", from.dtype())))
    };

    /// The variance along `axes`, `Σ (x − mean)² / n` of `n` elements (NumPy's and JAX's `var`).
    /// PyTorch's `var` divides by `n − 1` by default: see [`Tensor::var_corrected`]. 16-bit floats
    /// are computed as f32.
    var, var_keepdim(axes: impl AsAxes) -> Tensor, |x, keepdim| x.spread("var", axes.as_axes(), 0.0, keepdim, false);

    /// The variance along `axes`: `Σ (x − mean)² / max(n − correction, 0)` of `n` elements
    /// (PyTorch's `correction`, NumPy's `ddof`). A correction of 1 gives the unbiased estimate,
    /// PyTorch's default. The result is NaN if `n` does not exceed the correction. Poisoned if the
    /// correction is not finite.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 3.0], [2]);
    /// assert_eq!(x.var(0).eval()?.to_vec::<f32>()?, [1.0]);
    /// assert_eq!(x.var_corrected(0, 1.0).eval()?.to_vec::<f32>()?, [2.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    var_corrected, var_corrected_keepdim(axes: impl AsAxes, correction: f64) -> Tensor, |x, keepdim| {
        x.spread("var_corrected", axes.as_axes(), correction, keepdim, false)
    };

    /// The standard deviation along `axes`: the root of [`Tensor::var`] (NumPy's and JAX's `std`).
    /// Where it is 0, its derivative is 0, as in PyTorch.
    std, std_keepdim(axes: impl AsAxes) -> Tensor, |x, keepdim| x.spread("std", axes.as_axes(), 0.0, keepdim, true);

    /// The standard deviation along `axes`: the root of [`Tensor::var_corrected`]. A correction of
    /// 1 gives PyTorch's `std`. Where it is 0, its derivative is 0.
    std_corrected, std_corrected_keepdim(axes: impl AsAxes, correction: f64) -> Tensor, |x, keepdim| {
        x.spread("std_corrected", axes.as_axes(), correction, keepdim, true)
    };
}
