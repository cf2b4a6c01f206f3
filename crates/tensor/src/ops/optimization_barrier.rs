//! A barrier against compiler optimizations.

use crate::as_tensor::as_tensors;
use crate::lower::Lowering;
use crate::operation::{Operation, RecomputePolicy, Vjp};
use crate::tensor::all_live;
use crate::{AsTensor, Tensor, TensorType};

#[derive(Debug)]
struct OptimizationBarrier;

impl Operation for OptimizationBarrier {
    fn name(&self) -> &'static str {
        "optimization_barrier"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(inputs.iter().map(|&ty| ty.clone()).collect())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let cotangents: Vec<&Tensor> = cx.cotangents.iter().flatten().collect();
        let mut after = Tensor::optimization_barrier(&cotangents).into_iter();
        cx.cotangents
            .iter()
            .map(|cotangent| cotangent.as_ref().and_then(|_| after.next()))
            .collect()
    }
    fn active_results(&self, active: &[bool], _: usize) -> Vec<bool> {
        active.to_vec()
    }
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::Never
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        lower(cx)
    }
}

/// A barrier that gradients do not pass: the cotangents are those of the operands.
#[derive(Debug)]
pub(crate) struct ComputedAfter {
    /// Whether a program may do without the barrier.
    pub(crate) is_hint: bool,
}

impl Operation for ComputedAfter {
    fn name(&self) -> &'static str {
        "computed_after"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        OptimizationBarrier.infer(inputs)
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        cx.cotangents.to_vec()
    }
    fn active_results(&self, active: &[bool], _: usize) -> Vec<bool> {
        active.to_vec()
    }
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::Never
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        lower(cx)
    }
}

fn lower(cx: &Lowering<'_>) -> String {
    let types: Vec<_> = cx.results().iter().map(TensorType::stablehlo).collect();
    format!("stablehlo.optimization_barrier {} : {}", cx.operands(), types.join(", "))
}

/// Returns the same `tensors`. What depends on them is computed after `earlier`. Gradients do not
/// wait.
pub(crate) fn computed_after(tensors: &[&Tensor], earlier: &Tensor) -> Vec<Tensor> {
    with_barrier(ComputedAfter { is_hint: false }, tensors, earlier)
}

/// Like [`computed_after`] for one tensor, in the programs in which it helps.
pub(super) fn hint_computed_after(tensor: &Tensor, earlier: &Tensor) -> Tensor {
    with_barrier(ComputedAfter { is_hint: true }, &[tensor], earlier).remove(0)
}

fn with_barrier(barrier: ComputedAfter, tensors: &[&Tensor], earlier: &Tensor) -> Vec<Tensor> {
    let operands = [tensors, &[earlier]].concat();
    let mut results = Tensor::apply_all(barrier, &operands);
    results.truncate(tensors.len());
    results
}

/// Returns the same `tensors` behind a barrier, for the derivative of an extreme, which compares
/// elements with it.
///
/// XLA computes an elementwise operand again in each loop that reads it, and the loops may round it
/// differently, with and without a fused multiply-add. Then no element equals the extreme that
/// another loop found. The barrier keeps XLA from changing the shape of one loop only. XLA's CPU
/// compiler removes it before it fuses loops, so a reduction may still compute the operand itself:
/// where one comparison decides, such as for an index, do without equality.
pub(super) fn computed_once(tensors: &[&Tensor]) -> Vec<Tensor> {
    Tensor::apply_all(OptimizationBarrier, tensors)
}

impl Tensor {
    /// Returns the same values behind a barrier (JAX's `lax.optimization_barrier`). The compiler
    /// computes all the values before it uses any of the results, and does not know that a result
    /// equals another value. Gradients pass through a separate barrier.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::scalar(1.5f32);
    /// let n = Tensor::scalar(2i32);
    /// let both = Tensor::optimization_barrier(&[&x, &n]);
    /// assert_eq!(both[1].eval()?.to_vec::<i32>()?, [2]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn optimization_barrier(tensors: &[impl AsTensor]) -> Vec<Tensor> {
        Tensor::record_many("optimization_barrier", tensors.len(), || {
            let tensors = as_tensors(tensors);
            all_live(tensors.iter().copied())?;
            if tensors.is_empty() {
                return Ok(Vec::new());
            }
            Ok(Tensor::apply_all(OptimizationBarrier, &tensors))
        })
    }
}
