//! Changing the shape of a tensor without changing its elements.

use fulmen_durable::messages::quantity;

use crate::lower::Lowering;
use crate::operation::{Operation, RecomputePolicy, Vjp, one};
use crate::{Shape, Tensor, TensorType};

/// The product of sizes. It saturates at `usize::MAX`, which every operation rejects.
pub(super) fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1usize, |n, &size| n.saturating_mul(size))
}

/// Resolves sizes to `count` elements in total. One size may be −1.
fn inferred(sizes: &[isize], count: usize) -> Result<Vec<usize>, String> {
    let unknown = sizes.iter().filter(|&&size| size == -1).count();
    if unknown > 1 || sizes.iter().any(|&size| size < -1) {
        return Err(format!("the sizes {sizes:?} must not be negative, except that one may be -1"));
    }
    let known_sizes: Vec<usize> =
        sizes.iter().filter(|&&size| size != -1).map(|&size| size as usize).collect();
    let known = product(&known_sizes);
    let fits = if unknown == 0 { known == count } else { count.checked_rem(known) == Some(0) };
    if !fits {
        return Err(format!("{} cannot become {sizes:?}", quantity(count, "element")));
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
                "{from} has {} and cannot become {}, which has {}",
                quantity(from.num_elements(), "element"),
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
    /// The same elements, in row-major order, in a different shape (NumPy's and PyTorch's
    /// `reshape`). Poisoned if the number of elements differs.
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

    /// Like [`Tensor::reshape`], but one size may be −1, which is inferred from the others
    /// (PyTorch's `view` and `reshape`).
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
            let to = inferred(sizes, shape.num_elements())
                .map_err(|message| format!("{shape}: {message}"))?;
            Ok(self.reshape(to))
        })
    }

    /// Splits one axis into several axes of these sizes (PyTorch's `unflatten`). One size may be
    /// −1, which is inferred from the others.
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
            let parts = inferred(sizes, shape[axis])
                .map_err(|message| format!("axis {axis} of {shape}: {message}"))?;
            Ok(self.reshape([&shape[..axis], &parts, &shape[axis + 1..]].concat()))
        })
    }

    /// Merges the axes from `start` to `end`, inclusive, into one (PyTorch's
    /// `flatten(start_dim, end_dim)`).
    #[track_caller]
    pub fn flatten(&self, start: isize, end: isize) -> Tensor {
        Tensor::record("flatten", || {
            let shape = self.live()?.shape();
            let start = shape.axis(start)?;
            let end = shape.axis(end)?;
            if start > end {
                return Err(format!("the first axis {start} comes after the last, {end}").into());
            }
            let merged = product(&shape[start..=end]);
            Ok(self.reshape([&shape[..start], &[merged], &shape[end + 1..]].concat()))
        })
    }

    /// Inserts an axis of size 1, which becomes axis `axis` of the result; −1 inserts it last
    /// (PyTorch's `unsqueeze`).
    #[track_caller]
    pub fn unsqueeze(&self, axis: isize) -> Tensor {
        Tensor::record("unsqueeze", || {
            self.live()?;
            let mut shape = self.shape().to_vec();
            let position = if axis < 0 { axis + shape.len() as isize + 1 } else { axis };
            if !(0..=shape.len() as isize).contains(&position) {
                return Err(
                    format!("{} has no position {axis} for a new axis", self.shape()).into()
                );
            }
            shape.insert(position as usize, 1);
            Ok(self.reshape(shape))
        })
    }

    /// Removes an axis of size 1 (PyTorch's `squeeze(dim)`). Poisoned if the axis has a different
    /// size.
    #[track_caller]
    pub fn squeeze(&self, axis: isize) -> Tensor {
        Tensor::record("squeeze", || {
            let shape = self.live()?.shape();
            let index = shape.axis(axis)?;
            if shape[index] != 1 {
                return Err(
                    format!("axis {index} of {shape} has size {}, not 1", shape[index]).into()
                );
            }
            Ok(self.reshape([&shape[..index], &shape[index + 1..]].concat()))
        })
    }
}
