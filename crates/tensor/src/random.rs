//! Random numbers from counter-based keys: the same key gives the same numbers on one device and on many, today and
//! after an update, in whatever order the code ran.
//!
//! A key is a `u32[2]` tensor. [`fold_in`] makes a new one from a key and a number (a step, a layer), so no state
//! moves along. The generator and the bits it gives are those of JAX's partitionable Threefry: element `i` of a draw
//! is the xor of the two words that [`Threefry-2×32`](https://doi.org/10.1145/2063384.2063405) makes of the counter
//! `i` under the key.
//!
//! ```
//! use fulmen_tensor::{DType, random};
//! let key = random::fold_in(&random::key(42), 7);
//! let noise = random::normal(&key, DType::F32, [2, 3]);
//! assert_eq!(noise.eval()?.to_vec::<f32>()?, noise.eval()?.to_vec::<f32>()?);
//! # Ok::<(), fulmen_tensor::Error>(())
//! ```

use std::cmp::Ordering;

use crate::ops::threefry::{threefry2x32, threefry2x32_on_host};
use crate::{DType, Shape, Tensor, TensorType};

/// The key of a seed: its high and its low word.
#[track_caller]
pub fn key(seed: u64) -> Tensor {
    Tensor::from_slice(&[(seed >> 32) as u32, seed as u32], [2])
}

/// A new key from a key and a number.
#[track_caller]
pub fn fold_in(key: &Tensor, data: u32) -> Tensor {
    // A key that is known while recording costs the program nothing.
    match key.known::<u32>().as_deref() {
        Some(&[high, low]) => Tensor::from_slice(&threefry2x32_on_host([high, low], [0, data]), [2]),
        _ => fold_in_tensor(key, &Tensor::scalar(data)),
    }
}

/// A new key from a key and a number that is computed: a `u32` scalar.
#[track_caller]
pub fn fold_in_tensor(key: &Tensor, data: &Tensor) -> Tensor {
    if let Err(poisoned) = check_key("fold_in", key) {
        return poisoned;
    }
    if data.fault().is_none() && *data.ty() != TensorType::scalar(DType::U32) {
        let message = format!("the number must be a u32 scalar, it is {}", data.ty());
        return Tensor::poison("fold_in_tensor", message);
    }
    let [a, b] = threefry2x32(key, &Tensor::scalar(0u32), data);
    Tensor::stack(&[&a, &b], 0)
}

/// A new key from a key and a name: both words of the name's 64-bit FNV-1a hash are folded in.
#[track_caller]
pub fn fold_in_name(key: &Tensor, name: &str) -> Tensor {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    fold_in(&fold_in(key, (hash >> 32) as u32), hash as u32)
}

/// Random bits: a `u32` tensor, each of its values equally likely.
#[track_caller]
pub fn bits(key: &Tensor, shape: impl Into<Shape>) -> Tensor {
    draw("bits", key, shape.into())
}

/// A fault under the name of `method` if `key` is none.
#[track_caller]
fn check_key(method: &str, key: &Tensor) -> Result<(), Tensor> {
    if key.fault().is_some() {
        return Err(key.clone());
    }
    if *key.ty() != TensorType::new(DType::U32, [2]) {
        let message = format!("a random key is u32[2], this is {}; make one with random::key()", key.ty());
        return Err(Tensor::poison(method, message));
    }
    Ok(())
}

/// [`bits`] for `method`, which faults name.
#[track_caller]
fn draw(method: &str, key: &Tensor, shape: Shape) -> Tensor {
    if let Err(poisoned) = check_key(method, key) {
        return poisoned;
    }
    if shape.iter().map(|&d| d.max(1)).fold(1, usize::saturating_mul) > u32::MAX as usize {
        return Tensor::poison(method, format!("{shape} has more elements than one draw gives, 4294967295"));
    }
    // The index of each element in row-major order, from the indices along the axes: this can be split over devices.
    let mut counter = Tensor::zeros(DType::U32, &shape);
    let mut stride = 1u32;
    for (axis, &size) in shape.iter().enumerate().rev() {
        counter = counter + Tensor::iota(DType::U32, &shape, axis as isize) * f64::from(stride);
        stride = stride.wrapping_mul(size as u32);
    }
    let [a, b] = threefry2x32(key, &Tensor::zeros(DType::U32, &shape), &counter);
    a.xor(&b)
}

/// Numbers drawn evenly from `low` to `high`: `low + (high − low)·u`, where `u` is one of the 2²³ multiples of 2⁻²³ in
/// [0, 1), computed as f32 and converted to `dtype`.
///
/// `low` can come out; `high` does only where rounding leads to it: f32 between two large bounds close to each other
/// (1e6 and 1e6 + 1), or a `dtype` of 16 bits.
///
/// Poisoned if `dtype` is no floating-point type, if `low` is not below `high` once both are f32, or if their
/// difference overflows f32.
#[track_caller]
pub fn uniform(key: &Tensor, dtype: DType, shape: impl Into<Shape>, low: f64, high: f64) -> Tensor {
    draw_uniform("uniform", key, dtype, shape.into(), low, high)
}

/// [`uniform`] for `method`, which faults name.
#[track_caller]
fn draw_uniform(method: &str, key: &Tensor, dtype: DType, shape: Shape, low: f64, high: f64) -> Tensor {
    if !dtype.is_float() {
        return Tensor::poison(method, format!("draws floating-point numbers, not {dtype}"));
    }
    let (low_wide, high_wide) = (low, high);
    let (low, high) = (low as f32, high as f32);
    if low.partial_cmp(&high) != Some(Ordering::Less) {
        let rounded = if low_wide < high_wide { ", also when both are f32" } else { "" };
        let message = format!("the lower bound {low_wide} must be below the upper, {high_wide}{rounded}");
        return Tensor::poison(method, message);
    }
    if !(high - low).is_finite() {
        let message = format!("the bounds {low_wide} and {high_wide} are further apart than f32 reaches");
        return Tensor::poison(method, message);
    }
    // 23 random bits under the exponent of 1 are a number in [1, 2).
    let mantissa = draw(method, key, shape).shift_right_logical(9.0);
    let unit = mantissa.or(Tensor::scalar(1.0f32.to_bits())).bitcast(DType::F32) - 1.0;
    let drawn = (unit * f64::from(high - low) + f64::from(low)).maximum(f64::from(low));
    drawn.to_dtype(dtype)
}

/// Numbers from the normal distribution with mean 0 and variance 1: `√2 · erf⁻¹(u)` of uniform `u` in (−1, 1).
#[track_caller]
pub fn normal(key: &Tensor, dtype: DType, shape: impl Into<Shape>) -> Tensor {
    if !dtype.is_float() {
        return Tensor::poison("normal", format!("draws floating-point numbers, not {dtype}"));
    }
    // The f32 next above −1 is half an epsilon away.
    let above_minus_one = f64::from(-1.0f32 + f32::EPSILON / 2.0);
    let u = draw_uniform("normal", key, DType::F32, shape.into(), above_minus_one, 1.0);
    (u.erf_inv() * std::f64::consts::SQRT_2).to_dtype(dtype)
}

/// Booleans that are true with probability `p`.
#[track_caller]
pub fn bernoulli(key: &Tensor, p: f64, shape: impl Into<Shape>) -> Tensor {
    draw_uniform("bernoulli", key, DType::F32, shape.into(), 0.0, 1.0).lt(p)
}
