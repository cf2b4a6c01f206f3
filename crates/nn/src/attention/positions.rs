//! Additive position encodings: for inputs ([`SinusoidalPositions`], [`LearnedPositions`]) and for
//! attention scores ([`alibi`]). Rotary encodings are in `rotary.rs`.

use std::fmt;

use fulmen_tensor::internal::{IndexRule, check_indices};
use fulmen_tensor::{AsTensor, DType, Refusal, Shape, Tensor};

use crate::library::{NN, live};
use crate::{Init, Module, Parameter};

/// The table `[length, width]` (f32) of "Attention is all you need": `sin(p·10000^(−2i/width))` at
/// feature `2i` of position `p`, and the cosine at `2i + 1`.
///
/// ```
/// use fulmen_nn::attention::sinusoidal;
/// let table = sinusoidal(2, 4).eval()?.to_vec::<f32>()?;
/// assert_eq!(table[..4], [0.0, 1.0, 0.0, 1.0]);
/// assert!((table[4] - 1f32.sin()).abs() < 1e-6 && (table[7] - 0.01f32.cos()).abs() < 1e-6);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn sinusoidal(length: usize, width: usize) -> Tensor {
    NN.record("sinusoidal", || sinusoidal_at(&Tensor::arange(DType::I32, length), width))
}

/// The largest number of heads or features, which no model reaches. The host computes them one by
/// one.
const MAX_SIZE: usize = 1 << 20;

/// Rows of [`sinusoidal`] for positions `[…]`.
fn sinusoidal_at(positions: &Tensor, width: usize) -> Result<Tensor, Refusal> {
    if width > MAX_SIZE {
        return Err(format!("a width of {width} exceeds the limit of {MAX_SIZE}").into());
    }
    let pairs = width.div_ceil(2);
    let rates: Vec<f32> =
        (0..pairs).map(|i| 10_000f64.powf(-2.0 * i as f64 / width as f64) as f32).collect();
    let angles = positions.to_dtype(DType::F32).unsqueeze(-1) * Tensor::from_slice(&rates, [pairs]);
    let interleaved = Tensor::stack(&[&angles.sin(), &angles.cos()], -1).flatten(-2, -1);
    // With an odd number of features, the last one has no cosine.
    Ok(interleaved.narrow(-1, 0, width))
}

/// What is wrong with `positions` for an input `x` `[…, length, features]`, if anything.
pub(super) fn check_positions(positions: &Tensor, x: &Tensor) -> Option<String> {
    let ty = positions.ty();
    if !ty.dtype.is_integer() {
        return Some(format!("the positions {ty} are not integers"));
    }
    let outer = Shape::from(&x.shape()[..x.rank().saturating_sub(1)]);
    let broadcasts = ty.shape.broadcast(&outer).is_ok_and(|shape| shape == outer);
    (!broadcasts).then(|| {
        format!("the positions {ty} do not broadcast to {outer}, those of the input {}", x.ty())
    })
}

/// What is wrong with `x` as an input of this width, if anything.
fn check_input(x: &Tensor, width: usize) -> Option<String> {
    (x.rank() < 2 || x.size(-1) != width || !x.dtype().is_float())
        .then(|| format!("the input {} is not floating-point [.., length, {width}]", x.ty()))
}

/// Adds the table of [`sinusoidal`] to `[…, length, width]`, for any length.
///
/// ```
/// use fulmen_nn::attention::{SinusoidalPositions, sinusoidal};
/// use fulmen_tensor::{DType, Shape, Tensor};
/// let y = SinusoidalPositions::new(8).forward(&Tensor::zeros(DType::F32, [2, 5, 8]));
/// assert_eq!(y.eval()?.to_vec::<f32>()?[..40], sinusoidal(5, 8).eval()?.to_vec::<f32>()?);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Module)]
pub struct SinusoidalPositions {
    width: usize,
}

impl SinusoidalPositions {
    /// A table for inputs with this number of features.
    pub fn new(width: usize) -> SinusoidalPositions {
        SinusoidalPositions { width }
    }

    /// The input with the table added, in its own dtype.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        let _scope = NN.open();
        let x = x.as_tensor();
        self.forward_at(x, &Tensor::arange(DType::I32, x.size(-2)))
    }

    /// The input `[…, length, width]` with the rows of the integer `positions` added, which
    /// broadcast to `[…, length]`.
    #[track_caller]
    pub fn forward_at(&self, x: impl AsTensor, positions: impl AsTensor) -> Tensor {
        NN.record("SinusoidalPositions", || {
            let x = x.as_tensor();
            let positions = positions.as_tensor();
            live(&[x, positions])?;
            match check_input(x, self.width).or_else(|| check_positions(positions, x)) {
                Some(message) => Err(message.into()),
                None => Ok(x + sinusoidal_at(positions, self.width)?.to_dtype(x.dtype())),
            }
        })
    }
}

/// Adds a learned row for each position to `[…, length, width]`, as GPT-2 and BERT do. A field
/// `wpe` of this type has the parameter `wpe.weight`.
///
/// ```
/// use fulmen_nn::{Module, attention::LearnedPositions};
/// use fulmen_tensor::{DType, Shape, Tensor};
///
/// let positions = LearnedPositions::new(1024, 8);
/// positions.initialize(0);
/// assert_eq!(positions.forward(&Tensor::zeros(DType::F32, [2, 5, 8])).ty().to_string(), "f32[2, 5, 8]");
/// assert!(positions.forward(&Tensor::zeros(DType::F32, [1025, 8])).fault().is_some());
/// ```
#[derive(Clone, Debug, Module)]
pub struct LearnedPositions {
    /// `[max_len, width]`; initially normal with standard deviation 0.02.
    pub weight: Parameter,
    max_len: usize,
    width: usize,
}

impl LearnedPositions {
    /// Makes rows for the positions `0..max_len`.
    pub fn new(max_len: usize, width: usize) -> LearnedPositions {
        LearnedPositions {
            weight: Parameter::new([max_len, width], Init::normal(0.0, 0.02)),
            max_len,
            width,
        }
    }

    /// The input plus the rows of the positions from 0, in the input's dtype.
    ///
    /// Poisoned if the input is longer than `max_len` or has a different width.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let x = x.as_tensor().live()?;
            let length = x.size(-2);
            if let Some(message) = check_input(x, self.width) {
                return Err(message.into());
            }
            if length > self.max_len {
                let message = format!(
                    "the input {} has {length} positions, there are {}",
                    x.ty(),
                    self.max_len
                );
                return Err(message.into());
            }
            Ok(x + self.weight.get().narrow(0, 0, length).to_dtype(x.dtype()))
        })
    }

    /// The input `[…, length, width]` plus the rows of the integer `positions`, which broadcast to
    /// `[…, length]`. A position outside the table is an error where the host knows it, in a training
    /// step and in an evaluation; elsewhere, it gives NaN.
    #[track_caller]
    pub fn forward_at(&self, x: impl AsTensor, positions: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let x = x.as_tensor();
            let positions = positions.as_tensor();
            live(&[x, positions])?;
            match check_input(x, self.width).or_else(|| check_positions(positions, x)) {
                Some(message) => Err(message.into()),
                None => {
                    let reason = format!("there are {} positions", self.max_len);
                    let rule =
                        IndexRule::below("LearnedPositions", "a position", self.max_len, reason);
                    let positions = check_indices(positions, rule)?;
                    Ok(x + self.weight.get().take(0, &positions).to_dtype(x.dtype()))
                }
            }
        })
    }
}

impl fmt::Display for LearnedPositions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LearnedPositions({} x {})", self.max_len, self.width)
    }
}

/// The bias that attention with linear biases adds to the scores (Press et al. 2021, "Train Short,
/// Test Long"): f32 `[heads, length, positions]`, with `−slope·|i − j|` at query `i` and key `j`.
/// For [`Attention::mask`](super::Attention::mask), with [`causal`](super::Attention::causal).
///
/// With `n` heads, a power of two, the slopes are `2^(−8/n), 2^(−16/n), …`. With another number of
/// heads, the slopes are those of the next lower power of two, followed by every other slope of the
/// next higher power of two.
///
/// ```
/// use fulmen_nn::attention::{Attention, alibi};
/// use fulmen_tensor::{DType, Shape, Tensor};
/// let bias = alibi(8, 2, 2);
/// assert_eq!(bias.eval()?.to_vec::<f32>()?[..4], [0.0, -0.5, -0.5, 0.0]);
///
/// let x = Tensor::ones(DType::F32, [1, 8, 2, 4]);
/// assert_eq!(Attention::new().causal(true).mask(&bias).forward(&x, &x, &x).ty(), x.ty());
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn alibi(heads: usize, length: usize, positions: usize) -> Tensor {
    let _scope = NN.open();
    alibi_at(heads, &Tensor::arange(DType::I32, length), positions)
}

/// [`alibi`] for queries at the integer positions `queries` `[length]`, for use with a
/// [`KeyValueCache`](super::KeyValueCache).
#[track_caller]
pub fn alibi_at(heads: usize, queries: impl AsTensor, positions: usize) -> Tensor {
    NN.record("alibi", || {
        let queries = queries.as_tensor().live()?;
        if queries.rank() != 1 || !queries.dtype().is_integer() || heads > MAX_SIZE {
            let message = format!(
                "the queries {} must be integers [length], and at most {MAX_SIZE} heads are supported, not {heads}",
                queries.ty()
            );
            return Err(message.into());
        }
        let slopes: Vec<f32> = slopes(heads).into_iter().map(|slope| -slope as f32).collect();
        let keys = Tensor::arange(DType::I32, positions).to_dtype(DType::F32);
        let distance = (queries.to_dtype(DType::F32).unsqueeze(-1) - keys).abs();
        Ok(Tensor::from_slice(&slopes, [heads, 1, 1]) * distance)
    })
}

fn slopes(heads: usize) -> Vec<f64> {
    let whole = |n: usize| (1..=n).map(move |i| 2f64.powf(-8.0 * i as f64 / n as f64));
    let power = if heads == 0 { 0 } else { 1 << heads.ilog2() };
    whole(power).chain(whole(power.saturating_mul(2)).step_by(2)).take(heads).collect()
}
