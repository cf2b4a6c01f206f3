//! Parts of a computation whose intermediate values the backward pass computes again: [`checkpoint`].

use std::fmt;
use std::sync::Arc;

use super::{borrowed, no_derivative, types};
use crate::grad::vjp;
use crate::graph::{replay, value_id};
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp};
use crate::region::Region;
use crate::scope::Scope;
use crate::tensor::{all_live, next_id};
use crate::{Tensor, TensorType};

/// What was recorded, with what it uses as inputs.
struct Checkpoint(Arc<Region>);

impl Operation for Checkpoint {
    fn name(&self) -> &'static str {
        "checkpoint"
    }
    fn infer(&self, _: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(types(&self.0.results))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let given: Vec<usize> = (0..cx.outputs.len())
            .filter(|&o| cx.cotangents[o].is_some() && cx.outputs[o].dtype().is_inexact())
            .collect();
        // Behind the barrier nothing is known to equal what the forward pass computed. The cotangents go through it as
        // well, so that nothing is computed again before it is needed, nor kept by a scan around this.
        let mut before: Vec<&Tensor> = cx.inputs.iter().collect();
        before.extend(given.iter().filter_map(|&o| cx.cotangents[o].as_ref()));
        let after = Tensor::optimization_barrier(&before);
        let (inputs, cotangents) = after.split_at(cx.inputs.len());
        let with = self.0.parameters.iter().map(value_id).zip(inputs.iter().cloned()).collect();
        let again = replay(&self.0.results, &with);
        let seeds: Vec<_> = given.iter().zip(cotangents).map(|(&o, c)| (again[o].clone(), c.clone())).collect();
        let wrt: Vec<usize> = (0..inputs.len()).filter(|&i| cx.needed[i]).collect();
        let mut found = vec![None; inputs.len()];
        match vjp(&seeds, &wrt.iter().map(|&i| &inputs[i]).collect::<Vec<_>>()) {
            Ok(gradients) => {
                for (i, gradient) in wrt.into_iter().zip(gradients) {
                    found[i] = gradient;
                }
                found
            }
            Err(fault) => no_derivative(fault, found.len()),
        }
    }
    fn inlined(&self) -> Option<&Region> {
        Some(&self.0)
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        // It is never in a list of instructions.
        format!("stablehlo.optimization_barrier {} : {}", cx.operands(), cx.result().stablehlo())
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checkpoint {:p}", Arc::as_ptr(&self.0))
    }
}

/// `f(inputs)`; the backward pass keeps only the inputs, and what `f` uses from outside; what is between it
/// computes again (PyTorch's `torch.utils.checkpoint`, JAX's `jax.checkpoint`). The values and gradients are the same, for
/// about a third more time and, in a model of many such blocks, a fraction of the memory.
///
/// `f` is called once, with the inputs. It may set [`Variable`](crate::Variable)s: their values are of the forward pass.
///
/// ```
/// use fulmen_tensor::{Tensor, checkpoint, grad};
///
/// let x = Tensor::from_slice(&[0.5f32, 1.0], [2]);
/// let y = &checkpoint(|x| vec![x[0].sin().exp()], &[&x])[0];
/// let plain = x.sin().exp();
/// assert_eq!(y.eval()?.to_vec::<f32>()?, plain.eval()?.to_vec::<f32>()?);
/// let (ours, theirs) = (&grad(&y.sum_all(), &[&x])[0], &grad(&plain.sum_all(), &[&x])[0]);
/// assert_eq!(ours.eval()?.to_vec::<f32>()?, theirs.eval()?.to_vec::<f32>()?);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn checkpoint(f: impl FnOnce(&[Tensor]) -> Vec<Tensor>, inputs: &[&Tensor]) -> Vec<Tensor> {
    let _scope = Scope::open();
    let start = next_id();
    let results = Scope::outside(|| f(&super::owned(inputs)));
    if results.is_empty() || all_live(&results).is_err() {
        return results;
    }
    let (region, inputs) = Region::since("checkpoint", start, inputs, &results);
    Tensor::apply_all(Checkpoint(Arc::new(region)), &borrowed(&inputs))
}
