//! Continuous distributions, computed from uniform numbers in the same way as in JAX.
//!
//! 16-bit floats are drawn as f32 and rounded. JAX draws them with only as many bits as they have,
//! so that a normal bf16 draw has 128 values. The f32 and f64 numbers equal JAX's.

use std::cmp::Ordering;
use std::f64::consts::SQRT_2;

use super::{draw, draw_long};
use crate::scope::Refusal;
use crate::{AsTensor, DType, Shape, Tensor};

/// The dtype in which numbers of `dtype` are drawn.
pub(super) fn drawn_as(dtype: DType) -> Result<DType, String> {
    match dtype {
        DType::F64 => Ok(DType::F64),
        dtype if dtype.is_float() => Ok(DType::F32),
        _ => Err(format!("draws floating-point numbers, not {dtype}")),
    }
}

/// Uniform numbers in [0, 1): multiples of 2⁻²³ for f32, of 2⁻⁵² for f64.
pub(super) fn unit(key: &Tensor, dtype: DType, shape: Shape) -> Result<Tensor, Refusal> {
    if dtype == DType::F64 {
        // Converted by value, since TPUs cannot bitcast to f64.
        return Ok(
            draw_long(key, shape)?.shift_right_logical(12.0).to_dtype(DType::F64) * f64::EPSILON
        );
    }
    Ok(unit_of_bits(&draw(key, shape)?))
}

/// The f32 number in [0, 1) of each element of `bits`, which are u32.
pub(super) fn unit_of_bits(bits: &Tensor) -> Tensor {
    // The exponent of 1 with 23 random bits as the mantissa is a number in [1, 2).
    let mantissa = bits.shift_right_logical(9.0);
    mantissa.or(Tensor::full(DType::U32, [], f64::from(1.0f32.to_bits()))).bitcast(DType::F32) - 1.0
}

/// Uniform numbers from `low` to `high`: `low + (high − low)·u` (JAX's `random.uniform`). `u` is a
/// multiple of 2⁻²³ in [0, 1), computed as f32 and converted to `dtype`. For f64 it is a multiple
/// of 2⁻⁵², computed as f64.
///
/// The numbers include `low`. They include `high` only by rounding: in f32 between large bounds
/// that are close to each other (1e6 and 1e6 + 1), or in a 16-bit `dtype`.
///
/// Poisoned if `dtype` is not a floating-point type, if `low` is not below `high` after both are
/// rounded to f32, or if their difference overflows f32. For an f64 draw, f64 replaces f32.
#[track_caller]
pub fn uniform(
    key: impl AsTensor,
    dtype: DType,
    shape: impl Into<Shape>,
    low: f64,
    high: f64,
) -> Tensor {
    Tensor::record("uniform", || draw_uniform(key.as_tensor(), dtype, shape.into(), low, high))
}

/// The implementation of [`uniform`].
pub(super) fn draw_uniform(
    key: &Tensor,
    dtype: DType,
    shape: Shape,
    low: f64,
    high: f64,
) -> Result<Tensor, Refusal> {
    let wide = drawn_as(dtype)?;
    let low_wide = low;
    let high_wide = high;
    let round = |x: f64| if wide == DType::F64 { x } else { f64::from(x as f32) };
    let low = round(low);
    let high = round(high);
    if low.partial_cmp(&high) != Some(Ordering::Less) {
        let note = if low_wide < high_wide { ", also when both are f32" } else { "" };
        return Err(format!(
            "the lower bound {low_wide} must be below the upper, {high_wide}{note}"
        )
        .into());
    }
    if !round(high - low).is_finite() {
        return Err(format!(
            "the bounds {low_wide} and {high_wide} differ by more than {wide} can represent"
        )
        .into());
    }
    let sample = (unit(key, wide, shape)? * (high - low) + low).maximum(low);
    Ok(sample.to_dtype(dtype))
}

/// Numbers from the normal distribution with mean 0 and variance 1: `√2 · erf⁻¹(u)` for uniform `u`
/// in (−1, 1) (JAX's `random.normal`).
///
/// Poisoned if `dtype` is not a floating-point type.
#[track_caller]
pub fn normal(key: impl AsTensor, dtype: DType, shape: impl Into<Shape>) -> Tensor {
    Tensor::record("normal", || {
        let wide = drawn_as(dtype)?;
        // The next number above −1 is half an epsilon away.
        let epsilon = if wide == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        let u = draw_uniform(key.as_tensor(), wide, shape.into(), epsilon / 2.0 - 1.0, 1.0)?;
        Ok((u.erf_inv() * SQRT_2).to_dtype(dtype))
    })
}

/// Numbers from the normal distribution with mean 0 and variance 1, truncated to the open interval
/// from `lower` to `upper`: `√2 · erf⁻¹(u)` for uniform `u` between `erf(lower/√2)` and
/// `erf(upper/√2)` (JAX's `random.truncated_normal`).
///
/// For bounds far from 0, both values of `erf` are equal, and so are all drawn numbers.
///
/// Poisoned if `dtype` is not a floating-point type, or if `lower` is not below `upper`; either may
/// be infinite.
///
/// ```
/// use fulmen_tensor::{DType, random};
/// let w = random::truncated_normal(&random::key(0), DType::F32, [100], -2.0, 2.0).eval()?.to_vec::<f32>()?;
/// assert!(w.iter().all(|w| (-2.0..2.0).contains(w)));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn truncated_normal(
    key: impl AsTensor,
    dtype: DType,
    shape: impl Into<Shape>,
    lower: f64,
    upper: f64,
) -> Tensor {
    Tensor::record("truncated_normal", || {
        let key = key.as_tensor();
        let wide = drawn_as(dtype)?;
        if lower.partial_cmp(&upper) != Some(Ordering::Less) {
            return Err(format!("the lower bound {lower} must be below the upper, {upper}").into());
        }
        let (least, most) = match wide {
            DType::F64 => (lower.next_up(), upper.next_down()),
            _ => (f64::from((lower as f32).next_up()), f64::from((upper as f32).next_down())),
        };
        let low = Tensor::full(wide, [], lower);
        let high = Tensor::full(wide, [], upper);
        let low = (low / SQRT_2).erf();
        let high = (high / SQRT_2).erf();
        let u = (unit(key, wide, shape.into())? * (high - &low) + &low).maximum(&low);
        Ok((u.erf_inv() * SQRT_2).maximum(least).minimum(most).to_dtype(dtype))
    })
}

/// Numbers from the standard Gumbel distribution: `−log(−log(u))` for uniform `u` in (0, 1) (JAX's
/// `random.gumbel`). The index of the largest element of `x + gumbel` is distributed as
/// `softmax(x)`: see [`categorical`](super::categorical).
///
/// Poisoned if `dtype` is not a floating-point type.
#[track_caller]
pub fn gumbel(key: impl AsTensor, dtype: DType, shape: impl Into<Shape>) -> Tensor {
    Tensor::record("gumbel", || draw_gumbel(key.as_tensor(), dtype, shape.into()))
}

/// The implementation of [`gumbel`].
pub(super) fn draw_gumbel(key: &Tensor, dtype: DType, shape: Shape) -> Result<Tensor, Refusal> {
    let wide = drawn_as(dtype)?;
    let tiny = if wide == DType::F64 { f64::MIN_POSITIVE } else { f64::from(f32::MIN_POSITIVE) };
    let u = draw_uniform(key, wide, shape, tiny, 1.0)?;
    Ok((-(-u.log()).log()).to_dtype(dtype))
}

/// Numbers from the exponential distribution with mean 1: `−log(1 − u)` for uniform `u` in [0, 1)
/// (JAX's `random.exponential`).
///
/// Poisoned if `dtype` is not a floating-point type.
#[track_caller]
pub fn exponential(key: impl AsTensor, dtype: DType, shape: impl Into<Shape>) -> Tensor {
    Tensor::record("exponential", || {
        let u = unit(key.as_tensor(), drawn_as(dtype)?, shape.into())?;
        Ok((-(-u).log1p()).to_dtype(dtype))
    })
}
