//! The same elements in the same order under another shape.

use crate::lower::Lowering;
use crate::operation::{Operation, RecomputePolicy, Vjp, one};
use crate::{Shape, Tensor, TensorType};

/// The product of sizes; the largest number where it leaves `usize`, which no operation takes.
pub(super) fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1usize, |n, &size| n.saturating_mul(size))
}

/// Sizes; one may be −1 and is then chosen so that there are `count` elements.
fn inferred(sizes: &[isize], count: usize) -> Result<Vec<usize>, String> {
    let unknown = sizes.iter().filter(|&&size| size == -1).count();
    if unknown > 1 || sizes.iter().any(|&size| size < -1) {
        return Err(format!("the sizes {sizes:?} must not be negative, except that one may be -1"));
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
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::Always
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.reshape {} : {}", cx.operand(0), cx.signature())
    }
}

impl Tensor {
    /// The same elements, in row-major order, under another shape with as many elements.
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Tensor {
        Tensor::record("reshape", || {
            let to = shape.into();
            if *self.live()?.shape() == to {
                return Ok(self.clone());
            }
            Tensor::try_apply(Reshape { to }, &[self])
        })
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
        Tensor::record("view", || {
            let shape = self.live()?.shape();
            let to = inferred(sizes, shape.num_elements()).map_err(|message| format!("{shape}: {message}"))?;
            Ok(self.reshape(to))
        })
    }

    /// Splits one axis into several of these sizes. One may be −1: it is what the others leave (PyTorch's
    /// `unflatten`).
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let heads = Tensor::zeros(DType::F32, [8, 12, 64]).unflatten(-1, &[4, -1]);
    /// assert_eq!(heads.ty().to_string(), "f32[8, 12, 4, 16]");
    /// ```
    #[track_caller]
    pub fn unflatten(&self, axis: isize, sizes: &[isize]) -> Tensor {
        Tensor::record("unflatten", || {
            let shape = self.live()?.shape();
            let axis = shape.axis(axis)?;
            let parts = inferred(sizes, shape[axis]).map_err(|message| format!("axis {axis} of {shape}: {message}"))?;
            Ok(self.reshape([&shape[..axis], &parts, &shape[axis + 1..]].concat()))
        })
    }

    /// Merges the axes from `start` to `end`, both included, into one, as PyTorch's `flatten(start_dim, end_dim)`.
    #[track_caller]
    pub fn flatten(&self, start: isize, end: isize) -> Tensor {
        Tensor::record("flatten", || {
            let shape = self.live()?.shape();
            let (start, end) = (shape.axis(start)?, shape.axis(end)?);
            if start > end {
                return Err(format!("the first axis {start} comes after the last, {end}").into());
            }
            let merged = product(&shape[start..=end]);
            Ok(self.reshape([&shape[..start], &[merged], &shape[end + 1..]].concat()))
        })
    }

    /// Adds an axis of size 1 so that it becomes axis `axis` of the result; −1 adds it last.
    #[track_caller]
    pub fn unsqueeze(&self, axis: isize) -> Tensor {
        Tensor::record("unsqueeze", || {
            self.live()?;
            let mut to = self.shape().to_vec();
            let at = if axis < 0 { axis + to.len() as isize + 1 } else { axis };
            if !(0..=to.len() as isize).contains(&at) {
                return Err(format!("{} has no position {axis} for a new axis", self.shape()).into());
            }
            to.insert(at as usize, 1);
            Ok(self.reshape(to))
        })
    }

    /// Removes an axis, which must have size 1.
    #[track_caller]
    pub fn squeeze(&self, axis: isize) -> Tensor {
        Tensor::record("squeeze", || {
            let shape = self.live()?.shape();
            let at = shape.axis(axis)?;
            if shape[at] != 1 {
                return Err(format!("axis {at} of {shape} has size {}, not 1", shape[at]).into());
            }
            Ok(self.reshape([&shape[..at], &shape[at + 1..]].concat()))
        })
    }
}
