//! Joining tensors along an axis.

use crate::as_tensor::as_tensors;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::tensor::all_live;
use crate::{AsTensor, DType, Tensor, TensorType};

#[derive(Debug)]
pub(crate) struct Concatenate {
    pub(crate) axis: usize,
}

impl Operation for Concatenate {
    fn name(&self) -> &'static str {
        "concatenate"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let first = inputs[0];
        let mut total = 0usize;
        for (i, input) in inputs.iter().enumerate() {
            let matches = input.dtype == first.dtype
                && input.shape.rank() == first.shape.rank()
                && (0..first.shape.rank())
                    .all(|a| a == self.axis || input.shape[a] == first.shape[a]);
            if !matches {
                return Err(format!(
                    "tensor {i} is {input} and the first is {first}: all but axis {} must agree",
                    self.axis
                ));
            }
            total = total.saturating_add(input.shape[self.axis]);
        }
        let mut shape = first.shape.to_vec();
        shape[self.axis] = total;
        one(TensorType::new(first.dtype, shape))
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

fn first<'a>(tensors: &[&'a Tensor]) -> Result<&'a Tensor, &'static str> {
    tensors.first().copied().ok_or("there is nothing to join: the list of tensors is empty")
}

/// Converts the tensors to their common dtype. None of them is poisoned.
fn to_common_dtype(tensors: &[&Tensor]) -> Result<Vec<Tensor>, String> {
    let mut dtype = tensors.first().map_or(DType::F32, |t| t.dtype());
    for (i, tensor) in tensors.iter().enumerate() {
        dtype = dtype.promote(tensor.dtype()).ok_or_else(|| {
            format!(
                "the dtypes differ: tensor {i} is {} and those before are {dtype}; convert with to_dtype()",
                tensor.ty()
            )
        })?;
    }
    Ok(tensors.iter().map(|t| t.to_dtype(dtype)).collect())
}

impl Tensor {
    /// Joins tensors along an existing axis (PyTorch's `cat`, NumPy's `concatenate`). Their sizes
    /// along all other axes must be equal. Different dtypes are promoted by [`DType::promote`].
    ///
    /// Poisoned if the list is empty, if the sizes differ, or if there is no such axis.
    #[track_caller]
    pub fn concatenate(tensors: &[impl AsTensor], axis: isize) -> Tensor {
        Tensor::record("concatenate", || {
            let tensors = as_tensors(tensors);
            all_live(tensors.iter().copied())?;
            let axis = first(&tensors)?.shape().axis(axis)?;
            let parts = to_common_dtype(&tensors)?;
            Tensor::try_apply(Concatenate { axis }, &parts.iter().collect::<Vec<_>>())
        })
    }

    /// Joins tensors of one shape along a new axis, which becomes axis `axis` of the result
    /// (PyTorch's and NumPy's `stack`).
    ///
    /// Poisoned if the list is empty, if the shapes differ, or if `axis` is out of range.
    #[track_caller]
    pub fn stack(tensors: &[impl AsTensor], axis: isize) -> Tensor {
        Tensor::record("stack", || {
            let tensors = as_tensors(tensors);
            all_live(tensors.iter().copied())?;
            let first = first(&tensors)?;
            if let Some(t) = tensors.iter().position(|t| t.shape() != first.shape()) {
                let other = tensors[t].ty();
                let first = first.ty();
                return Err(format!(
                    "tensor {t} is {other} and the first is {first}: their shapes must agree"
                )
                .into());
            }
            let rank = first.rank() as isize;
            if !(-rank - 1..=rank).contains(&axis) {
                return Err(
                    format!("{} has no position {axis} for a new axis", first.shape()).into()
                );
            }
            let parts: Vec<Tensor> =
                to_common_dtype(&tensors)?.iter().map(|t| t.unsqueeze(axis)).collect();
            Ok(Tensor::concatenate(&parts, axis))
        })
    }
}
