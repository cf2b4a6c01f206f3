//! The lengths of vectors. Compositions, whose derivative at 0 is 0.

use super::dtype_set::DTypeSet;
use super::reduce::{Reducer, reductions};
use crate::Tensor;
use crate::autocast::{result_of, wide};
use crate::scope::Refusal;

reductions! {
    /// The `p`-norm of the elements along `axes` taken as one vector, `(Σ |x|ᵖ)^(1/p)` (PyTorch's `vector_norm`): 2 is
    /// the Euclidean, 1 the sum of magnitudes, ∞ the largest magnitude, −∞ the smallest, 0 the number of elements that
    /// are not 0. Other numbers, negative ones too, go by the formula.
    ///
    /// The derivative where the norm is 0, or of a magnitude at 0, is 0; the largest and the smallest share theirs among
    /// ties. 16-bit floats are computed as f32. The norm of nothing is 0.
    ///
    /// Poisoned if the elements are not floats, if `p` is NaN, or if the tensor has no such axis; with an infinite or
    /// negative `p` also if there is no element.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[3.0f32, -4.0], [2]);
    /// assert_eq!(x.norm(2.0, &[0]).eval()?.to_vec::<f32>()?, [5.0]);
    /// assert_eq!(x.norm(f64::INFINITY, &[0]).eval()?.to_vec::<f32>()?, [4.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    norm, norm_keepdim(p: f64, axes: &[isize]) -> Tensor, |x, keepdim| norm(x, p, axes, keepdim);
}

fn norm(given: &Tensor, p: f64, axes: &[isize], keepdim: bool) -> Result<Tensor, Refusal> {
    DTypeSet::Floats.check(given.dtype())?;
    let found = given.shape().axes(axes)?;
    if p.is_nan() {
        return Err("p is NaN; it must be a number or an infinity".into());
    }
    if (p.is_infinite() || p < 0.0) && found.iter().any(|&a| given.shape()[a] == 0) {
        let ty = given.ty();
        return Err(format!("{ty} has no element along the axes {axes:?}: there is no norm with p = {p}").into());
    }
    let x = wide(given);
    let sum = |x: &Tensor| x.reduce("sum", Reducer::Sum, axes, keepdim);
    let norm = if p == 2.0 {
        sum(&(&x * &x)).safe_sqrt()
    } else if p == 1.0 {
        sum(&x.abs())
    } else if p == f64::INFINITY {
        x.abs().extreme("max", Reducer::Max, axes, keepdim)?
    } else if p == f64::NEG_INFINITY {
        x.abs().extreme("min", Reducer::Min, axes, keepdim)?
    } else if p == 0.0 {
        sum(&x.ne(0.0).countable()).to_dtype(x.dtype())
    } else {
        // 0 and ∞ to the powers p and 1/p: each is a limit without a slope.
        let zero = Tensor::full(x.dtype(), [], if p < 0.0 { f64::INFINITY } else { 0.0 });
        power(&sum(&power(&x.abs(), p, &zero)), 1.0 / p, &zero)
    };
    Ok(norm.to_dtype(result_of("norm", given.dtype())))
}

/// `x` to the power `p`, but `at_zero`, without a gradient, where `x` is 0.
fn power(x: &Tensor, p: f64, at_zero: &Tensor) -> Tensor {
    let zero = x.eq(0.0);
    zero.select(at_zero, &zero.select(&x.ones_like(), x).pow(p))
}
