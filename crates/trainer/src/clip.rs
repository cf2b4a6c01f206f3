//! [`GradientClipAlgorithm`]: how gradients are kept from being too large.

use fulmen_tensor::{DType, Tensor};

use crate::named::named;

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

named!(GradientClipAlgorithm, "way to clip gradients");

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
