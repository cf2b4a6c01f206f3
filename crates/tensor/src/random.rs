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

mod continuous;
mod discrete;
mod gamma;
mod order;

pub use self::continuous::{exponential, gumbel, normal, truncated_normal, uniform};
pub use self::discrete::{bernoulli, categorical, randint};
pub use self::gamma::{beta, gamma};
pub use self::order::{choice, permutation, shuffle};
use crate::ops::threefry::{threefry2x32, threefry2x32_on_host};
use crate::{AsTensor, DType, Shape, Tensor, TensorType};

/// The key of a seed: its high and its low word.
#[track_caller]
pub fn key(seed: u64) -> Tensor {
    Tensor::from_slice(&[(seed >> 32) as u32, seed as u32], [2])
}

/// A new key from a key and a number.
#[track_caller]
pub fn fold_in(key: impl AsTensor, data: u32) -> Tensor {
    let key = key.as_tensor();
    // A key that is known while recording costs the program nothing.
    match key.known::<u32>().as_deref() {
        Some(&[high, low]) => Tensor::from_slice(&threefry2x32_on_host([high, low], [0, data]), [2]),
        _ => fold_in_tensor(key, &Tensor::scalar(data)),
    }
}

/// A new key from a key and a number that is computed: a `u32` scalar.
#[track_caller]
pub fn fold_in_tensor(key: impl AsTensor, data: impl AsTensor) -> Tensor {
    let (key, data) = (key.as_tensor(), data.as_tensor());
    if let Err(poisoned) = check_key("fold_in", key) {
        return poisoned;
    }
    if data.fault().is_none() && *data.ty() != TensorType::scalar(DType::U32) {
        let message = format!("the number must be a u32 scalar, it is {}", data.ty());
        return Tensor::poison("fold_in_tensor", message);
    }
    let [a, b] = threefry2x32(key, &Tensor::zeros(DType::U32, []), data);
    Tensor::stack(&[&a, &b], 0)
}

/// `n` new keys, independent of each other: the `i`-th is [`fold_in`] of `i`, as in JAX.
///
/// All are poisoned if `key` is none.
#[track_caller]
pub fn split(key: impl AsTensor, n: u32) -> Vec<Tensor> {
    let key = key.as_tensor();
    let mut keys = vec![];
    for i in 0..n {
        keys.push(fold_in(key, i));
    }
    keys
}

/// A new key from a key and a name: both words of the name's 64-bit FNV-1a hash are folded in.
#[track_caller]
pub fn fold_in_name(key: impl AsTensor, name: &str) -> Tensor {
    let key = key.as_tensor();
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    fold_in(&fold_in(key, (hash >> 32) as u32), hash as u32)
}

/// Random bits: a `u32` tensor, each of its values equally likely.
#[track_caller]
pub fn bits(key: impl AsTensor, shape: impl Into<Shape>) -> Tensor {
    let key = key.as_tensor();
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
    match words(method, key, shape) {
        Ok([high, low]) => high.xor(&low),
        Err(poisoned) => poisoned,
    }
}

/// 64 random bits in two words of 32, the high one first.
#[track_caller]
fn words(method: &str, key: &Tensor, shape: Shape) -> Result<[Tensor; 2], Tensor> {
    check_key(method, key)?;
    if shape.iter().map(|&d| d.max(1)).fold(1, usize::saturating_mul) > u32::MAX as usize {
        let message = format!("{shape} has more elements than one draw gives, 4294967295");
        return Err(Tensor::poison(method, message));
    }
    // The index of each element in row-major order, from the indices along the axes: this can be split over devices.
    let mut counter = Tensor::zeros(DType::U32, &shape);
    let mut stride = 1u32;
    for (axis, &size) in shape.iter().enumerate().rev() {
        counter = counter + Tensor::iota(DType::U32, &shape, axis as isize) * f64::from(stride);
        stride = stride.wrapping_mul(size as u32);
    }
    Ok(threefry2x32(key, &Tensor::zeros(DType::U32, &shape), &counter))
}

/// 64 random bits: a `u64` tensor.
#[track_caller]
fn draw_long(method: &str, key: &Tensor, shape: Shape) -> Tensor {
    match words(method, key, shape) {
        Ok([high, low]) => high.to_dtype(DType::U64).shift_left(32.0).or(low.to_dtype(DType::U64)),
        Err(poisoned) => poisoned,
    }
}
