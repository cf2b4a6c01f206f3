//! Elementwise comparisons with NumPy's broadcasting. The results are booleans, which have no
//! gradient.

use super::binary::{Operand, broadcast_both};
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{DType, Tensor, TensorType};

#[derive(Debug)]
pub(super) struct Compare {
    method: &'static str,
    direction: &'static str,
}

impl Operation for Compare {
    fn name(&self) -> &'static str {
        self.method
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let dtype = inputs[0].dtype;
        if dtype.is_complex() && !matches!(self.direction, "EQ" | "NE") {
            return Err(format!("{dtype} has no order; compare real(), imag() or abs()"));
        }
        one(TensorType::new(DType::Bool, &inputs[0].shape))
    }
    fn vjp(&self, _: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![None, None]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.compare {}, {} : {}", self.direction, cx.operands(), cx.signature())
    }
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $method:ident $direction:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $method(&self, other: impl Operand) -> Tensor {
                Tensor::record(stringify!($method), || {
                    let (a, b) = broadcast_both(self, &other.to_tensor_like(self))?;
                    let op = Compare { method: stringify!($method), direction: stringify!($direction) };
                    Tensor::try_apply(op, &[&a, &b])
                })
            }
        )*}
    };
}

comparisons! {
    /// True where `a = b`, elementwise; false where either is NaN.
    eq EQ;
    /// True where `a ≠ b`, elementwise; true where either is NaN.
    ne NE;
    /// True where `a < b`, elementwise; false where either is NaN.
    lt LT;
    /// True where `a ≤ b`, elementwise; false where either is NaN.
    le LE;
    /// True where `a > b`, elementwise; false where either is NaN.
    gt GT;
    /// True where `a ≥ b`, elementwise; false where either is NaN.
    ge GE;
}
