//! Stopping gradients.

use super::unary::methods;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{Tensor, TensorType};

#[derive(Debug)]
struct StopGradient;

impl Operation for StopGradient {
    fn name(&self) -> &'static str {
        "detach"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(inputs[0].clone())
    }
    fn vjp(&self, _: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![None]
    }
    fn active_results(&self, _: &[bool], count: usize) -> Vec<bool> {
        vec![false; count]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        // StableHLO has no gradients. A reshape to the same shape is the identity.
        format!("stablehlo.reshape {} : {}", cx.operand(0), cx.signature())
    }
}

methods! {
    /// The same value, without a gradient (PyTorch's `detach`, JAX's `lax.stop_gradient`).
    detach() -> Tensor, |x| Tensor::try_apply(StopGradient, &[x]);
}
