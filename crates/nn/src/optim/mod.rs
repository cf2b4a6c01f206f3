//! Optimizers: from a gradient to a new parameter, as expressions that become part of the training step.
//!
//! Names, defaults and the order of arithmetic are PyTorch's; where PyTorch has no such optimizer ([`Lars`], [`Lamb`],
//! [`Lion`]), they are optax's. [`GradScaler`] is the loss scale of f16. Clipping, accumulation and averages of weights are
//! not here but in the Trainer.

mod adadelta;
mod adafactor;
mod adagrad;
mod adam;
mod grad_scaler;
mod group_step;
mod lamb;
mod lars;
mod lion;
mod nadam;
mod param_groups;
#[doc(hidden)] // for the Trainer
pub mod pattern;
mod radam;
mod rmsprop;
mod rule;
mod sgd;
mod step;
mod trust_ratio;

use std::any::Any;
use std::fmt::Debug;

use fulmen_tensor::{Tensor, TensorType};

pub use adadelta::Adadelta;
pub use adafactor::Adafactor;
pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
pub use grad_scaler::GradScaler;
pub use group_step::GroupStep;
pub use lamb::Lamb;
pub use lars::Lars;
pub use lion::Lion;
pub use nadam::NAdam;
pub use param_groups::ParamGroups;
pub use radam::RAdam;
pub use rmsprop::RmsProp;
pub use sgd::Sgd;
pub use step::Step;

use crate::Result;

/// How parameters change by their gradients.
///
/// What an optimizer remembers between steps is handed to it and taken from it, so that it can lie on the device and
/// be saved. It exists before the first step, so that the first step is the same program as every other. A parameter is
/// known by its dotted name and its type, by which [`ParamGroups`] treats some differently.
///
/// ```
/// use fulmen_nn::optim::{Optimizer, Sgd, Step};
/// use fulmen_tensor::Tensor;
///
/// let sgd = Sgd::new(0.1);
/// let (p, g) = (Tensor::from_slice(&[1.0f32], [1]), Tensor::from_slice(&[2.0f32], [1]));
/// let (p, _) = sgd.update(&Step::new(&Tensor::scalar(0i32)), "weight", &p, &g, &[]);
/// assert_eq!(p.eval()?.to_vec::<f32>()?, [0.8]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
///
/// An optimizer of your own takes the learning rate and the weight decay from the [`Step`], which knows what a group,
/// the Trainer or a callback makes of them:
///
/// ```
/// use std::panic::Location;
///
/// use fulmen_nn::optim::{Optimizer, Step};
/// use fulmen_nn::{Error, Result};
/// use fulmen_tensor::{Tensor, TensorType};
///
/// /// Steps of one length, by the sign of the gradient.
/// #[derive(Debug)]
/// struct SignSgd(f64, &'static Location<'static>);
///
/// impl SignSgd {
///     #[track_caller]
///     fn new(lr: f64) -> SignSgd {
///         SignSgd(lr, Location::caller())
///     }
/// }
///
/// impl Optimizer for SignSgd {
///     fn state(&self, _: &str, _: &TensorType) -> Vec<(&'static str, Tensor)> {
///         vec![]
///     }
///     fn update(&self, step: &Step, _: &str, p: &Tensor, g: &Tensor, _: &[Tensor]) -> (Tensor, Vec<Tensor>) {
///         (p - self.learning_rate(step).to_dtype(p.dtype()) * g.sign(), vec![])
///     }
///     fn learning_rate(&self, step: &Step) -> Tensor {
///         step.learning_rate(&self.0)
///     }
///     fn check(&self, _: &[(String, TensorType)]) -> Result<()> {
///         let SignSgd(lr, at) = *self;
///         if lr > 0.0 { Ok(()) } else { Err(Error::usage(format!("SignSgd: the learning rate is {lr}"), at)) }
///     }
/// }
/// # let error = SignSgd::new(-1.0).check(&[]).unwrap_err().to_string();
/// # assert!(error.contains("rate is -1") && error.contains("  at "), "{error}");
/// ```
pub trait Optimizer: Any + Send + Sync + Debug {
    /// What is remembered of the parameter of this name and type: names, as in PyTorch, and the values before the first
    /// step. It is f32 for parameters of 16 bits.
    fn state(&self, name: &str, parameter: &TensorType) -> Vec<(&'static str, Tensor)>;

    /// The new parameter and what is to be remembered, in the order of [`Optimizer::state`].
    /// The gradient may be of a wider type than the parameter, as that of accumulated batches is; so may what is returned,
    /// and the Trainer rounds it to the parameter's.
    fn update(
        &self,
        step: &Step,
        name: &str,
        parameter: &Tensor,
        gradient: &Tensor,
        state: &[Tensor],
    ) -> (Tensor, Vec<Tensor>);

    /// The learning rate (an f32 scalar) of a step, as it is logged.
    fn learning_rate(&self, step: &Step) -> Tensor;

    /// The group of the parameter of this name and type, and what is done with it in a step. An optimizer without groups
    /// has one, without a name.
    fn group_step(&self, step: &Step, name: &str, parameter: &TensorType) -> GroupStep {
        let _ = (name, parameter);
        GroupStep { name: String::new(), learning_rate: self.learning_rate(step), momentum: None }
    }

    /// Whether the parameter of this name and type is trained. One that is not has no gradient and no state.
    fn trains(&self, name: &str, parameter: &TensorType) -> bool {
        let _ = (name, parameter);
        true
    }

    /// Whether [`Optimizer::update`] may get the parameters of these names, all of this type, as one, stacked along a new
    /// first axis, under the first name and with a step [of stacked parameters](Step::of_stacked). It may where it treats
    /// them alike and each element by itself. The Trainer asks for layers that run as a scan, whose parameters are then one
    /// array of the training state.
    fn updates_stacked(&self, names: &[&str], parameter: &TensorType) -> bool {
        let _ = (names, parameter);
        false
    }

    /// Looks whether the settings make sense for a model with these parameters.
    ///
    /// # Errors
    /// A setting without sense, or a name that no parameter has; it says on which line.
    fn check(&self, parameters: &[(String, TensorType)]) -> Result<()> {
        let _ = parameters;
        Ok(())
    }
}
