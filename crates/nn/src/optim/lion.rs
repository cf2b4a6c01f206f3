//! [`Lion`]: steps of one length, by the sign of a mean of gradients.

use fulmen_tensor::{Tensor, TensorType};

use super::rule::{Common, Rule, Work, is_beta, optimizer, zeros};
use crate::schedule::Schedule;

/// Lion (Chen et al. 2023, <https://arxiv.org/abs/2302.06675>), as optax's `lion`.
///
/// `p ← p − lr·(sign(β₁m + (1 − β₁)g) + λp)`, then `m ← β₂m + (1 − β₂)g`.
///
/// ```
/// use fulmen_nn::optim::Lion;
/// let optimizer = Lion::new(1e-4).weight_decay(0.1);
/// ```
#[derive(Clone, Debug)]
pub struct Lion {
    common: Common,
    beta1: f64,
    beta2: f64,
}

impl Lion {
    /// Optax's defaults with this learning rate: a number or a schedule.
    #[track_caller]
    pub fn new(lr: impl Schedule + 'static) -> Lion {
        Lion { common: Common::new(lr, 1e-3), beta1: 0.9, beta2: 0.99 }
    }

    /// How much of the mean enters the direction, and how much of it is kept: 0.9 and 0.99 by default.
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Lion {
        (self.beta1, self.beta2) = (beta1, beta2);
        self
    }
}

optimizer!(Lion, "The share of the parameter that goes with each unit of the learning rate; 0.001 by default.");

impl Rule for Lion {
    const NAME: &'static str = "Lion";
    const ELEMENTWISE: bool = true;

    fn common(&self) -> &Common {
        &self.common
    }

    fn refusal(&self) -> Option<String> {
        let wrong = !is_beta(self.beta1) || !is_beta(self.beta2);
        wrong.then(|| format!("betas must be at least 0 and below 1, they are {} and {}", self.beta1, self.beta2))
    }

    fn momentum(&self) -> Option<&dyn Schedule> {
        Some(&self.beta1)
    }

    fn remembered(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        vec![("exp_avg", zeros(parameter))]
    }

    fn apply(&self, work: &Work<'_>) -> (Tensor, Vec<Tensor>) {
        let mixed = |share: f64| &work.state[0] * share + &work.g * (1.0 - share);
        let direction = mixed(self.beta1).sign();
        (work.decayed_parameter() - direction * &work.lr, vec![mixed(self.beta2)])
    }
}
