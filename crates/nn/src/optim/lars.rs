//! [`Lars`]: gradient descent for large batches, each parameter's step as long as the parameter allows.

use fulmen_tensor::{Tensor, TensorType};

use super::rule::{Common, Rule, Work, misplaced, optimizer, zeros};
use super::trust_ratio::trust_ratio;
use crate::schedule::Schedule;

/// Layer-wise adaptive rate scaling (You et al. 2017, <https://arxiv.org/abs/1708.03888>), as optax's `lars`.
///
/// With `u = g + λp` and the trust ratio `r = c·‖p‖/(‖u‖ + ε)`, 1 where one of the lengths is 0:
/// `b ← μb + lr·r·u`, `p ← p − b`, or with Nesterov's rule `p ← p − (lr·r·u + μb)`.
///
/// Biases and norms usually go without decay and trust ratio; a [`ParamGroups`](super::ParamGroups) gives them an
/// [`Sgd`](super::Sgd).
///
/// ```
/// use fulmen_nn::optim::Lars;
/// let optimizer = Lars::new(1.0).weight_decay(1e-4);
/// ```
#[derive(Clone, Debug)]
pub struct Lars {
    common: Common,
    momentum: f64,
    nesterov: bool,
    trust_coefficient: f64,
    eps: f64,
}

impl Lars {
    /// Optax's defaults with this learning rate: a number or a schedule.
    #[track_caller]
    pub fn new(lr: impl Schedule + 'static) -> Lars {
        Lars { common: Common::new(lr, 0.0), momentum: 0.9, nesterov: false, trust_coefficient: 0.001, eps: 0.0 }
    }

    /// How much of the former step is kept; 0.9 by default.
    pub fn momentum(mut self, momentum: f64) -> Lars {
        self.momentum = momentum;
        self
    }

    /// Looks ahead by one step.
    pub fn nesterov(mut self, nesterov: bool) -> Lars {
        self.nesterov = nesterov;
        self
    }

    /// What the trust ratio is multiplied by: `c`, 0.001 by default.
    pub fn trust_coefficient(mut self, coefficient: f64) -> Lars {
        self.trust_coefficient = coefficient;
        self
    }

    /// What is added to the length of the step in the trust ratio.
    pub fn eps(mut self, eps: f64) -> Lars {
        self.eps = eps;
        self
    }
}

optimizer!(Lars, "The share of the parameter that is added to its gradient; 0 by default.");

impl Rule for Lars {
    const NAME: &'static str = "Lars";
    const ELEMENTWISE: bool = false;

    fn common(&self) -> &Common {
        &self.common
    }

    fn refusal(&self) -> Option<String> {
        misplaced(&[("momentum", self.momentum), ("trust_coefficient", self.trust_coefficient), ("eps", self.eps)])
    }

    fn momentum(&self) -> Option<&dyn Schedule> {
        Some(&self.momentum)
    }

    fn remembered(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        vec![("momentum_buffer", zeros(parameter))]
    }

    fn apply(&self, work: &Work<'_>) -> (Tensor, Vec<Tensor>) {
        let update = work.decayed_gradient();
        let ratio = trust_ratio(&work.p, &update, self.trust_coefficient, self.eps);
        let update = update * ratio * &work.lr;
        let buffer = &work.state[0] * self.momentum + &update;
        let step = if self.nesterov { update + &buffer * self.momentum } else { buffer.clone() };
        (&work.p - step, vec![buffer])
    }
}
