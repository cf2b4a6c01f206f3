//! [`Muon`]: steps whose singular values are all about 1, for the matrices of hidden layers.

use std::sync::Arc;

use fulmen_tensor::{DType, Tensor, TensorType, fori_loop};

use super::rule::{CommonSettings, Rule, UpdateArgs, invalid_hyperparameter, optimizer, zeros};
use crate::schedule::Schedule;

/// Muon (Jordan et al. 2024, <https://kellerjordan.github.io/posts/muon/>), like PyTorch's
/// `optim.Muon`.
///
/// With gradient `g` and momentum `μ`: `b ← μb + (1 − μ)g` and `u = μb + (1 − μ)g`, or `u = b`
/// without Nesterov's rule. `O` has the singular vectors of `u`, and singular values of about 1.
/// Then `p ← p − lr·λ·p` and `p ← p − lr·s·O`, where [`AdjustLr`] gives `s`.
///
/// For `O`, `x = u/max(‖u‖, ε)` becomes `a·x + b·(xxᵀ)x + c·(xxᵀ)²x`, five times. This is computed
/// in bf16, as in PyTorch, but in f64 for f64 parameters.
///
/// It is for matrices, so it refuses parameters with one axis, or with more than two. The weights
/// of an embedding and of the last layer have two axes, too, but train better with another
/// optimizer. Use [`ParamGroups::matrices`](super::ParamGroups::matrices):
///
/// ```
/// use fulmen_nn::optim::{AdamW, Muon, ParamGroups};
/// let optimizer = ParamGroups::new(AdamW::new(3e-4)).matrices("layers.*", Muon::new(0.02));
/// ```
///
/// Where a weight is split over devices, the products need all of it: each step gathers it.
#[derive(Clone, Debug)]
#[must_use]
pub struct Muon {
    common: CommonSettings,
    momentum: Arc<dyn Schedule>,
    nesterov: bool,
    ns_coefficients: [f64; 3],
    ns_steps: u32,
    eps: f64,
    adjust_lr: AdjustLr,
}

/// How the step of a matrix `[rows, columns]` depends on its shape, PyTorch's `adjust_lr_fn`.
///
/// ```
/// use fulmen_nn::optim::{AdjustLr, Muon};
/// let optimizer = Muon::new(3e-4).adjust_lr(AdjustLr::MatchRmsAdamW);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdjustLr {
    /// `√max(1, rows/columns)`, PyTorch's `"original"`.
    #[default]
    Original,
    /// `0.2·√max(rows, columns)`, PyTorch's `"match_rms_adamw"`: the steps are about as long as
    /// AdamW's, so AdamW's learning rate and weight decay fit (Liu et al. 2025,
    /// <https://arxiv.org/abs/2502.16982>).
    MatchRmsAdamW,
    /// `√(rows/columns)`, PyTorch's `"spectral_unclamped"`.
    SpectralUnclamped,
}

impl AdjustLr {
    /// The factor for a matrix with at least one row and column.
    fn factor(self, rows: usize, columns: usize) -> f64 {
        let rows = rows.max(1) as f64;
        let columns = columns.max(1) as f64;
        match self {
            AdjustLr::Original => (rows / columns).max(1.0).sqrt(),
            AdjustLr::MatchRmsAdamW => 0.2 * rows.max(columns).sqrt(),
            AdjustLr::SpectralUnclamped => (rows / columns).sqrt(),
        }
    }
}

impl Muon {
    /// PyTorch's defaults with this learning rate, a number or a schedule; PyTorch's own is 0.001.
    #[track_caller]
    pub fn new(lr: impl Schedule + 'static) -> Muon {
        Muon {
            common: CommonSettings::new(lr, 0.1),
            momentum: Arc::new(0.95),
            nesterov: true,
            ns_coefficients: [3.4445, -4.7750, 2.0315],
            ns_steps: 5,
            eps: 1e-7,
            adjust_lr: AdjustLr::Original,
        }
    }

    /// The momentum `μ`: a number or a schedule, 0.95 by default.
    pub fn momentum(mut self, momentum: impl Schedule + 'static) -> Muon {
        self.momentum = Arc::new(momentum);
        self
    }

    /// Whether to use Nesterov momentum; true by default.
    pub fn nesterov(mut self, nesterov: bool) -> Muon {
        self.nesterov = nesterov;
        self
    }

    /// The coefficients `a`, `b` and `c`: 3.4445, −4.775 and 2.0315 by default.
    pub fn ns_coefficients(mut self, a: f64, b: f64, c: f64) -> Muon {
        self.ns_coefficients = [a, b, c];
        self
    }

    /// How often the polynomial is applied: 5 times by default, and at most 99, as in PyTorch.
    pub fn ns_steps(mut self, ns_steps: u32) -> Muon {
        self.ns_steps = ns_steps;
        self
    }

    /// The lower bound `ε` of the norm of a step; 1e-7 by default.
    pub fn eps(mut self, eps: f64) -> Muon {
        self.eps = eps;
        self
    }

    /// How the step of a matrix depends on its shape.
    pub fn adjust_lr(mut self, adjust_lr: AdjustLr) -> Muon {
        self.adjust_lr = adjust_lr;
        self
    }

    /// Matrices `[…, rows, columns]` with the singular vectors of `update`, and singular values of
    /// about 1. Each is computed from its own update, in the dtype of the iteration.
    fn orthogonalize(&self, update: &Tensor) -> Tensor {
        let wide = update.dtype();
        let narrow = if wide == DType::F64 { DType::F64 } else { DType::Bf16 };
        let round = |x: &Tensor| x.to_dtype(narrow);
        let is_tall = update.size(-2) > update.size(-1);
        let rounded = round(update).to_dtype(wide);
        let oriented = if is_tall { rounded.t() } else { rounded };
        let norm = round(&oriented.norm(2.0, [-2, -1])).to_dtype(wide).maximum(self.eps);
        let x = round(&(oriented / norm.unsqueeze(-1).unsqueeze(-1)));
        let [a, b, c] = self.ns_coefficients;
        let result = fori_loop(0, i64::from(self.ns_steps), x, |_, x| {
            let gram = x.matmul(&x.t());
            let square = gram.matmul(&gram);
            let factor = round(&(gram.to_dtype(wide) * b + square.to_dtype(wide) * c));
            round(&(x.to_dtype(wide) * a + factor.matmul(&x).to_dtype(wide)))
        });
        let x = result.to_dtype(wide);
        if is_tall { x.t() } else { x }
    }
}

optimizer!(
    Muon,
    "The decoupled weight decay: the fraction of the parameter subtracted, times the learning rate. 0.1 by default."
);

impl Rule for Muon {
    const NAME: &'static str = "Muon";
    const STACKS: bool = true;
    const NO_COMPLEX: Option<&'static str> = Some("its products are those of real matrices");

    fn common(&self) -> &CommonSettings {
        &self.common
    }

    fn validate(&self) -> Option<String> {
        if !self.ns_coefficients.iter().all(|coefficient| coefficient.is_finite()) {
            return Some(format!(
                "ns_coefficients must be finite, but are {:?}",
                self.ns_coefficients
            ));
        }
        if self.ns_steps >= 100 {
            return Some(format!("ns_steps must be below 100, but it is {}", self.ns_steps));
        }
        let momentum = self.momentum.constant().unwrap_or_default();
        invalid_hyperparameter(&[("momentum", momentum), ("eps", self.eps)])
    }

    fn refuses(&self, parameter: &TensorType) -> Option<String> {
        (parameter.shape.rank() != 2).then(|| {
            format!(
                "is {parameter}, and the steps of Muon are for matrices; use another optimizer, \
                 such as AdamW, for parameters that do not have two axes, with \
                 ParamGroups::matrices"
            )
        })
    }

    fn momentum(&self) -> Option<&dyn Schedule> {
        Some(&self.momentum)
    }

    fn init_state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        vec![("momentum_buffer", zeros(parameter))]
    }

    fn apply(&self, args: &UpdateArgs<'_>) -> (Tensor, Vec<Tensor>) {
        let momentum = args.value("momentum", &self.momentum);
        let toward_gradient = |mean: &Tensor| mean + (&args.g - mean) * (1.0 - &momentum);
        let buffer = toward_gradient(&args.state[0]);
        let update = if self.nesterov { toward_gradient(&buffer) } else { buffer.clone() };
        let factor = self.adjust_lr.factor(args.p.size(-2), args.p.size(-1));
        let step = self.orthogonalize(&update) * (&args.lr * factor);
        (args.decayed_parameter() - step, vec![buffer])
    }
}
