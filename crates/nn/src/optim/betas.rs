//! [`Betas`]: the decay rates of Adam's relatives, and the running means that they keep.

use fulmen_tensor::{Tensor, TensorType};

use super::rule::{UpdateArgs, is_beta, zeros};

/// The decay rates `β₁` and `β₂`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Betas {
    pub(super) first: f64,
    pub(super) second: f64,
}

/// The running means of a gradient, `m`, and of its square, `v`.
pub(super) struct RunningMeans {
    pub(super) m: Tensor,
    pub(super) v: Tensor,
}

impl Betas {
    /// What is wrong with them, if anything.
    pub(super) fn validate(self) -> Option<String> {
        let valid = is_beta(self.first) && is_beta(self.second);
        (!valid).then(|| {
            format!(
                "betas must be at least 0 and below 1, but they are {} and {}",
                self.first, self.second
            )
        })
    }

    /// The means before the first step, which are the first two states of an optimizer.
    pub(super) fn init_state(parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        vec![("exp_avg", zeros(parameter)), ("exp_avg_sq", zeros(parameter))]
    }

    /// `m ← β₁m + (1 − β₁)g` and `v ← β₂v + (1 − β₂)g²`.
    pub(super) fn running_means(self, args: &UpdateArgs<'_>, g: &Tensor) -> RunningMeans {
        RunningMeans {
            m: &args.state[0] * self.first + g * (1.0 - self.first),
            v: &args.state[1] * self.second + g * g * (1.0 - self.second),
        }
    }
}
