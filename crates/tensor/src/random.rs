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

use crate::ops::threefry::{threefry2x32, threefry2x32_on_host};
use crate::{DType, Shape, Tensor};

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
    let shape = shape.into();
    if shape.num_elements() > u32::MAX as usize {
        return Tensor::poison("random", format!("{shape} has more elements than one draw gives, 4294967295"));
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

/// Numbers drawn evenly from `low` (included) to `high` (not included): 2²³ different f32 values, converted to `dtype`.
///
/// Poisoned if `dtype` is no floating-point type or `low` is not below `high`.
#[track_caller]
pub fn uniform(key: &Tensor, dtype: DType, shape: impl Into<Shape>, low: f64, high: f64) -> Tensor {
    if !dtype.is_float() {
        return Tensor::poison("uniform", format!("draws floating-point numbers, not {dtype}"));
    }
    if low.partial_cmp(&high) != Some(std::cmp::Ordering::Less) {
        return Tensor::poison("uniform", format!("the lower bound {low} must be below the upper, {high}"));
    }
    let (low, high) = (low as f32, high as f32);
    // 23 random bits under the exponent of 1 are a number in [1, 2).
    let mantissa = bits(key, shape).shift_right_logical(9.0);
    let unit = mantissa.or(Tensor::scalar(1.0f32.to_bits())).bitcast(DType::F32) - 1.0;
    let drawn = (unit * f64::from(high - low) + f64::from(low)).maximum(f64::from(low));
    drawn.to_dtype(dtype)
}

/// Numbers from the normal distribution with mean 0 and variance 1: `√2 · erf⁻¹(u)` of uniform `u` in (−1, 1).
#[track_caller]
pub fn normal(key: &Tensor, dtype: DType, shape: impl Into<Shape>) -> Tensor {
    // The f32 next above −1 is half an epsilon away.
    let above_minus_one = f64::from(-1.0f32 + f32::EPSILON / 2.0);
    let u = uniform(key, DType::F32, shape, above_minus_one, 1.0);
    let drawn = u.erf_inv() * std::f64::consts::SQRT_2;
    if dtype.is_float() {
        drawn.to_dtype(dtype)
    } else {
        Tensor::poison("normal", format!("draws floating-point numbers, not {dtype}"))
    }
}

/// Booleans that are true with probability `p`.
#[track_caller]
pub fn bernoulli(key: &Tensor, p: f64, shape: impl Into<Shape>) -> Tensor {
    uniform(key, DType::F32, shape, 0.0, 1.0).lt(p)
}
