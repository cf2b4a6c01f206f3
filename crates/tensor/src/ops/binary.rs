//! Elementwise operations of two tensors, with NumPy's broadcasting: the table that other families use too, and
//! arithmetic.
//!
//! Not here: the families that have files of their own: `bitwise`, `compare`, `exponential`, `rounding`, `trigonometric`.

use super::constant::holds;
use super::dtype_set::DTypeSet;
use super::promote::common_dtype;
use crate::autocast::for_method;
use crate::scope::Refusal;
use crate::{AsTensor, Tensor};

/// The right operand of a binary operation: a tensor, or a number that takes the tensor's dtype.
///
/// A number is rounded to a floating-point dtype, and is the real part of a complex one. For integers or booleans it must be one of their values: `0.5`
/// with i32, or `300` with u8, is a mistake that poisons.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a tensor nor an `f64`",
    label = "expected a tensor, such as `x` or `&x`, or a number with a decimal point, such as `2.0`"
)]
pub trait Operand {
    /// The operand as a tensor, given the tensor on the other side.
    fn to_tensor_like(&self, other: &Tensor) -> Tensor;
}

impl<T: AsTensor> Operand for T {
    fn to_tensor_like(&self, _: &Tensor) -> Tensor {
        self.as_tensor().clone()
    }
}
impl Operand for f64 {
    #[track_caller]
    fn to_tensor_like(&self, other: &Tensor) -> Tensor {
        Tensor::record("number", || {
            let dtype = other.live()?.dtype();
            if !holds(dtype, *self) {
                let article = if dtype.is_integer() && !dtype.is_unsigned() { "an" } else { "a" };
                return Err(format!("{self} is not {article} {dtype}; convert the tensor with to_dtype() first").into());
            }
            Ok(Tensor::full(dtype, [], *self))
        })
    }
}

/// Brings two tensors to one dtype by promotion and to one shape by broadcasting.
pub(super) fn broadcast_both(a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor), Refusal> {
    let dtype = common_dtype(a, b)?;
    let shape = a.shape().broadcast(b.shape())?;
    Ok((a.to_dtype(dtype).broadcast_to(&shape), b.to_dtype(dtype).broadcast_to(&shape)))
}

/// The operands of the binary `method`, brought together as autocast wants them.
pub(super) fn operands(
    method: &str,
    takes: DTypeSet,
    left: &Tensor,
    right: impl Operand,
) -> Result<(Tensor, Tensor), Refusal> {
    let left = for_method(method, left);
    let right = for_method(method, &right.to_tensor_like(&left));
    let (a, b) = broadcast_both(&left, &right)?;
    takes.check(a.dtype())?;
    Ok((a, b))
}

/// One row an operation: doc, method, struct, the StableHLO spelling, the dtypes, and the derivatives
/// `|a, b, y, g|` of `y = f(a, b)` with respect to `a` and `b` under the cotangent `g` (`None` only where `f` is constant
/// in pieces, so that they are zero, or takes no floats).
macro_rules! binary {
    ($($(#[$doc:meta])* $method:ident, $op:ident, $stablehlo:literal, $takes:ident,
        |$a:ident, $b:ident, $y:ident, $g:ident| [$da:expr, $db:expr];)*) => {$(
        #[derive(Debug)]
        struct $op;

        impl $crate::operation::Operation for $op {
            fn name(&self) -> &'static str {
                stringify!($method)
            }
            fn infer(&self, inputs: &[&$crate::TensorType]) -> Result<Vec<$crate::TensorType>, String> {
                $crate::operation::one(inputs[0].clone())
            }
            fn vjp(&self, cx: &$crate::operation::Vjp<'_>) -> Vec<Option<$crate::Tensor>> {
                let ($a, $b, $y, $g) = (cx.input(0), cx.input(1), cx.output(), &cx.cotangent());
                let _ = ($a, $b, $y, $g);
                vec![$da, $db]
            }
            fn recompute_policy(&self) -> $crate::operation::RecomputePolicy {
                $crate::operation::RecomputePolicy::IfCheap
            }
            fn lower(&self, cx: &mut $crate::lower::Lowering<'_>) -> String {
                format!("{} {} : {}", $stablehlo, cx.operands(), cx.result().stablehlo())
            }
        }

        impl $crate::Tensor {
            $(#[$doc])*
            #[track_caller]
            pub fn $method(&self, other: impl $crate::Operand) -> $crate::Tensor {
                let takes = $crate::ops::dtype_set::DTypeSet::$takes;
                $crate::Tensor::record(stringify!($method), || {
                    let (a, b) = $crate::ops::binary::operands(stringify!($method), takes, self, other)?;
                    $crate::Tensor::try_apply($op, &[&a, &b])
                })
            }
        }
    )*};
}
pub(super) use binary;

binary! {
    /// `a + b`, elementwise; also the operator.
    add, Add, "stablehlo.add", NumbersAndComplex, |a, b, y, g| [Some(g.clone()), Some(g.clone())];

    /// `a − b`, elementwise; also the operator.
    sub, Subtract, "stablehlo.subtract", NumbersAndComplex, |a, b, y, g| [Some(g.clone()), Some(-g)];

    /// `a · b`, elementwise; also the operator.
    mul, Multiply, "stablehlo.multiply", NumbersAndComplex, |a, b, y, g| [Some(g * b), Some(g * a)];

    /// `a / b`, elementwise; also the operator. Integers round towards zero (see [`Tensor::floor_divide`]); a division of
    /// integers by zero gives −1.
    div, Divide, "stablehlo.divide", NumbersAndComplex, |a, b, y, g| [Some(g / b), Some(-(g * y / b))];

    /// What remains of `a / b` rounded towards zero, with the sign of `a`, elementwise (C's `%`, JAX's `lax.rem`,
    /// `torch.fmod`). Derivatives 1 and `−trunc(a/b)`. [`Tensor::floor_mod`] has the sign of `b`, as `torch.remainder`.
    remainder, Remainder, "stablehlo.remainder", Numbers, |a, b, y, g| [Some(g.clone()), Some(-(g * (a / b).trunc()))];

    /// The larger of both, elementwise; NaN if one is NaN. The derivative of a tie is shared, ½ and ½.
    maximum, Maximum, "stablehlo.maximum", Numbers, |a, b, y, g| [Some(g * chosen(a, b, y)), Some(g * chosen(b, a, y))];

    /// The smaller of both, elementwise; NaN if one is NaN. The derivative of a tie is shared, ½ and ½.
    minimum, Minimum, "stablehlo.minimum", Numbers, |a, b, y, g| [Some(g * chosen(a, b, y)), Some(g * chosen(b, a, y))];

    /// `aᵇ`, elementwise. Derivatives `b·aᵇ⁻¹` and `aᵇ·log(a)`, where `log(0)` counts as 0.
    ///
    /// Powers of integers are integers: `pow(2.0)` of i32 is i32, as JAX's `x ** 2`, and wraps where it is too large. What
    /// a negative exponent gives there depends on the device.
    pow, Power, "stablehlo.power", NumbersAndComplex, |a, b, y, g| [
        Some(g * b.eq(0.0).select(&a.zeros_like(), &(b * a.pow(b - 1.0)))),
        Some(g * y * a.eq(0.0).select(&a.ones_like(), a).log())
    ];
}

/// 1 where `a` was chosen as `y`, ½ where `b` would have done as well, else 0.
fn chosen(a: &Tensor, b: &Tensor, y: &Tensor) -> Tensor {
    let whole = Tensor::full(y.dtype(), y.shape(), 1.0);
    let half = Tensor::full(y.dtype(), y.shape(), 0.5);
    a.eq(y).select(&b.eq(y).select(&half, &whole), &y.zeros_like())
}

impl Tensor {
    /// `start + weight·(end − start)`, elementwise: from this tensor, at weight 0, to `end`, at weight 1. The three
    /// broadcast. Exact at both ends.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let (start, end) = (Tensor::scalar(1.0f32), Tensor::scalar(3.0f32));
    /// assert_eq!(start.lerp(&end, 0.25).eval()?.to_vec::<f32>()?, [1.5]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn lerp(&self, end: impl Operand, weight: impl Operand) -> Tensor {
        Tensor::record("lerp", || {
            let (start, end) = operands("lerp", DTypeSet::FloatsAndComplex, self, end)?;
            let (start, weight) = operands("lerp", DTypeSet::FloatsAndComplex, &start, weight)?;
            let end = end.to_dtype(start.dtype()).broadcast_to(start.shape());
            let way = &end - &start;
            if weight.dtype().is_complex() {
                return Ok(start + weight * way);
            }
            // From whichever end is nearer, so that rounding leaves both ends what they are.
            let from_end = end - (1.0 - &weight) * &way;
            Ok(weight.lt(0.5).select(&(&start + &weight * &way), &from_end))
        })
    }
}
