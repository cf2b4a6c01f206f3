//! Elementwise binary operations with NumPy's broadcasting: arithmetic, and the `binary!` table
//! that other families use.
//!
//! Out of scope: the families in `bitwise`, `compare`, `exponential`, `rounding` and
//! `trigonometric`.

use super::common_dtype::common_dtype;
use super::constant::holds;
use super::dtype_set::DTypeSet;
use crate::autocast::method_operand;
use crate::scope::Refusal;
use crate::{AsTensor, Tensor};

/// An operand next to a tensor: a tensor too, or a number that takes the dtype of the other.
///
/// A number is rounded to a floating-point dtype, and becomes the real part of a complex one. An
/// integer or boolean dtype must hold the number exactly: `0.5` with i32, or `300` with u8, poisons
/// the result.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a tensor nor an `f64`",
    label = "expected a tensor, such as `x` or `&x`, or a number with a decimal point, such as `2.0`"
)]
pub trait Operand {
    /// The operand as a tensor; `other` is the operand on the other side.
    fn to_tensor_like(&self, other: &Tensor) -> Tensor;

    /// The operand, if it is a tensor.
    fn tensor(&self) -> Option<&Tensor>;
}

impl<T: AsTensor> Operand for T {
    fn to_tensor_like(&self, _: &Tensor) -> Tensor {
        self.as_tensor().clone()
    }
    fn tensor(&self) -> Option<&Tensor> {
        Some(self.as_tensor())
    }
}
impl Operand for f64 {
    #[track_caller]
    fn to_tensor_like(&self, other: &Tensor) -> Tensor {
        Tensor::record("number", || {
            let dtype = other.live()?.dtype();
            if !holds(dtype, *self) {
                let article = if dtype.is_integer() && !dtype.is_unsigned() { "an" } else { "a" };
                return Err(format!(
                    "{self} is not {article} {dtype}; convert the tensor with to_dtype() first"
                )
                .into());
            }
            Ok(Tensor::full(dtype, [], *self))
        })
    }
    fn tensor(&self) -> Option<&Tensor> {
        None
    }
}

/// Promotes two tensors to one dtype and broadcasts them to one shape.
pub(super) fn broadcast_both(a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor), Refusal> {
    let dtype = common_dtype(a, b)?;
    let shape = a.shape().broadcast(b.shape())?;
    Ok((a.to_dtype(dtype).broadcast_to(&shape), b.to_dtype(dtype).broadcast_to(&shape)))
}

/// Prepares the operands of the binary `method`: autocast, promotion, broadcasting and the dtype
/// check.
pub(super) fn operands(
    method: &str,
    dtypes: DTypeSet,
    left: &Tensor,
    right: impl Operand,
) -> Result<(Tensor, Tensor), Refusal> {
    let left = method_operand(method, left);
    let right = method_operand(method, &right.to_tensor_like(&left));
    let (a, b) = broadcast_both(&left, &right)?;
    dtypes.check(a.dtype())?;
    Ok((a, b))
}

/// One row for each operation: doc, method, struct, StableHLO name, dtypes, and the derivatives.
/// The derivatives with respect to `a` and `b` are written `|a, b, y, g|` for `y = f(a, b)`, where
/// `g` is the cotangent. A derivative is `None` only if `f` is piecewise constant, so that the
/// derivative is zero, or if `f` takes no floats.
macro_rules! binary {
    ($($(#[$doc:meta])* $method:ident, $op:ident, $stablehlo:literal, $dtypes:ident,
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
                let $a = cx.input(0);
                let $b = cx.input(1);
                let $y = cx.output();
                let $g = &cx.cotangent();
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
                let dtypes = $crate::ops::dtype_set::DTypeSet::$dtypes;
                $crate::Tensor::record(stringify!($method), || {
                    let (a, b) = $crate::ops::binary::operands(stringify!($method), dtypes, self, other)?;
                    $crate::Tensor::try_apply($op, &[&a, &b])
                })
            }
        }
    )*};
}
pub(super) use binary;

binary! {
    /// `a + b`, elementwise; also the operator `+`.
    add, Add, "stablehlo.add", NumbersAndComplex, |a, b, y, g| [Some(g.clone()), Some(g.clone())];

    /// `a − b`, elementwise; also the operator `-`.
    sub, Subtract, "stablehlo.subtract", NumbersAndComplex, |a, b, y, g| [Some(g.clone()), Some(-g)];

    /// `a · b`, elementwise; also the operator `*`.
    mul, Multiply, "stablehlo.multiply", NumbersAndComplex, |a, b, y, g| [Some(g * b), Some(g * a)];

    /// `a / b`, elementwise; also the operator `/`. Integer division rounds toward zero;
    /// [`Tensor::floor_divide`] rounds down. Integer division by zero gives −1.
    div, Divide, "stablehlo.divide", NumbersAndComplex, |a, b, y, g| [Some(g / b), Some(-(g * y / b))];

    /// The remainder of `a / b` rounded toward zero, elementwise (C's `%`, JAX's `lax.rem`,
    /// PyTorch's `fmod`). It has the sign of `a`. The derivatives are 1 and `−trunc(a/b)`. For the
    /// sign of `b`, as in `torch.remainder`, use [`Tensor::floor_mod`].
    remainder, Remainder, "stablehlo.remainder", Numbers, |a, b, y, g| [Some(g.clone()), Some(-(g * (a / b).trunc()))];

    /// The larger of the two operands, elementwise; NaN if either is NaN. Tied operands get half of
    /// the gradient each.
    maximum, Maximum, "stablehlo.maximum", Numbers, |a, b, y, g| [Some(g * selection_weight(a, b, &a.gt(b))), Some(g * selection_weight(b, a, &b.gt(a)))];

    /// The smaller of the two operands, elementwise; NaN if either is NaN. Tied operands get half
    /// of the gradient each.
    minimum, Minimum, "stablehlo.minimum", Numbers, |a, b, y, g| [Some(g * selection_weight(a, b, &a.lt(b))), Some(g * selection_weight(b, a, &b.lt(a)))];

    /// `aᵇ`, elementwise. The derivatives are `b·aᵇ⁻¹` and `aᵇ·log(a)`, with `log(0)` taken as 0.
    ///
    /// Powers of integers are integers: `pow(2.0)` of i32 is i32, like JAX's `x ** 2`, and wraps on
    /// overflow. For integers with a negative exponent, the result depends on the device.
    pow, Power, "stablehlo.power", NumbersAndComplex, |a, b, y, g| [
        Some(g * b.eq(0.0).select(&a.zeros_like(), &(b * a.pow(b - 1.0)))),
        Some(g * y * a.eq(0.0).select(&a.ones_like(), a).log())
    ];
}

/// 1 where `a` is selected instead of `b`, ½ where they tie, else 0. The result is not compared: XLA
/// may compute `a` again for that, and round it differently.
fn selection_weight(a: &Tensor, b: &Tensor, is_selected: &Tensor) -> Tensor {
    let whole = Tensor::full(a.dtype(), a.shape(), 1.0);
    let half = Tensor::full(a.dtype(), a.shape(), 0.5);
    is_selected.select(&whole, &a.eq(b).select(&half, &a.zeros_like()))
}

impl Tensor {
    /// Linear interpolation `start + weight·(end − start)`, elementwise, where `start` is this
    /// tensor (PyTorch's `lerp`). The three operands broadcast. The result is exact at weights 0
    /// and 1.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let start = Tensor::scalar(1.0f32);
    /// let end = Tensor::scalar(3.0f32);
    /// assert_eq!(start.lerp(&end, 0.25).eval()?.to_vec::<f32>()?, [1.5]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn lerp(&self, end: impl Operand, weight: impl Operand) -> Tensor {
        Tensor::record("lerp", || {
            let (start, end) = operands("lerp", DTypeSet::FloatsAndComplex, self, end)?;
            let (start, weight) = operands("lerp", DTypeSet::FloatsAndComplex, &start, weight)?;
            let end = end.to_dtype(start.dtype()).broadcast_to(start.shape());
            let difference = &end - &start;
            if weight.dtype().is_complex() {
                return Ok(start + weight * difference);
            }
            // Computed from the nearer end, so that rounding does not change the ends.
            let from_end = end - (1.0 - &weight) * &difference;
            Ok(weight.lt(0.5).select(&(&start + &weight * &difference), &from_end))
        })
    }
}
