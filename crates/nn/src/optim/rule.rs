//! What the optimizers of this folder have in common: learning rate, weight decay, direction, checks. Each of them is a
//! [`Rule`] that says only what is its own.

use std::fmt::Debug;
use std::panic::Location;
use std::sync::Arc;

use fulmen_tensor::{DType, FromFault, Scope, Tensor, TensorType};

use super::{GroupStep, Step};
use crate::precision::precision;
use crate::record::{NN, live};
use crate::schedule::Schedule;
use crate::{Error, Result};

/// The settings that all have.
#[derive(Clone, Debug)]
pub(super) struct Common {
    lr: Arc<dyn Schedule>,
    pub(super) weight_decay: f64,
    pub(super) maximize: bool,
    /// The line that made the optimizer.
    at: &'static Location<'static>,
}

impl Common {
    #[track_caller]
    pub(super) fn new(lr: impl Schedule + 'static, weight_decay: f64) -> Common {
        Common { lr: Arc::new(lr), weight_decay, maximize: false, at: Location::caller() }
    }
}

/// What a rule computes with, all in f32, or in f64 for parameters of f64.
pub(super) struct Work<'a> {
    pub(super) step: &'a Step,
    /// The learning rate, a scalar.
    pub(super) lr: Tensor,
    pub(super) weight_decay: f64,
    /// Of the optimizer: its name and its line.
    name: &'static str,
    at: &'static Location<'static>,
    pub(super) p: Tensor,
    pub(super) g: Tensor,
    pub(super) state: &'a [Tensor],
}

impl Work<'_> {
    /// The number of this step of the parameter, counted from 1.
    pub(super) fn t(&self) -> Tensor {
        (self.step.finished_of_parameter() + 1.0).to_dtype(self.p.dtype())
    }

    /// `g + λp`.
    pub(super) fn decayed_gradient(&self) -> Tensor {
        if self.weight_decay == 0.0 { self.g.clone() } else { &self.g + &self.p * self.weight_decay }
    }

    /// `p − lr·λ·p`.
    pub(super) fn decayed_parameter(&self) -> Tensor {
        if self.weight_decay == 0.0 { self.p.clone() } else { &self.p - &self.p * (&self.lr * self.weight_decay) }
    }

    /// A schedule's number of this step, which messages call `what`.
    pub(super) fn value(&self, what: &str, schedule: &dyn Schedule) -> Tensor {
        value((self.name, self.at), what, self.step, schedule).to_dtype(self.p.dtype())
    }

    /// The parameter and its gradient with weight decay off the one, as AdamW, or in the other.
    pub(super) fn decayed(&self, decoupled: bool) -> (Tensor, Tensor) {
        match decoupled {
            true => (self.decayed_parameter(), self.g.clone()),
            false => (self.p.clone(), self.decayed_gradient()),
        }
    }

    /// A number as a scalar.
    pub(super) fn scalar(&self, value: f64) -> Tensor {
        Tensor::full(self.p.dtype(), [], value)
    }
}

/// An optimizer that treats each parameter by itself.
pub(super) trait Rule: Debug {
    /// What messages call it.
    const NAME: &'static str;

    /// Whether each element of a parameter changes by its own gradient and by what is remembered of it, and by nothing else.
    const ELEMENTWISE: bool;

    fn common(&self) -> &Common;

    /// Why the settings of its own make no sense, if they do not.
    fn refusal(&self) -> Option<String>;

    /// The share of the former direction that is kept, if any is.
    fn momentum(&self) -> Option<&dyn Schedule> {
        None
    }

    /// What is remembered of a parameter, before the first step.
    fn remembered(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)>;

    /// The new parameter and what is to be remembered.
    fn apply(&self, work: &Work<'_>) -> (Tensor, Vec<Tensor>);
}

/// Zeros to begin with, of the parameter's shape.
pub(super) fn zeros(parameter: &TensorType) -> Tensor {
    Tensor::zeros(precision(parameter.dtype), &parameter.shape)
}

/// A number to begin with.
pub(super) fn number(parameter: &TensorType, value: f64) -> Tensor {
    Tensor::full(precision(parameter.dtype), [], value)
}

/// `1 − βᵗ` from `log β`. Not by `pow`: for β = 0.999 and small `t` its result is too near 1 to keep its digits in f32.
pub(super) fn one_minus_power(log_beta: &Tensor, t: &Tensor) -> Tensor {
    -(log_beta * t).expm1()
}

/// Whether it is a share that can be kept each step: at least 0, below 1.
pub(super) fn is_beta(beta: f64) -> bool {
    (0.0..1.0).contains(&beta)
}

/// Says which of these numbers is below 0, infinite or NaN.
pub(super) fn misplaced(numbers: &[(&str, f64)]) -> Option<String> {
    let (name, value) = numbers.iter().find(|(_, value)| !value.is_finite() || *value < 0.0)?;
    let finite = if *value == f64::INFINITY { " and finite" } else { "" };
    Some(format!("{name} must be at least 0{finite}, it is {value}"))
}

/// Why the settings make no sense, if they do not.
fn refusal<R: Rule>(rule: &R) -> Option<String> {
    let common = rule.common();
    let rate = common.lr.constant().unwrap_or_default();
    misplaced(&[("the learning rate", rate), ("weight_decay", common.weight_decay)]).or_else(|| rule.refusal())
}

pub(super) fn check<R: Rule>(rule: &R) -> Result<()> {
    match refusal(rule) {
        Some(message) => Err(Error::usage(format!("{}: {message}", R::NAME), rule.common().at)),
        None => Ok(()),
    }
}

/// The poison for a mistake in what the optimizer of this name was made with, on this line.
fn poison((name, at): (&str, &'static Location<'static>), message: String) -> Tensor {
    let _scope = NN.at(at);
    Tensor::poison(name, message)
}

/// A schedule's number, or the poison that names the optimizer's line where the schedule is a wrong one.
fn scheduled(of: (&str, &'static Location<'static>), what: &str, step: &Step, number: Tensor) -> Tensor {
    let expected = TensorType::new(DType::F32, []);
    match number.fault() {
        Some(fault) if fault.location() == step.at => {
            poison(of, format!("{what}: {}: {}", fault.operation(), fault.message()))
        }
        None if *number.ty() != expected => {
            poison(of, format!("{what} must be a scalar, {expected}, and its schedule gives {}", number.ty()))
        }
        _ => number,
    }
}

/// A schedule's number of a step, which messages call `what`.
fn value(of: (&str, &'static Location<'static>), what: &str, step: &Step, schedule: &dyn Schedule) -> Tensor {
    let number = {
        let _user = Scope::leave();
        schedule.value(step.finished())
    };
    scheduled(of, what, step, number)
}

/// What is done with all parameters in a step.
pub(super) fn group<R: Rule>(rule: &R, step: &Step) -> GroupStep {
    let learning_rate = learning_rate(rule, step);
    let _scope = NN.at(step.at);
    let momentum = rule.momentum().map(|momentum| value((R::NAME, rule.common().at), "momentum", step, momentum));
    GroupStep { name: String::new(), learning_rate, momentum }
}

/// The rate, or the poison that names the optimizer's line where the schedule is a wrong one.
pub(super) fn learning_rate<R: Rule>(rule: &R, step: &Step) -> Tensor {
    let _scope = NN.at(step.at);
    let rate = step.learning_rate(&*rule.common().lr);
    scheduled((R::NAME, rule.common().at), "the learning rate", step, rate)
}

pub(super) fn update<R: Rule>(
    rule: &R,
    step: &Step,
    parameter: &Tensor,
    gradient: &Tensor,
    state: &[Tensor],
) -> (Tensor, Vec<Tensor>) {
    let remembered = rule.remembered(parameter.ty()).len();
    let lr = learning_rate(rule, step);
    let wrong = |poison: Tensor| (poison.clone(), vec![poison; remembered]);
    if let Some(message) = refusal(rule) {
        return wrong(poison((R::NAME, rule.common().at), message));
    }
    if let Err(fault) = lr.live() {
        return wrong(Tensor::from_fault(fault));
    }
    let _scope = NN.at(step.at);
    if let Some(message) = misfit(parameter, gradient, state, remembered) {
        return wrong(Tensor::poison(R::NAME, message));
    }
    let dtype = precision(parameter.dtype());
    let g = gradient.to_dtype(dtype);
    let work = Work {
        step,
        lr: lr.to_dtype(dtype),
        weight_decay: step.weight_decay(rule.common().weight_decay),
        name: R::NAME,
        at: rule.common().at,
        p: parameter.to_dtype(dtype),
        g: if rule.common().maximize { -g } else { g },
        state,
    };
    let (p, state) = rule.apply(&work);
    (p.to_dtype(parameter.dtype()), state)
}

/// Says so if a gradient or the state is not of this parameter.
fn misfit(parameter: &Tensor, gradient: &Tensor, state: &[Tensor], remembered: usize) -> Option<String> {
    if live(&[parameter, gradient]).is_ok() && parameter.shape() != gradient.shape() {
        return Some(format!("the gradient {} is not of the parameter {}", gradient.ty(), parameter.ty()));
    }
    (state.len() != remembered)
        .then(|| format!("{} tensors of state were given, {remembered} are remembered", state.len()))
}

/// The settings that all have, as methods, and what makes a [`Rule`] an [`Optimizer`](super::Optimizer).
macro_rules! optimizer {
    ($name:ident, $weight_decay:literal) => {
        impl $name {
            #[doc = $weight_decay]
            pub fn weight_decay(mut self, weight_decay: f64) -> $name {
                self.common.weight_decay = weight_decay;
                self
            }

            /// Goes up the gradient instead of down.
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
                $crate::optim::rule::Rule::remembered(self, parameter)
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
                <$name as $crate::optim::rule::Rule>::ELEMENTWISE
            }

            fn check(&self, _: &[(String, ::fulmen_tensor::TensorType)]) -> $crate::Result<()> {
                $crate::optim::rule::check(self)
            }
        }
    };
}
pub(super) use optimizer;
