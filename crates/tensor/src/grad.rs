//! Reverse-mode differentiation, from graph to graph. Each operation's file has its derivative.

use crate::as_tensor::as_tensors;
use crate::gradient_flow::{active_inputs, active_values};
use crate::hash::IdMap;
use crate::operation::Vjp;
use crate::scope::{Refusal, Scope};
use crate::tensor::{Kind, all_live};
use crate::{AsTensor, Fault, Tensor, autocast, graph};

/// The gradients of the scalar `loss` with respect to each tensor of `wrt`, as expressions with the
/// types of `wrt`.
///
/// The gradient is zero for a tensor that `loss` does not depend on. Gradients can be
/// differentiated again.
///
/// The gradient with respect to a complex `z = x + iy` is `∂loss/∂x − i·∂loss/∂y`, as in JAX.
/// PyTorch returns its conjugate, the direction of steepest ascent.
///
/// All gradients are poisoned if `loss` is not a floating-point scalar, if a tensor of `wrt` holds
/// integers or booleans, or if an operation between them has no derivative.
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
pub fn grad(loss: impl AsTensor, wrt: &[impl AsTensor]) -> Vec<Tensor> {
    let _scope = Scope::open();
    let wrt = as_tensors(wrt);
    let gradients = gradients(loss, &wrt).into_iter().zip(&wrt);
    gradients.map(|(gradient, t)| gradient.unwrap_or_else(|| t.zeros_like())).collect()
}

/// Like [`grad`], but `None` for a tensor with respect to which `loss` has no derivative.
#[track_caller]
pub fn gradients(loss: impl AsTensor, wrt: &[impl AsTensor]) -> Vec<Option<Tensor>> {
    let _scope = Scope::open();
    let wrt = as_tensors(wrt);
    let differentiate = || -> Result<_, Refusal> {
        let loss = loss.as_tensor();
        all_live(std::iter::once(loss).chain(wrt.iter().copied()))?;
        if loss.rank() != 0 || !loss.dtype().is_float() {
            return Err(format!(
                "the loss must be a floating-point scalar, but it is {}; reduce it with mean_all() or sum_all()",
                loss.ty()
            )
            .into());
        }
        if let Some(t) = wrt.iter().find(|t| !t.dtype().is_inexact()) {
            return Err(
                format!("there is no gradient with respect to a tensor of {}", t.ty()).into()
            );
        }
        Ok(cotangents(&[(loss.clone(), loss.ones_like())], &wrt, true)?)
    };
    differentiate()
        .unwrap_or_else(|refusal| vec![Some(Tensor::refused("grad", refusal)); wrt.len()])
}

/// Computes the cotangents of `wrt` from the cotangents of `results`, within the body of an
/// operation. `None` for a tensor that no result depends on.
///
/// # Errors
/// An operation between them has no derivative.
pub(crate) fn vjp(
    results: &[(Tensor, Tensor)],
    wrt: &[&Tensor],
) -> Result<Vec<Option<Tensor>>, Fault> {
    cotangents(results, wrt, false)
}

/// [`vjp`], within a body or not.
fn cotangents(
    results: &[(Tensor, Tensor)],
    wrt: &[&Tensor],
    keeps_activations: bool,
) -> Result<Vec<Option<Tensor>>, Fault> {
    // Only nodes between `wrt` and the results take part. A node is newer than its inputs.
    let mut order = Vec::new();
    let oldest = wrt.iter().map(|t| t.node.id).min().unwrap_or(u64::MAX);
    let ends: Vec<Tensor> = results.iter().map(|(result, _)| result.clone()).collect();
    let active = active_values(&ends, wrt);
    graph::visit_where(
        &ends,
        |t| t.node.id >= oldest,
        |node| {
            if (0..node.outputs.len()).any(|output| active.contains(&(node.id, output))) {
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
        let needed = active_inputs(node, &active);
        if !needed.contains(&true) {
            continue;
        }
        // Keep the cotangent in the map, because a node of `wrt` may have inputs that take part as
        // well.
        let Some(node_cotangents) = cotangents.get(&node.id).cloned() else { continue };
        let outputs: Vec<Tensor> =
            (0..node.outputs.len()).map(|output| Tensor { node: node.clone(), output }).collect();
        let vjp = Vjp {
            inputs: &node.inputs,
            outputs: &outputs,
            cotangents: &node_cotangents,
            needed: &needed,
            keeps_activations,
        };
        // Autocast is off: the forward operands are already converted, and conversions have their
        // own derivatives.
        let _scope = Scope::at(node.location);
        let input_cotangents = autocast(None, || operation.vjp(&vjp));
        for ((input, cotangent), needed) in node.inputs.iter().zip(input_cotangents).zip(&needed) {
            // An unneeded cotangent may be poisoned.
            let Some(cotangent) = cotangent.filter(|_| *needed) else { continue };
            cotangent.live()?;
            debug_assert_eq!(input.ty(), cotangent.ty(), "vjp of {}", operation.name());
            accumulate(&mut cotangents, input, cotangent);
        }
    }
    let cotangent_of =
        |t: &&Tensor| cotangents.get(&t.node.id).and_then(|outputs| outputs[t.output].clone());
    Ok(wrt.iter().map(cotangent_of).collect())
}

fn accumulate(cotangents: &mut IdMap<Vec<Option<Tensor>>>, tensor: &Tensor, cotangent: Tensor) {
    let outputs =
        cotangents.entry(tensor.node.id).or_insert_with(|| vec![None; tensor.node.outputs.len()]);
    let slot = &mut outputs[tensor.output];
    *slot = Some(match slot.take() {
        Some(sum) => &sum + &cotangent,
        None => cotangent,
    });
}

/// Calls `f` on `inputs`. Returns its scalar result and the gradients with respect to each input,
/// as expressions.
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
pub fn value_and_grad(
    f: impl FnOnce(&[Tensor]) -> Tensor,
    inputs: &[impl AsTensor],
) -> (Tensor, Vec<Tensor>) {
    let inputs: Vec<Tensor> = inputs.iter().map(|input| input.as_tensor().clone()).collect();
    let value = f(&inputs);
    let gradients = grad(&value, &inputs);
    (value, gradients)
}
