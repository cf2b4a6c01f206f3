//! Random permutations and samples.

use super::continuous::{draw_gumbel, unit};
use super::discrete::draw_integers;
use super::{draw, split};
use crate::scope::Refusal;
use crate::tensor::all_live;
use crate::{AsTensor, DType, Shape, Tensor};

/// The numbers `0..n` in random order, as i32 (JAX's `random.permutation`). They are sorted by
/// random bits, several times if `n` is so large that two numbers may get the same bits.
///
/// Poisoned if `n` is more than an i32 can count.
///
/// ```
/// use fulmen_tensor::random;
/// let mut order = random::permutation(&random::key(0), 100).eval()?.to_vec::<i32>()?;
/// order.sort();
/// assert!(order.into_iter().eq(0..100));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn permutation(key: impl AsTensor, n: usize) -> Tensor {
    Tensor::record("permutation", || draw_permutation(key.as_tensor(), n))
}

/// The implementation of [`permutation`].
fn draw_permutation(key: &Tensor, n: usize) -> Result<Tensor, Refusal> {
    super::check_key(key)?;
    if n > i32::MAX as usize {
        return Err(format!("{n} numbers are more than an i32 can count").into());
    }
    // With this number of rounds, by the cube of `n`, two elements are unlikely to get equal bits
    // in every round.
    let rounds = (3.0 * (n.max(1) as f64).ln() / f64::from(u32::MAX).ln()).ceil() as usize;
    let mut key = key.clone();
    let mut order = Tensor::arange(DType::I32, n);
    for _ in 0..rounds {
        let mut keys = split(&key, 2).into_iter();
        let (Some(next), Some(round_key)) = (keys.next(), keys.next()) else { break };
        key = next;
        let bits = draw(&round_key, Shape::from([n]))?;
        if let Some(sorted) = Tensor::sort_together(&[&bits, &order], 1, 0, false).pop() {
            order = sorted;
        }
    }
    Ok(order)
}

/// Shuffles the slices along `axis`: [`Tensor::take`] with a [`permutation`].
///
/// Poisoned if there is no such axis.
#[track_caller]
pub fn shuffle(key: impl AsTensor, x: impl AsTensor, axis: isize) -> Tensor {
    Tensor::record("shuffle", || {
        let key = key.as_tensor();
        let x = x.as_tensor();
        let size = x.live()?.shape()[x.shape().axis(axis)?];
        Ok(if size == 0 { x.clone() } else { x.take(axis, draw_permutation(key, size)?) })
    })
}

/// A random sample (i32) of the numbers `0..n` with this shape (JAX's `random.choice` of an
/// integer). With `replace`, a number may occur several times; without, at most once. All numbers
/// have the same probability, unless `p` is given: a vector of `n` floats that the probabilities
/// are proportional to. For a sample of rows, use [`Tensor::take`] with the result.
///
/// Without replacement, `p` needs at least as many nonzero elements as the sample has.
///
/// Poisoned if `n` is 0, if the sample without replacement is larger than `n`, if `p` is not a
/// vector of `n` floats, or if `n` is more than an i32 can count.
///
/// ```
/// use fulmen_tensor::{Tensor, random};
/// let p = Tensor::from_slice(&[0.5f32, 0.0, 0.25, 0.25], [4]);
/// let mut chosen = random::choice(&random::key(0), 4, [3], false, Some(&p)).eval()?.to_vec::<i32>()?;
/// chosen.sort();
/// assert_eq!(chosen, [0, 2, 3]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn choice(
    key: impl AsTensor,
    n: usize,
    shape: impl Into<Shape>,
    replace: bool,
    p: Option<&Tensor>,
) -> Tensor {
    Tensor::record("choice", || {
        let key = key.as_tensor();
        let shape = shape.into();
        let count = shape.num_elements();
        super::check_key(key)?;
        all_live(p)?;
        match p {
            _ if n > i32::MAX as usize => {
                return Err(format!("{n} numbers are more than an i32 can count").into());
            }
            _ if n == 0 && count > 0 => {
                return Err("there is nothing to choose from: n is 0".into());
            }
            _ if !replace && count > n => {
                return Err(format!(
                    "cannot choose {count} different numbers out of {n} without replacement"
                )
                .into());
            }
            Some(p) if p.shape().dims() != [n] || !p.dtype().is_float() => {
                return Err(format!(
                    "the probabilities must be a vector of {n} floats, not {}",
                    p.ty()
                )
                .into());
            }
            _ => {}
        }
        if count == 0 {
            return Ok(Tensor::zeros(DType::I32, shape));
        }
        Ok(match p {
            None if replace => draw_integers(key, DType::I32, shape, 0, n as i64)?,
            None => draw_permutation(key, n)?.narrow(0, 0, count).reshape(shape),
            Some(p) => {
                let dtype = if p.dtype().is_half() { DType::F32 } else { p.dtype() };
                let p = p.to_dtype(dtype);
                if !replace {
                    // The order of the largest elements of log(p) + gumbel is that of draws without
                    // replacement.
                    let noise = draw_gumbel(key, dtype, Shape::from([n]))?;
                    return Ok((noise + p.log()).topk_along(count, 0, true).1.reshape(shape));
                }
                // The index in the cumulative sums of a uniform number between 0, exclusive, and
                // the total.
                let sums = p.cumsum(0);
                let point =
                    sums.narrow(0, n - 1, 1) * (1.0 - unit(key, dtype, Shape::from([count]))?);
                let is_below = sums.unsqueeze(0).lt(point.unsqueeze(1));
                is_below.count_nonzero(1).to_dtype(DType::I32).reshape(shape)
            }
        })
    })
}
