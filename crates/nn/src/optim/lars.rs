//! [`Lars`]: gradient descent for large batches, with each step scaled to the norm of its
//! parameter.

use fulmen_tensor::{Tensor, TensorType};

use super::rule::{CommonSettings, Rule, UpdateArgs, invalid_hyperparameter, optimizer, zeros};
use super::trust_ratio::trust_ratio;
use crate::schedule::Schedule;

/// Layer-wise adaptive rate scaling (You et al. 2017, <https://arxiv.org/abs/1708.03888>), like
/// optax's `lars`.
///
/// With `u = g + λp` and the trust ratio `r = c·‖p‖/(‖u‖ + ε)`, or 1 if one of the norms is 0:
/// `b ← μb + lr·r·u`, `p ← p − b`, or with Nesterov's rule `p ← p − (lr·r·u + μb)`.
///
/// Biases and norms usually get neither weight decay nor a trust ratio; use
/// [`ParamGroups`](super::ParamGroups) to give them an [`Sgd`](super::Sgd).
///
/// ```
/// use fulmen_nn::optim::Lars;
/// let optimizer = Lars::new(1.0).weight_decay(1e-4);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Lars {
    common: CommonSettings,
    momentum: f64,
    nesterov: bool,
    trust_coefficient: f64,
    eps: f64,
}

impl Lars {
    /// Optax's defaults with this learning rate: a number or a schedule.
    #[track_caller]
    pub fn new(lr: impl Schedule + 'static) -> Lars {
        Lars {
            common: CommonSettings::new(lr, 0.0),
            momentum: 0.9,
            nesterov: false,
            trust_coefficient: 0.001,
            eps: 0.0,
        }
    }

    /// The momentum; 0.9 by default.
    pub fn momentum(mut self, momentum: f64) -> Lars {
        self.momentum = momentum;
        self
    }

    /// Whether to use Nesterov momentum.
    pub fn nesterov(mut self, nesterov: bool) -> Lars {
        self.nesterov = nesterov;
        self
    }

    /// The factor of the trust ratio, `c`; 0.001 by default.
    pub fn trust_coefficient(mut self, coefficient: f64) -> Lars {
        self.trust_coefficient = coefficient;
        self
    }

    /// The constant added to the norm of the step in the trust ratio.
    pub fn eps(mut self, eps: f64) -> Lars {
        self.eps = eps;
        self
    }
}

optimizer!(
    Lars,
    "The weight decay: the fraction of the parameter that is added to its gradient. 0 by default."
);

impl Rule for Lars {
    const NAME: &'static str = "Lars";
    const STACKS: bool = false;

    fn common(&self) -> &CommonSettings {
        &self.common
    }

    fn validate(&self) -> Option<String> {
        invalid_hyperparameter(&[
            ("momentum", self.momentum),
            ("trust_coefficient", self.trust_coefficient),
            ("eps", self.eps),
        ])
    }

    fn momentum(&self) -> Option<&dyn Schedule> {
        Some(&self.momentum)
    }

    fn init_state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        vec![("momentum_buffer", zeros(parameter))]
    }

    fn apply(&self, args: &UpdateArgs<'_>) -> (Tensor, Vec<Tensor>) {
        let gradient = args.decayed_gradient();
        let ratio = trust_ratio(&args.p, &gradient, self.trust_coefficient, self.eps);
        let update = gradient * ratio * &args.lr;
        let buffer = &args.state[0] * self.momentum + &update;
        let step = if self.nesterov { update + &buffer * self.momentum } else { buffer.clone() };
        (&args.p - step, vec![buffer])
    }
}
