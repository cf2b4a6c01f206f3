//! Weighted sums along one axis, the weights fixed: what interpolation and averages over windows of any size are made of.
//!
//! Each is the product with a small matrix, which a TPU's matrix unit computes, forwards and backwards. Gathers would do
//! forwards, but their derivatives are scatters, which a TPU does one after the other. The product is always exact to f32:
//! in one pass of bf16 numbers, interpolation would change even what it copies.

use crate::autocast::wide;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{DType, Tensor, TensorType};

/// `y[…, o, …] = Σᵢ x[…, i, …] · w[o, i]`, where `o` comes last; or `w[i, o]`.
#[derive(Debug)]
struct AlongAxis {
    method: &'static str,
    /// Which axis of the input is summed over.
    axis: usize,
    /// Which axis of the weights is.
    contracted: usize,
}

impl Operation for AlongAxis {
    fn name(&self) -> &'static str {
        self.method
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let mut to = inputs[0].shape.to_vec();
        to.remove(self.axis);
        to.push(inputs[1].shape[1 - self.contracted]);
        one(TensorType::new(inputs[0].dtype, to))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let last = cx.output().rank() - 1;
        let back = AlongAxis { method: self.method, axis: last, contracted: 1 - self.contracted };
        let moved = Tensor::apply(back, &[&cx.cotangent(), cx.input(1)]);
        // The weights are made here and depend on nothing.
        vec![Some(moved.movedim(&[-1], &[self.axis as isize])), None]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let precision = if cx.result().dtype == DType::F32 { "HIGHEST" } else { "DEFAULT" };
        format!(
            "stablehlo.dot_general {}, contracting_dims = [{}] x [{}], precision = [{precision}, {precision}] : {}",
            cx.operands(),
            self.axis,
            self.contracted,
            cx.signature()
        )
    }
}

/// The sums along `axis` with weights `[out, in]`: the axis gets the size `out`. 16-bit floats are summed as f32.
#[track_caller]
pub(super) fn along_axis(method: &'static str, x: &Tensor, axis: usize, weights: &Tensor) -> Tensor {
    if let Some(poisoned) = [x, weights].into_iter().find(|t| t.fault().is_some()) {
        return poisoned.clone();
    }
    let from = wide(x);
    let weights = weights.to_dtype(from.dtype());
    let sums = Tensor::apply(AlongAxis { method, axis, contracted: 1 }, &[&from, &weights]);
    sums.movedim(&[-1], &[axis as isize]).to_dtype(x.dtype())
}

/// The dtype in which weights for `x` are computed.
pub(super) fn weights_dtype(x: &Tensor) -> DType {
    if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 }
}
