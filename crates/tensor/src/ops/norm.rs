//! The lengths of vectors. Compositions, whose derivative at 0 is 0.

use super::takes::Takes;
use crate::Tensor;
use crate::autocast::{result_of, wide};

impl Tensor {
    /// The `p`-norm of the elements along `axes` taken as one vector, `(Σ |x|ᵖ)^(1/p)` (PyTorch's `vector_norm`): 2 is
    /// the Euclidean, 1 the sum of magnitudes, ∞ the largest magnitude, −∞ the smallest, 0 the number of elements that
    /// are not 0. Other numbers, negative ones too, go by the formula.
    ///
    /// The derivative where the norm is 0, or of a magnitude at 0, is 0; the largest and the smallest share theirs among
    /// ties. 16-bit floats are computed as f32. The norm of nothing is 0.
    ///
    /// Poisoned if the elements are no floats, if `p` is NaN, or if an axis is none of the tensor's; with an infinite or
    /// negative `p` also if there is no element.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[3.0f32, -4.0], [2]);
    /// assert_eq!(x.norm(2.0, &[0], false).eval()?.to_vec::<f32>()?, [5.0]);
    /// assert_eq!(x.norm(f64::INFINITY, &[0], false).eval()?.to_vec::<f32>()?, [4.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn norm(&self, p: f64, axes: &[isize], keepdims: bool) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        let axes_found = match Takes::Floats.check(self.dtype()).and_then(|()| self.shape().axes(axes)) {
            Ok(found) => found,
            Err(message) => return Tensor::poison("norm", message),
        };
        if p.is_nan() {
            return Tensor::poison("norm", "p is NaN; it must be a number or an infinity");
        }
        if (p.is_infinite() || p < 0.0) && axes_found.iter().any(|&a| self.shape()[a] == 0) {
            let message =
                format!("{} has no element along the axes {axes:?}: there is no norm with p = {p}", self.ty());
            return Tensor::poison("norm", message);
        }
        let x = wide(self);
        let norm = if p == 2.0 {
            (&x * &x).sum(axes, keepdims).safe_sqrt()
        } else if p == 1.0 {
            x.abs().sum(axes, keepdims)
        } else if p == f64::INFINITY {
            x.abs().max(axes, keepdims)
        } else if p == f64::NEG_INFINITY {
            x.abs().min(axes, keepdims)
        } else if p == 0.0 {
            x.count_nonzero(axes, keepdims).to_dtype(x.dtype())
        } else {
            let zero_to_p = Tensor::full(x.dtype(), [], if p < 0.0 { f64::INFINITY } else { 0.0 });
            let sum = power(&x.abs(), p, &zero_to_p).sum(axes, keepdims);
            // 0 and ∞ to the power 1/p: each is a limit without a slope.
            let zero = Tensor::full(x.dtype(), [], if p < 0.0 { f64::INFINITY } else { 0.0 });
            power(&sum, 1.0 / p, &zero)
        };
        norm.to_dtype(result_of("norm", self.dtype()))
    }
}

/// `x` to the power `p`, but `at_zero`, without a gradient, where `x` is 0.
#[track_caller]
fn power(x: &Tensor, p: f64, at_zero: &Tensor) -> Tensor {
    let zero = x.eq(0.0);
    zero.select(at_zero, &zero.select(&x.ones_like(), x).pow(p))
}
