//! Gradient clipping, as [`GradientClipAlgorithm`] selects it.

use fulmen_tensor::internal::global_norm;
use fulmen_tensor::{DType, Tensor};

use crate::GradientClipAlgorithm;

/// The algorithm and its limit, or no clipping.
pub(crate) type Clip = Option<(GradientClipAlgorithm, f64)>;

pub(crate) fn needs_norm(clip: Clip) -> bool {
    matches!(clip, Some((GradientClipAlgorithm::Norm, _)))
}

/// The Euclidean norm of all gradients together, a scalar: f64 if one of them has 64-bit numbers,
/// otherwise f32. For sharded gradients, the sum runs over the devices.
pub(crate) fn norm<'a>(gradients: impl Iterator<Item = &'a Tensor>) -> Tensor {
    let mut parts = Vec::new();
    for gradient in gradients {
        parts.push(gradient.real());
        if gradient.dtype().is_complex() {
            parts.push(gradient.imag());
        }
    }
    let is_wide = parts.iter().any(|part| part.dtype() == DType::F64);
    let dtype = if is_wide { DType::F64 } else { DType::F32 };
    let parts: Vec<Tensor> = parts.iter().map(|part| part.to_dtype(dtype)).collect();
    global_norm(&parts)
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
