//! Elementwise unary operations: the basic ones, and the tables `unary!`, `methods!` and
//! `composed!` that other families use.
//!
//! Out of scope: the families in `exponential`, `trigonometric`, `rounding`, `special`, `bitwise`
//! and `complex`.

use super::dtype_set::DTypeSet;
use crate::{DType, Tensor};

/// One row for each operation: doc, method, struct, StableHLO name, dtypes, and the derivative. The
/// derivative is written `|x, y, g|` for `y = f(x)`, where `g` is the cotangent. It is `None` only
/// if `f` is piecewise constant, so that the derivative is zero.
macro_rules! unary {
    ($($(#[$doc:meta])* $method:ident, $op:ident, $stablehlo:literal, $dtypes:ident,
        |$x:ident, $y:ident, $g:ident| $vjp:expr;)*) => {$(
        #[derive(Debug)]
        struct $op;

        impl $crate::operation::Operation for $op {
            fn name(&self) -> &'static str {
                stringify!($method)
            }
            fn infer(&self, inputs: &[&$crate::TensorType]) -> Result<Vec<$crate::TensorType>, String> {
                $crate::ops::dtype_set::DTypeSet::$dtypes.check(inputs[0].dtype)?;
                $crate::operation::one(inputs[0].clone())
            }
            fn vjp(&self, cx: &$crate::operation::Vjp<'_>) -> Vec<Option<$crate::Tensor>> {
                let $x = cx.input(0);
                let $y = cx.output();
                let $g = cx.cotangent();
                let _ = ($x, $y, &$g);
                vec![$vjp]
            }
            fn active_results(&self, _: &[bool], count: usize) -> Vec<bool> {
                vec![stringify!($vjp) != "None"; count]
            }
            fn recompute_policy(&self) -> $crate::operation::RecomputePolicy {
                $crate::operation::RecomputePolicy::IfCheap
            }
            fn lower(&self, cx: &mut $crate::lower::Lowering<'_>) -> String {
                // A CHLO operation is written with both types, a StableHLO operation with a single
                // type.
                let types = if $stablehlo.starts_with("chlo") {
                    format!("{0} -> {0}", cx.result().stablehlo())
                } else {
                    cx.result().stablehlo()
                };
                format!("{} {} : {types}", $stablehlo, cx.operand(0))
            }
        }

        impl $crate::Tensor {
            $(#[$doc])*
            #[track_caller]
            pub fn $method(&self) -> $crate::Tensor {
                $crate::Tensor::record(stringify!($method), || {
                    $crate::Tensor::try_apply($op, &[&$crate::autocast::method_operand(stringify!($method), self)])
                })
            }
        }
    )*};
}
pub(super) use unary;

/// Methods with a one-expression body. A row has the doc, the name, the parameters, the result
/// type, and the value. The value is a `Result`, given this tensor as `|x|`, which is not poisoned.
macro_rules! methods {
    ($($(#[$doc:meta])* $method:ident($($arg:ident: $ty:ty),*) -> $result:ty, |$x:ident| $value:expr;)*) => {
        impl $crate::Tensor {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $method(&self, $($arg: $ty),*) -> $result {
                $crate::Tensor::record(stringify!($method), || {
                    let $x = self.live()?;
                    $value
                })
            }
        )*}
    };
}
pub(super) use methods;

/// Methods composed of others. A row has the doc, the name, the dtypes, and the value, for one
/// operand `|x|`, or for two operands `|a, b|` after promotion and broadcasting.
macro_rules! composed {
    () => {};
    ($(#[$doc:meta])* $method:ident, $dtypes:ident, |$x:ident| $value:expr; $($rest:tt)*) => {
        impl $crate::Tensor {
            $(#[$doc])*
            #[track_caller]
            pub fn $method(&self) -> $crate::Tensor {
                $crate::Tensor::record(stringify!($method), || {
                    let $x = $crate::ops::dtype_set::DTypeSet::$dtypes.operand(stringify!($method), self)?;
                    Ok($value)
                })
            }
        }
        composed! { $($rest)* }
    };
    ($(#[$doc:meta])* $method:ident, $dtypes:ident, |$a:ident, $b:ident| $value:expr; $($rest:tt)*) => {
        impl $crate::Tensor {
            $(#[$doc])*
            #[track_caller]
            pub fn $method(&self, other: impl $crate::Operand) -> $crate::Tensor {
                $crate::Tensor::record(stringify!($method), || {
                    let dtypes = $crate::ops::dtype_set::DTypeSet::$dtypes;
                    let ($a, $b) = $crate::ops::binary::operands(stringify!($method), dtypes, self, other)?;
                    Ok($value)
                })
            }
        }
        composed! { $($rest)* }
    };
}
pub(super) use composed;

unary! {
    /// `−x`, elementwise; also the operator `-x`.
    neg, Negate, "stablehlo.negate", SignedNumbersAndComplex, |x, y, g| Some(-g);

    /// `y = ∛x`, elementwise, also for negative numbers. The derivative is `1/(3y²)`.
    cbrt, Cbrt, "stablehlo.cbrt", Floats, |x, y, g| {
        // Uses the reciprocal, whose square is infinite at 0. There `y·y` would be 0 in the second
        // derivative.
        let reciprocal = 1.0 / y;
        Some(g * &reciprocal * &reciprocal * (1.0 / 3.0))
    };

    /// `y = 1/√x`, elementwise. The derivative is `−½ y/x`.
    rsqrt, Rsqrt, "stablehlo.rsqrt", FloatsAndComplex, |x, y, g| Some(g * (y / x) * -0.5);

    /// The sign of `x`, elementwise: −1, 0, 1, or NaN for NaN. The derivative is 0.
    sign, Sign, "stablehlo.sign", SignedNumbers, |x, y, g| None;

    /// `y = √x`, elementwise; NaN below 0. The derivative is `½/y`.
    sqrt, Sqrt, "stablehlo.sqrt", FloatsAndComplex, |x, y, g| Some(g / y * 0.5);
}

composed! {
    /// `x²`, elementwise. The derivative is `2x`.
    square, NumbersAndComplex, |x| &x * &x;

    /// `1/x`, elementwise, for floating-point and complex numbers. The derivative is `−1/x²`.
    reciprocal, FloatsAndComplex, |x| x.ones_like() / x;
}

methods! {
    /// `max(x, 0)`, elementwise; NaN stays NaN. The derivative is 1 where `x > 0`, else 0.
    relu() -> Tensor, |x| {
        // `maximum` would have the derivative ½ at 0, where PyTorch and JAX give 0.
        Ok(x.le(0.0).select(&x.zeros_like(), x))
    };
}

impl Tensor {
    /// Replaces NaN by `nan`, ∞ by `posinf` and −∞ by `neginf`, elementwise (PyTorch's and NumPy's
    /// `nan_to_num`). `None` means the largest or the smallest finite number of the dtype. The
    /// derivative is 1 where `x` is finite, else 0.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[f32::NAN, f32::INFINITY, 2.0], [3]);
    /// assert_eq!(x.nan_to_num(0.0, None, None).eval()?.to_vec::<f32>()?, [0.0, f32::MAX, 2.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn nan_to_num(&self, nan: f64, posinf: Option<f64>, neginf: Option<f64>) -> Tensor {
        Tensor::record("nan_to_num", || {
            let x = DTypeSet::Floats.operand("nan_to_num", self)?;
            let largest = match x.dtype() {
                DType::F64 => f64::MAX,
                DType::Bf16 => half::bf16::MAX.to_f64(),
                DType::F16 => half::f16::MAX.to_f64(),
                _ => f64::from(f32::MAX),
            };
            let nan = Tensor::full(x.dtype(), [], nan);
            let most = Tensor::full(x.dtype(), [], posinf.unwrap_or(largest));
            let least = Tensor::full(x.dtype(), [], neginf.unwrap_or(-largest));
            let bounded =
                x.eq(f64::INFINITY).select(&most, &x.eq(f64::NEG_INFINITY).select(&least, &x));
            Ok(x.is_nan().select(&nan, &bounded))
        })
    }
}
