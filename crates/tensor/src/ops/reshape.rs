//! The same elements in the same order under another shape.

use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{Shape, Tensor, TensorType};

#[derive(Debug)]
struct Reshape {
    to: Shape,
}

impl Operation for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let from = &inputs[0].shape;
        if from.num_elements() != self.to.num_elements() {
            return Err(format!(
                "{from} has {} elements and cannot become {}, which has {}",
                from.num_elements(),
                self.to,
                self.to.num_elements()
            ));
        }
        one(TensorType::new(inputs[0].dtype, &self.to))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![Some(cx.cotangent().reshape(cx.input(0).shape()))]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.reshape {} : {}", cx.operand(0), cx.signature())
    }
}

impl Tensor {
    /// The same elements, in row-major order, under another shape with as many elements.
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Tensor {
        let to = shape.into();
        if self.fault().is_some() || *self.shape() == to {
            return self.clone();
        }
        Tensor::apply(Reshape { to }, &[self])
    }

    /// Merges the axes from `start` to `end`, both included, into one, as PyTorch's `flatten(start_dim, end_dim)`.
    #[track_caller]
    pub fn flatten(&self, start: isize, end: isize) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        let dims = self.shape();
        match (dims.axis(start), dims.axis(end)) {
            (Ok(start), Ok(end)) if start <= end => {
                let mut to = dims[..start].to_vec();
                to.push(dims[start..=end].iter().product());
                to.extend(&dims[end + 1..]);
                self.reshape(to)
            }
            (Ok(start), Ok(end)) => {
                Tensor::poison("flatten", format!("the first axis {start} comes after the last, {end}"))
            }
            (Err(message), _) | (_, Err(message)) => Tensor::poison("flatten", message),
        }
    }

    /// Adds an axis of size 1 so that it becomes axis `axis` of the result; −1 adds it last.
    #[track_caller]
    pub fn unsqueeze(&self, axis: isize) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        let mut to = self.shape().to_vec();
        let at = if axis < 0 { axis + to.len() as isize + 1 } else { axis };
        if !(0..=to.len() as isize).contains(&at) {
            return Tensor::poison("unsqueeze", format!("{} has no place {axis} for a new axis", self.shape()));
        }
        to.insert(at as usize, 1);
        self.reshape(to)
    }

    /// Removes an axis, which must have size 1.
    #[track_caller]
    pub fn squeeze(&self, axis: isize) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        match self.shape().axis(axis) {
            Ok(at) if self.shape()[at] == 1 => {
                let mut to = self.shape().to_vec();
                to.remove(at);
                self.reshape(to)
            }
            Ok(at) => {
                let message = format!("axis {at} of {} has size {}, not 1", self.shape(), self.shape()[at]);
                Tensor::poison("squeeze", message)
            }
            Err(message) => Tensor::poison("squeeze", message),
        }
    }
}
