//! [`GradientClipAlgorithm`]: how gradients are kept from being too large.

use std::fmt;
use std::str::FromStr;

use fulmen_tensor::{DType, Tensor};

use crate::{Error, Result};

/// How gradients are kept from being too large.
///
/// ```
/// use fulmen_trainer::GradientClipAlgorithm;
/// assert_eq!("value".parse::<GradientClipAlgorithm>()?, GradientClipAlgorithm::Value);
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GradientClipAlgorithm {
    /// All gradients together are made shorter, so that their Euclidean length is at most so much: `g·min(1, c/(‖g‖ +
    /// 10⁻⁶))`, PyTorch's `clip_grad_norm_`.
    #[default]
    Norm,
    /// Each element is brought between `−c` and `c`, PyTorch's `clip_grad_value_`.
    Value,
}

const NAMES: [(&str, GradientClipAlgorithm); 2] =
    [("norm", GradientClipAlgorithm::Norm), ("value", GradientClipAlgorithm::Value)];

impl FromStr for GradientClipAlgorithm {
    type Err = Error;
    fn from_str(name: &str) -> Result<GradientClipAlgorithm> {
        NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|row| row.1).ok_or_else(|| {
            let known: Vec<_> = NAMES.iter().map(|row| row.0).collect();
            Error::usage(format!("`{name}` is no way to clip gradients; there are: {}", known.join(", ")))
        })
    }
}

impl TryFrom<&str> for GradientClipAlgorithm {
    type Error = Error;
    fn try_from(name: &str) -> Result<GradientClipAlgorithm> {
        name.parse()
    }
}

impl fmt::Display for GradientClipAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES.iter().find(|row| row.1 == *self).map_or("norm", |row| row.0))
    }
}

/// What gradients are clipped to, and how.
pub(crate) type Clip = Option<(GradientClipAlgorithm, f64)>;

pub(crate) fn needs_norm(clip: Clip) -> bool {
    matches!(clip, Some((GradientClipAlgorithm::Norm, _)))
}

/// The Euclidean length of all gradients together, an f32 scalar. Gradients that lie split are summed over the devices,
/// as any sum over a tensor is.
pub(crate) fn norm<'a>(gradients: impl Iterator<Item = &'a Tensor>) -> Tensor {
    let squares = gradients.map(|gradient| {
        let wide = gradient.to_dtype(DType::F32);
        (&wide * &wide).sum_all()
    });
    squares.fold(Tensor::full(DType::F32, [], 0.0), |sum, square| sum + square).sqrt()
}

/// A gradient, clipped.
pub(crate) fn clip(clip: Clip, gradient: &Tensor, norm: Option<&Tensor>) -> Tensor {
    match (clip, norm) {
        (Some((GradientClipAlgorithm::Value, most)), _) => gradient.maximum(-most).minimum(most),
        (Some((GradientClipAlgorithm::Norm, most)), Some(norm)) => {
            let factor = (most / (norm + 1e-6)).minimum(1.0);
            gradient * factor.to_dtype(gradient.dtype())
        }
        _ => gradient.clone(),
    }
}
