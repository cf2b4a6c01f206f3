//! Vector norms, composed of other operations. The derivative of a [`Tensor`]'s norm at 0 is 0.

use super::dtype_set::DTypeSet;
use super::reduce::{Reducer, reductions};
use crate::as_tensor::as_tensors;
use crate::autocast::{result_dtype, wide};
use crate::scope::{Refusal, Scope};
use crate::{AsAxes, AsTensor, DType, Tensor};

reductions! {
    /// The `p`-norm `(Σ |x|ᵖ)^(1/p)` of the elements along `axes` as one vector (PyTorch's
    /// `linalg.vector_norm`). `p = 2` is the Euclidean norm, 1 the sum of magnitudes, ∞ the largest
    /// magnitude, −∞ the smallest, and 0 the number of nonzero elements. All other values of `p`,
    /// also negative ones, follow the formula.
    ///
    /// Where the norm is 0, or an element is 0, the derivative is 0. Elements that tie for the
    /// largest or smallest magnitude share the gradient. 16-bit floats are computed as f32. Powers
    /// that overflow do not make the norm infinite. The norm of no elements is 0.
    ///
    /// Poisoned if the elements are not floats, if `p` is NaN, or if the tensor has no such axis.
    /// If `p` is infinite or negative, it is also poisoned if an axis is empty.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[3.0f32, -4.0], [2]);
    /// assert_eq!(x.norm(2.0, 0).eval()?.to_vec::<f32>()?, [5.0]);
    /// assert_eq!(x.norm(f64::INFINITY, 0).eval()?.to_vec::<f32>()?, [4.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    norm, norm_keepdim(p: f64, axes: impl AsAxes) -> Tensor, |x, keepdim| norm(x, p, axes.as_axes(), keepdim);
}

fn norm(operand: &Tensor, p: f64, axes: &[isize], keepdim: bool) -> Result<Tensor, Refusal> {
    DTypeSet::Floats.check(operand.dtype())?;
    let checked_axes = operand.shape().axes(axes)?;
    if p.is_nan() {
        return Err("p is NaN; it must be a number or an infinity".into());
    }
    if (p.is_infinite() || p < 0.0) && checked_axes.iter().any(|&a| operand.shape()[a] == 0) {
        let ty = operand.ty();
        return Err(format!(
            "{ty} has no element along the axes {axes:?}: there is no norm with p = {p}"
        )
        .into());
    }
    let x = wide(operand);
    let sum = |x: &Tensor| x.reduce("sum", Reducer::Sum, axes, keepdim);
    let norm = if p == 2.0 {
        let small = Tensor::full(x.dtype(), [], small_factor(x.dtype()));
        let squares = sum(&(&x * &x));
        let scaled = &x * &small;
        let scaled_root = sum(&(&scaled * &scaled)).safe_sqrt() / small;
        squares.is_finite().select(&squares.safe_sqrt(), &scaled_root)
    } else if p == 1.0 {
        sum(&x.abs())
    } else if p == f64::INFINITY {
        x.abs().extreme("max", Reducer::Max, axes, keepdim)?
    } else if p == f64::NEG_INFINITY {
        x.abs().extreme("min", Reducer::Min, axes, keepdim)?
    } else if p == 0.0 {
        sum(&x.ne(0.0).countable()).to_dtype(x.dtype())
    } else {
        // 0 and ∞ to the powers p and 1/p are limits, without a derivative.
        let zero = Tensor::full(x.dtype(), [], if p < 0.0 { f64::INFINITY } else { 0.0 });
        let unit = unit(&x, p, axes)?;
        let powers = sum(&power(&(x.abs() / &unit), p, &zero));
        power(&powers, 1.0 / p, &zero) * unit.reshape(powers.shape().dims())
    };
    Ok(norm.to_dtype(result_dtype("norm", operand.dtype())))
}

/// A power of two so small that squares of floats times it do not overflow, even in a long sum.
fn small_factor(dtype: DType) -> f64 {
    2f64.powi(if dtype == DType::F64 { -600 } else { -80 })
}

/// The magnitude along the axes, kept with size 1, whose power is the largest: the sum of powers of
/// elements divided by it neither overflows nor vanishes. 1 if it is 0, infinite or NaN. A constant
/// for the derivative.
fn unit(x: &Tensor, p: f64, axes: &[isize]) -> Result<Tensor, Refusal> {
    let magnitudes = x.detach().abs();
    if magnitudes.shape().num_elements() == 0 {
        return Ok(magnitudes.reduce("sum", Reducer::Sum, axes, true).ones_like());
    }
    let reducer = if p > 0.0 { Reducer::Max } else { Reducer::Min };
    let unit = magnitudes.extreme("norm", reducer, axes, true)?;
    let is_usable = unit.is_finite().and(unit.gt(0.0));
    Ok(is_usable.select(&unit, &unit.ones_like()))
}

/// The Euclidean norm of all elements of these tensors together, a scalar: of the first tensor's
/// dtype, f32 or f64, or f32 if there are none. Squares that overflow do not make it infinite.
///
/// Both sums read the elements once: a compiler for TPUs computes them together.
#[track_caller]
pub fn global_norm(tensors: &[impl AsTensor]) -> Tensor {
    let _scope = Scope::open();
    let tensors = as_tensors(tensors);
    let dtype = tensors.first().map_or(DType::F32, |x| x.dtype());
    let factor = small_factor(dtype);
    let total = |square: &dyn Fn(&Tensor) -> Tensor| {
        let squares = tensors.iter().map(|x| square(x).sum_all());
        squares.fold(Tensor::full(dtype, [], 0.0), |sum, square| sum + square)
    };
    let squares = total(&|x| x * x);
    let scaled = total(&|x| {
        let small = x * factor;
        &small * &small
    });
    squares.is_finite().select(&squares.sqrt(), &(scaled.sqrt() / factor))
}

/// `x` to the power `p`; `at_zero`, without a gradient, where `x` is 0.
fn power(x: &Tensor, p: f64, at_zero: &Tensor) -> Tensor {
    let zero = x.eq(0.0);
    zero.select(at_zero, &zero.select(&x.ones_like(), x).pow(p))
}
