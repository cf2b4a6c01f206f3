//! [`Adagrad`]: steps scaled by the sum of all squares of the gradient.

use fulmen_tensor::{Tensor, TensorType};

use super::rule::{CommonSettings, Rule, UpdateArgs, invalid_hyperparameter, optimizer, zeros};
use crate::schedule::Schedule;

/// Adagrad, like PyTorch's `optim.Adagrad`.
///
/// With `t` counted from 1 and the decay `η` of the rate: `s ← s + g²`,
/// `p ← p − lr/(1 + (t − 1)η)·g/(√s + ε)`.
///
/// ```
/// use fulmen_nn::optim::Adagrad;
/// let optimizer = Adagrad::new(0.01).initial_accumulator_value(0.1);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Adagrad {
    common: CommonSettings,
    lr_decay: f64,
    initial_accumulator_value: f64,
    eps: f64,
}

impl Adagrad {
    /// PyTorch's defaults with this learning rate, a number or a schedule; PyTorch's own is 0.01.
    #[track_caller]
    pub fn new(lr: impl Schedule + 'static) -> Adagrad {
        Adagrad {
            common: CommonSettings::new(lr, 0.0),
            lr_decay: 0.0,
            initial_accumulator_value: 0.0,
            eps: 1e-10,
        }
    }

    /// How fast the learning rate decays with the steps.
    pub fn lr_decay(mut self, lr_decay: f64) -> Adagrad {
        self.lr_decay = lr_decay;
        self
    }

    /// The initial value of the sum.
    pub fn initial_accumulator_value(mut self, value: f64) -> Adagrad {
        self.initial_accumulator_value = value;
        self
    }

    /// The constant added to the divisor.
    pub fn eps(mut self, eps: f64) -> Adagrad {
        self.eps = eps;
        self
    }
}

optimizer!(
    Adagrad,
    "The weight decay: the fraction of the parameter that is added to its gradient. 0 by default."
);

impl Rule for Adagrad {
    const NAME: &'static str = "Adagrad";
    const STACKS: bool = true;

    fn common(&self) -> &CommonSettings {
        &self.common
    }

    fn validate(&self) -> Option<String> {
        invalid_hyperparameter(&[
            ("lr_decay", self.lr_decay),
            ("initial_accumulator_value", self.initial_accumulator_value),
            ("eps", self.eps),
        ])
    }

    fn refuses_rows(&self) -> Option<&'static str> {
        None
    }

    fn init_state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        let zeros = zeros(parameter);
        let dtype = zeros.dtype();
        let part = Tensor::full(dtype.real(), zeros.shape(), self.initial_accumulator_value);
        vec![("sum", if dtype.is_complex() { Tensor::complex(&part, &part) } else { part })]
    }

    fn apply(&self, args: &UpdateArgs<'_>) -> (Tensor, Vec<Tensor>) {
        let g = args.decayed_gradient();
        let sum = &args.state[0] + &g * &g;
        let lr = &args.lr / ((args.t() - 1.0) * self.lr_decay + 1.0);
        (&args.p - lr * (g / (sum.sqrt() + self.eps)), vec![sum])
    }
}
