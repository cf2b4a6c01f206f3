//! Elementwise exponentials, logarithms and what is made of them.

use super::dtype_set::DTypeSet;
use super::unary::{composed, unary};
use crate::Tensor;
use crate::TensorType;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};

unary! {
    /// `eˣ`, elementwise. Derivative `eˣ`.
    exp, Exponential, "stablehlo.exponential", FloatsAndComplex, |x, y, g| Some(g * y);

    /// `eˣ − 1`, exact near 0, elementwise. Derivative `eˣ`.
    expm1, ExponentialMinusOne, "stablehlo.exponential_minus_one", FloatsAndComplex, |x, y, g| Some(g * (y + 1.0));

    /// The natural logarithm, elementwise; NaN below 0, and of complex numbers the branch with an imaginary part in
    /// `(−π, π]`. Derivative `1/x`.
    log, Log, "stablehlo.log", FloatsAndComplex, |x, y, g| Some(g / x);

    /// `log(1 + x)`, exact near 0, elementwise. Derivative `1/(1 + x)`.
    log1p, LogPlusOne, "stablehlo.log_plus_one", FloatsAndComplex, |x, y, g| Some(g / (x + 1.0));

    /// The logistic function `1/(1 + e⁻ˣ)`, elementwise. Derivative `y(1 − y)`.
    sigmoid, Logistic, "stablehlo.logistic", FloatsAndComplex, |x, y, g| Some(g * y * (1.0 - y));
}

/// `x·log(y)`, where both derivatives need more care than the product gives.
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
        let (x, y, g) = (cx.input(0), cx.input(1), cx.cotangent());
        let nothing = x.eq(0.0).and(y.le(0.0));
        let zeros = g.zeros_like();
        vec![Some(nothing.select(&zeros, &(&g * y.log()))), Some(nothing.select(&zeros, &(&g * x / y)))]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let ty = cx.result().clone();
        let name = function_name("xlogy", &ty);
        cx.helper(&name, || {
            let (t, mask) = (ty.stablehlo(), TensorType::new(crate::DType::Bool, &ty.shape).stablehlo());
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

/// A name for the private function of `operation` on values of this type.
pub(super) fn function_name(operation: &str, ty: &TensorType) -> String {
    let dims: Vec<_> = ty.shape.iter().map(usize::to_string).collect();
    format!("{operation}_{}_{}", ty.dtype.name(), dims.join("x"))
}

composed! {
    /// `2ˣ`, elementwise. Derivative `log(2)·2ˣ`.
    exp2, FloatsAndComplex, |x| (x * std::f64::consts::LN_2).exp();

    /// The logarithm to the base 2, elementwise; NaN below 0. Derivative `1/(x·log(2))`.
    log2, FloatsAndComplex, |x| x.log() / std::f64::consts::LN_2;

    /// The logarithm to the base 10, elementwise; NaN below 0. Derivative `1/(x·log(10))`.
    log10, FloatsAndComplex, |x| x.log() / std::f64::consts::LN_10;

    /// `log(x/(1 − x))`, the inverse of [`Tensor::sigmoid`], elementwise; NaN outside `[0, 1]`. Derivative
    /// `1/(x(1 − x))`.
    logit, Floats, |x| x.log() - (-&x).log1p();

    /// `log(eᵃ + eᵇ)`, elementwise, without overflow; the larger of both where one is infinite. Derivatives
    /// `sigmoid(a − b)` and `sigmoid(b − a)`. With 0 on the right it is the softplus.
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

    /// `log₂(2ᵃ + 2ᵇ)`, elementwise, without overflow; the larger of both where one is infinite.
    logaddexp2, Floats, |a, b| {
        let (larger, below) = larger_and_below(&a, &b);
        larger + below.exp2().log1p() / std::f64::consts::LN_2
    };

    /// `x·log(y)`, elementwise; 0 where `x` is 0, whatever number `y` is. Derivatives `log(y)` and `x/y`, and 0 where `x` is
    /// 0 and `y` not above it.
    xlogy, Floats, |x, y| Tensor::apply(XLogY, &[&x, &y]);
}

/// The larger of both, and how far the other is below it: `−|a − b|`, and 0 for two equal infinities, whose difference
/// would be NaN.
///
/// Both by the same comparison, not by `maximum` and `abs`: those share or drop the gradient of a tie, so that derivatives
/// of a derivative would be 0 there. Chosen together, either form has all derivatives of the whole.
fn larger_and_below(a: &Tensor, b: &Tensor) -> (Tensor, Tensor) {
    let (first, difference) = (a.ge(b), a - b);
    let below = first.select(&-&difference, &difference);
    let equal_infinities = a.eq(b).and(a.is_inf());
    (first.select(a, b), equal_infinities.select(&below.zeros_like(), &below))
}
