//! [`NAdam`]: Adam with Nesterov momentum.

use fulmen_tensor::{Tensor, TensorType};

use super::betas::{Betas, RunningMeans};
use super::rule::{
    CommonSettings, Rule, UpdateArgs, invalid_hyperparameter, number, one_minus_power, optimizer,
};
use crate::schedule::Schedule;

/// Adam with Nesterov momentum, like PyTorch's `optim.NAdam`.
///
/// With `t` counted from 1, `μₜ = β₁(1 − ½·0.96^(tψ))`, `m` and `v` as in [`Adam`](super::Adam) and
/// `d = √(v/(1 − β₂ᵗ)) + ε`: `p ← p − lr·((1 − μₜ)/(1 − Πμᵢ)·g + μₜ₊₁/(1 − μₜ₊₁Πμᵢ)·m)/d`, the
/// products up to `t`.
///
/// ```
/// use fulmen_nn::optim::NAdam;
/// let optimizer = NAdam::new(2e-3).weight_decay(0.01).decoupled_weight_decay(true);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct NAdam {
    common: CommonSettings,
    betas: Betas,
    eps: f64,
    momentum_decay: f64,
    decoupled: bool,
}

impl NAdam {
    /// PyTorch's defaults with this learning rate, a number or a schedule; PyTorch's own is 0.002.
    #[track_caller]
    pub fn new(lr: impl Schedule + 'static) -> NAdam {
        let common = CommonSettings::new(lr, 0.0);
        NAdam {
            common,
            betas: Betas { first: 0.9, second: 0.999 },
            eps: 1e-8,
            momentum_decay: 4e-3,
            decoupled: false,
        }
    }

    /// The decay rates of the running means of the gradient and of its square.
    pub fn betas(mut self, beta1: f64, beta2: f64) -> NAdam {
        self.betas = Betas { first: beta1, second: beta2 };
        self
    }

    /// The constant added to the divisor.
    pub fn eps(mut self, eps: f64) -> NAdam {
        self.eps = eps;
        self
    }

    /// How fast the momentum grows: `ψ`, 0.004 by default.
    pub fn momentum_decay(mut self, momentum_decay: f64) -> NAdam {
        self.momentum_decay = momentum_decay;
        self
    }

    /// Whether weight decay is subtracted from the parameter, as in AdamW, instead of added to the
    /// gradient.
    pub fn decoupled_weight_decay(mut self, decoupled: bool) -> NAdam {
        self.decoupled = decoupled;
        self
    }
}

optimizer!(
    NAdam,
    "The weight decay: the fraction of the parameter that is added to its gradient or, if decoupled, subtracted from the \
     parameter. 0 by default."
);

impl Rule for NAdam {
    const NAME: &'static str = "NAdam";
    const STACKS: bool = false;

    fn common(&self) -> &CommonSettings {
        &self.common
    }

    fn validate(&self) -> Option<String> {
        let wrong = self.betas.validate();
        wrong.or_else(|| {
            invalid_hyperparameter(&[("eps", self.eps), ("momentum_decay", self.momentum_decay)])
        })
    }

    fn momentum(&self) -> Option<&dyn Schedule> {
        Some(&self.betas.first)
    }

    fn init_state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        let mut state = Betas::init_state(parameter);
        state.push(("mu_product", number(parameter, 1.0)));
        state
    }

    fn apply(&self, args: &UpdateArgs<'_>) -> (Tensor, Vec<Tensor>) {
        let (p, g) = args.apply_weight_decay(self.decoupled);
        let t = args.t();
        let momentum = |t: &Tensor| {
            (1.0 - (t * (0.96f64.ln() * self.momentum_decay)).exp() * 0.5) * self.betas.first
        };
        let mu = momentum(&t);
        let next = momentum(&(&t + 1.0));
        let RunningMeans { m, v } = self.betas.running_means(args, &g);
        let product = &args.state[2] * &mu;
        let correction = one_minus_power(&args.scalar(self.betas.second.ln()), &t);
        let divisor = (&v / correction).sqrt() + self.eps;
        let gradient_rate = &args.lr * (1.0 - &mu) / (1.0 - &product);
        let mean_rate = &args.lr * &next / (1.0 - &product * &next);
        let p = p - gradient_rate * (&g / &divisor) - mean_rate * (&m / divisor);
        (p, vec![m, v, product])
    }
}
