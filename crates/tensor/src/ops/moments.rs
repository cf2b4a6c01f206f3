//! Averages and what is spread around them: mean, variance and standard deviation. Compositions, computed as f32 where
//! the elements have 16 bits.

use super::reduce::Reducer;
use super::takes::Takes;
use crate::autocast::{result_of, wide};
use crate::{DType, Tensor};

impl Tensor {
    /// The number of elements along `axes`, or a fault under the name of `method`, which takes real numbers and booleans.
    #[track_caller]
    fn count_along(&self, method: &str, axes: &[isize]) -> Result<usize, Tensor> {
        if self.fault().is_some() {
            return Err(self.clone());
        }
        match Takes::NumbersAndBooleans.check(self.dtype()).and_then(|()| self.shape().axes(axes)) {
            // The largest tensor has 2^47 bytes, but one without elements may have long axes.
            Ok(found) => Ok(found.iter().map(|&a| self.shape()[a]).fold(1, usize::saturating_mul)),
            Err(message) => Err(Tensor::poison(method, message)),
        }
    }

    /// Itself where it is floating-point, else as f32.
    #[track_caller]
    fn floating(&self) -> Tensor {
        if self.dtype().is_float() { self.clone() } else { self.to_dtype(DType::F32) }
    }

    /// The arithmetic mean along `axes`; NaN over nothing. Sums 16-bit floats as f32. That of integers and of booleans is
    /// an f32, as in JAX, and so are their variance and standard deviation.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let hits = Tensor::from_slice(&[true, false, true, true], [4]);
    /// assert_eq!(hits.mean(&[0], false).eval()?.to_vec::<f32>()?, [0.75]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn mean(&self, axes: &[isize], keepdims: bool) -> Tensor {
        match self.count_along("mean", axes) {
            Ok(count) => {
                // The sum, and even the number of elements, may be too large for 16 bits.
                let from = self.floating();
                let sum = wide(&from).reduce("mean", Reducer::Sum, axes, keepdims);
                (sum / count as f64).to_dtype(result_of("mean", from.dtype()))
            }
            Err(poisoned) => poisoned,
        }
    }

    /// The arithmetic mean of all elements: a scalar.
    #[track_caller]
    pub fn mean_all(&self) -> Tensor {
        self.mean(&self.all_axes(), false)
    }

    /// The variance along `axes`: the mean of `(x − mean)²`, divided by the number of elements (NumPy's `var`; PyTorch
    /// divides by one less unless told otherwise, see [`Tensor::var_corrected`]). Computes with 16-bit floats as f32.
    #[track_caller]
    pub fn var(&self, axes: &[isize], keepdims: bool) -> Tensor {
        self.spread("var", axes, 0.0, keepdims, false)
    }

    /// The variance along `axes`: `Σ (x − mean)² / max(n − correction, 0)` of `n` elements (PyTorch's `correction`,
    /// NumPy's `ddof`). With 1 it is the unbiased estimate, PyTorch's default; NaN where `n` is no more than the
    /// correction.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 3.0], [2]);
    /// assert_eq!(x.var(&[0], false).eval()?.to_vec::<f32>()?, [1.0]);
    /// assert_eq!(x.var_corrected(&[0], 1.0, false).eval()?.to_vec::<f32>()?, [2.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn var_corrected(&self, axes: &[isize], correction: f64, keepdims: bool) -> Tensor {
        self.spread("var_corrected", axes, correction, keepdims, false)
    }

    /// The standard deviation along `axes`: the root of [`Tensor::var`], so divided by the number of elements. Where
    /// it is 0 so is its derivative, as PyTorch has it.
    #[track_caller]
    pub fn std(&self, axes: &[isize], keepdims: bool) -> Tensor {
        self.spread("std", axes, 0.0, keepdims, true)
    }

    /// The standard deviation along `axes`: the root of [`Tensor::var_corrected`]. With a correction of 1 it is
    /// PyTorch's `std`. Where it is 0 so is its derivative.
    #[track_caller]
    pub fn std_corrected(&self, axes: &[isize], correction: f64, keepdims: bool) -> Tensor {
        self.spread("std_corrected", axes, correction, keepdims, true)
    }

    /// Variance, or its root, for `method`.
    #[track_caller]
    fn spread(&self, method: &'static str, axes: &[isize], correction: f64, keepdims: bool, root: bool) -> Tensor {
        let count = match self.count_along(method, axes) {
            Ok(count) => count as f64,
            Err(poisoned) => return poisoned,
        };
        if !correction.is_finite() {
            return Tensor::poison(method, format!("the correction {correction} is no number"));
        }
        let given = self.floating();
        let from = wide(&given);
        let centred = &from - from.mean(axes, true);
        let squares = (&centred * &centred).reduce(method, Reducer::Sum, axes, keepdims);
        let variance = squares / (count - correction).max(0.0);
        let spread = if root { variance.safe_sqrt() } else { variance };
        spread.to_dtype(result_of(method, given.dtype()))
    }

    /// The square root, whose derivative at 0, which is infinite, counts as 0.
    #[track_caller]
    pub(super) fn safe_sqrt(&self) -> Tensor {
        let zero = self.eq(0.0);
        zero.select(&self.zeros_like(), &zero.select(&self.ones_like(), self).sqrt())
    }
}
