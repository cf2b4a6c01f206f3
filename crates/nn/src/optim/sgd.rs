//! [`Sgd`]: gradient descent, with momentum.

use std::sync::Arc;

use fulmen_tensor::{Tensor, TensorType};

use super::{Optimizer, misfit, precision, zeros};
use crate::schedule::{Scaled, Schedule};

/// Stochastic gradient descent, as PyTorch's `optim.SGD`.
///
/// With gradient `g`, weight decay `λ`, momentum `μ` and dampening `τ`: `g ← g + λp`, `b ← μb + (1 − τ)g` (in the first
/// step `b ← g`), `p ← p − lr·b`, or with Nesterov's rule `p ← p − lr·(g + μb)`.
///
/// ```
/// use fulmen_nn::{optim::Sgd, schedule::OneCycle};
/// let optimizer = Sgd::new(OneCycle::new(0.1, 10_000)).momentum(0.9).weight_decay(5e-4).nesterov(true);
/// ```
#[derive(Clone, Debug)]
pub struct Sgd {
    lr: Arc<dyn Schedule>,
    momentum: Option<Arc<dyn Schedule>>,
    dampening: f64,
    weight_decay: f64,
    nesterov: bool,
}

impl Sgd {
    /// Plain gradient descent with this learning rate: a number or a schedule.
    pub fn new(lr: impl Schedule + 'static) -> Sgd {
        Sgd { lr: Arc::new(lr), momentum: None, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }

    /// How much of the former direction is kept: a number or a schedule. Nothing is remembered for 0.
    pub fn momentum(mut self, momentum: impl Schedule + 'static) -> Sgd {
        self.momentum = (momentum.constant() != Some(0.0)).then(|| Arc::new(momentum) as Arc<dyn Schedule>);
        self
    }

    /// The share of the gradient that does not enter the remembered direction.
    pub fn dampening(mut self, dampening: f64) -> Sgd {
        self.dampening = dampening;
        self
    }

    /// The share of the parameter that is added to its gradient.
    pub fn weight_decay(mut self, weight_decay: f64) -> Sgd {
        self.weight_decay = weight_decay;
        self
    }

    /// Looks ahead by one step; needs momentum and no dampening.
    pub fn nesterov(mut self, nesterov: bool) -> Sgd {
        self.nesterov = nesterov;
        self
    }

    fn settings(&self) -> Option<String> {
        if self.nesterov && (self.momentum.is_none() || self.dampening != 0.0) {
            return Some("nesterov needs a momentum above 0 and no dampening".into());
        }
        let constant = |s: &Arc<dyn Schedule>| s.constant().unwrap_or_default();
        let momentum = self.momentum.as_ref().map_or(0.0, constant);
        // NaN is no such number either.
        if ![constant(&self.lr), momentum, self.weight_decay].iter().all(|&n| n >= 0.0) || !self.dampening.is_finite() {
            return Some("learning rate, momentum and weight decay must be at least 0, dampening finite".into());
        }
        None
    }
}

impl Optimizer for Sgd {
    fn state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        self.momentum.iter().map(|_| ("momentum_buffer", zeros(parameter))).collect()
    }

    #[track_caller]
    fn update(&self, step: &Tensor, parameter: &Tensor, gradient: &Tensor, state: &[Tensor]) -> (Tensor, Vec<Tensor>) {
        let remembered = usize::from(self.momentum.is_some());
        if let Some(message) = misfit(self.settings(), parameter, gradient, state, remembered) {
            let poison = Tensor::poison("Sgd", message);
            return (poison.clone(), vec![poison; remembered]);
        }
        let dtype = precision(parameter.dtype());
        let p = parameter.to_dtype(dtype);
        let mut g = gradient.to_dtype(dtype);
        if self.weight_decay != 0.0 {
            g = g + &p * self.weight_decay;
        }
        let mut state = state.to_vec();
        if let (Some(momentum), [buffer]) = (&self.momentum, &mut state[..]) {
            let momentum = momentum.value(step).to_dtype(dtype);
            let mut b = &*buffer * &momentum + &g * (1.0 - self.dampening);
            if self.dampening != 0.0 {
                b = step.eq(0.0).select(&g, &b);
            }
            g = if self.nesterov { g + &b * &momentum } else { b.clone() };
            *buffer = b;
        }
        let lr = self.lr.value(step).to_dtype(dtype);
        ((p - g * lr).to_dtype(parameter.dtype()), state)
    }

    #[track_caller]
    fn learning_rate(&self, step: &Tensor) -> Tensor {
        self.lr.value(step)
    }

    fn scale_learning_rate(&mut self, factor: f64) {
        self.lr = Arc::new(Scaled::new(self.lr.clone(), factor));
    }
}
