//! Elementwise exponentials, logarithms and functions built on them.

use super::dtype_set::DTypeSet;
use super::unary::{composed, unary};
use crate::Tensor;
use crate::TensorType;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};

unary! {
    /// `eˣ`, elementwise. The derivative is `eˣ`.
    exp, Exponential, "stablehlo.exponential", FloatsAndComplex, |x, y, g| Some(g * y);

    /// `eˣ − 1`, elementwise, accurate near 0. The derivative is `eˣ`.
    expm1, ExponentialMinusOne, "stablehlo.exponential_minus_one", FloatsAndComplex, |x, y, g| Some(g * (y + 1.0));

    /// The natural logarithm, elementwise; NaN below 0. For complex numbers, the imaginary part is
    /// in `(−π, π]`. The derivative is `1/x`.
    log, Log, "stablehlo.log", FloatsAndComplex, |x, y, g| Some(g / x);

    /// `log(1 + x)`, elementwise, accurate near 0. The derivative is `1/(1 + x)`.
    log1p, LogPlusOne, "stablehlo.log_plus_one", FloatsAndComplex, |x, y, g| Some(g / (x + 1.0));

    /// The logistic function `y = 1/(1 + e⁻ˣ)`, elementwise. The derivative is `y(1 − y)`.
    sigmoid, Logistic, "stablehlo.logistic", FloatsAndComplex, |x, y, g| Some(g * y * (1.0 - y));
}

/// `x·log(y)`, with derivatives that handle `x = 0`.
#[derive(Debug)]
struct XLogY;

impl Operation for XLogY {
    fn name(&self) -> &'static str {
        "xlogy"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        DTypeSet::Floats.check(inputs[0].dtype)?;
        one(inputs[0].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let x = cx.input(0);
        let y = cx.input(1);
        let g = cx.cotangent();
        let is_zero = x.eq(0.0).and(y.le(0.0));
        let zeros = g.zeros_like();
        vec![
            Some(is_zero.select(&zeros, &(&g * y.log()))),
            Some(is_zero.select(&zeros, &(&g * x / y))),
        ]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let ty = cx.result().clone();
        let name = function_name("xlogy", &ty);
        let name = cx.helper(&name, |name| {
            let t = ty.stablehlo();
            let mask = TensorType::new(crate::DType::Bool, &ty.shape).stablehlo();
            format!(
                "  func.func private @{name}(%x: {t}, %y: {t}) -> {t} {{\n    \
                 %zero = stablehlo.constant dense<0.0> : {t}\n    \
                 %log = stablehlo.log %y : {t}\n    \
                 %product = stablehlo.multiply %x, %log : {t}\n    \
                 %is_zero = stablehlo.compare EQ, %x, %zero : ({t}, {t}) -> {mask}\n    \
                 %is_number = stablehlo.compare EQ, %y, %y : ({t}, {t}) -> {mask}\n    \
                 %nothing = stablehlo.and %is_zero, %is_number : {mask}\n    \
                 %result = stablehlo.select %nothing, %zero, %product : {mask}, {t}\n    \
                 return %result : {t}\n  }}\n"
            )
        });
        format!("func.call @{name}({}) : {}", cx.operands(), cx.signature())
    }
}

/// The name of the private function for `operation` on this type.
pub(super) fn function_name(operation: &str, ty: &TensorType) -> String {
    let dims: Vec<_> = ty.shape.iter().map(usize::to_string).collect();
    format!("{operation}_{}_{}", ty.dtype.name(), dims.join("x"))
}

composed! {
    /// `2ˣ`, elementwise. The derivative is `log(2)·2ˣ`.
    exp2, FloatsAndComplex, |x| (x * std::f64::consts::LN_2).exp();

    /// The base-2 logarithm, elementwise; NaN below 0. The derivative is `1/(x·log(2))`.
    log2, FloatsAndComplex, |x| x.log() / std::f64::consts::LN_2;

    /// The base-10 logarithm, elementwise; NaN below 0. The derivative is `1/(x·log(10))`.
    log10, FloatsAndComplex, |x| x.log() / std::f64::consts::LN_10;

    /// `log(x/(1 − x))`, the inverse of [`Tensor::sigmoid`], elementwise; NaN outside `[0, 1]`. The
    /// derivative is `1/(x(1 − x))`.
    logit, Floats, |x| x.log() - (-&x).log1p();

    /// `log(eᵃ + eᵇ)`, elementwise, without overflow; the larger operand where either is infinite.
    /// The derivatives are `sigmoid(a − b)` and `sigmoid(b − a)`. `x.logaddexp(0.0)` is the
    /// softplus of `x`.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let a = Tensor::from_slice(&[1000.0f32, 0.0], [2]);
    /// assert_eq!(a.logaddexp(0.0).eval()?.to_vec::<f32>()?, [1000.0, 2f32.ln()]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    logaddexp, Floats, |a, b| {
        let (larger, below) = larger_and_below(&a, &b);
        larger + below.exp().log1p()
    };

    /// `log₂(2ᵃ + 2ᵇ)`, elementwise, without overflow; the larger operand where either is infinite.
    logaddexp2, Floats, |a, b| {
        let (larger, below) = larger_and_below(&a, &b);
        larger + below.exp2().log1p() / std::f64::consts::LN_2
    };

    /// `x·log(y)`, elementwise; 0 where `x` is 0 and `y` is not NaN. The derivatives are `log(y)`
    /// and `x/y`. Both are 0 where `x` is 0 and `y ≤ 0`.
    xlogy, Floats, |x, y| Tensor::apply(XLogY, &[&x, &y]);
}

/// The larger of `a` and `b`, and the smaller minus the larger: `−|a − b|`. This difference is 0
/// for two equal infinities, although ∞ − ∞ is NaN.
///
/// Both results use one comparison instead of `maximum` and `abs`, which share or drop the gradient
/// of a tie. Second derivatives would then be 0 at a tie. With one comparison, all derivatives are
/// exact.
fn larger_and_below(a: &Tensor, b: &Tensor) -> (Tensor, Tensor) {
    let a_is_larger = a.ge(b);
    let difference = a - b;
    let below = a_is_larger.select(&-&difference, &difference);
    let equal_infinities = a.eq(b).and(a.is_inf());
    (a_is_larger.select(a, b), equal_infinities.select(&below.zeros_like(), &below))
}
