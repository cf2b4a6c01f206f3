//! Joining tensors along an axis.

use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{DType, Tensor, TensorType};

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

/// The tensors, none of which is poisoned, in the dtype in which all meet.
#[track_caller]
fn alike(method: &str, tensors: &[&Tensor]) -> Result<Vec<Tensor>, Tensor> {
    let mut dtype = tensors.first().map_or(DType::F32, |t| t.dtype());
    // No closure: what it records would carry its own line, not the caller's.
    for (i, tensor) in tensors.iter().enumerate() {
        dtype = match dtype.promote(tensor.dtype()) {
            Some(dtype) => dtype,
            None => {
                let message = format!(
                    "the dtypes differ: tensor {i} is {} and those before are {dtype}; convert with to_dtype()",
                    tensor.ty()
                );
                return Err(Tensor::poison(method, message));
            }
        };
    }
    let mut parts = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        parts.push(tensor.to_dtype(dtype));
    }
    Ok(parts)
}

impl Tensor {
    /// Joins tensors along an existing axis (PyTorch's `cat`). They must agree in all other axes; different dtypes are
    /// brought to one by [`DType::promote`].
    #[track_caller]
    pub fn concatenate(tensors: &[&Tensor], axis: isize) -> Tensor {
        let Some(first) = tensors.first() else {
            return Tensor::poison("concatenate", "there is nothing to join: the list of tensors is empty");
        };
        if let Some(poisoned) = tensors.iter().find(|t| t.fault().is_some()) {
            return (*poisoned).clone();
        }
        match first.shape().axis(axis) {
            Ok(axis) => match alike("concatenate", tensors) {
                Ok(parts) => Tensor::apply(Concatenate { axis }, &parts.iter().collect::<Vec<_>>()),
                Err(poisoned) => poisoned,
            },
            Err(message) => Tensor::poison("concatenate", message),
        }
    }

    /// Joins tensors of one shape along a new axis, which becomes axis `axis` of the result.
    #[track_caller]
    pub fn stack(tensors: &[&Tensor], axis: isize) -> Tensor {
        if let Some(poisoned) = tensors.iter().find(|t| t.fault().is_some()) {
            return (*poisoned).clone();
        }
        let Some(first) = tensors.first() else {
            return Tensor::poison("stack", "there is nothing to join: the list of tensors is empty");
        };
        if let Some(i) = tensors.iter().position(|t| t.shape() != first.shape()) {
            let message =
                format!("tensor {i} is {} and the first is {}: their shapes must agree", tensors[i].ty(), first.ty());
            return Tensor::poison("stack", message);
        }
        let rank = first.rank() as isize;
        if !(-rank - 1..=rank).contains(&axis) {
            return Tensor::poison("stack", format!("{} has no place {axis} for a new axis", first.shape()));
        }
        let tensors = match alike("stack", tensors) {
            Ok(tensors) => tensors,
            Err(poisoned) => return poisoned,
        };
        let mut parts = Vec::with_capacity(tensors.len());
        for tensor in &tensors {
            parts.push(tensor.unsqueeze(axis));
        }
        Tensor::concatenate(&parts.iter().collect::<Vec<_>>(), axis)
    }
}
