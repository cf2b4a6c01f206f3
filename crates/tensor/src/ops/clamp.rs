//! Limiting elements to a range.

use super::binary::{Operand, broadcast_both};
use super::dtype_set::DTypeSet;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{Tensor, TensorType};

/// The operands are in StableHLO's order: lower bound, value, upper bound. All have one type.
#[derive(Debug)]
pub(super) struct Clamp;

impl Operation for Clamp {
    fn name(&self) -> &'static str {
        "clamp"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(inputs[1].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let min = cx.input(0);
        let x = cx.input(1);
        let max = cx.input(2);
        let g = cx.cotangent();
        let zeros = g.zeros_like();
        let below = min.gt(x).and(min.lt(max));
        vec![
            Some(below.select(&g, &zeros)),
            Some(min.lt(x).and(x.lt(max)).select(&g, &zeros)),
            Some(max.lt(x).select(&g, &zeros)),
        ]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!("stablehlo.clamp {} : {}", cx.operands(), cx.result().stablehlo())
    }
}

impl Tensor {
    /// `min(max(x, low), high)`, elementwise. The bounds are numbers, or tensors that broadcast
    /// with `x`. NaN stays NaN. The gradient flows to `x` where it is strictly between the bounds,
    /// and to a bound where `x` lies beyond it. At a tie neither gets a gradient, as in JAX.
    ///
    /// For a single bound, use [`Tensor::maximum`] or [`Tensor::minimum`].
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[-3.0f32, 0.5, 3.0], [3]);
    /// assert_eq!(x.clamp(-1.0, 1.0).eval()?.to_vec::<f32>()?, [-1.0, 0.5, 1.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn clamp(&self, low: impl Operand, high: impl Operand) -> Tensor {
        Tensor::record("clamp", || {
            let low = low.to_tensor_like(self);
            let high = high.to_tensor_like(self);
            let (low, high) = broadcast_both(&low, &high)?;
            let (x, low) = broadcast_both(self, &low)?;
            DTypeSet::Numbers.check(x.dtype())?;
            let high = high.to_dtype(x.dtype()).broadcast_to(x.shape());
            Tensor::try_apply(Clamp, &[&low, &x, &high])
        })
    }
}
