//! Discrete distributions: booleans, integers and classes.

use super::continuous::{draw_gumbel, unit};
use super::{draw, draw_long, split};
use crate::scope::Refusal;
use crate::{AsTensor, DType, Operand, Shape, Tensor};

/// Booleans that are true with probability `p` (JAX's `random.bernoulli`). `p` is a number, or a
/// tensor that broadcasts to `shape`. An element is true if a uniform number in [0, 1) is below
/// `p`. The comparison is in f64 if `p` is an f64 tensor, else in f32.
///
/// Poisoned if a tensor `p` does not broadcast to `shape`.
///
/// ```
/// use fulmen_tensor::{Tensor, random};
/// let p = Tensor::from_slice(&[0.0f32, 1.0], [2]);
/// let sample = random::bernoulli(&random::key(0), &p, [3, 2]);
/// assert_eq!(sample.eval()?.to_vec::<bool>()?, [false, true, false, true, false, true]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn bernoulli(key: impl AsTensor, p: impl Operand, shape: impl Into<Shape>) -> Tensor {
    Tensor::record("bernoulli", || {
        let key = key.as_tensor();
        let shape = shape.into();
        let p = p.to_tensor_like(&Tensor::scalar(0.0f32));
        p.live()?;
        if p.shape().broadcast(&shape).as_ref() != Ok(&shape) {
            return Err(
                format!("the probabilities, {}, do not broadcast to {shape}", p.ty()).into()
            );
        }
        let dtype = if p.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        Ok(unit(key, dtype, shape)?.lt(p.to_dtype(dtype)))
    })
}

/// Uniform integers in `low..high` (JAX's `random.randint`): random bits modulo `high − low`. They
/// have twice as many bits as `dtype`, but at least 64. The distribution is nearly uniform if
/// `high − low` is small compared with 2⁶⁴.
///
/// Poisoned if `dtype` is not an integer type, if `low` is not below `high`, or if `dtype` cannot
/// hold `low` or `high − 1`.
///
/// ```
/// use fulmen_tensor::{DType, random};
/// let dice = random::randint(&random::key(0), DType::I32, [100], 1, 7).eval()?.to_vec::<i32>()?;
/// assert!((1..7).all(|n| dice.contains(&n)) && dice.iter().all(|n| (1..7).contains(n)));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn randint(
    key: impl AsTensor,
    dtype: DType,
    shape: impl Into<Shape>,
    low: i64,
    high: i64,
) -> Tensor {
    Tensor::record("randint", || draw_integers(key.as_tensor(), dtype, shape.into(), low, high))
}

/// The implementation of [`randint`].
pub(super) fn draw_integers(
    key: &Tensor,
    dtype: DType,
    shape: Shape,
    low: i64,
    high: i64,
) -> Result<Tensor, Refusal> {
    if !dtype.is_integer() {
        return Err(format!("draws integers, not {dtype}").into());
    }
    if low >= high {
        return Err(format!("the lower bound {low} must be below the upper, {high}").into());
    }
    let width = 8 * dtype.size_in_bytes() as u32;
    let (least, above) = if dtype.is_unsigned() {
        (0, 1i128 << width)
    } else {
        (-(1i128 << (width - 1)), 1i128 << (width - 1))
    };
    if i128::from(low) < least || i128::from(high) > above {
        return Err(format!(
            "the numbers from {low} to {high} are not all in the range of {dtype}, {least} to {}",
            above - 1
        )
        .into());
    }
    super::check_key(key)?;
    // Narrow integers are drawn with 32 bits, in wrapping arithmetic.
    let (unsigned, bits) = if width == 64 { (DType::U64, 64) } else { (DType::U32, 32) };
    let mut halves = Vec::new();
    for key in split(key, 2) {
        halves.push(match unsigned {
            DType::U64 => draw_long(&key, shape.clone())?,
            _ => draw(&key, shape.clone())?,
        });
    }
    let [upper, lower] = halves.as_slice() else { return Err("expected two draws".into()) };
    let span = (i128::from(high) - i128::from(low)) as u128;
    let offset = if span == 1 << bits {
        lower.clone()
    } else {
        // 2ⁿ modulo the span: the weight of the upper half of the bits, in n-bit arithmetic as in
        // JAX.
        let half = (1u128 << (bits / 2)) % span;
        let weight = ((half * half) & ((1u128 << bits) - 1)) % span;
        let span = constant(unsigned, span as u64);
        let weight = constant(unsigned, weight as u64);
        (upper.remainder(&span) * weight + lower.remainder(&span)).remainder(&span)
    };
    Ok((offset + constant(unsigned, low as u64)).to_dtype(dtype))
}

/// A u64 scalar, or a u32 scalar of the low bits of `value`.
fn constant(dtype: DType, value: u64) -> Tensor {
    if dtype == DType::U64 { Tensor::scalar(value) } else { Tensor::scalar(value as u32) }
}

/// Samples an index (i32) along `axis`, which is removed, with the probabilities `softmax(logits)`
/// (JAX's `random.categorical`). It is the index of the largest element of `logits + gumbel`. For
/// several draws, broadcast the logits first.
///
/// 16-bit logits are computed as f32. Poisoned if `logits` are not floats, or if the axis is empty.
///
/// ```
/// use fulmen_tensor::{DType, Tensor, random};
/// let logits = Tensor::from_slice(&[0.0f32, f32::NEG_INFINITY, 1.0], [3]);
/// let sample = random::categorical(&random::key(0), &logits.broadcast_to([100, 3]), -1);
/// assert!(sample.eval()?.to_vec::<i32>()?.iter().all(|&class| class != 1));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn categorical(key: impl AsTensor, logits: impl AsTensor, axis: isize) -> Tensor {
    Tensor::record("categorical", || {
        let key = key.as_tensor();
        let logits = logits.as_tensor();
        logits.live()?;
        let shape = logits.shape();
        if shape[shape.axis(axis)?] == 0 {
            return Err(format!("{shape} has no element along axis {axis}").into());
        }
        let dtype = if logits.dtype().is_half() { DType::F32 } else { logits.dtype() };
        let noise = draw_gumbel(key, dtype, logits.shape().clone())?;
        Ok((noise + logits.to_dtype(dtype)).argmax(axis))
    })
}
