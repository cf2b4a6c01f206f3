//! The common part of the optimizers in this folder: learning rate, weight decay, direction,
//! checks. Each optimizer is a [`Rule`] that adds only its own arithmetic.

use std::fmt::Debug;
use std::panic::Location;
use std::sync::Arc;

use fulmen_tensor::{DType, FromFault, Scope, Tensor, TensorType, random};

use super::{GroupStep, Step, round_to_bf16};
use crate::library::{NN, live};
use crate::precision::precision;
use crate::schedule::Schedule;
use crate::{Error, Result};

/// The settings of every optimizer.
#[derive(Clone, Debug)]
pub(super) struct CommonSettings {
    lr: Arc<dyn Schedule>,
    pub(super) weight_decay: f64,
    pub(super) maximize: bool,
    /// The dtype of the state that has an element for each of the parameter's.
    pub(super) state_dtype: DType,
    /// The line that made the optimizer.
    location: &'static Location<'static>,
}

impl CommonSettings {
    #[track_caller]
    pub(super) fn new(lr: impl Schedule + 'static, weight_decay: f64) -> CommonSettings {
        CommonSettings {
            lr: Arc::new(lr),
            weight_decay,
            maximize: false,
            state_dtype: DType::F32,
            location: Location::caller(),
        }
    }
}

/// An optimizer in messages: its name, and the line that made it.
#[derive(Clone, Copy)]
struct Origin {
    name: &'static str,
    location: &'static Location<'static>,
}

impl Origin {
    fn new<R: Rule>(rule: &R) -> Origin {
        Origin { name: R::NAME, location: rule.common().location }
    }

    /// Poison for an invalid setting.
    fn poison(self, message: String) -> Tensor {
        let _scope = NN.at(self.location);
        Tensor::poison(self.name, message)
    }
}

/// The inputs of an update, in f32, or in f64 for f64 parameters. A complex parameter, its gradient
/// and its state have one more axis at the end, with the real and the imaginary part.
#[must_use]
pub(super) struct UpdateArgs<'a> {
    pub(super) step: &'a Step,
    /// The learning rate, a scalar.
    pub(super) lr: Tensor,
    pub(super) weight_decay: f64,
    origin: Origin,
    pub(super) p: Tensor,
    pub(super) g: Tensor,
    pub(super) state: &'a [Tensor],
}

impl UpdateArgs<'_> {
    /// The step number of the parameter, from 1.
    pub(super) fn t(&self) -> Tensor {
        (self.step.finished_of_parameter() + 1.0).to_dtype(self.p.dtype())
    }

    /// `g + λp`.
    pub(super) fn decayed_gradient(&self) -> Tensor {
        if self.weight_decay == 0.0 {
            self.g.clone()
        } else {
            &self.g + &self.p * self.weight_decay
        }
    }

    /// `p − lr·λ·p`.
    pub(super) fn decayed_parameter(&self) -> Tensor {
        if self.weight_decay == 0.0 {
            self.p.clone()
        } else {
            &self.p - &self.p * (&self.lr * self.weight_decay)
        }
    }

    /// The value of a schedule in this step. Messages call it `name`.
    pub(super) fn value(&self, name: &str, schedule: &dyn Schedule) -> Tensor {
        value(self.origin, name, self.step, schedule).to_dtype(self.p.dtype())
    }

    /// The parameter and its gradient after weight decay. Decoupled weight decay, as in AdamW,
    /// changes the parameter. Otherwise, weight decay changes the gradient.
    pub(super) fn apply_weight_decay(&self, decoupled: bool) -> (Tensor, Tensor) {
        if decoupled {
            (self.decayed_parameter(), self.g.clone())
        } else {
            (self.p.clone(), self.decayed_gradient())
        }
    }

    /// A number as a scalar tensor.
    pub(super) fn scalar(&self, value: f64) -> Tensor {
        Tensor::full(self.p.dtype(), [], value)
    }
}

/// An optimizer that treats each parameter separately.
pub(super) trait Rule: Debug {
    /// The name in messages.
    const NAME: &'static str;

    /// Whether [`Rule::apply`] accepts parameters of one type as one, stacked along a new first
    /// axis, and gives each the result that it would have alone.
    const STACKS: bool;

    /// Why a complex parameter cannot be updated as pairs of real numbers, as PyTorch does.
    const NO_COMPLEX: Option<&'static str> = None;

    fn common(&self) -> &CommonSettings;

    /// What is wrong with the settings of this optimizer, if anything.
    fn validate(&self) -> Option<String>;

    /// Why it cannot update a real parameter of this type, as the end of a sentence about it.
    fn refuses(&self, _: &TensorType) -> Option<String> {
        None
    }

    /// The momentum, if there is one.
    fn momentum(&self) -> Option<&dyn Schedule> {
        None
    }

    /// Why it cannot update only some rows of a parameter, apart from weight decay.
    fn refuses_rows(&self) -> Option<&'static str> {
        Some("it has no lazy form; use Sgd, Adagrad or Adam")
    }

    /// The state of a parameter before the first step.
    fn init_state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)>;

    /// The new parameter and its new state.
    fn apply(&self, args: &UpdateArgs<'_>) -> (Tensor, Vec<Tensor>);
}

/// An initial state of zeros, with the parameter's shape.
pub(super) fn zeros(parameter: &TensorType) -> Tensor {
    Tensor::zeros(precision(parameter.dtype), &parameter.shape)
}

/// An initial state of one number.
pub(super) fn number(parameter: &TensorType, value: f64) -> Tensor {
    Tensor::full(precision(parameter.dtype).real(), [], value)
}

/// Complex numbers as pairs of real ones along a new last axis (PyTorch's `view_as_real`). Real
/// numbers are unchanged.
fn as_real(x: &Tensor) -> Tensor {
    if x.dtype().is_complex() { Tensor::stack(&[x.real(), x.imag()], -1) } else { x.clone() }
}

/// The inverse of [`as_real`], for a value of this dtype.
fn from_real(x: &Tensor, dtype: DType) -> Tensor {
    if dtype.is_complex() { Tensor::complex(x.index(-1, 0), x.index(-1, 1)) } else { x.clone() }
}

/// `1 − βᵗ` from `log β`. It does not use `pow`: for β = 0.999 and small `t`, the power is so close
/// to 1 that f32 loses digits.
pub(super) fn one_minus_power(log_beta: &Tensor, t: &Tensor) -> Tensor {
    -(log_beta * t).expm1()
}

/// Whether a decay rate is valid: at least 0 and below 1.
pub(super) fn is_beta(beta: f64) -> bool {
    (0.0..1.0).contains(&beta)
}

/// A message about the first of these numbers that is negative, infinite or NaN.
pub(super) fn invalid_hyperparameter(numbers: &[(&str, f64)]) -> Option<String> {
    let (name, value) = numbers.iter().find(|(_, value)| !value.is_finite() || *value < 0.0)?;
    let finite = if *value == f64::INFINITY { " and finite" } else { "" };
    Some(format!("{name} must be at least 0{finite}, but it is {value}"))
}

/// What is wrong with the settings, if anything.
fn validate<R: Rule>(rule: &R) -> Option<String> {
    let common = rule.common();
    if ![DType::F32, DType::Bf16].contains(&common.state_dtype) {
        return Some(format!("state_dtype must be f32 or bf16, but it is {}", common.state_dtype));
    }
    let rate = common.lr.constant().unwrap_or_default();
    invalid_hyperparameter(&[("the learning rate", rate), ("weight_decay", common.weight_decay)])
        .or_else(|| rule.validate())
}

/// Why the rule cannot update a parameter of this type, as the end of a sentence about it.
fn refuses<R: Rule>(rule: &R, parameter: &TensorType) -> Option<String> {
    match R::NO_COMPLEX {
        Some(reason) if parameter.dtype.is_complex() => Some(format!(
            "is complex, {parameter}, and {reason}; use another optimizer for it, \
             such as Adam"
        )),
        _ => rule.refuses(parameter),
    }
}

/// Checks the settings, and that the rule can update these parameters.
pub(super) fn check<R: Rule>(rule: &R, parameters: &[(String, TensorType)]) -> Result<()> {
    let refused = || {
        parameters.iter().find_map(|(name, ty)| {
            refuses(rule, ty).map(|reason| format!("the parameter `{name}` {reason}"))
        })
    };
    match validate(rule).or_else(refused) {
        Some(message) => {
            Err(Error::usage_at(format!("{}: {message}", R::NAME), rule.common().location))
        }
        None => Ok(()),
    }
}

/// The value of a schedule, or poison with the optimizer's line if the schedule is invalid.
fn checked_value(origin: Origin, name: &str, step: &Step, number: Tensor) -> Tensor {
    let expected = TensorType::new(DType::F32, []);
    match number.fault() {
        Some(fault) if fault.location() == step.location => {
            origin.poison(format!("{name}: {}: {}", fault.operation(), fault.message()))
        }
        None if *number.ty() != expected => origin.poison(format!(
            "{name} must be a scalar, {expected}, and its schedule gives {}",
            number.ty()
        )),
        _ => number,
    }
}

/// The value of a schedule in a step. Messages call it `name`.
fn value(origin: Origin, name: &str, step: &Step, schedule: &dyn Schedule) -> Tensor {
    let number = {
        let _user = Scope::leave();
        schedule.value(step.finished())
    };
    checked_value(origin, name, step, number)
}

/// Why the optimizer cannot update only some rows of a parameter in this step.
pub(super) fn refuses_rows<R: Rule>(rule: &R, step: &Step) -> Option<String> {
    let reason = match rule.refuses_rows() {
        None if step.weight_decay(rule.common().weight_decay) != 0.0 => {
            "its weight decay would change all rows; set weight_decay to 0 for this parameter"
        }
        reason => reason?,
    };
    Some(format!("{}: {reason}", R::NAME))
}

/// The settings that apply to all parameters in a step.
pub(super) fn group<R: Rule>(rule: &R, step: &Step) -> GroupStep {
    let learning_rate = learning_rate(rule, step);
    let _scope = NN.at(step.location);
    let momentum =
        rule.momentum().map(|momentum| value(Origin::new(rule), "momentum", step, momentum));
    GroupStep { name: String::new(), learning_rate, momentum }
}

/// The learning rate, or poison with the optimizer's line if its schedule is invalid.
pub(super) fn learning_rate<R: Rule>(rule: &R, step: &Step) -> Tensor {
    let _scope = NN.at(step.location);
    let rate = step.learning_rate(&*rule.common().lr);
    checked_value(Origin::new(rule), "the learning rate", step, rate)
}

/// The state of a parameter before the first step. What has an element for each of the parameter's,
/// in f32, gets the dtype of the setting.
pub(super) fn state<R: Rule>(rule: &R, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
    let dtype = rule.common().state_dtype;
    let is_narrow = |first: &Tensor| {
        dtype == DType::Bf16 && first.dtype() == DType::F32 && first.shape() == &parameter.shape
    };
    let state = rule.init_state(parameter).into_iter();
    state
        .map(|(name, first)| (name, if is_narrow(&first) { first.to_dtype(dtype) } else { first }))
        .collect()
}

/// Whether an update of a parameter rounds its state at random.
pub(super) fn draws<R: Rule>(rule: &R, parameter: &TensorType) -> bool {
    state(rule, parameter).iter().any(|(_, first)| first.dtype() == DType::Bf16)
}

/// A new value of the state, number `slot`, in the dtype of the old one.
fn stored(new: &Tensor, old: &Tensor, slot: usize, step: &Step) -> Tensor {
    match step.random_key() {
        Some(key) if old.dtype() == DType::Bf16 => {
            round_to_bf16(&random::fold_in(key, slot as u32), new)
        }
        _ => from_real(new, old.dtype()),
    }
}

pub(super) fn update<R: Rule>(
    rule: &R,
    step: &Step,
    parameter: &Tensor,
    gradient: &Tensor,
    state: &[Tensor],
) -> (Tensor, Vec<Tensor>) {
    let slots = rule.init_state(parameter.ty()).len();
    let lr = learning_rate(rule, step);
    let wrong = |poison: Tensor| (poison.clone(), vec![poison; slots]);
    if let Some(message) = validate(rule) {
        return wrong(Origin::new(rule).poison(message));
    }
    if let Err(fault) = lr.live() {
        return wrong(Tensor::from_fault(fault));
    }
    let _scope = NN.at(step.location);
    if let Some(message) = check_args(rule, step, parameter, gradient, state) {
        return wrong(Tensor::poison(R::NAME, message));
    }
    let dtype = precision(parameter.dtype());
    let g = as_real(&gradient.to_dtype(dtype));
    let wide = |value: &Tensor| match value.dtype() {
        DType::Bf16 => value.to_dtype(DType::F32),
        _ => as_real(value),
    };
    let pairs: Vec<Tensor> = state.iter().map(wide).collect();
    let args = UpdateArgs {
        step,
        lr: lr.to_dtype(dtype.real()),
        weight_decay: step.weight_decay(rule.common().weight_decay),
        origin: Origin::new(rule),
        p: as_real(&parameter.to_dtype(dtype)),
        g: if rule.common().maximize { -g } else { g },
        state: &pairs,
    };
    let (p, new) = rule.apply(&args);
    let slots = new.iter().zip(state).enumerate();
    let new = slots.map(|(slot, (new, old))| stored(new, old, slot, step)).collect();
    (from_real(&p, dtype).to_dtype(parameter.dtype()), new)
}

/// Checks that the rule can update this parameter, and that the gradient and the state belong to
/// it.
fn check_args<R: Rule>(
    rule: &R,
    step: &Step,
    parameter: &Tensor,
    gradient: &Tensor,
    state: &[Tensor],
) -> Option<String> {
    if live(&[parameter, gradient]).is_ok() && parameter.shape() != gradient.shape() {
        return Some(format!(
            "the gradient {} does not belong to the parameter {}",
            gradient.ty(),
            parameter.ty()
        ));
    }
    if let Some(reason) = refuses(rule, &step.parameter_type(parameter.ty())) {
        return Some(format!("the parameter {reason}"));
    }
    let slots = rule.init_state(parameter.ty()).len();
    if state.len() != slots {
        return Some(format!("got {} state tensors, expected {slots}", state.len()));
    }
    let is_narrow = state.iter().any(|x| x.fault().is_none() && x.dtype() == DType::Bf16);
    (is_narrow && step.random_key().is_none()).then(|| {
        "state_dtype is bf16, which is rounded at random: give the step a key with `with_random_key`"
            .into()
    })
}

/// Implements the common settings as methods, and [`Optimizer`](super::Optimizer) for a [`Rule`].
macro_rules! optimizer {
    ($name:ident, $weight_decay:literal) => {
        impl $name {
            #[doc = $weight_decay]
            pub fn weight_decay(mut self, weight_decay: f64) -> $name {
                self.common.weight_decay = weight_decay;
                self
            }

            /// The dtype of the state that has an element for each of the parameter's, such as running
            /// means: f32, the default, or bf16, which needs half of the memory. The arithmetic is in
            /// f32. New values are then rounded to bf16 up or down at random, so that small changes
            /// add up. State of other shapes, and that of f64 and complex parameters, does not change.
            ///
            /// Outside of the Trainer, give each step a key:
            /// [`Step::with_random_key`](crate::optim::Step::with_random_key).
            pub fn state_dtype(mut self, dtype: ::fulmen_tensor::DType) -> $name {
                self.common.state_dtype = dtype;
                self
            }

            /// Whether to maximize, that is, to follow the gradient uphill.
            pub fn maximize(mut self, maximize: bool) -> $name {
                self.common.maximize = maximize;
                self
            }
        }

        impl $crate::optim::Optimizer for $name {
            fn state(
                &self,
                _: &str,
                parameter: &::fulmen_tensor::TensorType,
            ) -> Vec<(&'static str, ::fulmen_tensor::Tensor)> {
                $crate::optim::rule::state(self, parameter)
            }

            fn update(
                &self,
                step: &$crate::optim::Step,
                _: &str,
                parameter: &::fulmen_tensor::Tensor,
                gradient: &::fulmen_tensor::Tensor,
                state: &[::fulmen_tensor::Tensor],
            ) -> (::fulmen_tensor::Tensor, Vec<::fulmen_tensor::Tensor>) {
                $crate::optim::rule::update(self, step, parameter, gradient, state)
            }

            fn learning_rate(&self, step: &$crate::optim::Step) -> ::fulmen_tensor::Tensor {
                $crate::optim::rule::learning_rate(self, step)
            }

            fn group_step(
                &self,
                step: &$crate::optim::Step,
                _: &str,
                _: &::fulmen_tensor::TensorType,
            ) -> $crate::optim::GroupStep {
                $crate::optim::rule::group(self, step)
            }

            fn updates_stacked(&self, _: &[&str], _: &::fulmen_tensor::TensorType) -> bool {
                <$name as $crate::optim::rule::Rule>::STACKS
            }

            fn draws(&self, _: &str, parameter: &::fulmen_tensor::TensorType) -> bool {
                $crate::optim::rule::draws(self, parameter)
            }

            fn refuses_rows(
                &self,
                step: &$crate::optim::Step,
                _: &str,
                _: &::fulmen_tensor::TensorType,
            ) -> Option<String> {
                $crate::optim::rule::refuses_rows(self, step)
            }

            fn check(
                &self,
                parameters: &[(String, ::fulmen_tensor::TensorType)],
            ) -> $crate::Result<()> {
                $crate::optim::rule::check(self, parameters)
            }
        }
    };
}
pub(super) use optimizer;
