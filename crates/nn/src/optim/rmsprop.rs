//! [`RmsProp`]: steps scaled by a running mean of the gradient's square.

use fulmen_tensor::{Tensor, TensorType};

use super::rule::{CommonSettings, Rule, UpdateArgs, invalid_hyperparameter, optimizer, zeros};
use crate::schedule::Schedule;

/// RMSprop, like PyTorch's `optim.RMSprop`.
///
/// `v ← αv + (1 − α)g²`. If centered, `a ← αa + (1 − α)g` and `d = √(v − a²) + ε`, else
/// `d = √v + ε`. Then `p ← p − lr·g/d`, or with momentum `b ← μb + g/d`, `p ← p − lr·b`.
///
/// ```
/// use fulmen_nn::optim::RmsProp;
/// let optimizer = RmsProp::new(0.01).alpha(0.9).momentum(0.9).centered(true);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RmsProp {
    common: CommonSettings,
    alpha: f64,
    eps: f64,
    momentum: f64,
    centered: bool,
}

impl RmsProp {
    /// PyTorch's defaults with this learning rate, a number or a schedule; PyTorch's own is 0.01.
    #[track_caller]
    pub fn new(lr: impl Schedule + 'static) -> RmsProp {
        RmsProp {
            common: CommonSettings::new(lr, 0.0),
            alpha: 0.99,
            eps: 1e-8,
            momentum: 0.0,
            centered: false,
        }
    }

    /// The decay rate of the running mean.
    pub fn alpha(mut self, alpha: f64) -> RmsProp {
        self.alpha = alpha;
        self
    }

    /// The constant added to the divisor.
    pub fn eps(mut self, eps: f64) -> RmsProp {
        self.eps = eps;
        self
    }

    /// The momentum. 0 keeps no state for it.
    pub fn momentum(mut self, momentum: f64) -> RmsProp {
        self.momentum = momentum;
        self
    }

    /// Whether to divide by the deviation from the mean gradient.
    pub fn centered(mut self, centered: bool) -> RmsProp {
        self.centered = centered;
        self
    }
}

optimizer!(
    RmsProp,
    "The weight decay: the fraction of the parameter that is added to its gradient. 0 by default."
);

impl Rule for RmsProp {
    const NAME: &'static str = "RmsProp";
    const STACKS: bool = true;

    fn common(&self) -> &CommonSettings {
        &self.common
    }

    fn validate(&self) -> Option<String> {
        if !(0.0..=1.0).contains(&self.alpha) {
            return Some(format!("alpha must be between 0 and 1, but it is {}", self.alpha));
        }
        invalid_hyperparameter(&[("eps", self.eps), ("momentum", self.momentum)])
    }

    fn momentum(&self) -> Option<&dyn Schedule> {
        (self.momentum > 0.0).then_some(&self.momentum as &dyn Schedule)
    }

    fn init_state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        let mut names = vec!["square_avg"];
        names.extend((self.momentum > 0.0).then_some("momentum_buffer"));
        names.extend(self.centered.then_some("grad_avg"));
        names.into_iter().map(|name| (name, zeros(parameter))).collect()
    }

    fn apply(&self, args: &UpdateArgs<'_>) -> (Tensor, Vec<Tensor>) {
        let g = args.decayed_gradient();
        let running = |mean: &Tensor, new: Tensor| mean * self.alpha + new * (1.0 - self.alpha);
        let v = running(&args.state[0], &g * &g);
        let mean = self.centered.then(|| running(&args.state[args.state.len() - 1], g.clone()));
        let squares = match &mean {
            Some(mean) => &v - mean * mean,
            None => v.clone(),
        };
        let mut direction = g / (squares.sqrt() + self.eps);
        let buffer = (self.momentum > 0.0).then(|| &args.state[1] * self.momentum + &direction);
        if let Some(buffer) = &buffer {
            direction = buffer.clone();
        }
        (&args.p - direction * &args.lr, [v].into_iter().chain(buffer).chain(mean).collect())
    }
}
