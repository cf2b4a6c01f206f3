//! Joining tensors along an axis.

use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{Tensor, TensorType};

#[derive(Debug)]
struct Concatenate {
    axis: usize,
}

impl Operation for Concatenate {
    fn name(&self) -> &'static str {
        "concatenate"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let first = inputs[0];
        let mut total = 0usize;
        for (i, input) in inputs.iter().enumerate() {
            let alike = input.dtype == first.dtype
                && input.shape.rank() == first.shape.rank()
                && (0..first.shape.rank()).all(|a| a == self.axis || input.shape[a] == first.shape[a]);
            if !alike {
                return Err(format!(
                    "tensor {i} is {input} and the first is {first}: all but axis {} must agree",
                    self.axis
                ));
            }
            total = total.saturating_add(input.shape[self.axis]);
        }
        let mut to = first.shape.to_vec();
        to[self.axis] = total;
        one(TensorType::new(first.dtype, to))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let g = cx.cotangent();
        let mut start = 0;
        let parts = cx.inputs.iter().map(|input| {
            let length = input.shape()[self.axis];
            start += length;
            Some(g.narrow(self.axis as isize, start - length, length))
        });
        parts.collect()
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.concatenate {}, dim = {} : {}", cx.operands(), self.axis, cx.signature())
    }
}

impl Tensor {
    /// Joins tensors along an existing axis (PyTorch's `cat`). They must have one dtype and agree in all other axes.
    #[track_caller]
    pub fn concatenate(tensors: &[&Tensor], axis: isize) -> Tensor {
        let Some(first) = tensors.first() else {
            return Tensor::poison("concatenate", "there is nothing to join: the list of tensors is empty");
        };
        if let Some(poisoned) = tensors.iter().find(|t| t.fault().is_some()) {
            return (*poisoned).clone();
        }
        match first.shape().axis(axis) {
            Ok(axis) => Tensor::apply(Concatenate { axis }, tensors),
            Err(message) => Tensor::poison("concatenate", message),
        }
    }

    /// Joins tensors of one type along a new axis, which becomes axis `axis` of the result.
    #[track_caller]
    pub fn stack(tensors: &[&Tensor], axis: isize) -> Tensor {
        if let Some(poisoned) = tensors.iter().find(|t| t.fault().is_some()) {
            return (*poisoned).clone();
        }
        let Some(first) = tensors.first() else {
            return Tensor::poison("stack", "there is nothing to join: the list of tensors is empty");
        };
        if let Some(i) = tensors.iter().position(|t| t.ty() != first.ty()) {
            let message = format!("tensor {i} is {} and the first is {}: all must agree", tensors[i].ty(), first.ty());
            return Tensor::poison("stack", message);
        }
        let rank = first.rank() as isize;
        if !(-rank - 1..=rank).contains(&axis) {
            return Tensor::poison("stack", format!("{} has no place {axis} for a new axis", first.shape()));
        }
        let mut parts = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            parts.push(tensor.unsqueeze(axis));
        }
        Tensor::concatenate(&parts.iter().collect::<Vec<_>>(), axis)
    }
}
