//! Booleans, integers and classes.

use super::continuous::{draw_gumbel, unit};
use super::{draw, draw_long, split};
use crate::{AsTensor, DType, Operand, Shape, Tensor};

/// Booleans that are true with probability `p`: a number, or a tensor that broadcasts to `shape`. Where a uniform number
/// in [0, 1) is below `p`, as f64 if `p` is an f64 tensor, else as f32.
///
/// Poisoned if a tensor `p` does not broadcast to `shape`.
///
/// ```
/// use fulmen_tensor::{Tensor, random};
/// let p = Tensor::from_slice(&[0.0f32, 1.0], [2]);
/// let drawn = random::bernoulli(&random::key(0), &p, [3, 2]);
/// assert_eq!(drawn.eval()?.to_vec::<bool>()?, [false, true, false, true, false, true]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn bernoulli(key: impl AsTensor, p: impl Operand, shape: impl Into<Shape>) -> Tensor {
    let key = key.as_tensor();
    let shape = shape.into();
    let p = p.beside(&Tensor::scalar(0.0f32));
    if p.fault().is_some() {
        return p;
    }
    if p.shape().broadcast(&shape).as_ref() != Ok(&shape) {
        return Tensor::poison("bernoulli", format!("the probabilities, {}, do not broadcast to {shape}", p.ty()));
    }
    let dtype = if p.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    unit("bernoulli", key, dtype, shape).lt(p.to_dtype(dtype))
}

/// Integers drawn evenly from `low` to `high`, which does not come out (JAX's `randint`): the remainder of twice as many
/// random bits as `dtype` has, but at least 64, by `high − low`: as even as the numbers are few beside that.
///
/// Poisoned if `dtype` is no integer type, if `low` is not below `high`, or if `dtype` does not hold `low` and `high − 1`.
///
/// ```
/// use fulmen_tensor::{DType, random};
/// let dice = random::randint(&random::key(0), DType::I32, [100], 1, 7).eval()?.to_vec::<i32>()?;
/// assert!((1..7).all(|n| dice.contains(&n)) && dice.iter().all(|n| (1..7).contains(n)));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn randint(key: impl AsTensor, dtype: DType, shape: impl Into<Shape>, low: i64, high: i64) -> Tensor {
    let key = key.as_tensor();
    draw_integers("randint", key, dtype, shape.into(), low, high)
}

/// [`randint`] for `method`, which faults name.
#[track_caller]
pub(super) fn draw_integers(method: &str, key: &Tensor, dtype: DType, shape: Shape, low: i64, high: i64) -> Tensor {
    if !dtype.is_integer() {
        return Tensor::poison(method, format!("draws integers, not {dtype}"));
    }
    if low >= high {
        return Tensor::poison(method, format!("the lower bound {low} must be below the upper, {high}"));
    }
    let width = 8 * dtype.size_in_bytes() as u32;
    let (least, above) = match dtype.is_unsigned() {
        true => (0, 1i128 << width),
        false => (-(1i128 << (width - 1)), 1i128 << (width - 1)),
    };
    if i128::from(low) < least || i128::from(high) > above {
        let message = format!("the numbers from {low} to {high} are not all of {dtype}, {least} to {}", above - 1);
        return Tensor::poison(method, message);
    }
    if let Err(poisoned) = super::check_key(method, key) {
        return poisoned;
    }
    // Narrow integers are drawn with 32 bits, in arithmetic that wraps.
    let (unsigned, bits) = if width == 64 { (DType::U64, 64) } else { (DType::U32, 32) };
    let mut drawn = vec![];
    for key in split(key, 2) {
        drawn.push(match unsigned {
            DType::U64 => draw_long(method, &key, shape.clone()),
            _ => draw(method, &key, shape.clone()),
        });
    }
    let [upper, lower] = drawn.as_slice() else { return Tensor::poison(method, "two draws are not two") };
    let span = (i128::from(high) - i128::from(low)) as u128;
    let offset = if span == 1 << bits {
        lower.clone()
    } else {
        // 2ⁿ modulo the span, by which the upper half of the bits counts, in arithmetic of n bits as JAX computes it.
        let half = (1u128 << (bits / 2)) % span;
        let weight = ((half * half) & ((1u128 << bits) - 1)) % span;
        let (span, weight) = (constant(unsigned, span as u64), constant(unsigned, weight as u64));
        (upper.remainder(&span) * weight + lower.remainder(&span)).remainder(&span)
    };
    (offset + constant(unsigned, low as u64)).to_dtype(dtype)
}

/// A scalar of u64, or of u32: the last bits of `value`.
#[track_caller]
fn constant(dtype: DType, value: u64) -> Tensor {
    if dtype == DType::U64 { Tensor::scalar(value) } else { Tensor::scalar(value as u32) }
}

/// For each vector along `axis`, which vanishes, one of its places (i32), with the probabilities `softmax(logits)`: the
/// place of the largest of `logits + gumbel`. For several draws, broadcast the logits to as many.
///
/// 16-bit logits are computed as f32. Poisoned if `logits` are no floats, or if there is none along the axis.
///
/// ```
/// use fulmen_tensor::{DType, Tensor, random};
/// let logits = Tensor::from_slice(&[0.0f32, f32::NEG_INFINITY, 1.0], [3]);
/// let drawn = random::categorical(&random::key(0), &logits.broadcast_to([100, 3]), -1);
/// assert!(drawn.eval()?.to_vec::<i32>()?.iter().all(|&class| class != 1));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn categorical(key: impl AsTensor, logits: impl AsTensor, axis: isize) -> Tensor {
    let (key, logits) = (key.as_tensor(), logits.as_tensor());
    if logits.fault().is_some() {
        return logits.clone();
    }
    match logits.shape().axis(axis) {
        Ok(a) if logits.shape()[a] == 0 => {
            let message = format!("{} has no element along axis {axis}", logits.shape());
            return Tensor::poison("categorical", message);
        }
        Ok(_) => {}
        Err(message) => return Tensor::poison("categorical", message),
    }
    let dtype = if logits.dtype().is_half() { DType::F32 } else { logits.dtype() };
    let noise = draw_gumbel("categorical", key, dtype, logits.shape().clone());
    (noise + logits.to_dtype(dtype)).argmax(axis, false)
}
