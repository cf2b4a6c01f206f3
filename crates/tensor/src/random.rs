//! Random numbers from counter-based keys. The same key gives the same numbers on one device and on
//! many, in every version of Fulmen, and in any order of execution.
//!
//! A key is a `u32[2]` tensor. [`fold_in`] derives a new key from a key and a number (a step, a
//! layer), so no state is carried along. The generator and its bits are those of JAX's
//! partitionable Threefry: element `i` of a draw is the xor of the two words that
//! [`Threefry-2×32`](https://doi.org/10.1145/2063384.2063405) computes from the counter `i` with
//! the key.
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
pub(crate) mod part;

pub use self::continuous::{exponential, gumbel, normal, truncated_normal, uniform};
pub use self::discrete::{bernoulli, categorical, randint};
pub use self::gamma::{beta, gamma};
pub use self::order::{choice, permutation, shuffle};
use crate::ops::threefry::{threefry2x32, threefry2x32_on_host};
use crate::scope::{Refusal, Scope};
use crate::{AsTensor, DType, Shape, Tensor, TensorType};

/// The key of a seed: its high and low words (JAX's `random.PRNGKey`).
#[track_caller]
pub fn key(seed: u64) -> Tensor {
    Tensor::from_slice(&[(seed >> 32) as u32, seed as u32], [2])
}

/// Derives a new key from a key and a number of any integer type (JAX's `random.fold_in`).
///
/// Numbers from 0 to 2³²−1 give the keys of JAX, and negative numbers of up to 32 bits those of
/// JAX's `int32` arrays: −1 gives the key of 2³²−1. Of larger numbers, the low and then the high 32
/// bits are folded in. Poisoned if the number has more than 64 bits.
///
/// ```
/// use fulmen_tensor::random;
/// let key = random::key(42);
/// let steps: Vec<usize> = vec![0, 7];
/// let bits = random::fold_in(&key, steps[1]).eval()?.to_vec::<u32>()?;
/// assert_eq!(bits, random::fold_in(&key, 7).eval()?.to_vec::<u32>()?);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn fold_in(key: impl AsTensor, data: impl TryInto<i128>) -> Tensor {
    Tensor::record("fold_in", || {
        let key = key.as_tensor();
        let number: i128 = data.try_into().map_err(|_| "the number has more than 64 bits")?;
        if let Ok(word) = u32::try_from(number) {
            return fold_word(key, word);
        }
        if let Ok(negative) = i32::try_from(number) {
            return fold_word(key, negative.cast_unsigned());
        }
        let bits = u64::try_from(number)
            .or_else(|_| i64::try_from(number).map(i64::cast_unsigned))
            .map_err(|_| "the number has more than 64 bits")?;
        fold_word(&fold_word(key, bits as u32)?, (bits >> 32) as u32)
    })
}

fn fold_word(key: &Tensor, data: u32) -> Result<Tensor, Refusal> {
    // A key that is known while recording is hashed on the host, which adds nothing to the program.
    match key.constant_elements::<u32>().as_deref() {
        Some(&[high, low]) => {
            Ok(Tensor::from_slice(&threefry2x32_on_host([high, low], [0, data]), [2]))
        }
        _ => fold(key, &Tensor::scalar(data)),
    }
}

/// Derives a new key from a key and a computed number, a scalar of an integer dtype of up to 32
/// bits. The key is that of [`fold_in`].
#[track_caller]
pub fn fold_in_tensor(key: impl AsTensor, data: impl AsTensor) -> Tensor {
    Tensor::record("fold_in_tensor", || fold(key.as_tensor(), data.as_tensor()))
}

fn fold(key: &Tensor, data: &Tensor) -> Result<Tensor, Refusal> {
    check_key(key)?;
    let ty = data.live()?.ty();
    if !ty.dtype.is_integer() || ty.dtype.size_in_bytes() > 4 || ty.shape.rank() != 0 {
        return Err(
            format!("the number must be an integer scalar of up to 32 bits, not {ty}").into()
        );
    }
    // The bits of a negative number stay, as in JAX.
    let data = &data.to_dtype(DType::U32);
    let [a, b] = threefry2x32(key, &Tensor::zeros(DType::U32, []), data);
    Ok(Tensor::stack(&[&a, &b], 0))
}

/// Derives a new key from each key and its number: `keys` is u32\[n, 2\], or u32\[2\] for one key
/// with all numbers; `data` is u32\[n\]; row `i` of the result, u32\[n, 2\], is [`fold_in`] of
/// row `i`. All of them are one vector operation, which is faster than as many calls of
/// [`fold_in`] if the keys are computed on the device.
///
/// Poisoned if `keys` or `data` has another type.
///
/// ```
/// use fulmen_tensor::{Tensor, random};
/// let key = random::key(0);
/// let keys = random::fold_in_each(&key, Tensor::from_slice(&[7u32, 8], [2]));
/// let second = keys.index(0, 1).eval()?.to_vec::<u32>()?;
/// assert_eq!(second, random::fold_in(&key, 8).eval()?.to_vec::<u32>()?);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn fold_in_each(keys: impl AsTensor, data: impl AsTensor) -> Tensor {
    Tensor::record("fold_in_each", || {
        let keys = keys.as_tensor().live()?;
        let data = data.as_tensor().live()?;
        if data.dtype() != DType::U32 || data.rank() != 1 {
            return Err(format!("the numbers must be u32[n], not {}", data.ty()).into());
        }
        let n = data.size(0);
        if *keys.ty() != TensorType::new(DType::U32, [n, 2]) {
            check_key(keys)?;
        }
        if let (Some(keys), Some(data)) =
            (keys.constant_elements::<u32>(), data.constant_elements::<u32>())
        {
            let words: Vec<u32> = data
                .iter()
                .zip(keys.chunks_exact(2).cycle())
                .flat_map(|(&data, key)| threefry2x32_on_host([key[0], key[1]], [0, data]))
                .collect();
            return Ok(Tensor::from_slice(&words, [n, 2]));
        }
        let [a, b] = threefry2x32(keys, &Tensor::zeros(DType::U32, [n]), data);
        Ok(Tensor::stack(&[&a, &b], 1))
    })
}

/// Derives `n` independent keys: key `i` is [`fold_in`] of `i`, as in JAX's `random.split`.
///
/// All results are poisoned if `key` is not a key.
#[track_caller]
pub fn split(key: impl AsTensor, n: u32) -> Vec<Tensor> {
    let _scope = Scope::open();
    let key = key.as_tensor();
    (0..n).map(|i| fold_in(key, i)).collect()
}

/// Derives a new key from a key and a name, by folding in both words of the name's 64-bit FNV-1a
/// hash.
#[track_caller]
pub fn fold_in_name(key: impl AsTensor, name: &str) -> Tensor {
    let [high, low] = name_words(name);
    fold_in(&fold_in(key, high), low)
}

/// Derives a new key from a key and each name: row `i` of the result, u32\[n, 2\], is
/// [`fold_in_name`] of name `i`.
#[track_caller]
pub fn fold_in_names(key: impl AsTensor, names: &[impl AsRef<str>]) -> Tensor {
    let _scope = Scope::open();
    let words = names.iter().map(|name| name_words(name.as_ref()));
    let (high, low): (Vec<u32>, Vec<u32>) = words.map(|[high, low]| (high, low)).unzip();
    let vector = |words: &[u32]| Tensor::from_slice(words, [names.len()]);
    fold_in_each(&fold_in_each(key, vector(&high)), vector(&low))
}

/// The two words of a name's 64-bit FNV-1a hash.
fn name_words(name: &str) -> [u32; 2] {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    [(hash >> 32) as u32, hash as u32]
}

/// Random bits: a `u32` tensor of uniformly distributed values (JAX's `random.bits`).
#[track_caller]
pub fn bits(key: impl AsTensor, shape: impl Into<Shape>) -> Tensor {
    Tensor::record("bits", || draw(key.as_tensor(), shape.into()))
}

/// Checks that `key` is a u32[2] tensor.
fn check_key(key: &Tensor) -> Result<(), Refusal> {
    key.live()?;
    if *key.ty() != TensorType::new(DType::U32, [2]) {
        return Err(format!(
            "a random key must be u32[2], not {}; make one with random::key()",
            key.ty()
        )
        .into());
    }
    Ok(())
}

/// The implementation of [`bits`].
fn draw(key: &Tensor, shape: Shape) -> Result<Tensor, Refusal> {
    let [high, low] = words(key, shape)?;
    Ok(high.xor(&low))
}

/// The number of 32-bit elements that a program can address.
const MAX_ELEMENTS: usize = 1 << 45;

/// 64 random bits in two 32-bit words, the high word first.
fn words(key: &Tensor, shape: Shape) -> Result<[Tensor; 2], Refusal> {
    words_at(key, &shape, |dtype| row_major_indices(dtype, &shape))
}

/// The words of some elements of a draw of this shape: those with the indices that `index` returns,
/// which are of the dtype that it gets.
fn words_at(
    key: &Tensor,
    shape: &Shape,
    index: impl FnOnce(DType) -> Tensor,
) -> Result<[Tensor; 2], Refusal> {
    check_key(key)?;
    let elements = shape.iter().map(|&size| size.max(1)).fold(1, usize::saturating_mul);
    if elements <= u32::MAX as usize {
        let low = index(DType::U32);
        return Ok(threefry2x32(key, &Tensor::zeros(DType::U32, low.shape()), &low));
    }
    if elements > MAX_ELEMENTS {
        return Err(format!("{shape} has more elements than a program can address, 2^45").into());
    }
    let index = index(DType::U64);
    let high = index.shift_right_logical(32.0).to_dtype(DType::U32);
    let low = index.and(f64::from(u32::MAX)).to_dtype(DType::U32);
    Ok(threefry2x32(key, &high, &low))
}

/// The index of each element in row-major order, computed from the indices along the axes, so that
/// it can be sharded.
fn row_major_indices(dtype: DType, shape: &Shape) -> Tensor {
    let mut indices = Tensor::zeros(dtype, shape);
    let mut stride = 1usize;
    for (axis, &size) in shape.iter().enumerate().rev() {
        indices = indices + Tensor::iota(dtype, shape, axis as isize) * stride as f64;
        stride = stride.saturating_mul(size);
    }
    indices
}

/// 64 random bits as a `u64` tensor.
fn draw_long(key: &Tensor, shape: Shape) -> Result<Tensor, Refusal> {
    let [high, low] = words(key, shape)?;
    Ok(high.to_dtype(DType::U64).shift_left(32.0).or(low.to_dtype(DType::U64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_beyond_32_bits_count_on() {
        let shape = Shape::from([2, 3, 5]);
        let [narrow, wide] = [DType::U32, DType::U64].map(|dtype| row_major_indices(dtype, &shape));
        let expected: Vec<f64> = (0..30).map(f64::from).collect();
        assert_eq!(narrow.eval().unwrap().to_f64(), expected);
        assert_eq!(wide.eval().unwrap().to_f64(), expected);

        // The last row of a shape with 3·2³² elements begins at index 2³³.
        let large = row_major_indices(DType::U64, &Shape::from([3, 1 << 31, 2]));
        assert_eq!(large.ty().to_string(), "u64[3, 2147483648, 2]");
        let last = large.slice(&[2, 0, 0], &[3, 1, 1], &[1, 1, 1]);
        assert_eq!(last.eval().unwrap().to_f64(), [2f64.powi(33)]);
        let drawn = bits(key(0), [3, 1 << 31, 2]);
        assert_eq!(drawn.ty().to_string(), "u32[3, 2147483648, 2]");
    }
}
