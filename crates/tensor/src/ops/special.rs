//! Special functions, elementwise: the error function and the gamma function with their kin.

use super::takes::Takes;
use super::unary::unary;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{Tensor, TensorType};

unary! {
    /// The error function `2/√π ∫₀ˣ exp(−t²) dt`, elementwise. Derivative `2/√π · exp(−x²)`.
    erf, Erf, "chlo.erf", Floats,
        |x, y, g| Some(g * (-(x * x)).exp() * std::f64::consts::FRAC_2_SQRT_PI);

    /// `1 − erf(x)`, exact where that is near 0, elementwise. Derivative `−2/√π · exp(−x²)`.
    erfc, Erfc, "chlo.erfc", Floats,
        |x, y, g| Some(g * (-(x * x)).exp() * -std::f64::consts::FRAC_2_SQRT_PI);

    /// The inverse of [`Tensor::erf`], elementwise. Derivative `√π/2 · exp(y²)`.
    erf_inv, ErfInv, "chlo.erf_inv", Floats,
        |x, y, g| Some(g * (y * y).exp() * (1.0 / std::f64::consts::FRAC_2_SQRT_PI));

    /// `log |Γ(x)|`, elementwise; ∞ at 0 and at the negative integers. Derivative `digamma(x)`.
    lgamma, Lgamma, "chlo.lgamma", Floats, |x, y, g| Some(g * x.digamma());

    /// `ψ(x)`, the derivative of `log Γ(x)`, elementwise; NaN at 0 and at the negative integers. Derivative
    /// `polygamma(1, x)`, which is there for `x > 0`.
    digamma, Digamma, "chlo.digamma", Floats, |x, y, g| Some(g * x.polygamma(1));
}

/// Takes its order as a tensor too, as chlo has it.
#[derive(Debug)]
struct Polygamma {
    order: u32,
}

impl Operation for Polygamma {
    fn name(&self) -> &'static str {
        "polygamma"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        Takes::Floats.check(inputs[1].dtype)?;
        one(inputs[1].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![None, Some(cx.cotangent() * cx.input(1).polygamma(self.order.saturating_add(1)))]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("chlo.polygamma {} : {}", cx.operands(), cx.signature().replace(['(', ')'], ""))
    }
}

impl Tensor {
    /// The derivative of order `order` of [`Tensor::digamma`], elementwise, for `x > 0`; of order 0 the digamma itself.
    /// Derivative `polygamma(order + 1, x)`.
    #[track_caller]
    pub fn polygamma(&self, order: u32) -> Tensor {
        let x = Takes::Floats.operand("polygamma", self);
        if x.fault().is_some() {
            return x;
        }
        Tensor::apply(Polygamma { order }, &[&Tensor::full(x.dtype(), x.shape(), f64::from(order)), &x])
    }
}
