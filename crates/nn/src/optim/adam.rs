//! [`Adam`] and [`AdamW`]: steps scaled by running means of the gradient and of its square.

use std::sync::Arc;

use fulmen_tensor::{Tensor, TensorType};

use super::rule::{
    CommonSettings, Rule, UpdateArgs, invalid_hyperparameter, is_beta, one_minus_power, optimizer,
    zeros,
};
use crate::schedule::Schedule;

/// The settings of [`Adam`] and [`AdamW`].
#[derive(Clone, Debug)]
struct Settings {
    beta1: Arc<dyn Schedule>,
    beta2: f64,
    eps: f64,
    amsgrad: bool,
}

macro_rules! adam {
    ($(#[$doc:meta])* $name:ident, $decay:literal, $decoupled:literal, $decay_doc:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[must_use]
        pub struct $name {
            common: CommonSettings,
            settings: Settings,
        }

        impl $name {
            /// PyTorch's defaults with this learning rate: a number or a schedule.
            #[track_caller]
            pub fn new(lr: impl Schedule + 'static) -> $name {
                let settings = Settings { beta1: Arc::new(0.9), beta2: 0.999, eps: 1e-8, amsgrad: false };
                $name { common: CommonSettings::new(lr, $decay), settings }
            }

            /// The decay rates of the running means of the gradient and of its square. The first
            /// can be a schedule.
            pub fn betas(mut self, beta1: impl Schedule + 'static, beta2: f64) -> $name {
                self.settings.beta1 = Arc::new(beta1);
                self.settings.beta2 = beta2;
                self
            }

            /// The constant added to the divisor.
            pub fn eps(mut self, eps: f64) -> $name {
                self.settings.eps = eps;
                self
            }

            /// Divides by the largest mean of squares so far instead of the current one.
            pub fn amsgrad(mut self, amsgrad: bool) -> $name {
                self.settings.amsgrad = amsgrad;
                self
            }
        }

        optimizer!($name, $decay_doc);

        impl Rule for $name {
            const NAME: &'static str = stringify!($name);
            const STACKS: bool = true;

            fn common(&self) -> &CommonSettings {
                &self.common
            }

            fn validate(&self) -> Option<String> {
                self.settings.validate()
            }

            fn momentum(&self) -> Option<&dyn Schedule> {
                Some(&self.settings.beta1)
            }

            fn refuses_rows(&self) -> Option<&'static str> {
                self.settings.amsgrad.then_some("PyTorch's SparseAdam has no amsgrad; turn it off")
            }

            fn init_state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
                let names = ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"];
                let stored = if self.settings.amsgrad { &names[..] } else { &names[..2] };
                stored.iter().map(|&name| (name, zeros(parameter))).collect()
            }

            fn apply(&self, args: &UpdateArgs<'_>) -> (Tensor, Vec<Tensor>) {
                if $decoupled {
                    self.settings.step(args, args.decayed_parameter(), &args.g)
                } else {
                    self.settings.step(args, args.p.clone(), &args.decayed_gradient())
                }
            }
        }
    };
}

adam! {
    /// Adam, like PyTorch's `optim.Adam`: weight decay is added to the gradient.
    ///
    /// With `t` counted from 1: `m ← β₁m + (1 − β₁)g`, `v ← β₂v + (1 − β₂)g²`,
    /// `p ← p − lr/(1 − β₁ᵗ)·m/(√v/√(1 − β₂ᵗ) + ε)`.
    ///
    /// ```
    /// use fulmen_nn::optim::Adam;
    /// let optimizer = Adam::new(1e-3).betas(0.9, 0.95);
    /// ```
    Adam, 0.0, false, "The weight decay: the fraction of the parameter that is added to its gradient. 0 by default."
}

adam! {
    /// Adam with decoupled weight decay, like PyTorch's `optim.AdamW`: first `p ← p − lr·λ·p`, then
    /// the step of [`Adam`].
    ///
    /// ```
    /// use fulmen_nn::{optim::AdamW, schedule::OneCycle};
    /// let optimizer = AdamW::new(OneCycle::new(1e-3, 10_000)).weight_decay(0.05);
    /// ```
    AdamW, 0.01, true, "The decoupled weight decay: the fraction of the parameter subtracted, times the learning rate. 0.01 by default."
}

impl Settings {
    fn validate(&self) -> Option<String> {
        if !self.beta1.constant().is_none_or(is_beta) || !is_beta(self.beta2) {
            return Some(format!(
                "betas must be at least 0 and below 1, but they are {:?} and {}",
                self.beta1, self.beta2
            ));
        }
        invalid_hyperparameter(&[("eps", self.eps)])
    }

    fn step(&self, args: &UpdateArgs<'_>, p: Tensor, g: &Tensor) -> (Tensor, Vec<Tensor>) {
        let t = args.t();
        let beta1 = args.value("beta1", &self.beta1);
        let (decayed, added, log_beta1) = match self.beta1.constant() {
            // Computed in f64, since 1 − 0.9 loses digits in f32.
            Some(b) => (&args.state[0] * b, g * (1.0 - b), args.scalar(b.ln())),
            None => (&args.state[0] * &beta1, g * (1.0 - &beta1), beta1.log()),
        };
        let m = decayed + added;
        let v = &args.state[1] * self.beta2 + g * g * (1.0 - self.beta2);
        let largest = self.amsgrad.then(|| args.state[2].maximum(&v));
        let correction1 = one_minus_power(&log_beta1, &t);
        let correction2 = one_minus_power(&args.scalar(self.beta2.ln()), &t);
        let root = largest.as_ref().unwrap_or(&v).sqrt();
        let divisor = if args.step.is_of_rows() {
            // PyTorch's SparseAdam adds ε before the bias correction.
            (root + self.eps) / correction2.sqrt()
        } else {
            root / correction2.sqrt() + self.eps
        };
        let p = p - (&args.lr / correction1) * (&m / divisor);
        (p, [m, v].into_iter().chain(largest).collect())
    }
}
