//! Activations: elementwise functions with PyTorch's formulas, including the derivative at corners,
//! and gated functions of two halves. The result has the input's dtype. Functions of several
//! operations compute in f32 for 16-bit inputs. `layers/activations.rs` has the same functions as
//! layers.
//!
//! Functions without settings take only a `&Tensor`, so that they can be used as values:
//! `let act: fn(&Tensor) -> Tensor = activation::gelu;`.

use fulmen_tensor::Tensor;

use crate::library::NN;
use crate::precision::wide;
use crate::{Module, Visit};

/// How a GELU is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GeluKind {
    /// With the error function.
    #[default]
    Exact,
    /// The approximation with `tanh`, as in GPT-2 and BERT.
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

/// Functions of several operations; they compute in f32 for 16-bit inputs.
macro_rules! f32_functions {
    ($($(#[$doc:meta])* $name:ident($x:ident $(, $setting:ident)*) => $result:expr;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name($x: &Tensor $(, $setting: f64)*) -> Tensor {
            let _scope = NN.open();
            let dtype = $x.dtype();
            let $x = &wide($x);
            let result: Tensor = $result;
            result.to_dtype(dtype)
        }
    )*};
}

f32_functions! {
    /// `x·σ(x)`, also known as Swish.
    silu(x) => x * x.sigmoid();

    /// `x·Φ(x)`, where Φ is the distribution function of the standard normal:
    /// `x/2·(1 + erf(x/√2))`.
    ///
    /// ```
    /// use fulmen_nn::activation::gelu;
    /// use fulmen_tensor::Tensor;
    /// let y = gelu(&Tensor::from_slice(&[-1.0f32, 0.0, 1.0], [3])).eval()?.to_vec::<f32>()?;
    /// assert!((y[0] + 0.158_655).abs() < 1e-5 && y[1] == 0.0 && (y[2] - 0.841_345).abs() < 1e-5);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    gelu(x) => x * 0.5 * ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0);

    /// The usual approximation of [`gelu`]: `x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`.
    gelu_tanh(x) => {
        let inner = (x + x * x * x * 0.044_715) * (2.0 / std::f64::consts::PI).sqrt();
        x * 0.5 * (inner.tanh() + 1.0)
    };

    /// `log(1 + exp(beta·x))/beta`, a smooth rectifier; `x` itself if `beta·x` is above
    /// `threshold`.
    softplus(x, beta, threshold) => {
        let scaled = x * beta;
        let linear = scaled.gt(threshold);
        let bend = linear.select(&x.zeros_like(), &scaled);
        linear.select(x, &(bend.exp().log1p() / beta))
    };

    /// `x·tanh(softplus(x))`.
    mish(x) => x * softplus(x, 1.0, 20.0).tanh();

    /// `log σ(x) = −log(1 + e⁻ˣ)`, exact for large `x` of both signs.
    log_sigmoid(x) => {
        let negative = x.lt(0.0);
        // e^−|x| never overflows; both forms have the same derivative.
        let decay = negative.select(x, &-x).exp().log1p();
        negative.select(x, &x.zeros_like()) - decay
    };

    /// `x/6 + ½` between −3 and 3, 0 below and 1 above.
    hardsigmoid(x) => hardtanh(&(x + 3.0), 0.0, 6.0) / 6.0;

    /// `x·(x + 3)/6` between −3 and 3, 0 below and `x` above.
    hardswish(x) => {
        let middle = x.ge(3.0).select(x, &(x * (x + 3.0) / 6.0));
        x.le(-3.0).select(&x.zeros_like(), &middle)
    };

    /// `x` moved towards 0 by `lambda`, 0 between `±lambda`.
    softshrink(x, lambda) => {
        let below = x.lt(-lambda).select(&(x + lambda), &(x * 0.0));
        x.gt(lambda).select(&(x - lambda), &below)
    };

    /// `x − tanh(x)`.
    tanhshrink(x) => x - x.tanh();

    /// `x/(1 + |x|)`.
    softsign(x) => x / (x.abs() + 1.0);
}

/// [`gelu`] or [`gelu_tanh`].
pub(crate) fn gelu_of(x: &Tensor, kind: GeluKind) -> Tensor {
    match kind {
        GeluKind::Exact => gelu(x),
        GeluKind::Tanh => gelu_tanh(x),
    }
}

/// `x` above 0, `slope·x` elsewhere.
#[track_caller]
pub fn leaky_relu(x: &Tensor, slope: f64) -> Tensor {
    let _scope = NN.open();
    x.gt(0.0).select(x, &(x * slope))
}

/// `x` above 0, `alpha·(eˣ − 1)` elsewhere.
#[track_caller]
pub fn elu(x: &Tensor, alpha: f64) -> Tensor {
    let _scope = NN.open();
    rectified(x, 1.0, alpha, 1.0)
}

/// `x` above 0, `alpha·(exp(x/alpha) − 1)` elsewhere. Unlike [`elu`], it is smooth for any `alpha`;
/// `alpha` must not be 0.
#[track_caller]
pub fn celu(x: &Tensor, alpha: f64) -> Tensor {
    NN.record("celu", || match alpha {
        0.0 => Err("alpha divides the input, so it cannot be 0".into()),
        alpha => Ok(rectified(x.live()?, 1.0, alpha, 1.0 / alpha)),
    })
}

/// `scale·x` above 0, `scale·alpha·(eˣ − 1)` elsewhere, with constants (1.0507…, 1.6733…) for which
/// layers preserve mean 0 and variance 1. Initialize the weights with the gain of
/// [`Nonlinearity::Linear`](crate::init::Nonlinearity::Linear), and use
/// [`AlphaDropout`](crate::AlphaDropout) for dropout.
#[track_caller]
pub fn selu(x: &Tensor) -> Tensor {
    let _scope = NN.open();
    rectified(x, SELU_SCALE, SELU_SCALE * SELU_ALPHA, 1.0)
}

/// The factor of [`selu`].
pub(crate) const SELU_SCALE: f64 = 1.050_700_987_355_480_5;
/// The other constant of [`selu`].
pub(crate) const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;

/// `above·x` above 0, `below·(exp(rate·x) − 1)` elsewhere.
fn rectified(x: &Tensor, above: f64, below: f64, rate: f64) -> Tensor {
    let dtype = x.dtype();
    let x = &wide(x);
    let positive = x.gt(0.0);
    // The unused branch must not overflow: its gradient, 0·∞, would be NaN.
    let negative = positive.select(&x.zeros_like(), x);
    let negative = if rate == 1.0 { negative } else { negative * rate };
    let linear = if above == 1.0 { x.clone() } else { x * above };
    positive.select(&linear, &(negative.expm1() * below)).to_dtype(dtype)
}

/// `x` between `low` and `high`, the nearer bound outside. The derivative at the bounds is 0.
///
/// Poisoned if `low` is above `high`.
#[track_caller]
pub fn hardtanh(x: &Tensor, low: f64, high: f64) -> Tensor {
    NN.record("hardtanh", || {
        let dtype = x.live()?.dtype();
        if low > high {
            return Err(format!("the lower bound {low} is above the upper, {high}").into());
        }
        let inner = x.ge(high).select(&Tensor::full(dtype, [], high), x);
        Ok(x.le(low).select(&Tensor::full(dtype, [], low), &inner))
    })
}

/// [`hardtanh`] from 0 to 6.
#[track_caller]
pub fn relu6(x: &Tensor) -> Tensor {
    hardtanh(x, 0.0, 6.0)
}

/// `x` outside of `±lambda`, 0 between.
#[track_caller]
pub fn hardshrink(x: &Tensor, lambda: f64) -> Tensor {
    let _scope = NN.open();
    x.ge(-lambda).and(x.le(lambda)).select(&x.zeros_like(), x)
}

/// `x` above `threshold`, `value` elsewhere.
#[track_caller]
pub fn threshold(x: &Tensor, threshold: f64, value: f64) -> Tensor {
    let _scope = NN.open();
    x.le(threshold).select(&Tensor::full(x.dtype(), [], value), x)
}

/// `exp(x)/Σ exp(x)` along one axis, in f32 or wider.
#[track_caller]
pub fn softmax(x: &Tensor, axis: isize) -> Tensor {
    x.softmax(axis)
}

/// `x − log Σ exp(x)` along one axis, in f32 or wider.
#[track_caller]
pub fn log_softmax(x: &Tensor, axis: isize) -> Tensor {
    x.log_softmax(axis)
}

/// `exp(−x)/Σ exp(−x)` along one axis, in f32 or wider.
#[track_caller]
pub fn softmin(x: &Tensor, axis: isize) -> Tensor {
    let _scope = NN.open();
    (-x).softmax(axis)
}

/// `a·σ(b)`, where `a` and `b` are the two halves of `x` along an axis, which must have an even
/// size.
///
/// ```
/// use fulmen_nn::activation::glu;
/// use fulmen_tensor::Tensor;
/// let y = glu(&Tensor::from_slice(&[3.0f32, 5.0, 0.0, 100.0], [4]), 0);
/// assert_eq!(y.eval()?.to_vec::<f32>()?, [1.5, 5.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn glu(x: &Tensor, axis: isize) -> Tensor {
    NN.record("glu", || {
        let size = x.live()?.shape()[x.shape().axis(axis)?];
        if size % 2 != 0 {
            return Err(format!(
                "axis {axis} of {} has the odd size {size} and cannot be halved",
                x.ty()
            )
            .into());
        }
        let wide = wide(x);
        let half = size / 2;
        Ok((wide.narrow(axis, 0, half) * wide.narrow(axis, half, half).sigmoid())
            .to_dtype(x.dtype()))
    })
}

/// `silu(gate)·up`, the activation of Llama's feed-forward layers (Shazeer 2020, "GLU Variants
/// Improve Transformer"). Both arguments are linear in the input: the layer is
/// `down(swiglu(gate(x), up(x)))`.
///
/// ```
/// use fulmen_nn::{Linear, Module, activation::swiglu};
/// use fulmen_tensor::{DType, Tensor};
///
/// #[derive(Module)]
/// struct Mlp {
///     gate_proj: Linear,
///     up_proj: Linear,
///     down_proj: Linear,
/// }
/// impl Mlp {
///     fn forward(&self, x: &Tensor) -> Tensor {
///         self.down_proj.forward(&swiglu(&self.gate_proj.forward(x), &self.up_proj.forward(x)))
///     }
/// }
/// let linear = |from, to| Linear::new(from, to).bias(false);
/// let mlp = Mlp { gate_proj: linear(64, 172), up_proj: linear(64, 172), down_proj: linear(172, 64) };
/// mlp.initialize(0);
/// assert_eq!(mlp.forward(&Tensor::zeros(DType::F32, [2, 64])).ty().to_string(), "f32[2, 64]");
/// ```
#[track_caller]
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Tensor {
    let _scope = NN.open();
    silu(gate) * up
}

/// `gelu(gate)·up`, otherwise like [`swiglu`].
#[track_caller]
pub fn geglu(gate: &Tensor, up: &Tensor) -> Tensor {
    let _scope = NN.open();
    gelu(gate) * up
}
