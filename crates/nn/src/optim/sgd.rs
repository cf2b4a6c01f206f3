//! [`Sgd`]: gradient descent, with momentum.

use std::sync::Arc;

use fulmen_tensor::{Tensor, TensorType};

use super::rule::{CommonSettings, Rule, UpdateArgs, invalid_hyperparameter, optimizer, zeros};
use crate::schedule::Schedule;

/// Stochastic gradient descent, like PyTorch's `optim.SGD`.
///
/// With gradient `g`, weight decay `λ`, momentum `μ` and dampening `τ`: `g ← g + λp`,
/// `b ← μb + (1 − τ)g` (in the first step `b ← g`), `p ← p − lr·b`, or with Nesterov's rule
/// `p ← p − lr·(g + μb)`.
///
/// ```
/// use fulmen_nn::{optim::Sgd, schedule::OneCycle};
/// let optimizer = Sgd::new(OneCycle::new(0.1, 10_000)).momentum(0.9).weight_decay(5e-4).nesterov(true);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Sgd {
    common: CommonSettings,
    momentum: Option<Arc<dyn Schedule>>,
    dampening: f64,
    nesterov: bool,
}

impl Sgd {
    /// Plain gradient descent with this learning rate: a number or a schedule.
    #[track_caller]
    pub fn new(lr: impl Schedule + 'static) -> Sgd {
        Sgd {
            common: CommonSettings::new(lr, 0.0),
            momentum: None,
            dampening: 0.0,
            nesterov: false,
        }
    }

    /// The momentum: a number or a schedule. 0 keeps no state for it.
    pub fn momentum(mut self, momentum: impl Schedule + 'static) -> Sgd {
        self.momentum =
            (momentum.constant() != Some(0.0)).then(|| Arc::new(momentum) as Arc<dyn Schedule>);
        self
    }

    /// The share of the gradient that is left out of the momentum.
    pub fn dampening(mut self, dampening: f64) -> Sgd {
        self.dampening = dampening;
        self
    }

    /// Whether to use Nesterov momentum; needs momentum, and no dampening.
    pub fn nesterov(mut self, nesterov: bool) -> Sgd {
        self.nesterov = nesterov;
        self
    }
}

optimizer!(
    Sgd,
    "The weight decay: the fraction of the parameter that is added to its gradient. 0 by default."
);

impl Rule for Sgd {
    const NAME: &'static str = "Sgd";
    const STACKS: bool = true;

    fn common(&self) -> &CommonSettings {
        &self.common
    }

    fn validate(&self) -> Option<String> {
        if self.nesterov && (self.momentum.is_none() || self.dampening != 0.0) {
            return Some("nesterov needs a momentum above 0 and no dampening".into());
        }
        if !self.dampening.is_finite() {
            return Some(format!("dampening must be finite, but it is {}", self.dampening));
        }
        let momentum = self.momentum.as_ref().and_then(|momentum| momentum.constant());
        invalid_hyperparameter(&[("momentum", momentum.unwrap_or_default())])
    }

    fn momentum(&self) -> Option<&dyn Schedule> {
        self.momentum.as_ref().map(|momentum| momentum as &dyn Schedule)
    }

    fn refuses_rows(&self) -> Option<&'static str> {
        let reason = "its momentum would change rows that the step does not look up; use Adam";
        self.momentum.is_some().then_some(reason)
    }

    fn init_state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        self.momentum.iter().map(|_| ("momentum_buffer", zeros(parameter))).collect()
    }

    fn apply(&self, args: &UpdateArgs<'_>) -> (Tensor, Vec<Tensor>) {
        let mut g = args.decayed_gradient();
        let mut state = args.state.to_vec();
        if let (Some(momentum), [buffer]) = (&self.momentum, &mut state[..]) {
            let momentum = args.value("momentum", momentum);
            let mut b = &*buffer * &momentum + &g * (1.0 - self.dampening);
            if self.dampening != 0.0 {
                b = args.step.finished_of_parameter().eq(0.0).select(&g, &b);
            }
            g = if self.nesterov { g + &b * &momentum } else { b.clone() };
            *buffer = b;
        }
        (&args.p - g * &args.lr, state)
    }
}
