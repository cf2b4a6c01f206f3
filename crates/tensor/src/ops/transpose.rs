//! Reordering axes.

use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{Shape, Tensor, TensorType};

fn names_each_axis(permutation: &[usize], shape: &Shape) -> Result<(), String> {
    let mut sorted = permutation.to_vec();
    sorted.sort_unstable();
    if sorted.iter().copied().eq(0..shape.rank()) {
        return Ok(());
    }
    Err(format!("{permutation:?} does not name each of the {} axes of {shape} once", shape.rank()))
}

#[derive(Debug)]
struct Transpose {
    /// The axis of the operand that becomes each axis of the result.
    permutation: Vec<usize>,
}

impl Operation for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let from = &inputs[0].shape;
        names_each_axis(&self.permutation, from)?;
        let to: Vec<usize> = self.permutation.iter().map(|&axis| from[axis]).collect();
        one(TensorType::new(inputs[0].dtype, to))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let mut inverse = vec![0; self.permutation.len()];
        for (to, &from) in self.permutation.iter().enumerate() {
            inverse[from] = to;
        }
        vec![Some(cx.cotangent().permuted(inverse))]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.transpose {}, dims = {:?} : {}", cx.operand(0), self.permutation, cx.signature())
    }
}

impl Tensor {
    /// The axes in another order: axis `i` of the result is axis `axes[i]` of this tensor (PyTorch's `permute`).
    #[track_caller]
    pub fn permute(&self, axes: &[isize]) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        match axes.iter().map(|&a| self.shape().axis(a)).collect::<Result<Vec<_>, _>>() {
            Ok(permutation) => match names_each_axis(&permutation, self.shape()) {
                Ok(()) => self.permuted(permutation),
                Err(message) => Tensor::poison("permute", message),
            },
            Err(message) => Tensor::poison("permute", message),
        }
    }

    /// Swaps two axes.
    #[track_caller]
    pub fn transpose(&self, a: isize, b: isize) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        match (self.shape().axis(a), self.shape().axis(b)) {
            (Ok(a), Ok(b)) => {
                let mut permutation: Vec<usize> = (0..self.rank()).collect();
                permutation.swap(a, b);
                self.permuted(permutation)
            }
            (Err(message), _) | (_, Err(message)) => Tensor::poison("transpose", message),
        }
    }

    /// Swaps the last two axes; poisoned below rank 2.
    #[track_caller]
    pub fn t(&self) -> Tensor {
        if self.fault().is_none() && self.rank() < 2 {
            return Tensor::poison("t", format!("{} has no two axes to swap", self.shape()));
        }
        self.transpose(-2, -1)
    }

    #[track_caller]
    pub(crate) fn permuted(&self, permutation: Vec<usize>) -> Tensor {
        if permutation.iter().enumerate().all(|(i, &axis)| i == axis) && permutation.len() == self.rank() {
            return self.clone();
        }
        Tensor::apply(Transpose { permutation }, &[self])
    }
}
