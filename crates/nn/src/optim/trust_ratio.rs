//! The trust ratio of LARS and LAMB: the length of a parameter by that of its step.

use fulmen_tensor::Tensor;

/// The Euclidean length of a tensor's elements, a scalar.
pub(super) fn length(x: &Tensor) -> Tensor {
    (x * x).sum_all().sqrt()
}

/// `c·‖p‖/(‖u‖ + ε)`, a scalar; 1 where one of the two is 0, so that a parameter of zeros moves.
pub(super) fn trust_ratio(parameter: &Tensor, update: &Tensor, coefficient: f64, eps: f64) -> Tensor {
    let (of_parameter, of_update) = (length(parameter), length(update));
    let ratio = &of_parameter * coefficient / (&of_update + eps);
    let none = of_parameter.eq(0.0).or(of_update.eq(0.0));
    none.select(&ratio.ones_like(), &ratio)
}
