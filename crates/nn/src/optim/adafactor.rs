//! [`Adafactor`]: the mean of squares of a matrix by its rows and columns, so that little is remembered.

use fulmen_tensor::{DType, Tensor, TensorType};

use super::rule::{Common, Rule, Work, misplaced, optimizer, zeros};
use super::trust_ratio::length;
use crate::precision::precision;
use crate::schedule::Schedule;

/// Adafactor (Shazeer and Stern 2018, <https://arxiv.org/abs/1804.04235>), as PyTorch's `optim.Adafactor`: without
/// momentum, its steps in the unit of the parameter.
///
/// With `t` counted from 1, `1 − β₂ = t^τ` and the root mean square `rms`:
/// `α = max(ε₂, rms(p))·min(lr, 1/√t)`, `p ← p − lr·λ·p`. Of a tensor of at least two axes the means of `g²` over the
/// last and over the last but one are kept, `r` and `c`, of others `v`: each goes `β₂` of the way to what it was. With
/// `v = r·c/max(mean(r), ε₁)` and `u = g/√max(v, ε₁²)`: `p ← p − α·u/max(1, rms(u)/d)`.
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
pub struct Adafactor {
    common: Common,
    beta2_decay: f64,
    eps1: Option<f64>,
    eps2: f64,
    d: f64,
}

impl Adafactor {
    /// PyTorch's defaults with this learning rate, a number or a schedule; PyTorch's own is 0.01.
    #[track_caller]
    pub fn new(lr: impl Schedule + 'static) -> Adafactor {
        Adafactor { common: Common::new(lr, 0.0), beta2_decay: -0.8, eps1: None, eps2: 1e-3, d: 1.0 }
    }

    /// The power of the step that is the share of the new squares: `τ`, −0.8 by default.
    pub fn beta2_decay(mut self, beta2_decay: f64) -> Adafactor {
        self.beta2_decay = beta2_decay;
        self
    }

    /// What squares are at least, by default the epsilon of the dtype that is computed in (f32, or
    /// f64), and what the size of a parameter is taken to be at
    /// least, 0.001.
    pub fn eps(mut self, eps1: Option<f64>, eps2: f64) -> Adafactor {
        (self.eps1, self.eps2) = (eps1, eps2);
        self
    }

    /// The root mean square above which a step is made shorter: 1 by default.
    pub fn d(mut self, d: f64) -> Adafactor {
        self.d = d;
        self
    }
}

optimizer!(Adafactor, "The share of the parameter that goes with each unit of the learning rate; 0 by default.");

/// The length by the root of the number of elements.
fn rms(x: &Tensor) -> Tensor {
    length(x) / (x.shape().num_elements().max(1) as f64).sqrt()
}

impl Rule for Adafactor {
    const NAME: &'static str = "Adafactor";
    const ELEMENTWISE: bool = false;

    fn common(&self) -> &Common {
        &self.common
    }

    fn refusal(&self) -> Option<String> {
        if !self.d.is_finite() || self.d < 1.0 {
            return Some(format!("d must be at least 1, it is {}", self.d));
        }
        if !self.beta2_decay.is_finite() || self.beta2_decay > 0.0 {
            let finite = if self.beta2_decay == f64::NEG_INFINITY { " and finite" } else { "" };
            return Some(format!("beta2_decay must be at most 0{finite}, it is {}", self.beta2_decay));
        }
        misplaced(&[("eps1", self.eps1.unwrap_or_default()), ("eps2", self.eps2)])
    }

    fn remembered(&self, parameter: &TensorType) -> Vec<(&'static str, Tensor)> {
        let dims = parameter.shape.dims();
        let Some(last) = dims.len().checked_sub(1).filter(|&last| last > 0) else {
            return vec![("variance", zeros(parameter))];
        };
        let without = |axis: usize| {
            let kept: Vec<usize> = dims.iter().enumerate().map(|(i, &d)| if i == axis { 1 } else { d }).collect();
            Tensor::zeros(precision(parameter.dtype), kept)
        };
        vec![("row_var", without(last)), ("col_var", without(last - 1))]
    }

    fn apply(&self, work: &Work<'_>) -> (Tensor, Vec<Tensor>) {
        let (t, g) = (work.t(), &work.g);
        let dtype = work.p.dtype();
        let eps1 = self.eps1.unwrap_or(if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) });
        let share = (t.log() * self.beta2_decay).exp();
        let alpha = rms(&work.p).maximum(self.eps2) * work.lr.minimum(t.rsqrt());
        let towards = |mean: &Tensor, new: Tensor| mean + (new - mean) * &share;
        let squares = g * g;
        let state = match work.state {
            [row, column] => {
                vec![towards(row, squares.mean_keepdim(&[-1])), towards(column, squares.mean_keepdim(&[-2]))]
            }
            other => other.iter().map(|mean| towards(mean, squares.clone())).collect(),
        };
        let variance = match &state[..] {
            [row, column] => row * column / row.mean_keepdim(&[-2]).maximum(eps1),
            other => other[0].clone(),
        };
        let update = g * variance.maximum(eps1 * eps1).rsqrt();
        let shorter = (rms(&update) / self.d).maximum(1.0);
        (work.decayed_parameter() - update * (alpha / shorter), state)
    }
}
