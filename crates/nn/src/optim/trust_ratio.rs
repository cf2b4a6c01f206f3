//! The trust ratio of LARS and LAMB: the norm of a parameter divided by the norm of its step.

use fulmen_tensor::Tensor;
use fulmen_tensor::internal::global_norm;

/// The Euclidean norm of a tensor, a scalar.
pub(super) fn length(x: &Tensor) -> Tensor {
    global_norm(std::slice::from_ref(x))
}

/// `c·‖p‖/(‖u‖ + ε)`, a scalar; 1 if one of the two norms is 0, so that a parameter of zeros can
/// change.
pub(super) fn trust_ratio(
    parameter: &Tensor,
    update: &Tensor,
    coefficient: f64,
    eps: f64,
) -> Tensor {
    let parameter_norm = length(parameter);
    let update_norm = length(update);
    let ratio = &parameter_norm * coefficient / (&update_norm + eps);
    let is_zero = parameter_norm.eq(0.0).or(update_norm.eq(0.0));
    is_zero.select(&ratio.ones_like(), &ratio)
}
