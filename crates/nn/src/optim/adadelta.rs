//! [`Adadelta`]: steps in the unit of the parameter, by running means of both squares.

use fulmen_tensor::{Tensor, TensorType};

use super::rule::{Common, Rule, Work, misplaced, optimizer, zeros};
use crate::schedule::Schedule;

/// Adadelta, as PyTorch's `optim.Adadelta`.
///
/// `v ← ρv + (1 − ρ)g²`, `Δ = √(u + ε)/√(v + ε)·g`, `u ← ρu + (1 − ρ)Δ²`, `p ← p − lr·Δ`.
///
/// ```
/// use fulmen_nn::optim::Adadelta;
/// let optimizer = Adadelta::new(1.0).rho(0.95);
/// ```
#[derive(Clone, Debug)]
pub struct Adadelta {
    common: Common,
    rho: f64,
    eps: f64,
}

impl Adadelta {
    /// PyTorch's defaults with this learning rate, a number or a schedule; PyTorch's own is 1.
    #[track_caller]
    pub fn new(lr: impl Schedule + 'static) -> Adadelta {
        Adadelta { common: Common::new(lr, 0.0), rho: 0.9, eps: 1e-6 }
    }

    /// How much of the running means is kept each step.
    pub fn rho(mut self, rho: f64) -> Adadelta {
        self.rho = rho;
        self
    }

    /// What is added under the roots.
    pub fn eps(mut self, eps: f64) -> Adadelta {
        self.eps = eps;
        self
    }
}

optimizer!(Adadelta, "The share of the parameter that is added to its gradient; 0 by default.");

impl Rule for Adadelta {
    const NAME: &'static str = "Adadelta";
    const ELEMENTWISE: bool = true;

    fn common(&self) -> &Common {
        &self.common
    }

    fn refusal(&self) -> Option<String> {
        if !(0.0..=1.0).contains(&self.rho) {
            return Some(format!("rho is a share between 0 and 1, not {}", self.rho));
        }
        misplaced(&[("eps", self.eps)])
    }

    fn remembered(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        vec![("square_avg", zeros(parameter)), ("acc_delta", zeros(parameter))]
    }

    fn apply(&self, work: &Work<'_>) -> (Tensor, Vec<Tensor>) {
        let g = work.decayed_gradient();
        let running = |mean: &Tensor, new: Tensor| mean * self.rho + new * (1.0 - self.rho);
        let squares = running(&work.state[0], &g * &g);
        let delta = (&work.state[1] + self.eps).sqrt() / (&squares + self.eps).sqrt() * g;
        let steps = running(&work.state[1], &delta * &delta);
        (&work.p - delta * &work.lr, vec![squares, steps])
    }
}
