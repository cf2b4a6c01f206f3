//! [`Lion`]: steps of constant size, in the direction of the sign of a mean of gradients.

use fulmen_tensor::{Tensor, TensorType};

use super::rule::{CommonSettings, Rule, UpdateArgs, is_beta, optimizer, zeros};
use crate::schedule::Schedule;

/// Lion (Chen et al. 2023, <https://arxiv.org/abs/2302.06675>), like optax's `lion`.
///
/// `p ← p − lr·(sign(β₁m + (1 − β₁)g) + λp)`, then `m ← β₂m + (1 − β₂)g`.
///
/// ```
/// use fulmen_nn::optim::Lion;
/// let optimizer = Lion::new(1e-4).weight_decay(0.1);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Lion {
    common: CommonSettings,
    beta1: f64,
    beta2: f64,
}

impl Lion {
    /// Optax's defaults with this learning rate: a number or a schedule.
    #[track_caller]
    pub fn new(lr: impl Schedule + 'static) -> Lion {
        Lion { common: CommonSettings::new(lr, 1e-3), beta1: 0.9, beta2: 0.99 }
    }

    /// `β₁`, the weight of the mean in the direction, and `β₂`, its decay rate: 0.9 and 0.99 by
    /// default.
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Lion {
        (self.beta1, self.beta2) = (beta1, beta2);
        self
    }
}

optimizer!(
    Lion,
    "The decoupled weight decay: the fraction of the parameter subtracted, times the learning rate. 0.001 by default."
);

impl Rule for Lion {
    const NAME: &'static str = "Lion";
    const ELEMENTWISE: bool = true;

    fn common(&self) -> &CommonSettings {
        &self.common
    }

    fn validate(&self) -> Option<String> {
        let wrong = !is_beta(self.beta1) || !is_beta(self.beta2);
        wrong.then(|| {
            format!(
                "betas must be at least 0 and below 1, but they are {} and {}",
                self.beta1, self.beta2
            )
        })
    }

    fn momentum(&self) -> Option<&dyn Schedule> {
        Some(&self.beta1)
    }

    fn init_state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        vec![("exp_avg", zeros(parameter))]
    }

    fn apply(&self, args: &UpdateArgs<'_>) -> (Tensor, Vec<Tensor>) {
        let mixed = |share: f64| &args.state[0] * share + &args.g * (1.0 - share);
        let direction = mixed(self.beta1).sign();
        (args.decayed_parameter() - direction * &args.lr, vec![mixed(self.beta2)])
    }
}
