//! [`RAdam`]: Adam that scales its steps only once its mean of squares is reliable.

use fulmen_tensor::{Tensor, TensorType};

use super::betas::{Betas, RunningMeans};
use super::rule::{
    CommonSettings, Rule, UpdateArgs, invalid_hyperparameter, one_minus_power, optimizer,
};
use crate::schedule::Schedule;

/// Rectified Adam, like PyTorch's `optim.RAdam`.
///
/// With `t` counted from 1, `m` and `v` as in [`Adam`](super::Adam), `ρ∞ = 2/(1 − β₂) − 1` and
/// `ρ = ρ∞ − 2tβ₂ᵗ/(1 − β₂ᵗ)`: if `ρ > 5`, `p ← p − lr·m/(1 − β₁ᵗ)·√(1 − β₂ᵗ)/(√v + ε)·r` with `r =
/// √((ρ − 4)(ρ − 2)ρ∞/((ρ∞ − 4)(ρ∞ − 2)ρ))`, else `p ← p − lr·m/(1 − β₁ᵗ)`.
///
/// ```
/// use fulmen_nn::optim::RAdam;
/// let optimizer = RAdam::new(1e-3).betas(0.9, 0.99);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RAdam {
    common: CommonSettings,
    betas: Betas,
    eps: f64,
    decoupled: bool,
}

impl RAdam {
    /// PyTorch's defaults with this learning rate: a number or a schedule.
    #[track_caller]
    pub fn new(lr: impl Schedule + 'static) -> RAdam {
        RAdam {
            common: CommonSettings::new(lr, 0.0),
            betas: Betas { first: 0.9, second: 0.999 },
            eps: 1e-8,
            decoupled: false,
        }
    }

    /// The decay rates of the running means of the gradient and of its square.
    pub fn betas(mut self, beta1: f64, beta2: f64) -> RAdam {
        self.betas = Betas { first: beta1, second: beta2 };
        self
    }

    /// The constant added to the divisor.
    pub fn eps(mut self, eps: f64) -> RAdam {
        self.eps = eps;
        self
    }

    /// Whether weight decay is subtracted from the parameter, as in AdamW, instead of added to the
    /// gradient.
    pub fn decoupled_weight_decay(mut self, decoupled: bool) -> RAdam {
        self.decoupled = decoupled;
        self
    }

    fn longest(&self) -> f64 {
        2.0 / (1.0 - self.betas.second) - 1.0
    }

    /// `ρ` of step `t`. Its two terms are each as large as `ρ∞`, so in the first steps their
    /// difference would lose most digits in f32. There it is computed as a series in `u = −t·log
    /// β₂`, by `u/(eᵘ − 1) = 1 − u/2 + u²/12 − u⁴/720 + …`.
    fn length(&self, args: &UpdateArgs<'_>, t: &Tensor) -> Tensor {
        let x = -self.betas.second.ln();
        let u = t * x;
        let u2 = &u * &u;
        let coefficients =
            [-1.0 / 47_900_160.0, 1.0 / 1_209_600.0, -1.0 / 30_240.0, 1.0 / 720.0, -1.0 / 12.0];
        let start = args.scalar(691.0 / 1_307_674_368_000.0);
        let series = coefficients.iter().fold(start, |sum, &c| sum * &u2 + c) * &u2;
        let early = series * (2.0 / x) + t + (self.longest() - 2.0 / x);
        let late = self.longest() - t * 2.0 / u.expm1();
        u.lt(1.0).select(&early, &late)
    }
}

optimizer!(
    RAdam,
    "The weight decay: the fraction of the parameter that is added to its gradient or, if decoupled, subtracted from the \
     parameter. 0 by default."
);

impl Rule for RAdam {
    const NAME: &'static str = "RAdam";
    const STACKS: bool = true;

    fn common(&self) -> &CommonSettings {
        &self.common
    }

    fn validate(&self) -> Option<String> {
        let Betas { first, second } = self.betas;
        if self.betas.validate().is_some() || second == 0.0 {
            return Some(format!(
                "betas must be at least 0 and below 1, the second above 0; they are {first} and {second}"
            ));
        }
        invalid_hyperparameter(&[("eps", self.eps)])
    }

    fn momentum(&self) -> Option<&dyn Schedule> {
        Some(&self.betas.first)
    }

    fn init_state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        Betas::init_state(parameter)
    }

    fn apply(&self, args: &UpdateArgs<'_>) -> (Tensor, Vec<Tensor>) {
        let (p, g) = args.apply_weight_decay(self.decoupled);
        let t = args.t();
        let RunningMeans { m, v } = self.betas.running_means(args, &g);
        let correction1 = one_minus_power(&args.scalar(self.betas.first.ln()), &t);
        let correction2 = one_minus_power(&args.scalar(self.betas.second.ln()), &t);
        let longest = self.longest();
        let length = self.length(args, &t);
        let scale = longest / ((longest - 4.0) * (longest - 2.0));
        // At least 5, so that the root is real even where it is not used.
        let rho = length.maximum(5.0);
        let rectification = ((&rho - 4.0) * (&rho - 2.0) / &rho * scale).sqrt();
        let scaled = rectification * correction2.sqrt() / (v.sqrt() + self.eps);
        let trusted = length.gt(5.0).broadcast_to(scaled.shape());
        let p = p - &args.lr / correction1 * (&m * trusted.select(&scaled, &scaled.ones_like()));
        (p, vec![m, v])
    }
}
