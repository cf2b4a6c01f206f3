//! Optimizers: from a gradient to a new parameter, as expressions that become part of the training step.

mod adam;
mod sgd;

use std::fmt::Debug;

use fulmen_tensor::{Tensor, TensorType};

pub use adam::{Adam, AdamW};
pub use sgd::Sgd;

use crate::precision::precision;

/// How a parameter changes by its gradient.
///
/// What an optimizer remembers between steps is handed to it and taken from it, so that it can lie on the device and
/// be saved. It exists before the first step, so that the first step is the same program as every other.
///
/// ```
/// use fulmen_nn::optim::{Optimizer, Sgd};
/// use fulmen_tensor::Tensor;
///
/// let sgd = Sgd::new(0.1);
/// let (p, g) = (Tensor::from_slice(&[1.0f32], [1]), Tensor::from_slice(&[2.0f32], [1]));
/// let (p, _) = sgd.update(&Tensor::scalar(0i32), &p, &g, &[]);
/// assert_eq!(p.eval()?.to_vec::<f32>()?, [0.8]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
pub trait Optimizer: Send + Sync + Debug {
    /// What is remembered of a parameter of this type: names, as in PyTorch, and the values before the first step.
    fn state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)>;

    /// The new parameter and what is to be remembered, in the order of [`Optimizer::state`]. `step` is an i32 scalar:
    /// the steps finished before this one.
    #[track_caller]
    fn update(&self, step: &Tensor, parameter: &Tensor, gradient: &Tensor, state: &[Tensor]) -> (Tensor, Vec<Tensor>);

    /// The learning rate (an f32 scalar) of the step after `step` finished ones.
    #[track_caller]
    fn learning_rate(&self, step: &Tensor) -> Tensor;

    /// Multiplies the learning rate of every step by `factor`: for more devices, say.
    fn scale_learning_rate(&mut self, factor: f64);
}

/// Zeros to begin with, of the parameter's shape.
fn zeros(parameter: &TensorType) -> Tensor {
    Tensor::zeros(precision(parameter.dtype), &parameter.shape)
}

/// Says so if a gradient or the state is not of this parameter, or a setting makes no sense.
fn misfit(
    settings: Option<String>,
    parameter: &Tensor,
    gradient: &Tensor,
    state: &[Tensor],
    remembered: usize,
) -> Option<String> {
    if settings.is_some() {
        return settings;
    }
    if parameter.fault().is_none() && gradient.fault().is_none() && parameter.shape() != gradient.shape() {
        return Some(format!("the gradient {} is not of the parameter {}", gradient.ty(), parameter.ty()));
    }
    (state.len() != remembered)
        .then(|| format!("{} tensors of state were given, {remembered} are remembered", state.len()))
}
