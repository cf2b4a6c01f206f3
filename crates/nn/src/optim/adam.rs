//! [`Adam`] and [`AdamW`]: steps scaled by running means of the gradient and of its square.

use std::sync::Arc;

use fulmen_tensor::{Tensor, TensorType};

use super::{Optimizer, misfit, precision, zeros};
use crate::schedule::{Scaled, Schedule};

/// What both have in common.
#[derive(Clone, Debug)]
struct Settings {
    lr: Arc<dyn Schedule>,
    beta1: Arc<dyn Schedule>,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
}

macro_rules! adam {
    ($(#[$doc:meta])* $name:ident, $decay:literal, $decoupled:literal, $(#[$decay_doc:meta])*) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(Settings);

        impl $name {
            /// PyTorch's defaults with this learning rate: a number or a schedule.
            pub fn new(lr: impl Schedule + 'static) -> $name {
                $name(Settings {
                    lr: Arc::new(lr),
                    beta1: Arc::new(0.9),
                    beta2: 0.999,
                    eps: 1e-8,
                    weight_decay: $decay,
                })
            }

            /// How much of the running means of the gradient, and of its square, is kept each step. The first may be
            /// a schedule.
            pub fn betas(mut self, beta1: impl Schedule + 'static, beta2: f64) -> $name {
                self.0.beta1 = Arc::new(beta1);
                self.0.beta2 = beta2;
                self
            }

            /// What is added to the divisor.
            pub fn eps(mut self, eps: f64) -> $name {
                self.0.eps = eps;
                self
            }

            $(#[$decay_doc])*
            pub fn weight_decay(mut self, weight_decay: f64) -> $name {
                self.0.weight_decay = weight_decay;
                self
            }
        }

        impl Optimizer for $name {
            fn state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
                vec![("exp_avg", zeros(parameter)), ("exp_avg_sq", zeros(parameter))]
            }

            #[track_caller]
            fn update(
                &self,
                step: &Tensor,
                parameter: &Tensor,
                gradient: &Tensor,
                state: &[Tensor],
            ) -> (Tensor, Vec<Tensor>) {
                if let Some(message) = misfit(self.0.misfit(), parameter, gradient, state, 2) {
                    let poison = Tensor::poison(stringify!($name), message);
                    return (poison.clone(), vec![poison; 2]);
                }
                self.0.update(step, parameter, gradient, state, $decoupled)
            }

            #[track_caller]
            fn learning_rate(&self, step: &Tensor) -> Tensor {
                self.0.lr.value(step)
            }

            fn scale_learning_rate(&mut self, factor: f64) {
                self.0.lr = Arc::new(Scaled::new(self.0.lr.clone(), factor));
            }
        }
    };
}

adam! {
    /// Adam, as PyTorch's `optim.Adam`: weight decay is added to the gradient.
    ///
    /// With `t` counted from 1: `m ← β₁m + (1 − β₁)g`, `v ← β₂v + (1 − β₂)g²`,
    /// `p ← p − lr/(1 − β₁ᵗ)·m/(√v/√(1 − β₂ᵗ) + ε)`.
    ///
    /// ```
    /// use fulmen_nn::optim::Adam;
    /// let optimizer = Adam::new(1e-3).betas(0.9, 0.95);
    /// ```
    Adam, 0.0, false,
    /// The share of the parameter that is added to its gradient; 0 by default.
}

adam! {
    /// Adam with decoupled weight decay, as PyTorch's `optim.AdamW`: first `p ← p − lr·λ·p`, then the step of [`Adam`].
    ///
    /// ```
    /// use fulmen_nn::{optim::AdamW, schedule::OneCycle};
    /// let optimizer = AdamW::new(OneCycle::new(1e-3, 10_000)).weight_decay(0.05);
    /// ```
    AdamW, 0.01, true,
    /// The share of the parameter that goes with each unit of the learning rate; 0.01 by default.
}

impl Settings {
    fn misfit(&self) -> Option<String> {
        let beta = |b: f64| (0.0..1.0).contains(&b);
        if !self.beta1.constant().is_none_or(beta) || !beta(self.beta2) {
            return Some(format!("betas must be at least 0 and below 1, they are {:?} and {}", self.beta1, self.beta2));
        }
        let rate = self.lr.constant().unwrap_or_default();
        // NaN is no such number either.
        if ![rate, self.eps, self.weight_decay].iter().all(|&n| n >= 0.0) {
            return Some("learning rate, eps and weight decay must be at least 0".into());
        }
        None
    }

    #[track_caller]
    fn update(
        &self,
        step: &Tensor,
        parameter: &Tensor,
        gradient: &Tensor,
        state: &[Tensor],
        decoupled: bool,
    ) -> (Tensor, Vec<Tensor>) {
        let dtype = precision(parameter.dtype());
        let lr = self.lr.value(step).to_dtype(dtype);
        let mut p = parameter.to_dtype(dtype);
        let mut g = gradient.to_dtype(dtype);
        if self.weight_decay != 0.0 {
            if decoupled {
                p = &p - &p * (&lr * self.weight_decay);
            } else {
                g = g + &p * self.weight_decay;
            }
        }
        let t = (step + 1.0).to_dtype(dtype);
        let beta1 = self.beta1.value(step).to_dtype(dtype);
        let (kept, added, log_beta1) = match self.beta1.constant() {
            // From f64, since 1 − 0.9 in f32 has lost digits.
            Some(b) => (&state[0] * b, &g * (1.0 - b), Tensor::full(dtype, [], b.ln())),
            None => (&state[0] * &beta1, &g * (1.0 - &beta1), beta1.log()),
        };
        let m = kept + added;
        let v = &state[1] * self.beta2 + &g * &g * (1.0 - self.beta2);
        let correction1 = one_minus_power(&log_beta1, &t);
        let correction2 = one_minus_power(&Tensor::full(dtype, [], self.beta2.ln()), &t);
        let divisor = v.sqrt() / correction2.sqrt() + self.eps;
        let p = p - (lr / correction1) * (&m / divisor);
        (p.to_dtype(parameter.dtype()), vec![m, v])
    }
}

/// `1 − βᵗ` from `log β`. Not by `pow`: for β = 0.999 and small `t` its result is too near 1 to keep its digits in f32.
#[track_caller]
fn one_minus_power(log_beta: &Tensor, t: &Tensor) -> Tensor {
    -(log_beta * t).expm1()
}

#[cfg(test)]
mod tests {
    use fulmen_tensor::DType;

    use super::*;

    #[test]
    fn settings_without_sense_are_poisoned() {
        let p = Tensor::ones(DType::F32, [2]);
        let message = |adam: Adam| {
            let (p, state) = adam.update(&Tensor::scalar(0i32), &p, &p, &[p.clone(), p.clone()]);
            assert_eq!(state.len(), 2);
            p.fault().map(|f| f.message().to_owned()).unwrap()
        };
        assert!(message(Adam::new(-1.0)).contains("at least 0"));
        assert!(message(Adam::new(0.1).betas(1.0, 0.9)).contains("below 1"));
        assert!(message(Adam::new(0.1).eps(f64::NAN)).contains("eps"));
    }
}
