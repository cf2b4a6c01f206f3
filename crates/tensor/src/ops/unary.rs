//! Elementwise operations of one tensor.

use super::takes::Takes;
use crate::autocast::for_method;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{DType, Tensor, TensorType};

/// One row an operation: doc, method, struct, the StableHLO spelling, the dtypes, and the derivative
/// `|x, y, g|` of `y = f(x)` under the cotangent `g` (`None` where it is zero or not defined).
macro_rules! unary {
    ($($(#[$doc:meta])* $method:ident, $op:ident, $stablehlo:literal, $takes:ident,
        |$x:ident, $y:ident, $g:ident| $vjp:expr;)*) => {$(
        #[derive(Debug)]
        struct $op;

        impl Operation for $op {
            fn name(&self) -> &'static str {
                stringify!($method)
            }
            fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
                Takes::$takes.check(inputs[0].dtype)?;
                one(inputs[0].clone())
            }
            fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
                let ($x, $y, $g) = (cx.input(0), cx.output(), cx.cotangent());
                let _ = ($x, $y, &$g);
                vec![$vjp]
            }
            fn lower(&self, cx: &mut Lowering<'_>) -> String {
                // A chlo operation is spelled with both types, a stablehlo one with its only type.
                let types = if $stablehlo.starts_with("chlo") {
                    format!("{0} -> {0}", cx.result().stablehlo())
                } else {
                    cx.result().stablehlo()
                };
                format!("{} {} : {types}", $stablehlo, cx.operand(0))
            }
        }

        impl Tensor {
            $(#[$doc])*
            #[track_caller]
            pub fn $method(&self) -> Tensor {
                Tensor::apply($op, &[&for_method(stringify!($method), self)])
            }
        }
    )*};
}

unary! {
    /// `|x|`, elementwise. Derivative `sign(x)`.
    abs, Abs, "stablehlo.abs", SignedNumbers, |x, y, g| Some(g * x.sign());

    /// The smallest integer at least `x`, elementwise. Derivative 0.
    ceil, Ceil, "stablehlo.ceil", Floats, |x, y, g| None;

    /// `eˣ`, elementwise. Derivative `eˣ`.
    exp, Exponential, "stablehlo.exponential", Floats, |x, y, g| Some(g * y);

    /// `eˣ − 1`, exact near 0, elementwise. Derivative `eˣ`.
    expm1, ExponentialMinusOne, "stablehlo.exponential_minus_one", Floats, |x, y, g| Some(g * (y + 1.0));

    /// The error function `2/√π ∫₀ˣ exp(−t²) dt`, elementwise. Derivative `2/√π · exp(−x²)`.
    erf, Erf, "chlo.erf", Floats,
        |x, y, g| Some(g * (-(x * x)).exp() * std::f64::consts::FRAC_2_SQRT_PI);

    /// The inverse of [`Tensor::erf`], elementwise. Derivative `√π/2 · exp(y²)`.
    erf_inv, ErfInv, "chlo.erf_inv", Floats,
        |x, y, g| Some(g * (y * y).exp() * (1.0 / std::f64::consts::FRAC_2_SQRT_PI));

    /// The largest integer at most `x`, elementwise. Derivative 0.
    floor, Floor, "stablehlo.floor", Floats, |x, y, g| None;

    /// The natural logarithm, elementwise; NaN below 0. Derivative `1/x`.
    log, Log, "stablehlo.log", Floats, |x, y, g| Some(g / x);

    /// `log(1 + x)`, exact near 0, elementwise. Derivative `1/(1 + x)`.
    log1p, LogPlusOne, "stablehlo.log_plus_one", Floats, |x, y, g| Some(g / (x + 1.0));

    /// The logistic function `1/(1 + e⁻ˣ)`, elementwise. Derivative `y(1 − y)`.
    sigmoid, Logistic, "stablehlo.logistic", Floats, |x, y, g| Some(g * y * (1.0 - y));

    /// `−x`, elementwise; also the operator `-x`.
    neg, Negate, "stablehlo.negate", SignedNumbers, |x, y, g| Some(-g);

    /// Bitwise complement of integers, logical complement of booleans.
    not, Not, "stablehlo.not", IntegersAndBooleans, |x, y, g| None;

    /// `1/√x`, elementwise. Derivative `−½ y/x`.
    rsqrt, Rsqrt, "stablehlo.rsqrt", Floats, |x, y, g| Some(g * (y / x) * -0.5);

    /// −1, 0 or 1 by the sign of `x`, elementwise. Derivative 0.
    sign, Sign, "stablehlo.sign", SignedNumbers, |x, y, g| None;

    /// `√x`, elementwise; NaN below 0. Derivative `½/y`.
    sqrt, Sqrt, "stablehlo.sqrt", Floats, |x, y, g| Some(g / y * 0.5);

    /// The hyperbolic tangent, elementwise. Derivative `1 − y²`.
    tanh, Tanh, "stablehlo.tanh", Floats, |x, y, g| Some(g * (1.0 - y * y));

    /// The cosine, elementwise; `x` in radians. Derivative `−sin(x)`.
    cos, Cosine, "stablehlo.cosine", Floats, |x, y, g| Some(-(g * x.sin()));

    /// The sine, elementwise; `x` in radians. Derivative `cos(x)`.
    sin, Sine, "stablehlo.sine", Floats, |x, y, g| Some(g * x.cos());
}

/// `is_finite` has another result type than its input, so it is no row of the table.
#[derive(Debug)]
struct IsFinite;

impl Operation for IsFinite {
    fn name(&self) -> &'static str {
        "is_finite"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        Takes::Floats.check(inputs[0].dtype)?;
        one(TensorType::new(DType::Bool, &inputs[0].shape))
    }
    fn vjp(&self, _: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![None]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.is_finite {} : {}", cx.operand(0), cx.signature())
    }
}

impl Tensor {
    /// True where `x` is neither infinite nor NaN, elementwise.
    #[track_caller]
    pub fn is_finite(&self) -> Tensor {
        Tensor::apply(IsFinite, &[self])
    }

    /// `max(x, 0)`, elementwise; NaN stays NaN. Derivative 1 above 0 and 0 elsewhere.
    #[track_caller]
    pub fn relu(&self) -> Tensor {
        // Not `maximum`, whose derivative at a tie is ½: PyTorch and JAX give 0 at 0.
        self.le(0.0).select(&self.zeros_like(), self)
    }
}
