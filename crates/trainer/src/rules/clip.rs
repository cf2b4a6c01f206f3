//! Gradient clipping, as [`GradientClipAlgorithm`] selects it.

use fulmen_tensor::internal::global_norm;
use fulmen_tensor::{DType, Tensor};

use crate::GradientClipAlgorithm;

/// The algorithm and its limit, or no clipping.
pub(crate) type Clip = Option<(GradientClipAlgorithm, f64)>;

pub(crate) fn needs_norm(clip: Clip) -> bool {
    matches!(clip, Some((GradientClipAlgorithm::Norm, _)))
}

/// The Euclidean norm of all gradients together, an f32 scalar. For sharded gradients, the sum runs
/// over the devices.
pub(crate) fn norm<'a>(gradients: impl Iterator<Item = &'a Tensor>) -> Tensor {
    let wide: Vec<Tensor> = gradients.map(|gradient| gradient.to_dtype(DType::F32)).collect();
    global_norm(&wide)
}

/// Clips a gradient.
pub(crate) fn clip(clip: Clip, gradient: &Tensor, norm: Option<&Tensor>) -> Tensor {
    match (clip, norm) {
        (Some((GradientClipAlgorithm::Value, limit)), _) => gradient.maximum(-limit).minimum(limit),
        (Some((GradientClipAlgorithm::Norm, limit)), Some(norm)) => {
            let factor = (limit / (norm + 1e-6)).minimum(1.0);
            gradient * factor.to_dtype(gradient.dtype())
        }
        _ => gradient.clone(),
    }
}
