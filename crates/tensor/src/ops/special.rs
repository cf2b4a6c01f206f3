//! Special functions, elementwise: the error function, the gamma function and related functions.

use super::classify::bits;
use super::dtype_set::DTypeSet;
use super::exponential::function_name;
use super::unary::{methods, unary};
use crate::lower::Lowering;
use crate::operation::{Operation, RecomputePolicy, Vjp, one};
use crate::{DType, Tensor, TensorType};

unary! {
    /// The error function `2/√π ∫₀ˣ exp(−t²) dt`, elementwise. The derivative is `2/√π · exp(−x²)`.
    erf, Erf, "chlo.erf", Floats,
        |x, y, g| Some(g * (-(x * x)).exp() * std::f64::consts::FRAC_2_SQRT_PI);

    /// `1 − erf(x)`, elementwise, accurate where it is near 0. The derivative is
    /// `−2/√π · exp(−x²)`.
    erfc, Erfc, "chlo.erfc", Floats,
        |x, y, g| Some(g * (-(x * x)).exp() * -std::f64::consts::FRAC_2_SQRT_PI);

    /// The inverse `y` of [`Tensor::erf`], elementwise. The derivative is `√π/2 · exp(y²)`.
    erf_inv, ErfInv, "chlo.erf_inv", Floats,
        |x, y, g| Some(g * (y * y).exp() * (1.0 / std::f64::consts::FRAC_2_SQRT_PI));

    /// `ψ(x)`, the derivative of `log Γ(x)`, elementwise; NaN at 0 and at negative integers. The
    /// derivative is `polygamma(1, x)`, which is defined for `x > 0`.
    digamma, Digamma, "chlo.digamma", Floats, |x, y, g| Some(g * x.polygamma(1));
}

#[derive(Debug)]
struct Lgamma;

impl Operation for Lgamma {
    fn name(&self) -> &'static str {
        "lgamma"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        DTypeSet::Floats.check(inputs[0].dtype)?;
        one(inputs[0].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![Some(cx.cotangent() * cx.input(0).digamma())]
    }
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::IfCheap
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        // Devices flush subnormal numbers to 0. Near 0, log |Γ(x)| is −log |x|, and a subnormal
        // number is the integer value of its bits times the smallest subnormal.
        let ty = cx.result().clone();
        let integer = bits(ty.dtype);
        let (fraction, least) = match ty.dtype {
            DType::F64 => (52, -1074),
            DType::Bf16 => (7, -133),
            DType::F16 => (10, -24),
            _ => (23, -149),
        };
        let most = (1u64 << (8 * integer.size_in_bytes() - 1)) - 1;
        let name = function_name("lgamma", &ty);
        let name = cx.helper(&name, |name| {
            let [t, word, mask] =
                [ty.dtype, integer, DType::Bool].map(|dtype| TensorType::new(dtype, &ty.shape).stablehlo());
            format!(
                "  func.func private @{name}(%x: {t}) -> {t} {{\n    \
                 %normal = chlo.lgamma %x : {t} -> {t}\n    \
                 %bits = stablehlo.bitcast_convert %x : ({t}) -> {word}\n    \
                 %most = stablehlo.constant dense<{most}> : {word}\n    \
                 %magnitude = stablehlo.and %bits, %most : {word}\n    \
                 %bound = stablehlo.constant dense<{}> : {word}\n    \
                 %is_small = stablehlo.compare LT, %magnitude, %bound : ({word}, {word}) -> {mask}\n    \
                 %multiple = stablehlo.convert %magnitude : ({word}) -> {t}\n    \
                 %log = stablehlo.log %multiple : {t}\n    \
                 %least = stablehlo.constant dense<{:e}> : {t}\n    \
                 %small = stablehlo.subtract %least, %log : {t}\n    \
                 %result = stablehlo.select %is_small, %small, %normal : {mask}, {t}\n    \
                 return %result : {t}\n  }}\n",
                1u64 << fraction,
                -f64::from(least) * std::f64::consts::LN_2
            )
        });
        format!("func.call @{name}({}) : {}", cx.operands(), cx.signature())
    }
}

/// Its first input is the order as a tensor, as in CHLO.
#[derive(Debug)]
struct Polygamma {
    order: u32,
}

impl Operation for Polygamma {
    fn name(&self) -> &'static str {
        "polygamma"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        DTypeSet::Floats.check(inputs[1].dtype)?;
        one(inputs[1].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![None, Some(cx.cotangent() * cx.input(1).polygamma(self.order.saturating_add(1)))]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("chlo.polygamma {} : {}", cx.operands(), cx.signature().replace(['(', ')'], ""))
    }
}

methods! {
    /// `log |Γ(x)|`, elementwise; ∞ at 0 and at negative integers. The derivative is `digamma(x)`.
    lgamma() -> Tensor, |x| Tensor::try_apply(Lgamma, &[x]);
}

impl Tensor {
    /// The `order`-th derivative of [`Tensor::digamma`], elementwise, for `x > 0`. Order 0 is the
    /// digamma function itself. The derivative is `polygamma(order + 1, x)`.
    #[track_caller]
    pub fn polygamma(&self, order: u32) -> Tensor {
        Tensor::record("polygamma", || {
            let x = DTypeSet::Floats.operand("polygamma", self)?;
            Tensor::try_apply(
                Polygamma { order },
                &[&Tensor::full(x.dtype(), x.shape(), f64::from(order)), &x],
            )
        })
    }
}
