//! Reversing axes.

use super::unary::methods;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{AsAxes, Tensor, TensorType};

#[derive(Debug)]
struct Reverse {
    axes: Vec<usize>,
}

impl Operation for Reverse {
    fn name(&self) -> &'static str {
        "flip"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(inputs[0].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![Some(Tensor::apply(Reverse { axes: self.axes.clone() }, &[&cx.cotangent()]))]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!(
            "stablehlo.reverse {}, dims = {:?} : {}",
            cx.operand(0),
            self.axes,
            cx.result().stablehlo()
        )
    }
}

methods! {
    /// Reverses the order of the elements along each of `axes` (PyTorch's and NumPy's `flip`,
    /// StableHLO's `reverse`).
    flip(axes: impl AsAxes) -> Tensor, |x| {
        Tensor::try_apply(Reverse { axes: x.shape().axes(axes.as_axes())? }, &[x])
    };
}
