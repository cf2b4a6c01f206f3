//! [`Lion`]: steps of constant size, in the direction of the sign of a mean of gradients.

use fulmen_tensor::{Tensor, TensorType};

use super::betas::Betas;
use super::rule::{CommonSettings, Rule, UpdateArgs, optimizer, zeros};
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
    betas: Betas,
}

impl Lion {
    /// Optax's defaults with this learning rate: a number or a schedule.
    #[track_caller]
    pub fn new(lr: impl Schedule + 'static) -> Lion {
        Lion { common: CommonSettings::new(lr, 1e-3), betas: Betas { first: 0.9, second: 0.99 } }
    }

    /// `β₁`, the weight of the mean in the direction, and `β₂`, its decay rate: 0.9 and 0.99 by
    /// default.
    pub fn betas(mut self, beta1: f64, beta2: f64) -> Lion {
        self.betas = Betas { first: beta1, second: beta2 };
        self
    }
}

optimizer!(
    Lion,
    "The decoupled weight decay: the fraction of the parameter subtracted, times the learning rate. 0.001 by default."
);

impl Rule for Lion {
    const NAME: &'static str = "Lion";
    const STACKS: bool = true;

    fn common(&self) -> &CommonSettings {
        &self.common
    }

    fn validate(&self) -> Option<String> {
        self.betas.validate()
    }

    fn momentum(&self) -> Option<&dyn Schedule> {
        Some(&self.betas.first)
    }

    fn init_state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        vec![("exp_avg", zeros(parameter))]
    }

    fn apply(&self, args: &UpdateArgs<'_>) -> (Tensor, Vec<Tensor>) {
        let mixed = |share: f64| &args.state[0] * share + &args.g * (1.0 - share);
        let direction = mixed(self.betas.first).sign();
        (args.decayed_parameter() - direction * &args.lr, vec![mixed(self.betas.second)])
    }
}
