//! [`RotaryEmbedding`]: positions as rotations of queries and keys (RoPE), in both conventions.

use fulmen_tensor::{AsTensor, DType, Tensor};

use super::positions::check_positions;
use crate::library::{NN, live};
use crate::precision::precision;

/// Rotates pairs of features by angles that grow with the position, so that products of queries and
/// keys depend only on their distance (Su et al. 2021, "RoFormer"). At position `p`, pair `i` of
/// the `width/2` pairs is rotated by `p·theta^(−2i/width)`.
///
/// Models differ in which features form a pair, and their weights depend on it. By default, the
/// pairs are `i` and `i + width/2` (GPT-NeoX, Llama in Hugging Face's layout, Qwen, Mistral);
/// [`interleaved`](RotaryEmbedding::interleaved) pairs `2i` and `2i + 1` (RoFormer, GPT-J, Meta's
/// own Llama files). Angles and products are computed in f32 or wider; the result has the input's
/// dtype.
///
/// ```
/// use fulmen_nn::attention::RotaryEmbedding;
/// use fulmen_tensor::{DType, Tensor};
///
/// let rope = RotaryEmbedding::new(64).theta(500_000.0);
/// let q = Tensor::ones(DType::F32, [2, 8, 10, 64]); // [batch, heads, length, width]
/// let rotated = rope.forward(&q);
/// assert_eq!(rotated.ty(), q.ty());
///
/// // The position of the first token is 0, which is not rotated.
/// let first = RotaryEmbedding::new(2).forward(&Tensor::from_slice(&[1.0f32, 0.0, 1.0, 0.0], [2, 2])).eval()?;
/// let first = first.to_vec::<f32>()?;
/// assert_eq!(first[..2], [1.0, 0.0]);
/// assert!((first[2] - 1f32.cos()).abs() < 1e-6 && (first[3] - 1f32.sin()).abs() < 1e-6);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RotaryEmbedding {
    width: usize,
    theta: f64,
    interleaved: bool,
    scaling: RotaryScaling,
}

/// How angles are scaled for sequences longer than those in training.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum RotaryScaling {
    /// No scaling.
    #[default]
    None,
    /// Divides all angles by this factor (position interpolation).
    Linear {
        /// The new length divided by the trained length.
        factor: f64,
    },
    /// Llama 3.1's rule: divides slow rotations by the factor, keeps fast ones, and interpolates in
    /// between.
    Llama3 {
        /// The divisor for slow rotations.
        factor: f64,
        /// Rotations are slow if their wavelength exceeds the trained length divided by this.
        low_freq_factor: f64,
        /// Rotations are fast if their wavelength is below the trained length divided by this.
        high_freq_factor: f64,
        /// The sequence length in training.
        original_max_position_embeddings: usize,
    },
    /// YaRN (Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language
    /// Models"): divides slow rotations by the factor, keeps fast ones, and interpolates in
    /// between, linearly in the number of the pair. Cosines and sines are multiplied by
    /// `attention_factor`.
    Yarn {
        /// The divisor for slow rotations.
        factor: f64,
        /// The sequence length in training.
        original_max_position_embeddings: usize,
        /// Rotations are fast if they turn more often than this within the length in training; 32
        /// in the paper.
        beta_fast: f64,
        /// Rotations are slow if they turn less often than this within the length in training; 1
        /// in the paper.
        beta_slow: f64,
        /// The factor of cosines and sines, so that scores are multiplied by its square;
        /// `0.1·ln(factor) + 1` in the paper.
        attention_factor: f64,
        /// Whether the ends of the interpolation are whole numbers of pairs, as in the paper's
        /// code.
        truncate: bool,
    },
}

impl RotaryEmbedding {
    /// Rotates the first `width` features, an even number up to the width of a head. `theta` is
    /// 10000.
    pub fn new(width: usize) -> RotaryEmbedding {
        RotaryEmbedding { width, theta: 10_000.0, interleaved: false, scaling: RotaryScaling::None }
    }

    /// The base of the angles.
    pub fn theta(mut self, theta: f64) -> RotaryEmbedding {
        self.theta = theta;
        self
    }

    /// Whether pairs are adjacent features (`2i` and `2i + 1`) instead of features half a width
    /// apart.
    pub fn interleaved(mut self, interleaved: bool) -> RotaryEmbedding {
        self.interleaved = interleaved;
        self
    }

    /// The scaling for long sequences.
    pub fn scaling(mut self, scaling: RotaryScaling) -> RotaryEmbedding {
        self.scaling = scaling;
        self
    }

    /// The angle of each pair at position 1.
    pub fn frequencies(&self) -> Vec<f64> {
        (0..self.width / 2).map(|pair| self.frequency(pair)).collect()
    }

    fn frequency(&self, pair: usize) -> f64 {
        let frequency = self.theta.powf(-2.0 * pair as f64 / self.width as f64);
        match self.scaling {
            RotaryScaling::None => frequency,
            RotaryScaling::Linear { factor } => frequency / factor,
            RotaryScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let turns =
                    original_max_position_embeddings as f64 * frequency / std::f64::consts::TAU;
                let fast = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor))
                    .clamp(0.0, 1.0);
                frequency * (fast + (1.0 - fast) / factor)
            }
            RotaryScaling::Yarn {
                factor,
                original_max_position_embeddings,
                beta_fast,
                beta_slow,
                truncate,
                ..
            } => {
                let length = original_max_position_embeddings as f64;
                let mut first = self.pair_of_turns(beta_fast, length);
                let mut last = self.pair_of_turns(beta_slow, length);
                if truncate {
                    first = first.floor();
                    last = last.ceil();
                }
                first = first.max(0.0);
                last = last.min(self.width as f64 - 1.0);
                if first == last {
                    last += 0.001;
                }
                let slow = ((pair as f64 - first) / (last - first)).clamp(0.0, 1.0);
                frequency * ((1.0 - slow) + slow / factor)
            }
        }
    }

    /// The number of the pair that makes `turns` turns within `length` tokens, not rounded.
    fn pair_of_turns(&self, turns: f64, length: f64) -> f64 {
        let wavelength = length / (turns * std::f64::consts::TAU);
        self.width as f64 * wavelength.ln() / (2.0 * self.theta.ln())
    }

    /// The factor of cosines and sines: that of [`RotaryScaling::Yarn`], otherwise 1.
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RotaryScaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }

    /// Rotates `[…, length, features]`, with positions along axis −2 counted from 0.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor) -> Tensor {
        let _scope = NN.open();
        let x = x.as_tensor();
        self.forward_at(x, &Tensor::arange(DType::I32, x.size(-2)))
    }

    /// Rotates `[…, length, features]` by the integer `positions`, which broadcast to `[…,
    /// length]`: `[length]` or, for an input `[batch, heads, length, features]`, `[batch, 1,
    /// length]`.
    ///
    /// Poisoned if the width is odd or larger than the number of features, and if the positions are
    /// not integers.
    #[track_caller]
    pub fn forward_at(&self, x: impl AsTensor, positions: impl AsTensor) -> Tensor {
        NN.record("RotaryEmbedding", || {
            let x = x.as_tensor();
            let positions = positions.as_tensor();
            live(&[x, positions])?;
            let width = self.width;
            let features = x.size(-1);
            if width == 0 || !width.is_multiple_of(2) {
                return Err(format!("a width of {width} cannot be split into pairs").into());
            }
            if x.rank() < 2 || features < width || !x.dtype().is_float() {
                let ty = x.ty();
                return Err(format!(
                    "the input {ty} is not floating-point [.., length, features] with {width} features or more"
                )
                .into());
            }
            match check_positions(positions, x) {
                Some(message) => Err(message.into()),
                None => Ok(self.rotate(x, positions)),
            }
        })
    }

    fn rotate(&self, x: &Tensor, positions: &Tensor) -> Tensor {
        let dtype = precision(x.dtype());
        let half = self.width / 2;
        let frequencies = Tensor::from_slice(&self.frequencies(), [half]).to_dtype(dtype);
        let angles = positions.to_dtype(dtype).unsqueeze(-1) * frequencies;
        let mut cos = angles.cos();
        let mut sin = angles.sin();
        let factor = self.attention_factor();
        if factor != 1.0 {
            cos = cos * factor;
            sin = sin * factor;
        }
        let features = x.narrow(-1, 0, self.width).to_dtype(dtype);
        let rotated = if self.interleaved {
            let pairs = features.reshape([&x.shape()[..x.rank() - 1], &[half, 2]].concat());
            let a = pairs.narrow(-1, 0, 1).squeeze(-1);
            let b = pairs.narrow(-1, 1, 1).squeeze(-1);
            let rotated = [&a * &cos - &b * &sin, &b * &cos + &a * &sin];
            Tensor::stack(&rotated, -1).flatten(-2, -1)
        } else {
            let a = features.narrow(-1, 0, half);
            let b = features.narrow(-1, half, half);
            Tensor::concatenate(&[&(&a * &cos - &b * &sin), &(&b * &cos + &a * &sin)], -1)
        };
        let rotated = rotated.to_dtype(x.dtype());
        let rest = x.size(-1) - self.width;
        if rest == 0 {
            return rotated;
        }
        Tensor::concatenate(&[&rotated, &x.narrow(-1, self.width, rest)], -1)
    }
}
