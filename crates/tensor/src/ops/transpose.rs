//! Reordering axes.

use crate::axis_order::inverse;
use crate::lower::Lowering;
use crate::operation::{Operation, RecomputePolicy, Vjp, one};
use crate::scope::Refusal;
use crate::{AsAxes, Tensor, TensorType};

#[derive(Debug)]
pub(crate) struct Transpose {
    /// The axis of the operand that becomes each axis of the result.
    pub(crate) permutation: Vec<usize>,
}

impl Operation for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let from = &inputs[0].shape;
        let mut sorted = self.permutation.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..from.rank()) {
            let permutation = &self.permutation;
            let rank = from.rank();
            return Err(format!(
                "{permutation:?} does not name each of the {rank} axes of {from} once"
            ));
        }
        let shape: Vec<usize> = self.permutation.iter().map(|&axis| from[axis]).collect();
        one(TensorType::new(inputs[0].dtype, shape))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![Some(cx.cotangent().permute_axes(inverse(&self.permutation)))]
    }
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::Always
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let permutation = &self.permutation;
        format!(
            "stablehlo.transpose {}, dims = {permutation:?} : {}",
            cx.operand(0),
            cx.signature()
        )
    }
}

impl Tensor {
    /// Permutes the axes: axis `i` of the result is axis `axes[i]` of this tensor (PyTorch's
    /// `permute`). Poisoned unless `axes` names each axis once.
    #[track_caller]
    pub fn permute(&self, axes: impl AsAxes) -> Tensor {
        Tensor::record("permute", || {
            let shape = self.live()?.shape();
            self.try_permute_axes(shape.indices(axes.as_axes())?)
        })
    }

    /// Swaps two axes (PyTorch's `transpose`).
    #[track_caller]
    pub fn transpose(&self, a: isize, b: isize) -> Tensor {
        Tensor::record("transpose", || {
            let shape = self.live()?.shape();
            let mut permutation: Vec<usize> = (0..self.rank()).collect();
            permutation.swap(shape.axis(a)?, shape.axis(b)?);
            self.try_permute_axes(permutation)
        })
    }

    /// Moves axis `from[i]` to position `to[i]` of the result. The other axes keep their order
    /// (PyTorch's `movedim`, NumPy's `moveaxis`).
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let images = Tensor::zeros(DType::F32, [8, 32, 48, 3]).movedim(-1, 1);
    /// assert_eq!(images.ty().to_string(), "f32[8, 3, 32, 48]");
    /// ```
    #[track_caller]
    pub fn movedim(&self, from: impl AsAxes, to: impl AsAxes) -> Tensor {
        Tensor::record("movedim", || {
            let shape = self.live()?.shape();
            // `axes` rejects a list that names an axis twice.
            let checked = |axes: &[isize]| {
                shape.axes(axes)?;
                shape.indices(axes)
            };
            let from = checked(from.as_axes())?;
            let to = checked(to.as_axes())?;
            if from.len() != to.len() {
                return Err(format!(
                    "{from:?} and {to:?} differ in length; pass one target for each axis"
                )
                .into());
            }
            let mut rest = (0..self.rank()).filter(|axis| !from.contains(axis));
            let permutation = (0..self.rank()).filter_map(|position| {
                match to.iter().position(|&t| t == position) {
                    Some(i) => Some(from[i]),
                    None => rest.next(),
                }
            });
            self.try_permute_axes(permutation.collect())
        })
    }

    /// Swaps the last two axes (PyTorch's `mT`). Poisoned if the rank is below 2.
    #[track_caller]
    pub fn t(&self) -> Tensor {
        Tensor::record("t", || {
            if self.live()?.rank() < 2 {
                return Err(format!("{} has fewer than two axes to swap", self.shape()).into());
            }
            Ok(self.transpose(-2, -1))
        })
    }

    /// Permutes the axes. The list names each axis once.
    pub(crate) fn permute_axes(&self, permutation: Vec<usize>) -> Tensor {
        Tensor::record("transpose", || self.try_permute_axes(permutation))
    }

    fn try_permute_axes(&self, permutation: Vec<usize>) -> Result<Tensor, Refusal> {
        if permutation.iter().copied().eq(0..self.rank()) {
            return Ok(self.clone());
        }
        if let Some((parts, shardings)) = self.gathered_from() {
            let [shards, gathered] = shardings.map(|sharding| sharding.permute_axes(&permutation));
            return Ok(parts.permute_axes(permutation).all_gather_to(&shards, &gathered));
        }
        Tensor::try_apply(Transpose { permutation }, &[self])
    }
}
