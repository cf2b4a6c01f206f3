//! Computations whose intermediate values the backward pass recomputes: [`checkpoint`].

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

/// The recorded expression. Its parameters are the inputs of the operation.
struct Checkpoint(Arc<Region>);

impl Operation for Checkpoint {
    fn name(&self) -> &'static str {
        "checkpoint"
    }
    fn infer(&self, _: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(types(&self.0.results))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let with_cotangent: Vec<usize> = (0..cx.outputs.len())
            .filter(|&o| cx.cotangents[o].is_some() && cx.outputs[o].dtype().is_inexact())
            .collect();
        // The barrier keeps the compiler from reusing values of the forward pass. The cotangents
        // pass through it too. Without that, values would be recomputed before they are needed, and
        // a surrounding scan would keep them.
        let mut before: Vec<&Tensor> = cx.inputs.iter().collect();
        before.extend(with_cotangent.iter().filter_map(|&o| cx.cotangents[o].as_ref()));
        let after = Tensor::optimization_barrier(&before);
        let (inputs, cotangents) = after.split_at(cx.inputs.len());
        let substitutes =
            self.0.parameters.iter().map(value_id).zip(inputs.iter().cloned()).collect();
        let recomputed = replay(&self.0.results, &substitutes);
        let seeds: Vec<_> = with_cotangent
            .iter()
            .zip(cotangents)
            .map(|(&o, c)| (recomputed[o].clone(), c.clone()))
            .collect();
        let wrt: Vec<usize> = (0..inputs.len()).filter(|&i| cx.needed[i]).collect();
        let mut gradients_of_inputs = vec![None; inputs.len()];
        match vjp(&seeds, &wrt.iter().map(|&i| &inputs[i]).collect::<Vec<_>>()) {
            Ok(gradients) => {
                for (i, gradient) in wrt.into_iter().zip(gradients) {
                    gradients_of_inputs[i] = gradient;
                }
                gradients_of_inputs
            }
            Err(fault) => no_derivative(fault, gradients_of_inputs.len()),
        }
    }
    fn inlined_body(&self) -> Option<&Region> {
        Some(&self.0)
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        // Never called: a program contains the body instead.
        format!("stablehlo.optimization_barrier {} : {}", cx.operands(), cx.result().stablehlo())
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checkpoint {:p}", Arc::as_ptr(&self.0))
    }
}

/// Computes `f(inputs)` and keeps only the inputs, and the tensors that `f` uses from outside, for
/// the backward pass. The backward pass recomputes the values in between (PyTorch's
/// `torch.utils.checkpoint`, JAX's `jax.checkpoint`). Values and gradients are the same. A training
/// step takes about a third more time, and a model of many such blocks needs a fraction of the
/// memory.
///
/// `f` is called once, with the inputs. It may set [`Variable`](crate::Variable)s, which get the
/// values of the forward pass.
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
