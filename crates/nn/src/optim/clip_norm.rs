//! [`ClipNorm`]: limits the norm of all gradients together.

use std::panic::Location;

use fulmen_tensor::internal::global_norm;
use fulmen_tensor::{DType, Tensor, TensorType};

use super::{GradientTransformation, Step, Updates};
use crate::library::NN;
use crate::{Error, Result};

/// Limits the Euclidean norm of all gradients together, as PyTorch's `clip_grad_norm_` does: each
/// is multiplied by `min(1, max_norm / (norm + 1e-6))`.
///
/// ```
/// use fulmen_nn::optim::{AdamW, ClipNorm, chain};
/// let optimizer = chain((ClipNorm::new(1.0), AdamW::new(3e-4)));
/// ```
#[derive(Clone, Debug)]
pub struct ClipNorm {
    max_norm: f64,
    location: &'static Location<'static>,
}

impl ClipNorm {
    /// Limits the norm to `max_norm`.
    #[track_caller]
    pub fn new(max_norm: f64) -> ClipNorm {
        ClipNorm { max_norm, location: Location::caller() }
    }

    /// A gradient, clipped by the norm of all gradients, a scalar.
    #[track_caller]
    pub fn clip(&self, gradient: &Tensor, norm: &Tensor) -> Tensor {
        let _scope = NN.open();
        let factor = (self.max_norm / (norm + 1e-6)).minimum(1.0);
        gradient * factor.to_dtype(gradient.dtype())
    }
}

impl GradientTransformation for ClipNorm {
    fn name(&self) -> &'static str {
        "clip_norm"
    }

    fn update(&self, _: &Step, updates: &mut Updates) {
        let _scope = NN.at(self.location);
        let norm = gradient_norm(updates.parameters.iter().map(|parameter| &parameter.update));
        for parameter in &mut updates.parameters {
            parameter.update = self.clip(&parameter.update, &norm);
        }
    }

    fn check(&self, _: &[(String, TensorType)]) -> Result<()> {
        if self.max_norm.is_finite() && self.max_norm > 0.0 {
            return Ok(());
        }
        let message =
            format!("ClipNorm: max_norm must be finite and above 0, but it is {}", self.max_norm);
        Err(Error::usage_at(message, self.location))
    }
}

/// The Euclidean norm of all gradients together, a scalar: f64 if one of them has 64-bit numbers,
/// otherwise f32. For gradients that are split over devices, the sum runs over the devices.
///
/// ```
/// use fulmen_nn::optim::gradient_norm;
/// use fulmen_tensor::Tensor;
///
/// let gradients = [Tensor::from_slice(&[3.0f32], [1]), Tensor::from_slice(&[0.0f32, 4.0], [2])];
/// assert_eq!(gradient_norm(&gradients).eval()?.to_vec::<f32>()?, [5.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn gradient_norm<'a>(gradients: impl IntoIterator<Item = &'a Tensor>) -> Tensor {
    let _scope = NN.open();
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
