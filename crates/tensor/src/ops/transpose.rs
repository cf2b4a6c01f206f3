//! Reordering axes.

use crate::lower::Lowering;
use crate::operation::{Operation, Repeated, Vjp, one};
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
    fn repeated(&self) -> Repeated {
        Repeated::Always
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

    /// Moves axis `from[i]` to the place `to[i]` of the result; the others keep their order (PyTorch's `movedim`, NumPy's
    /// `moveaxis`).
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let images = Tensor::zeros(DType::F32, [8, 32, 48, 3]).movedim(&[-1], &[1]);
    /// assert_eq!(images.ty().to_string(), "f32[8, 3, 32, 48]");
    /// ```
    #[track_caller]
    pub fn movedim(&self, from: &[isize], to: &[isize]) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        let shape = self.shape();
        // Each axis is named at most once on either side.
        let named = |axes: &[isize]| {
            shape.axes(axes)?;
            axes.iter().map(|&axis| shape.axis(axis)).collect::<Result<Vec<usize>, String>>()
        };
        let (from, to) = match (named(from), named(to)) {
            (Ok(from), Ok(to)) if from.len() == to.len() => (from, to),
            (Ok(_), Ok(_)) => {
                return Tensor::poison("movedim", format!("{from:?} and {to:?} are not equally many axes"));
            }
            (Err(message), _) | (_, Err(message)) => return Tensor::poison("movedim", message),
        };
        let mut rest = (0..self.rank()).filter(|axis| !from.contains(axis));
        let permutation = (0..self.rank()).filter_map(|place| match to.iter().position(|&t| t == place) {
            Some(i) => Some(from[i]),
            None => rest.next(),
        });
        let permutation = permutation.collect();
        self.permuted(permutation)
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
