//! Computations whose intermediate values the backward pass recomputes: [`checkpoint`].

use std::fmt;
use std::sync::Arc;

use super::{borrowed, no_derivative, types};
use crate::grad::vjp;
use crate::graph::{replay, value_id, visit};
use crate::hash::IdSet;
use crate::lower::Lowering;
use crate::operation::{Contents, Operation, Vjp};
use crate::ops::optimization_barrier::computed_after;
use crate::ops::sharding::AllGather;
use crate::region::Region;
use crate::scope::Scope;
use crate::tensor::{Kind, all_live, next_id};
use crate::{IntoTree, Tensor, TensorType, Tree};

const CHECKPOINT: &str = "checkpoint";

/// The recorded expression. Its parameters are the inputs of the operation.
struct Checkpoint(Arc<Region>);

impl Operation for Checkpoint {
    fn name(&self) -> &'static str {
        CHECKPOINT
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
    fn active_results(&self, active: &[bool], _: usize) -> Vec<bool> {
        self.0.active_results(active)
    }
    fn contents(&self) -> Contents<'_> {
        Contents::Inlined(&self.0)
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
/// `f` is called once, with the inputs: any [`Tree`](trait@crate::Tree). It may set
/// [`Variable`](crate::Variable)s, which get the values of the forward pass.
///
/// ```
/// use fulmen_tensor::{Tensor, checkpoint, grad};
///
/// let x = Tensor::from_slice(&[0.5f32, 1.0], [2]);
/// let y = checkpoint(|x| x.sin().exp(), &x);
/// let plain = x.sin().exp();
/// assert_eq!(y.eval()?.to_vec::<f32>()?, plain.eval()?.to_vec::<f32>()?);
/// let ours = &grad(&y.sum_all(), &[&x])[0];
/// let theirs = &grad(&plain.sum_all(), &[&x])[0];
/// assert_eq!(ours.eval()?.to_vec::<f32>()?, theirs.eval()?.to_vec::<f32>()?);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn checkpoint<I: IntoTree, T: Tree>(f: impl FnOnce(I::Tree) -> T, inputs: I) -> T {
    let _scope = Scope::open();
    let inputs = inputs.into_tree();
    let outside = inputs.flatten();
    let start = next_id();
    let results = Scope::outside(|| f(inputs));
    let results_of_body = results.flatten();
    if results_of_body.is_empty() || all_live(&results_of_body).is_err() {
        return results;
    }
    let (region, mut inputs) =
        Region::since(CHECKPOINT, start, &borrowed(&outside), &results_of_body);
    gather_after_the_previous_block(&region, &mut inputs);
    results.unflatten(Tensor::apply_all(Checkpoint(Arc::new(region)), &borrowed(&inputs)))
}

/// Lets the block gather its sharded inputs only after the input of the previous block is computed.
/// Otherwise the compiler would gather the parameters of all blocks at the start of the step, and
/// keep them. With this, a block's parameters can arrive while the previous block is computed.
fn gather_after_the_previous_block(region: &Region, inputs: &mut [Tensor]) {
    let Some(earlier) = inputs.first().and_then(input_of_checkpoint).cloned() else { return };
    let gathered = gathered_parameters(region);
    let shards: Vec<&Tensor> = gathered.iter().map(|&i| &inputs[i]).collect();
    if shards.is_empty() {
        return;
    }
    let shards = computed_after(&shards, &earlier);
    gathered.into_iter().zip(shards).for_each(|(i, shard)| inputs[i] = shard);
}

/// If a tensor is the result of a [`checkpoint`], the first input of that.
fn input_of_checkpoint(t: &Tensor) -> Option<&Tensor> {
    let Kind::Operation(operation) = &t.node.kind else { return None };
    t.node.inputs.first().filter(|_| operation.name() == CHECKPOINT)
}

/// The parameters of a region that it gathers, perhaps after operations on one operand, such as a
/// conversion.
fn gathered_parameters(region: &Region) -> Vec<usize> {
    let mut gathered = IdSet::default();
    visit(&region.results, |node| {
        if matches!(&node.kind, Kind::Operation(o) if o.downcast::<AllGather>().is_some()) {
            let mut source = node;
            while let [input] = &source.inputs[..] {
                source = &input.node;
            }
            gathered.insert(source.id);
        }
    });
    let parameters = region.parameters.iter().enumerate();
    parameters.filter(|(_, p)| gathered.contains(&p.node.id)).map(|(i, _)| i).collect()
}
