//! Clipping: what [`GradientClipAlgorithm`] does to gradients.

use fulmen_tensor::{DType, Tensor};

use crate::GradientClipAlgorithm;

/// What gradients are clipped to, and how.
pub(crate) type Clip = Option<(GradientClipAlgorithm, f64)>;

pub(crate) fn needs_norm(clip: Clip) -> bool {
    matches!(clip, Some((GradientClipAlgorithm::Norm, _)))
}

/// The Euclidean length of all gradients together, an f32 scalar. Gradients that are sharded are summed over the devices,
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
