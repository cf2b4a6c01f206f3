//! Where gradients flow: which values have a derivative with respect to others. Integers, booleans
//! and operations such as [`detach`](Tensor::detach) end the flow. Each operation says how it flows
//! from its inputs to its results ([`Operation::active_results`](crate::operation::Operation)).

use std::collections::HashSet;
use std::panic::Location;

use crate::as_tensor::as_tensors;
use crate::graph::{ValueId, value_id, visit_where};
use crate::region::Region;
use crate::tensor::{Kind, Node};
use crate::{AsTensor, Tensor};

/// The values that `results` are computed from and that have a derivative with respect to a tensor
/// of `sources`, and those sources that have one themselves.
pub(crate) fn active_values(results: &[Tensor], sources: &[&Tensor]) -> HashSet<ValueId> {
    let mut active: HashSet<ValueId> =
        sources.iter().filter(|t| t.dtype().is_inexact()).map(|t| value_id(t)).collect();
    // A node is newer than its inputs.
    let oldest = active.iter().map(|id| id.0).min().unwrap_or(u64::MAX);
    visit_where(
        results,
        |t| t.node.id >= oldest,
        |node| {
            let Kind::Operation(operation) = &node.kind else { return };
            let inputs = active_inputs(node, &active);
            if !inputs.contains(&true) {
                return;
            }
            let flows = operation.active_results(&inputs, node.outputs.len());
            let outputs = node.outputs.iter().zip(flows).enumerate();
            active.extend(
                outputs
                    .filter(|(_, (ty, flows))| *flows && ty.dtype.is_inexact())
                    .map(|(output, _)| (node.id, output)),
            );
        },
    );
    active
}

/// Whether each input of a node is active.
pub(crate) fn active_inputs(node: &Node, active: &HashSet<ValueId>) -> Vec<bool> {
    node.inputs.iter().map(|t| active.contains(&value_id(t))).collect()
}

impl Region {
    /// Whether each result has a derivative with respect to a parameter for which `active` is
    /// true.
    pub(crate) fn active_results(&self, active: &[bool]) -> Vec<bool> {
        region_results(&self.parameters, &self.results, active)
    }
}

/// Like [`Region::active_results`], for `results` in terms of `parameters`.
fn region_results(parameters: &[Tensor], results: &[Tensor], active: &[bool]) -> Vec<bool> {
    let sources: Vec<&Tensor> =
        parameters.iter().zip(active).filter(|(_, active)| **active).map(|(p, _)| p).collect();
    let values = active_values(results, &sources);
    results.iter().map(|t| values.contains(&value_id(t))).collect()
}

/// Which parameters of a loop's body are active in some step, and which of its results. The first
/// `carries` results are the first parameters of the next step.
pub(crate) fn active_in_loop(
    parameters: &[Tensor],
    results: &[Tensor],
    carries: usize,
    active: &[bool],
) -> (Vec<bool>, Vec<bool>) {
    let mut active = active.to_vec();
    loop {
        let flows = region_results(parameters, results, &active);
        let next = (0..carries).find(|&i| flows[i] && !active[i]);
        match next {
            Some(i) => active[i] = true,
            None => return (active, flows),
        }
    }
}

/// The user's line at which the flow of gradients from `leaves` to `loss` ends: the last operation
/// with an operand that has a derivative with respect to them, and no result that has one. `None`
/// if there is no such operation.
pub fn gradient_end(loss: &Tensor, leaves: &[impl AsTensor]) -> Option<&'static Location<'static>> {
    let results = std::slice::from_ref(loss);
    let active = active_values(results, &as_tensors(leaves));
    let mut end = None;
    visit_where(
        results,
        |_| true,
        |node| {
            let flows = (0..node.outputs.len()).any(|output| active.contains(&(node.id, output)));
            if active_inputs(node, &active).contains(&true) && !flows {
                end = end.max(Some((node.id, node.location)));
            }
        },
    );
    end.map(|(_, location)| location)
}
