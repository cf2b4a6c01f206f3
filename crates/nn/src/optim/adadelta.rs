//! [`Adadelta`]: step sizes in the unit of the parameter, from running means of squared gradients
//! and squared steps.

use fulmen_tensor::{Tensor, TensorType};

use super::rule::{CommonSettings, Rule, UpdateArgs, invalid_hyperparameter, optimizer, zeros};
use crate::schedule::Schedule;

/// Adadelta, like PyTorch's `optim.Adadelta`.
///
/// `v ← ρv + (1 − ρ)g²`, `Δ = √(u + ε)/√(v + ε)·g`, `u ← ρu + (1 − ρ)Δ²`, `p ← p − lr·Δ`.
///
/// ```
/// use fulmen_nn::optim::Adadelta;
/// let optimizer = Adadelta::new(1.0).rho(0.95);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Adadelta {
    common: CommonSettings,
    rho: f64,
    eps: f64,
}

impl Adadelta {
    /// PyTorch's defaults with this learning rate, a number or a schedule; PyTorch's own is 1.
    #[track_caller]
    pub fn new(lr: impl Schedule + 'static) -> Adadelta {
        Adadelta { common: CommonSettings::new(lr, 0.0), rho: 0.9, eps: 1e-6 }
    }

    /// The decay rate of the running means.
    pub fn rho(mut self, rho: f64) -> Adadelta {
        self.rho = rho;
        self
    }

    /// The constant added under the roots.
    pub fn eps(mut self, eps: f64) -> Adadelta {
        self.eps = eps;
        self
    }
}

optimizer!(
    Adadelta,
    "The weight decay: the fraction of the parameter that is added to its gradient. 0 by default."
);

impl Rule for Adadelta {
    const NAME: &'static str = "Adadelta";
    const STACKS: bool = true;

    fn common(&self) -> &CommonSettings {
        &self.common
    }

    fn validate(&self) -> Option<String> {
        if !(0.0..=1.0).contains(&self.rho) {
            return Some(format!("rho must be between 0 and 1, but it is {}", self.rho));
        }
        invalid_hyperparameter(&[("eps", self.eps)])
    }

    fn init_state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        vec![("square_avg", zeros(parameter)), ("acc_delta", zeros(parameter))]
    }

    fn apply(&self, args: &UpdateArgs<'_>) -> (Tensor, Vec<Tensor>) {
        let g = args.decayed_gradient();
        let running = |mean: &Tensor, new: Tensor| mean * self.rho + new * (1.0 - self.rho);
        let squares = running(&args.state[0], &g * &g);
        let delta = (&args.state[1] + self.eps).sqrt() / (&squares + self.eps).sqrt() * g;
        let steps = running(&args.state[1], &delta * &delta);
        (&args.p - delta * &args.lr, vec![squares, steps])
    }
}
