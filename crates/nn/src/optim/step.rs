//! [`Step`]: an optimizer's input besides the gradients.

use std::panic::Location;

use fulmen_tensor::{DType, Scope, Tensor, TensorType};

use crate::library::NN;
use crate::schedule::Schedule;

/// The step that an optimizer takes: the number of finished steps, the factor of the learning rate,
/// and the weight decay of a group, if it has one.
///
/// ```
/// use fulmen_nn::optim::Step;
/// use fulmen_tensor::Tensor;
///
/// let step = Step::new(&Tensor::scalar(7i32)).scaled(0.5);
/// assert_eq!(step.learning_rate(&0.1).eval()?.to_vec::<f32>()?, [0.05]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Step {
    finished: Tensor,
    /// The number of steps that the parameter has made, if it joined later.
    of_parameter: Option<Tensor>,
    factor: f64,
    scale: Option<Tensor>,
    weight_decay: Option<f64>,
    /// A learning rate that replaces the optimizer's own.
    rate: Option<Tensor>,
    /// Whether the step is for several parameters, stacked along a new first axis.
    stacked: bool,
    /// Whether the step is for some rows of a parameter.
    rows: bool,
    /// The key of the random numbers that the optimizer draws.
    random_key: Option<Tensor>,
    pub(super) location: &'static Location<'static>,
}

impl Step {
    /// The step after `finished` steps, an i32 scalar. Operations that the optimizer records get
    /// the caller's line.
    #[track_caller]
    pub fn new(finished: &Tensor) -> Step {
        Step {
            finished: finished.clone(),
            of_parameter: None,
            factor: 1.0,
            scale: None,
            weight_decay: None,
            rate: None,
            stacked: false,
            rows: false,
            random_key: None,
            location: Scope::line(),
        }
    }

    /// The step of a parameter that joined later and has made `finished` steps, an i32 scalar. Bias
    /// corrections use this number, as in PyTorch; schedules use the optimizer's step.
    pub fn of_parameter(&self, finished: &Tensor) -> Step {
        Step { of_parameter: Some(finished.clone()), ..self.clone() }
    }

    /// Multiplies the learning rate by a number.
    pub fn scaled(&self, factor: f64) -> Step {
        Step { factor: self.factor * factor, ..self.clone() }
    }

    /// Multiplies the learning rate by a scalar on the device.
    #[track_caller]
    pub fn scaled_by(&self, scale: &Tensor) -> Step {
        let scale = match &self.scale {
            Some(other) => other * scale,
            None => scale.clone(),
        };
        Step { scale: Some(scale), ..self.clone() }
    }

    /// Replaces the optimizer's weight decay.
    pub fn with_weight_decay(&self, weight_decay: f64) -> Step {
        Step { weight_decay: Some(weight_decay), ..self.clone() }
    }

    /// Replaces the optimizer's learning rate by this f32 scalar. Factors still apply.
    pub fn with_learning_rate(&self, rate: &Tensor) -> Step {
        Step { rate: Some(rate.clone()), ..self.clone() }
    }

    /// The step for several parameters of one type, stacked along a new first axis. Only for
    /// optimizers that [accept stacked parameters](super::Optimizer::updates_stacked).
    pub fn of_stacked(&self) -> Step {
        Step { stacked: true, ..self.clone() }
    }

    /// The step for some rows of a parameter. Only for optimizers that
    /// [accept them](super::Optimizer::refuses_rows).
    pub fn of_rows(&self) -> Step {
        Step { rows: true, ..self.clone() }
    }

    /// The step with a random key, for an optimizer that [draws](super::Optimizer::draws) random numbers.
    /// Each parameter and step has a key of its own.
    pub fn with_random_key(&self, key: &Tensor) -> Step {
        Step { random_key: Some(key.clone()), ..self.clone() }
    }

    /// The random key of the step and the parameter, if there is one.
    pub fn random_key(&self) -> Option<&Tensor> {
        self.random_key.as_ref()
    }

    /// Whether the step is for some rows of a parameter.
    pub fn is_of_rows(&self) -> bool {
        self.rows
    }

    /// The type of one parameter, if the step updates a value of this type.
    pub fn parameter_type(&self, value: &TensorType) -> TensorType {
        TensorType::new(value.dtype, &value.shape[usize::from(self.stacked)..])
    }

    /// The number of steps finished before this one, an i32 scalar.
    pub fn finished(&self) -> &Tensor {
        &self.finished
    }

    /// The number of steps that the parameter has made before this one, an i32 scalar: all, or
    /// those since it [joined](Step::of_parameter).
    pub fn finished_of_parameter(&self) -> &Tensor {
        self.of_parameter.as_ref().unwrap_or(&self.finished)
    }

    /// The learning rate that a schedule gives for this step, an f32 scalar.
    #[track_caller]
    pub fn learning_rate(&self, schedule: &dyn Schedule) -> Tensor {
        let _scope = NN.open();
        let scheduled = || {
            let _user = Scope::leave();
            schedule.value(&self.finished)
        };
        let rate = match (&self.rate, schedule.constant()) {
            (Some(rate), _) => rate * self.factor,
            (None, Some(rate)) => Tensor::full(DType::F32, [], rate * self.factor),
            (None, None) if self.factor != 1.0 => scheduled() * self.factor,
            (None, None) => scheduled(),
        };
        match &self.scale {
            Some(scale) => rate * scale,
            None => rate,
        }
    }

    /// The weight decay of this step: the group's, or else the optimizer's own.
    pub fn weight_decay(&self, default: f64) -> f64 {
        self.weight_decay.unwrap_or(default)
    }
}
