//! [`Lamb`]: Adam for large batches, with each step scaled to the norm of its parameter.

use fulmen_tensor::{Tensor, TensorType};

use super::betas::{Betas, RunningMeans};
use super::rule::{
    CommonSettings, Rule, UpdateArgs, invalid_hyperparameter, one_minus_power, optimizer,
};
use super::trust_ratio::trust_ratio;
use crate::schedule::Schedule;

/// LAMB (You et al. 2019, <https://arxiv.org/abs/1904.00962>), like optax's `lamb`.
///
/// With `m` and `v` as in [`Adam`](super::Adam), `t` counted from 1:
/// `u = m/(1 − β₁ᵗ)/(√(v/(1 − β₂ᵗ)) + ε) + λp` and `p ← p − lr·‖p‖/‖u‖·u`. The ratio is 1 if one of
/// the norms is 0.
///
/// ```
/// use fulmen_nn::optim::Lamb;
/// let optimizer = Lamb::new(2e-3).weight_decay(0.01);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Lamb {
    common: CommonSettings,
    betas: Betas,
    eps: f64,
}

impl Lamb {
    /// Optax's defaults with this learning rate: a number or a schedule.
    #[track_caller]
    pub fn new(lr: impl Schedule + 'static) -> Lamb {
        Lamb {
            common: CommonSettings::new(lr, 0.0),
            betas: Betas { first: 0.9, second: 0.999 },
            eps: 1e-6,
        }
    }

    /// The decay rates of the running means of the gradient and of its square.
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Lamb {
        self.betas = Betas { first: beta1, second: beta2 };
        self
    }

    /// The constant added to the divisor; 10⁻⁶ by default.
    pub fn eps(mut self, eps: f64) -> Lamb {
        self.eps = eps;
        self
    }
}

optimizer!(
    Lamb,
    "The weight decay: the fraction of the parameter that is added to the step. 0 by default."
);

impl Rule for Lamb {
    const NAME: &'static str = "Lamb";
    const STACKS: bool = false;

    fn common(&self) -> &CommonSettings {
        &self.common
    }

    fn validate(&self) -> Option<String> {
        let wrong = self.betas.validate();
        wrong.or_else(|| invalid_hyperparameter(&[("eps", self.eps)]))
    }

    fn momentum(&self) -> Option<&dyn Schedule> {
        Some(&self.betas.first)
    }

    fn init_state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        Betas::init_state(parameter)
    }

    fn apply(&self, args: &UpdateArgs<'_>) -> (Tensor, Vec<Tensor>) {
        let t = args.t();
        let RunningMeans { m, v } = self.betas.running_means(args, &args.g);
        let correction = |beta: f64| one_minus_power(&args.scalar(beta.ln()), &t);
        let divisor = (&v / correction(self.betas.second)).sqrt() + self.eps;
        let mut update = &m / correction(self.betas.first) / divisor;
        if args.weight_decay != 0.0 {
            update = update + &args.p * args.weight_decay;
        }
        let ratio = trust_ratio(&args.p, &update, 1.0, 0.0);
        (&args.p - update * (ratio * &args.lr), vec![m, v])
    }
}
