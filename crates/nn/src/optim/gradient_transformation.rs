//! [`GradientTransformation`]: a rule that changes gradients before an optimizer, or the changes of
//! the parameters after it.

use std::any::Any;
use std::fmt::Debug;

use fulmen_tensor::{Tensor, TensorType};

use super::Step;
use crate::Result;

/// A rule that changes the gradients of all parameters before an optimizer, or the changes of all
/// parameters after it. [`chain`](super::chain()) puts rules around an optimizer.
///
/// This is optax's `GradientTransformation`: state and gradients go in, new state and new gradients
/// come out. The state is part of the training state: it stays on the device, is split like the
/// parameters and is saved in checkpoints under the rule's [name](GradientTransformation::name).
/// The rule is recorded into the program of the step, and is called where the optimizer is:
/// - with `accumulate_grad_batches`, once per group of batches, with the mean gradient;
/// - after [`gradient_clip_val`](https://docs.rs/fulmen-trainer), if the Trainer clips too;
/// - a step that changes nothing, because its gradients overflowed in f16 or a callback skips it,
///   changes no state either.
///
/// Gradient centralization (Yong et al. 2020, <https://arxiv.org/abs/2004.01461>) as a rule:
///
/// ```
/// use fulmen_nn::optim::{AdamW, GradientTransformation, Step, Updates, chain};
///
/// /// Makes the gradient of each output of a layer have the mean 0.
/// #[derive(Debug)]
/// struct Centralize;
///
/// impl GradientTransformation for Centralize {
///     fn name(&self) -> &'static str {
///         "centralize"
///     }
///
///     fn update(&self, _: &Step, updates: &mut Updates) {
///         for parameter in &mut updates.parameters {
///             let rank = parameter.update.shape().rank() as isize;
///             if rank > 1 {
///                 let mean = parameter.update.mean_keepdim((1..rank).collect::<Vec<_>>());
///                 parameter.update = &parameter.update - mean;
///             }
///         }
///     }
/// }
///
/// let optimizer = chain((Centralize, AdamW::new(1e-3)));
/// ```
pub trait GradientTransformation: Any + Send + Sync + Debug {
    /// The name of the rule in checkpoints and messages. The rules of a chain have different names.
    /// A name has no `/`.
    fn name(&self) -> &'static str;

    /// The state of the rule itself: names, and the values before the first step. It has none by
    /// default. Each device has a copy.
    fn init(&self) -> Vec<(&'static str, Tensor)> {
        Vec::new()
    }

    /// The state for the parameter with this name and type: names, and the values before the first
    /// step. It has none by default. State of the parameter's shape is split over devices like the
    /// parameter.
    fn init_parameter(
        &self,
        name: &str,
        parameter: &TensorType,
    ) -> Vec<(&'static str, FirstValue)> {
        let _ = (name, parameter);
        Vec::new()
    }

    /// Changes the updates and the state. The types must stay the same. `step` has the number of
    /// steps that the optimizer has finished.
    fn update(&self, step: &Step, updates: &mut Updates);

    /// Checks the settings for a model with these parameters.
    ///
    /// # Errors
    /// A setting is invalid; the error names the line.
    fn check(&self, parameters: &[(String, TensorType)]) -> Result<()> {
        let _ = parameters;
        Ok(())
    }
}

/// The value of a state before the first step.
#[derive(Clone, Debug)]
pub enum FirstValue {
    /// This value.
    Value(Tensor),
    /// The value of the parameter, in f32 for a 16-bit parameter.
    Parameter,
}

/// What a [`GradientTransformation`] changes: the updates of the parameters, and its state.
///
/// ```
/// use fulmen_nn::optim::{ParameterUpdate, Updates};
/// use fulmen_tensor::Tensor;
///
/// let weight = ParameterUpdate {
///     name: "weight".into(),
///     parameter: Tensor::from_slice(&[1.0f32, 2.0], [2]),
///     update: Tensor::from_slice(&[0.5f32, -0.5], [2]),
///     state: Vec::new(),
/// };
/// let mut updates = Updates::new(vec![weight], Vec::new());
/// updates.log("mean", &updates.parameters[0].update.mean_all());
/// assert_eq!(updates.logged()[0].0, "mean");
/// ```
#[derive(Clone, Debug)]
pub struct Updates {
    /// The parameters that the step changes, in the order of the module. Parameters that are frozen
    /// or have no gradient are absent.
    pub parameters: Vec<ParameterUpdate>,
    /// The state of the rule itself, in the order of [`GradientTransformation::init`].
    pub state: Vec<Tensor>,
    logged: Vec<(String, Tensor)>,
}

/// The update of one parameter.
#[derive(Clone, Debug)]
pub struct ParameterUpdate {
    /// The dotted name of the parameter.
    pub name: String,
    /// The value of the parameter before the step.
    pub parameter: Tensor,
    /// Before the optimizer, the gradient. After it, the change of the parameter: its new value
    /// minus [`parameter`](ParameterUpdate::parameter), in f32 for a 16-bit parameter.
    pub update: Tensor,
    /// The state of the rule for this parameter, in the order of
    /// [`GradientTransformation::init_parameter`].
    pub state: Vec<Tensor>,
}

impl Updates {
    /// The updates of some parameters, with the state of the rule itself.
    pub fn new(parameters: Vec<ParameterUpdate>, state: Vec<Tensor>) -> Updates {
        Updates { parameters, state, logged: Vec::new() }
    }

    /// Logs a floating-point scalar of the latest step with the other values of a log point. With
    /// several optimizers, `-OPTIMIZER` follows the name.
    pub fn log(&mut self, name: impl Into<String>, value: &Tensor) {
        self.logged.push((name.into(), value.clone()));
    }

    /// The logged values.
    pub fn logged(&self) -> &[(String, Tensor)] {
        &self.logged
    }
}
