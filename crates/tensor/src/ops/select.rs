//! Elementwise selection between two tensors.

use super::binary::broadcast_both;
use crate::lower::Lowering;
use crate::operation::{Operation, RecomputePolicy, Vjp, one};
use crate::{DType, Operand, Tensor, TensorType};

#[derive(Debug)]
struct Select;

impl Operation for Select {
    fn name(&self) -> &'static str {
        "select"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(inputs[1].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let condition = cx.input(0);
        let g = cx.cotangent();
        let zeros = g.zeros_like();
        vec![None, Some(condition.select(&g, &zeros)), Some(condition.select(&zeros, &g))]
    }
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::IfCheap
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!(
            "stablehlo.select {} : {}, {}",
            cx.operands(),
            cx.operand_type(0).stablehlo(),
            cx.result().stablehlo()
        )
    }
}

impl Tensor {
    /// The elements of `on_true` where this boolean tensor is true, else those of `on_false`
    /// (NumPy's and PyTorch's `where`). The three tensors broadcast to one shape. A number takes
    /// the dtype of the tensor on the other side; two numbers give f32. The gradient flows to the
    /// selected elements.
    ///
    /// Poisoned if this tensor is not `bool`, or if shapes or dtypes do not fit.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[-1.0f32, 2.0], [2]);
    /// let y = x.lt(0.0).select(0.0, &x);
    /// assert_eq!(y.eval()?.to_vec::<f32>()?, [0.0, 2.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn select(&self, on_true: impl Operand, on_false: impl Operand) -> Tensor {
        Tensor::record("select", || {
            self.live()?;
            if self.dtype() != DType::Bool {
                return Err(format!(
                    "the condition must be bool, not {}; make one with lt(), eq() or another comparison",
                    self.ty()
                )
                .into());
            }
            let like = on_true.tensor().or(on_false.tensor()).cloned();
            let like = like.unwrap_or_else(|| Tensor::full(DType::F32, [], 0.0));
            let on_true = on_true.to_tensor_like(&like);
            let on_false = on_false.to_tensor_like(&like);
            let (on_true, on_false) = broadcast_both(&on_true, &on_false)?;
            let shape = self.shape().broadcast(on_true.shape())?;
            let condition = self.broadcast_to(&shape);
            Tensor::try_apply(
                Select,
                &[&condition, &on_true.broadcast_to(&shape), &on_false.broadcast_to(&shape)],
            )
        })
    }
}
