//! The same elements in the same order under another shape.

use crate::lower::Lowering;
use crate::operation::{Operation, Repeated, Vjp, one};
use crate::{Shape, Tensor, TensorType};

/// The product of sizes; the largest number where it leaves `usize`, which no operation takes.
pub(super) fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1usize, |n, &size| n.saturating_mul(size))
}

/// Sizes of which one may be −1: the one that makes up `count` elements.
fn inferred(sizes: &[isize], count: usize) -> Result<Vec<usize>, String> {
    let unknown = sizes.iter().filter(|&&size| size == -1).count();
    if unknown > 1 || sizes.iter().any(|&size| size < -1) {
        return Err(format!("the sizes {sizes:?} must not be negative, but that one may be -1"));
    }
    let known: Vec<usize> = sizes.iter().filter(|&&size| size != -1).map(|&size| size as usize).collect();
    let known = product(&known);
    let fits = if unknown == 0 { known == count } else { count.checked_rem(known) == Some(0) };
    if !fits {
        return Err(format!("{count} elements cannot become {sizes:?}"));
    }
    Ok(sizes.iter().map(|&size| if size == -1 { count / known } else { size as usize }).collect())
}

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
    fn repeated(&self) -> Repeated {
        Repeated::Always
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

    /// As [`Tensor::reshape`], where one size may be −1: it is what the others leave (PyTorch's `view` and `reshape`).
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, [8, 3, 4]);
    /// assert_eq!(x.view(&[8, -1]).ty().to_string(), "f32[8, 12]");
    /// ```
    #[track_caller]
    pub fn view(&self, sizes: &[isize]) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        match inferred(sizes, self.shape().num_elements()) {
            Ok(to) => self.reshape(to),
            Err(message) => Tensor::poison("view", format!("{}: {message}", self.shape())),
        }
    }

    /// Splits one axis into several of these sizes, of which one may be −1: it is what the others leave (PyTorch's
    /// `unflatten`).
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let heads = Tensor::zeros(DType::F32, [8, 12, 64]).unflatten(-1, &[4, -1]);
    /// assert_eq!(heads.ty().to_string(), "f32[8, 12, 4, 16]");
    /// ```
    #[track_caller]
    pub fn unflatten(&self, axis: isize, sizes: &[isize]) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        let axis = match self.shape().axis(axis) {
            Ok(axis) => axis,
            Err(message) => return Tensor::poison("unflatten", message),
        };
        match inferred(sizes, self.shape()[axis]) {
            Ok(parts) => self.reshape([&self.shape()[..axis], &parts, &self.shape()[axis + 1..]].concat()),
            Err(message) => Tensor::poison("unflatten", format!("axis {axis} of {}: {message}", self.shape())),
        }
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
                to.push(product(&dims[start..=end]));
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
