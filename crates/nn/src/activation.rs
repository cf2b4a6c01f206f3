//! Activations: functions of each element, with PyTorch's formulas, also where the derivative has a corner. The result
//! has the input's dtype; what takes several operations takes them in f32 where the input has 16 bits.

use fulmen_tensor::Tensor;

use crate::precision::wide;
use crate::{Module, Visit};

/// How a GELU is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GeluKind {
    /// With the error function.
    #[default]
    Exact,
    /// By the formula with `tanh`, as in GPT-2 and BERT.
    Tanh,
}

impl Module for GeluKind {
    fn visit(&self, _: &mut Visit<'_>) {}
}

/// `max(x, 0)`; the derivative at 0 is 0.
#[track_caller]
pub fn relu(x: &Tensor) -> Tensor {
    x.relu()
}

/// `1/(1 + e⁻ˣ)`.
#[track_caller]
pub fn sigmoid(x: &Tensor) -> Tensor {
    x.sigmoid()
}

/// The hyperbolic tangent.
#[track_caller]
pub fn tanh(x: &Tensor) -> Tensor {
    x.tanh()
}

/// `x·σ(x)`, also known as Swish.
#[track_caller]
pub fn silu(x: &Tensor) -> Tensor {
    let (x, dtype) = (&wide(x), x.dtype());
    (x * x.sigmoid()).to_dtype(dtype)
}

/// `x·Φ(x)`, where Φ is the distribution function of the standard normal: `x/2·(1 + erf(x/√2))`.
///
/// ```
/// use fulmen_nn::activation::gelu;
/// use fulmen_tensor::Tensor;
/// let y = gelu(&Tensor::from_slice(&[-1.0f32, 0.0, 1.0], [3])).eval()?.to_vec::<f32>()?;
/// assert!((y[0] + 0.158_655).abs() < 1e-5 && y[1] == 0.0 && (y[2] - 0.841_345).abs() < 1e-5);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn gelu(x: &Tensor) -> Tensor {
    let (x, dtype) = (&wide(x), x.dtype());
    (x * 0.5 * ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0)).to_dtype(dtype)
}

/// The usual approximation of [`gelu`]: `x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`.
#[track_caller]
pub fn gelu_tanh(x: &Tensor) -> Tensor {
    let (x, dtype) = (&wide(x), x.dtype());
    let inner = (x + x * x * x * 0.044_715) * (2.0 / std::f64::consts::PI).sqrt();
    (x * 0.5 * (inner.tanh() + 1.0)).to_dtype(dtype)
}

/// `x` above 0, `slope·x` elsewhere.
#[track_caller]
pub fn leaky_relu(x: &Tensor, slope: f64) -> Tensor {
    x.gt(0.0).select(x, &(x * slope))
}

/// `x` above 0, `alpha·(eˣ − 1)` elsewhere.
#[track_caller]
pub fn elu(x: &Tensor, alpha: f64) -> Tensor {
    let (x, dtype) = (&wide(x), x.dtype());
    let above = x.gt(0.0);
    // The branch that is not chosen must not overflow: its gradient, 0·∞, would be NaN.
    let below = above.select(&x.zeros_like(), x);
    above.select(x, &(below.expm1() * alpha)).to_dtype(dtype)
}

/// `log(1 + exp(beta·x))/beta`, a rectifier without a corner; `x` itself where `beta·x` is above `threshold`.
#[track_caller]
pub fn softplus(x: &Tensor, beta: f64, threshold: f64) -> Tensor {
    let (x, dtype) = (&wide(x), x.dtype());
    let scaled = x * beta;
    let linear = scaled.gt(threshold);
    let bend = linear.select(&x.zeros_like(), &scaled);
    linear.select(x, &(bend.exp().log1p() / beta)).to_dtype(dtype)
}
