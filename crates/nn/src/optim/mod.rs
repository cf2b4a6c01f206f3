//! Optimizers: from a gradient to a new parameter, as expressions in the training step.
//!
//! Names, defaults and the order of arithmetic are PyTorch's or, for optimizers that PyTorch does
//! not have ([`Lars`], [`Lamb`], [`Lion`]), optax's. [`chain`] puts rules before and after an
//! optimizer, such as [`ClipNorm`] or your own. [`GradScaler`] is the loss scale for f16. Out of
//! scope: accumulation and averages of weights, which are in the Trainer.

mod adadelta;
mod adafactor;
mod adagrad;
mod adam;
mod betas;
mod chain;
mod clip_norm;
mod clip_value;
mod grad_scaler;
mod gradient_transformation;
mod group_step;
mod lamb;
mod lars;
mod lion;
mod muon;
mod nadam;
mod param_groups;
#[doc(hidden)] // for the Trainer
pub mod pattern;
mod radam;
mod rmsprop;
mod rule;
mod sgd;
mod step;
mod stochastic_rounding;
mod trust_ratio;

use std::any::Any;
use std::fmt::Debug;

use fulmen_tensor::{Tensor, TensorType};

pub use adadelta::Adadelta;
pub use adafactor::Adafactor;
pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
#[doc(hidden)] // for the Trainer
pub use chain::ChainRules;
pub use chain::{Chain, IntoChain, chain};
pub use clip_norm::{ClipNorm, gradient_norm};
pub use clip_value::ClipValue;
pub use grad_scaler::GradScaler;
pub use gradient_transformation::{FirstValue, GradientTransformation, ParameterUpdate, Updates};
pub use group_step::GroupStep;
pub use lamb::Lamb;
pub use lars::Lars;
pub use lion::Lion;
pub use muon::{AdjustLr, Muon};
pub use nadam::NAdam;
pub use param_groups::ParamGroups;
pub use radam::RAdam;
pub use rmsprop::RmsProp;
pub use sgd::Sgd;
pub use step::Step;
#[doc(hidden)] // for the Trainer
pub use stochastic_rounding::round_to_bf16;

use crate::Result;

/// The rule by which gradients change parameters.
///
/// The state between steps is passed in and returned, so that it can stay on the device and be
/// saved. It exists before the first step, so every step runs the same program. Parameters are
/// identified by dotted name and type. [`ParamGroups`] uses both to treat some parameters
/// differently.
///
/// ```
/// use fulmen_nn::optim::{Optimizer, Sgd, Step};
/// use fulmen_tensor::Tensor;
///
/// let sgd = Sgd::new(0.1);
/// let p = Tensor::from_slice(&[1.0f32], [1]);
/// let g = Tensor::from_slice(&[2.0f32], [1]);
/// let (p, _) = sgd.update(&Step::new(&Tensor::scalar(0i32)), "weight", &p, &g, &[]);
/// assert_eq!(p.eval()?.to_vec::<f32>()?, [0.8]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
///
/// Your own optimizer takes the learning rate and the weight decay from the [`Step`], which
/// includes the settings of groups, the Trainer and callbacks:
///
/// ```
/// use std::panic::Location;
///
/// use fulmen_nn::optim::{Optimizer, Step};
/// use fulmen_nn::{Error, Result};
/// use fulmen_tensor::{Tensor, TensorType};
///
/// // /// Steps of constant size, by the sign of the gradient.
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
///         Vec::new()
///     }
///     fn update(&self, step: &Step, _: &str, p: &Tensor, g: &Tensor, _: &[Tensor]) -> (Tensor, Vec<Tensor>) {
///         (p - self.learning_rate(step).to_dtype(p.dtype()) * g.sign(), Vec::new())
///     }
///     fn learning_rate(&self, step: &Step) -> Tensor {
///         step.learning_rate(&self.0)
///     }
///     fn check(&self, _: &[(String, TensorType)]) -> Result<()> {
///         let SignSgd(lr, at) = *self;
///         if lr > 0.0 { Ok(()) } else { Err(Error::usage_at(format!("SignSgd: the learning rate is {lr}"), at)) }
///     }
/// }
/// # let error = SignSgd::new(-1.0).check(&[]).unwrap_err().to_string();
/// # assert!(error.contains("rate is -1") && error.contains("  at "), "{error}");
/// ```
pub trait Optimizer: Any + Send + Sync + Debug {
    /// The state for the parameter with this name and type: names, like those in PyTorch, and the
    /// values before the first step. It is f32 for 16-bit parameters, unless the optimizer's `state_dtype`
    /// is bf16.
    fn state(&self, name: &str, parameter: &TensorType) -> Vec<(&'static str, Tensor)>;

    /// The new parameter and state, in the order of [`Optimizer::state`]. The gradient may have a
    /// wider dtype than the parameter, as accumulated gradients do; so may the returned parameter,
    /// which the Trainer rounds.
    ///
    /// The gradient of a complex parameter is `∂/∂x + i·∂/∂y`, the direction of ascent, as in
    /// PyTorch. It is the conjugate of what [`grad`](fulmen_tensor::grad()) returns; the Trainer
    /// passes the conjugate. The optimizers of this module treat a complex number as two real ones;
    /// [`Adafactor`] and [`Muon`] reject complex parameters.
    fn update(
        &self,
        step: &Step,
        name: &str,
        parameter: &Tensor,
        gradient: &Tensor,
        state: &[Tensor],
    ) -> (Tensor, Vec<Tensor>);

    /// The learning rate of a step, for logging: an f32 scalar.
    fn learning_rate(&self, step: &Step) -> Tensor;

    /// The group of the parameter with this name and type, and its settings in a step. An optimizer
    /// without groups has a single group without a name.
    fn group_step(&self, step: &Step, name: &str, parameter: &TensorType) -> GroupStep {
        let _ = (name, parameter);
        GroupStep { name: String::new(), learning_rate: self.learning_rate(step), momentum: None }
    }

    /// Whether the parameter with this name and type is trained. If not, it has no gradient and no
    /// state.
    fn trains(&self, name: &str, parameter: &TensorType) -> bool {
        let _ = (name, parameter);
        true
    }

    /// Whether [`Optimizer::update`] accepts the parameters with these names, all of this type, as
    /// one: stacked along a new first axis, under the first name, with a step [of stacked
    /// parameters](Step::of_stacked). This is possible if it treats all of them alike and updates
    /// each as if it were alone. The Trainer asks this for layers that run as a scan; their
    /// parameters are then one array of the training state.
    fn updates_stacked(&self, names: &[&str], parameter: &TensorType) -> bool {
        let _ = (names, parameter);
        false
    }

    /// Whether [`Optimizer::update`] draws random numbers for the parameter with this name and type,
    /// with the [key of the step](Step::with_random_key).
    fn draws(&self, name: &str, parameter: &TensorType) -> bool {
        let _ = (name, parameter);
        false
    }

    /// Why [`Optimizer::update`] does not accept some rows of the parameter with this name and type,
    /// with the rows of its gradient and state, as a step [of rows](Step::of_rows); `None` if it
    /// does. All other rows then stay unchanged. The Trainer asks this for parameters with [sparse
    /// gradients](crate::Parameter::set_sparse_gradient).
    fn refuses_rows(&self, step: &Step, name: &str, parameter: &TensorType) -> Option<String> {
        let _ = (step, name, parameter);
        Some("it has no lazy form; use Sgd, Adagrad or Adam".into())
    }

    /// Checks the settings for a model with these parameters.
    ///
    /// # Errors
    /// A setting is invalid, or a pattern matches no parameter; the error names the line.
    fn check(&self, parameters: &[(String, TensorType)]) -> Result<()> {
        let _ = parameters;
        Ok(())
    }
}
