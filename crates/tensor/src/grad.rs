//! Reverse-mode differentiation: a function from graph to graph. The derivative of each operation is in the operation's file.

use crate::hash::{IdMap, IdSet};
use crate::operation::Vjp;
use crate::scope::Scope;
use crate::tensor::{Kind, all_live};
use crate::{AsTensor, Fault, Tensor, autocast, graph};

/// The gradients of the scalar `loss` with respect to each of `wrt`, as expressions with the types of `wrt`.
///
/// A tensor that `loss` does not depend on gets zeros. The results can be differentiated again.
///
/// The gradient with respect to a complex `z = x + iy` is `∂loss/∂x − i·∂loss/∂y`, as in JAX; PyTorch's is its conjugate,
/// which is the direction of steepest ascent.
///
/// Poisoned, all of them, if `loss` is not a floating-point scalar, if one of `wrt` is a tensor of integers or booleans, or
/// if an operation on the way has no derivative.
///
/// ```
/// use fulmen_tensor::{Tensor, grad};
///
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3]);
/// let loss = (&x * &x).sum_all();
/// let [dx] = &grad(&loss, &[&x])[..] else { unreachable!() };
/// assert_eq!(dx.eval()?.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn grad(loss: impl AsTensor, wrt: &[&Tensor]) -> Vec<Tensor> {
    Tensor::record_many("grad", wrt.len(), || {
        let loss = loss.as_tensor();
        all_live(std::iter::once(loss).chain(wrt.iter().copied()))?;
        if loss.rank() != 0 || !loss.dtype().is_float() {
            return Err(format!(
                "the loss must be a floating-point scalar, it is {}; reduce it with mean_all() or sum_all()",
                loss.ty()
            )
            .into());
        }
        if let Some(t) = wrt.iter().find(|t| !t.dtype().is_inexact()) {
            return Err(format!("there is no gradient with respect to a tensor of {}", t.ty()).into());
        }
        let found = vjp(&[(loss.clone(), loss.ones_like())], wrt)?;
        Ok(wrt.iter().zip(found).map(|(t, gradient)| gradient.unwrap_or_else(|| t.zeros_like())).collect())
    })
}

/// The cotangents of `wrt` that follow from those of `results`; `None` for what no result depends on.
///
/// # Errors
/// The fault, when an operation on the way has no derivative.
pub(crate) fn vjp(results: &[(Tensor, Tensor)], wrt: &[&Tensor]) -> Result<Vec<Option<Tensor>>, Fault> {
    // Only nodes between `wrt` and the results take part. Inputs are older than what is computed from them.
    let mut order = vec![];
    let mut active: IdSet = wrt.iter().map(|t| t.node.id).collect();
    let oldest = active.iter().min().copied().unwrap_or(u64::MAX);
    let ends: Vec<Tensor> = results.iter().map(|(result, _)| result.clone()).collect();
    graph::visit_where(
        &ends,
        |t| t.node.id >= oldest,
        |node| {
            if active.contains(&node.id) || node.inputs.iter().any(|t| active.contains(&t.node.id)) {
                active.insert(node.id);
                order.push(node.clone());
            }
        },
    );

    let mut cotangents: IdMap<Vec<Option<Tensor>>> = IdMap::default();
    for (result, cotangent) in results {
        accumulate(&mut cotangents, result, cotangent.clone());
    }
    for node in order.iter().rev() {
        let Kind::Operation(operation) = &node.kind else { continue };
        let needed: Vec<bool> =
            node.inputs.iter().map(|t| active.contains(&t.node.id) && t.dtype().is_inexact()).collect();
        if !needed.contains(&true) {
            continue;
        }
        // A node of `wrt` may have users and inputs alike: its cotangent stays readable after it was passed on.
        let Some(found) = cotangents.get(&node.id).cloned() else { continue };
        let outputs: Vec<Tensor> =
            (0..node.outputs.len()).map(|output| Tensor { node: node.clone(), output }).collect();
        let vjp = Vjp { inputs: &node.inputs, outputs: &outputs, cotangents: &found, needed: &needed };
        // The forward operands have been converted already, and conversions have derivatives of their own.
        let _scope = Scope::at(node.location);
        let given = autocast(None, || operation.vjp(&vjp));
        for ((input, cotangent), needed) in node.inputs.iter().zip(given).zip(&needed) {
            // A derivative that is not needed may not exist.
            let Some(cotangent) = cotangent.filter(|_| *needed) else { continue };
            cotangent.live()?;
            debug_assert_eq!(input.ty(), cotangent.ty(), "vjp of {}", operation.name());
            accumulate(&mut cotangents, input, cotangent);
        }
    }
    let found = |t: &&Tensor| cotangents.get(&t.node.id).and_then(|outputs| outputs[t.output].clone());
    Ok(wrt.iter().map(found).collect())
}

fn accumulate(cotangents: &mut IdMap<Vec<Option<Tensor>>>, to: &Tensor, cotangent: Tensor) {
    let outputs = cotangents.entry(to.node.id).or_insert_with(|| vec![None; to.node.outputs.len()]);
    let slot = &mut outputs[to.output];
    *slot = Some(match slot.take() {
        Some(sum) => &sum + &cotangent,
        None => cotangent,
    });
}

/// Calls `f` on `inputs` and returns its scalar result with the gradients with respect to each input, as expressions.
///
/// ```
/// use fulmen_tensor::{Tensor, value_and_grad};
///
/// let x = Tensor::from_slice(&[3.0f32], [1]);
/// let (value, gradients) = value_and_grad(|x| (&x[0] * &x[0]).sum_all(), &[x]);
/// assert_eq!(value.eval()?.to_vec::<f32>()?, [9.0]);
/// assert_eq!(gradients[0].eval()?.to_vec::<f32>()?, [6.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn value_and_grad(f: impl FnOnce(&[Tensor]) -> Tensor, inputs: &[Tensor]) -> (Tensor, Vec<Tensor>) {
    let value = f(inputs);
    let gradients = grad(&value, &inputs.iter().collect::<Vec<_>>());
    (value, gradients)
}
