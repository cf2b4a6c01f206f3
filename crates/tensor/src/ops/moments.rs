//! Averages and what is spread around them: mean, variance and standard deviation. Compositions, computed as f32 where
//! the elements have 16 bits.

use super::dtype_set::DTypeSet;
use super::reduce::{Reducer, reductions};
use super::unary::methods;
use crate::autocast::{result_of, wide};
use crate::scope::Refusal;
use crate::{DType, Tensor};

methods! {
    /// The arithmetic mean of all elements: a scalar.
    mean_all() -> Tensor, |x| Ok(x.mean(&x.all_axes()));
}

impl Tensor {
    /// The number of elements along `axes` of real numbers or booleans.
    fn count_along(&self, axes: &[isize]) -> Result<f64, String> {
        DTypeSet::NumbersAndBooleans.check(self.dtype())?;
        // The largest tensor has 2^47 bytes, but one without elements may have long axes.
        let count = self.shape().axes(axes)?.iter().map(|&a| self.shape()[a]).fold(1, usize::saturating_mul);
        Ok(count as f64)
    }

    /// Itself where it is floating-point, else as f32.
    fn floating(&self) -> Tensor {
        if self.dtype().is_float() { self.clone() } else { self.to_dtype(DType::F32) }
    }

    /// Variance, or its root, for `method`.
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
        let given = self.floating();
        let from = wide(&given);
        let centred = &from - from.mean_keepdim(axes);
        let squares = (&centred * &centred).reduce(method, Reducer::Sum, axes, keepdim);
        let variance = squares / (count - correction).max(0.0);
        let spread = if root { variance.safe_sqrt() } else { variance };
        Ok(spread.to_dtype(result_of(method, given.dtype())))
    }

    /// The square root, whose derivative at 0, which is infinite, counts as 0.
    pub(super) fn safe_sqrt(&self) -> Tensor {
        let zero = self.eq(0.0);
        zero.select(&self.zeros_like(), &zero.select(&self.ones_like(), self).sqrt())
    }
}

reductions! {
    /// The arithmetic mean along `axes`; NaN over nothing. Sums 16-bit floats as f32. That of integers and of booleans is
    /// an f32, as in JAX, and so are their variance and standard deviation.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let hits = Tensor::from_slice(&[true, false, true, true], [4]);
    /// assert_eq!(hits.mean(&[0]).eval()?.to_vec::<f32>()?, [0.75]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    mean, mean_keepdim(axes: &[isize]) -> Tensor, |x, keepdim| {
        let count = x.count_along(axes)?;
        // The sum, and even the number of elements, may be too large for 16 bits.
        let from = x.floating();
        let sum = wide(&from).reduce("mean", Reducer::Sum, axes, keepdim);
        Ok((sum / count).to_dtype(result_of("mean", from.dtype())))
    };

    /// The variance along `axes`: the mean of `(x − mean)²`, divided by the number of elements (NumPy's `var`; PyTorch
    /// divides by one less unless told otherwise, see [`Tensor::var_corrected`]). Computes with 16-bit floats as f32.
    var, var_keepdim(axes: &[isize]) -> Tensor, |x, keepdim| x.spread("var", axes, 0.0, keepdim, false);

    /// The variance along `axes`: `Σ (x − mean)² / max(n − correction, 0)` of `n` elements (PyTorch's `correction`,
    /// NumPy's `ddof`). With 1 it is the unbiased estimate, PyTorch's default; NaN where `n` is no more than the
    /// correction.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 3.0], [2]);
    /// assert_eq!(x.var(&[0]).eval()?.to_vec::<f32>()?, [1.0]);
    /// assert_eq!(x.var_corrected(&[0], 1.0).eval()?.to_vec::<f32>()?, [2.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    var_corrected, var_corrected_keepdim(axes: &[isize], correction: f64) -> Tensor, |x, keepdim| {
        x.spread("var_corrected", axes, correction, keepdim, false)
    };

    /// The standard deviation along `axes`: the root of [`Tensor::var`], so divided by the number of elements. Where
    /// it is 0 so is its derivative, as PyTorch has it.
    std, std_keepdim(axes: &[isize]) -> Tensor, |x, keepdim| x.spread("std", axes, 0.0, keepdim, true);

    /// The standard deviation along `axes`: the root of [`Tensor::var_corrected`]. With a correction of 1 it is
    /// PyTorch's `std`. Where it is 0 so is its derivative.
    std_corrected, std_corrected_keepdim(axes: &[isize], correction: f64) -> Tensor, |x, keepdim| {
        x.spread("std_corrected", axes, correction, keepdim, true)
    };
}
