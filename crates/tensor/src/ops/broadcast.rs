//! Broadcasting: repeating a tensor along axes.

use crate::autocast::wide;
use crate::lower::Lowering;
use crate::operation::{Operation, RecomputePolicy, Vjp, one};
use crate::tensor::Kind;
use crate::{AsAxes, Shape, Tensor, TensorType};

#[derive(Debug)]
pub(crate) struct BroadcastInDim {
    pub(crate) to: Shape,
    /// The axis of the result that each axis of the operand becomes.
    pub(crate) axes: Vec<usize>,
}

impl Operation for BroadcastInDim {
    fn name(&self) -> &'static str {
        "broadcast_to"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let from = &inputs[0].shape;
        let to = &self.to;
        let axes = &self.axes;
        let fits = axes.len() == from.rank()
            && axes.windows(2).all(|pair| pair[0] < pair[1])
            && from.iter().zip(axes).all(|(&size, &axis)| {
                to.get(axis).is_some_and(|&target| size == 1 || size == target)
            });
        if !fits {
            return Err(format!("{from} cannot be broadcast to {to} along the axes {axes:?}"));
        }
        one(TensorType::new(inputs[0].dtype, &self.to))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let from = cx.input(0).shape();
        // Sum over the repeated axes: new ones, and those that grew from size 1.
        let repeated: Vec<isize> = (0..self.to.rank())
            .filter(|axis| match self.axes.iter().position(|a| a == axis) {
                Some(i) => from[i] != self.to[*axis],
                None => true,
            })
            .map(|axis| axis as isize)
            .collect();
        vec![Some(sum_to(from, &cx.cotangent(), &repeated))]
    }
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::Always
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!(
            "stablehlo.broadcast_in_dim {}, dims = {:?} : {}",
            cx.operand(0),
            self.axes,
            cx.signature()
        )
    }
}

/// The sum of `x` along `axes`, with this shape. A factor that is equal along these axes multiplies
/// the sum instead of each element: `Σ(g·s) = s·Σg`. The derivative of a normalization then sums its
/// cotangent once for the mean and the bias. A 16-bit sum is rounded only after it is multiplied: it
/// may be too large for its dtype until then.
fn sum_to(shape: &Shape, x: &Tensor, axes: &[isize]) -> Tensor {
    let dtype = x.dtype();
    let mut x = x;
    let mut factors = Vec::new();
    let mut is_negative = false;
    while let Kind::Operation(operation) = &x.node.kind
        && !axes.is_empty()
    {
        x = match (operation.name(), &*x.node.inputs) {
            ("neg", [operand]) => {
                is_negative = !is_negative;
                operand
            }
            ("mul", [a, b]) => {
                let (rest, factor) = match (unrepeated(a, axes), unrepeated(b, axes)) {
                    (_, Some(factor)) => (a, factor),
                    (Some(factor), None) => (b, factor),
                    (None, None) => break,
                };
                factors.push(factor);
                rest
            }
            _ => break,
        };
    }
    let sum = if factors.is_empty() {
        x.sum(axes)
    } else {
        factors.iter().fold(wide(x).sum_keepdim(axes), |sum, factor| sum * wide(factor))
    };
    let sum = if is_negative { -sum } else { sum };
    sum.to_dtype(dtype).reshape(shape)
}

/// `x` with size 1 along `axes`, if it was broadcast along all of them.
fn unrepeated(x: &Tensor, axes: &[isize]) -> Option<Tensor> {
    let Kind::Operation(operation) = &x.node.kind else { return None };
    let operand_axes = &operation.downcast::<BroadcastInDim>()?.axes;
    let operand = &x.node.inputs[0];
    let mut shape = x.shape().to_vec();
    for &axis in axes {
        let axis = axis as usize;
        if operand_axes.iter().zip(&**operand.shape()).any(|(&a, &size)| a == axis && size != 1) {
            return None;
        }
        shape[axis] = 1;
    }
    Some(if *shape == **operand.shape() {
        operand.clone()
    } else {
        operand.broadcast_along(shape, operand_axes)
    })
}

impl Tensor {
    /// Repeats this tensor to `shape` by NumPy's rule: axes are aligned from the last, and axes of
    /// size 1 repeat. The gradient is summed over the repeated axes.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let row = Tensor::from_slice(&[1.0f32, 2.0], [2]);
    /// assert_eq!(row.broadcast_to([3, 2]).eval()?.to_vec::<f32>()?, [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn broadcast_to(&self, shape: impl Into<Shape>) -> Tensor {
        Tensor::record("broadcast_to", || {
            let from = self.live()?.shape();
            let to = shape.into();
            if *from == to {
                return Ok(self.clone());
            }
            let Some(new) = to.rank().checked_sub(from.rank()) else {
                return Err(format!("{from} has more axes than the target {to}").into());
            };
            let axes = (new..to.rank()).collect();
            Tensor::try_apply(BroadcastInDim { to, axes }, &[self])
        })
    }

    /// Like [`Tensor::broadcast_to`], but −1 keeps the size of an existing axis (PyTorch's
    /// `expand`).
    ///
    /// ```
    /// use fulmen_tensor::{DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, [3, 1]).expand(&[8, -1, 4]);
    /// assert_eq!(x.ty().to_string(), "f32[8, 3, 4]");
    /// ```
    #[track_caller]
    pub fn expand(&self, sizes: &[isize]) -> Tensor {
        Tensor::record("expand", || {
            let from = self.live()?.shape();
            let new = sizes.len().saturating_sub(from.rank());
            let size = |(i, &size): (usize, &isize)| match (size, i.checked_sub(new)) {
                (-1, Some(axis)) => from.get(axis).copied(),
                (size, _) => usize::try_from(size).ok(),
            };
            let to = sizes.iter().enumerate().map(size).collect::<Option<Vec<usize>>>().ok_or_else(|| {
                format!(
                    "cannot expand {from} to {sizes:?}: -1 keeps the size of an existing axis, and no other size may \
                     be negative"
                )
            })?;
            Ok(self.broadcast_to(to))
        })
    }

    /// Repeats this tensor to `shape`, where its axis `i` becomes axis `axes[i]` of the result
    /// (StableHLO's `broadcast_in_dim`). `axes` must be increasing.
    #[track_caller]
    pub fn broadcast_in_dim(&self, shape: impl Into<Shape>, axes: impl AsAxes) -> Tensor {
        Tensor::record("broadcast_in_dim", || {
            let to = shape.into();
            let axes = to.indices(axes.as_axes())?;
            Tensor::try_apply(BroadcastInDim { to, axes }, &[self])
        })
    }

    /// [`Tensor::broadcast_in_dim`] with indices of axes.
    pub(crate) fn broadcast_along(&self, shape: impl Into<Shape>, axes: &[usize]) -> Tensor {
        let operation = BroadcastInDim { to: shape.into(), axes: axes.to_vec() };
        Tensor::record("broadcast_in_dim", || Tensor::try_apply(operation, &[self]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Function, grad};

    #[test]
    fn a_normalization_sums_its_cotangent_once() -> crate::Result<()> {
        let images = TensorType::new(DType::F32, [4, 3, 5, 5]);
        let channels = TensorType::new(DType::F32, [1, 3, 1, 1]);
        let types = [&images, &images, &channels, &channels, &channels];
        let function = Function::trace("derivatives", types, |[x, g, mean, scale, bias]| {
            let y = (x - &mean) * scale + &bias;
            grad(&(y * g).sum_all(), &[mean, bias])
        });
        let text = function.stablehlo_for(&crate::Mesh::data(1))?;
        assert_eq!(text.matches("stablehlo.reduce(").count(), 1, "{text}");
        Ok(())
    }

    #[test]
    fn factors_and_signs_stay_in_the_sum() -> crate::Result<()> {
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]);
        let row = Tensor::from_slice(&[10.0f32, 20.0, 30.0], [3]).broadcast_to([2, 3]);
        let column = Tensor::from_slice(&[2.0f32, 3.0], [2, 1]).broadcast_to([2, 3]);
        let product = -(&row * -(&x * &column) * &row);
        for axes in [&[0][..], &[1], &[0, 1], &[]] {
            let plain = product.sum_keepdim(axes);
            let sum = sum_to(plain.shape(), &product, axes);
            assert_eq!(sum.eval()?.to_vec::<f32>()?, plain.eval()?.to_vec::<f32>()?, "{axes:?}");
        }
        Ok(())
    }
}
