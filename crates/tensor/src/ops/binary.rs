//! Elementwise operations of two tensors, with NumPy's broadcasting.

use super::constant::holds;
use super::promote::common_dtype;
use super::takes::Takes;
use crate::autocast::for_method;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{Tensor, TensorType};

/// What stands on the right of a binary operation: a tensor, or a number that takes the tensor's dtype.
///
/// A number is rounded to a floating-point dtype. Beside integers or booleans it must be one of their values: `0.5`
/// beside i32, or `300` beside u8, is a mistake that poisons.
pub trait Operand {
    /// The operand as a tensor, given the tensor on the other side.
    fn beside(&self, other: &Tensor) -> Tensor;
}

impl Operand for Tensor {
    fn beside(&self, _: &Tensor) -> Tensor {
        self.clone()
    }
}
impl Operand for &Tensor {
    fn beside(&self, _: &Tensor) -> Tensor {
        (*self).clone()
    }
}
impl Operand for f64 {
    #[track_caller]
    fn beside(&self, other: &Tensor) -> Tensor {
        if other.fault().is_some() {
            return other.clone();
        }
        let dtype = other.dtype();
        if !holds(dtype, *self) {
            let article = if dtype.is_integer() && !dtype.is_unsigned() { "an" } else { "a" };
            let message = format!("{self} is not {article} {dtype}; convert the tensor with to_dtype() first");
            return Tensor::poison("number", message);
        }
        Tensor::full(dtype, [], *self)
    }
}

/// Brings two tensors to one dtype by promotion and to one shape by broadcasting, or says why that cannot be.
#[track_caller]
pub(super) fn broadcast_both(name: &str, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor), Tensor> {
    let dtype = common_dtype(name, a, b)?;
    match a.shape().broadcast(b.shape()) {
        Ok(shape) => Ok((a.to_dtype(dtype).broadcast_to(&shape), b.to_dtype(dtype).broadcast_to(&shape))),
        Err(message) => Err(Tensor::poison(name, message)),
    }
}

/// One row an operation: doc, method, struct, the StableHLO spelling, the dtypes, and the derivatives
/// `|a, b, y, g|` of `y = f(a, b)` with respect to `a` and `b` under the cotangent `g`.
macro_rules! binary {
    ($($(#[$doc:meta])* $method:ident, $op:ident, $stablehlo:literal, $takes:ident,
        |$a:ident, $b:ident, $y:ident, $g:ident| [$da:expr, $db:expr];)*) => {$(
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
                let ($a, $b, $y, $g) = (cx.input(0), cx.input(1), cx.output(), &cx.cotangent());
                let _ = ($a, $b, $y, $g);
                vec![$da, $db]
            }
            fn lower(&self, cx: &mut Lowering<'_>) -> String {
                format!("stablehlo.{} {} : {}", $stablehlo, cx.operands(), cx.result().stablehlo())
            }
        }

        impl Tensor {
            $(#[$doc])*
            #[track_caller]
            pub fn $method(&self, other: impl Operand) -> Tensor {
                let name = stringify!($method);
                let left = for_method(name, self);
                let right = for_method(name, &other.beside(&left));
                match broadcast_both(name, &left, &right) {
                    Ok((a, b)) => Tensor::apply($op, &[&a, &b]),
                    Err(poisoned) => poisoned,
                }
            }
        }
    )*};
}

binary! {
    /// `a + b`, elementwise; also the operator.
    add, Add, "add", Numbers, |a, b, y, g| [Some(g.clone()), Some(g.clone())];

    /// `a − b`, elementwise; also the operator.
    sub, Subtract, "subtract", Numbers, |a, b, y, g| [Some(g.clone()), Some(-g)];

    /// `a · b`, elementwise; also the operator.
    mul, Multiply, "multiply", Numbers, |a, b, y, g| [Some(g * b), Some(g * a)];

    /// `a / b`, elementwise; also the operator. Integers round towards zero; a division of integers by zero gives −1.
    div, Divide, "divide", Numbers, |a, b, y, g| [Some(g / b), Some(-(g * y / b))];

    /// What remains of `a / b` rounded towards zero, with the sign of `a`, elementwise (C's `%`, JAX's `lax.rem`).
    /// Derivatives 1 and `−trunc(a/b)`.
    remainder, Remainder, "remainder", Numbers, |a, b, y, g| [Some(g.clone()), {
        let quotient = a / b;
        Some(-(g * quotient.sign() * quotient.abs().floor()))
    }];

    /// The larger of both, elementwise; NaN if one is NaN. The derivative of a tie is shared, ½ and ½.
    maximum, Maximum, "maximum", Numbers, |a, b, y, g| [Some(g * chosen(a, b, y)), Some(g * chosen(b, a, y))];

    /// The smaller of both, elementwise; NaN if one is NaN. The derivative of a tie is shared, ½ and ½.
    minimum, Minimum, "minimum", Numbers, |a, b, y, g| [Some(g * chosen(a, b, y)), Some(g * chosen(b, a, y))];

    /// `aᵇ`, elementwise. Derivatives `b·aᵇ⁻¹` and `aᵇ·log(a)`, where `log(0)` counts as 0.
    pow, Power, "power", Floats, |a, b, y, g| [
        Some(g * b.eq(0.0).select(&a.zeros_like(), &(b * a.pow(b - 1.0)))),
        Some(g * y * a.eq(0.0).select(&a.ones_like(), a).log())
    ];

    /// Bitwise and of integers, logical and of booleans.
    and, And, "and", IntegersAndBooleans, |a, b, y, g| [None, None];

    /// Bitwise or of integers, logical or of booleans.
    or, Or, "or", IntegersAndBooleans, |a, b, y, g| [None, None];

    /// Bitwise exclusive or of integers, logical exclusive or of booleans.
    xor, Xor, "xor", IntegersAndBooleans, |a, b, y, g| [None, None];

    /// The bits of `a` moved up by `b` places, zeros coming in; 0 where `b` is the number of bits or more.
    shift_left, ShiftLeft, "shift_left", Integers, |a, b, y, g| [None, None];

    /// The bits of `a` moved down by `b` places, zeros coming in; 0 where `b` is the number of bits or more.
    shift_right_logical, ShiftRightLogical, "shift_right_logical", Integers, |a, b, y, g| [None, None];
}

/// 1 where `a` was chosen as `y`, ½ where `b` would have done as well, else 0.
fn chosen(a: &Tensor, b: &Tensor, y: &Tensor) -> Tensor {
    let whole = Tensor::full(y.dtype(), y.shape(), 1.0);
    let half = Tensor::full(y.dtype(), y.shape(), 0.5);
    a.eq(y).select(&b.eq(y).select(&half, &whole), &y.zeros_like())
}
