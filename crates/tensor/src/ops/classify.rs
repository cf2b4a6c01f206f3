//! Elementwise operations on the representation of floats: finite, infinite or NaN, the sign bit,
//! and the neighboring number.

use super::dtype_set::DTypeSet;
use super::exponential::function_name;
use super::unary::{composed, methods};
use crate::lower::Lowering;
use crate::operation::{Operation, RecomputePolicy, Vjp, one};
use crate::{DType, Tensor, TensorType};

#[derive(Debug)]
pub(super) struct IsFinite;

impl Operation for IsFinite {
    fn name(&self) -> &'static str {
        "is_finite"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        DTypeSet::Floats.check(inputs[0].dtype)?;
        one(TensorType::new(DType::Bool, &inputs[0].shape))
    }
    fn vjp(&self, _: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![None]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.is_finite {} : {}", cx.operand(0), cx.signature())
    }
}

#[derive(Debug)]
struct CopySign;

impl Operation for CopySign {
    fn name(&self) -> &'static str {
        "copysign"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(inputs[0].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let a = cx.input(0);
        let b = cx.input(1);
        let g = cx.cotangent();
        vec![Some(a.lt(0.0).eq(b.signbit()).select(&g, &-&g)), None]
    }
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::IfCheap
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let ty = cx.result().clone();
        let name = function_name("copysign", &ty);
        let integer = bits(ty.dtype);
        let name = cx.helper(&name, |name| {
            let t = ty.stablehlo();
            let bits = TensorType::new(integer, &ty.shape).stablehlo();
            let most = (1u64 << (8 * integer.size_in_bytes() - 1)) - 1;
            format!(
                "  func.func private @{name}(%a: {t}, %b: {t}) -> {t} {{\n    \
                 %most = stablehlo.constant dense<{most}> : {bits}\n    \
                 %sign_bit = stablehlo.not %most : {bits}\n    \
                 %a_bits = stablehlo.bitcast_convert %a : ({t}) -> {bits}\n    \
                 %b_bits = stablehlo.bitcast_convert %b : ({t}) -> {bits}\n    \
                 %magnitude = stablehlo.and %a_bits, %most : {bits}\n    \
                 %sign = stablehlo.and %b_bits, %sign_bit : {bits}\n    \
                 %both = stablehlo.or %magnitude, %sign : {bits}\n    \
                 %result = stablehlo.bitcast_convert %both : ({bits}) -> {t}\n    \
                 return %result : {t}\n  }}\n"
            )
        });
        format!("func.call @{name}({}) : {}", cx.operands(), cx.signature())
    }
}

/// The integer dtype as wide as a float dtype; any other dtype unchanged.
pub(super) fn bits(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::I64,
        DType::F32 => DType::I32,
        DType::Bf16 | DType::F16 => DType::I16,
        other => other,
    }
}

#[derive(Debug)]
struct NextAfter;

impl Operation for NextAfter {
    fn name(&self) -> &'static str {
        "nextafter"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        DTypeSet::Floats.check(inputs[0].dtype)?;
        one(inputs[0].clone())
    }
    fn vjp(&self, _: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let none = Tensor::poison(
            "nextafter",
            "has no derivative; detach() its operands if you need none",
        );
        vec![Some(none.clone()), Some(none)]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("chlo.next_after {} : {}", cx.operands(), cx.signature().replace(['(', ')'], ""))
    }
}

composed! {
    /// True where `x` is NaN, elementwise. A complex number is NaN if either part is.
    is_nan, FloatsAndComplex, |x| x.ne(&x);

    /// True where `x` is ∞ or −∞, elementwise.
    is_inf, Floats, |x| x.abs().eq(f64::INFINITY);

    /// True where the sign bit of `x` is set, elementwise, also for −0 and for a negative NaN.
    signbit, Numbers, |x| {
        let bits = bits(x.dtype());
        if x.dtype().is_unsigned() {
            x.ne(&x)
        } else if x.dtype() == bits {
            x.lt(0.0)
        } else {
            // Bits have no gradient.
            x.detach().bitcast(bits).lt(0.0)
        }
    };

    /// `|a|` with the sign of `b`, elementwise. The derivative with respect to `a` is 1 where the
    /// signs agree and −1 where they differ; `a = ±0` counts as positive. The derivative with
    /// respect to `b` is 0.
    copysign, Floats, |a, b| Tensor::apply(CopySign, &[&a, &b]);

    /// The next number of the dtype after `a` in the direction of `b`, elementwise; `b` where the
    /// two are equal. It has no derivative: a gradient through it is poisoned.
    nextafter, Floats, |a, b| Tensor::apply(NextAfter, &[&a, &b]);
}

methods! {
    /// True where `x` is neither infinite nor NaN, elementwise.
    is_finite() -> Tensor, |x| Tensor::try_apply(IsFinite, &[x]);
}
