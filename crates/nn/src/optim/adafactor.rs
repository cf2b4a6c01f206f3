//! [`Adafactor`]: stores the mean squares of a matrix by rows and columns only, so its state is
//! small.

use fulmen_tensor::{DType, Tensor, TensorType};

use super::rule::{CommonSettings, Rule, UpdateArgs, invalid_hyperparameter, optimizer, zeros};
use super::trust_ratio::length;
use crate::precision::precision;
use crate::schedule::Schedule;

/// Adafactor (Shazeer and Stern 2018, <https://arxiv.org/abs/1804.04235>), like PyTorch's
/// `optim.Adafactor`: without momentum, and with steps in the unit of the parameter.
///
/// With `t` counted from 1, `1 − β₂ = t^τ` and the root mean square `rms`:
/// `α = max(ε₂, rms(p))·min(lr, 1/√t)`, `p ← p − lr·λ·p`. For a tensor with at least two axes, the
/// state is `r` and `c`, running means of `g²` over the last axis and over the last but one; for
/// others it is `v`. Each is a running mean with decay rate `β₂`. With `v = r·c/max(mean(r), ε₁)`
/// and `u = g/√max(v, ε₁²)`: `p ← p − α·u/max(1, rms(u)/d)`.
///
/// ```
/// use fulmen_nn::optim::{Adafactor, Optimizer};
/// use fulmen_tensor::{DType, TensorType};
///
/// let state = Adafactor::new(0.01).state("weight", &TensorType::new(DType::F32, [512, 784]));
/// let types: Vec<String> = state.iter().map(|(name, value)| format!("{name} {}", value.ty())).collect();
/// assert_eq!(types, ["row_var f32[512, 1]", "col_var f32[1, 784]"]);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Adafactor {
    common: CommonSettings,
    beta2_decay: f64,
    eps1: Option<f64>,
    eps2: f64,
    d: f64,
}

impl Adafactor {
    /// PyTorch's defaults with this learning rate, a number or a schedule; PyTorch's own is 0.01.
    #[track_caller]
    pub fn new(lr: impl Schedule + 'static) -> Adafactor {
        Adafactor {
            common: CommonSettings::new(lr, 0.0),
            beta2_decay: -0.8,
            eps1: None,
            eps2: 1e-3,
            d: 1.0,
        }
    }

    /// The exponent `τ` of the step in `1 − β₂`, −0.8 by default.
    pub fn beta2_decay(mut self, beta2_decay: f64) -> Adafactor {
        self.beta2_decay = beta2_decay;
        self
    }

    /// Lower bounds of the squares and of the scale of a parameter. The first defaults to the
    /// epsilon of the dtype of the computation (f32 or f64), the second to 0.001.
    pub fn eps(mut self, eps1: Option<f64>, eps2: f64) -> Adafactor {
        (self.eps1, self.eps2) = (eps1, eps2);
        self
    }

    /// The root mean square above which a step is shortened; 1 by default.
    pub fn d(mut self, d: f64) -> Adafactor {
        self.d = d;
        self
    }
}

optimizer!(
    Adafactor,
    "The decoupled weight decay: the fraction of the parameter subtracted, times the learning rate. 0 by default."
);

/// The root mean square: the norm divided by the square root of the number of elements.
fn rms(x: &Tensor) -> Tensor {
    length(x) / (x.shape().num_elements().max(1) as f64).sqrt()
}

impl Rule for Adafactor {
    const NAME: &'static str = "Adafactor";
    const STACKS: bool = false;
    const NO_COMPLEX: Option<&'static str> =
        Some("the factors of its second moments are those of real numbers");

    fn common(&self) -> &CommonSettings {
        &self.common
    }

    fn validate(&self) -> Option<String> {
        if !self.d.is_finite() || self.d < 1.0 {
            return Some(format!("d must be at least 1, but it is {}", self.d));
        }
        if !self.beta2_decay.is_finite() || self.beta2_decay > 0.0 {
            let finite = if self.beta2_decay == f64::NEG_INFINITY { " and finite" } else { "" };
            return Some(format!(
                "beta2_decay must be at most 0{finite}, but it is {}",
                self.beta2_decay
            ));
        }
        invalid_hyperparameter(&[("eps1", self.eps1.unwrap_or_default()), ("eps2", self.eps2)])
    }

    fn init_state(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        let dims = parameter.shape.dims();
        let Some(last) = dims.len().checked_sub(1).filter(|&last| last > 0) else {
            return vec![("variance", zeros(parameter))];
        };
        let zeros_without = |axis: usize| {
            let shape: Vec<usize> =
                dims.iter().enumerate().map(|(i, &d)| if i == axis { 1 } else { d }).collect();
            Tensor::zeros(precision(parameter.dtype), shape)
        };
        vec![("row_var", zeros_without(last)), ("col_var", zeros_without(last - 1))]
    }

    fn apply(&self, args: &UpdateArgs<'_>) -> (Tensor, Vec<Tensor>) {
        let t = args.t();
        let g = &args.g;
        let dtype = args.p.dtype();
        let eps1 = self.eps1.unwrap_or(if dtype == DType::F64 {
            f64::EPSILON
        } else {
            f64::from(f32::EPSILON)
        });
        let share = (t.log() * self.beta2_decay).exp();
        let alpha = rms(&args.p).maximum(self.eps2) * args.lr.minimum(t.rsqrt());
        let moving_average = |mean: &Tensor, new: Tensor| mean + (new - mean) * &share;
        let squares = g * g;
        let state = match args.state {
            [row, column] => {
                vec![
                    moving_average(row, squares.mean_keepdim(-1)),
                    moving_average(column, squares.mean_keepdim(-2)),
                ]
            }
            other => other.iter().map(|mean| moving_average(mean, squares.clone())).collect(),
        };
        let variance = match &state[..] {
            [row, column] => row * column / row.mean_keepdim(-2).maximum(eps1),
            other => other[0].clone(),
        };
        let update = g * variance.maximum(eps1 * eps1).rsqrt();
        let shorter = (rms(&update) / self.d).maximum(1.0);
        (args.decayed_parameter() - update * (alpha / shorter), state)
    }
}
