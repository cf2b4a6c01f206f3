//! Makes a [`Region`] of an expression, and finds the tensors that it takes from outside.

use std::collections::{HashMap, HashSet};

use super::{Region, parameters};
use crate::Tensor;
use crate::graph::{ValueId, dependents, replay, value_id};
use crate::hash::IdSet;
use crate::operation::RecomputePolicy;
use crate::tensor::Kind;

impl Region {
    /// Makes a region of `results`, computed from `parameters`. Returns it with the captured
    /// tensors, for which the region has additional parameters. Values that do not depend on
    /// `parameters` stay outside, so that a loop computes them once. The exceptions are views and
    /// constants recorded since [`next_id`](crate::tensor::next_id) was `start`.
    pub(crate) fn close(
        operation: &'static str,
        start: u64,
        parameters: Vec<Tensor>,
        results: &[Tensor],
    ) -> (Region, Vec<Tensor>) {
        let inside = dependents(results, &parameters.iter().collect::<Vec<_>>());
        let captures =
            frontier(results, |t| inside.contains(&t.node.id), |t| can_recompute(start, t));
        cut(operation, parameters, captures, results, HashMap::new())
    }

    /// Like [`Region::close`], but everything recorded since `start` is inside, so that a branch
    /// that is not taken computes nothing.
    pub(crate) fn close_since(
        operation: &'static str,
        start: u64,
        parameters: Vec<Tensor>,
        results: &[Tensor],
    ) -> (Region, Vec<Tensor>) {
        let own: IdSet = parameters.iter().map(|t| t.node.id).collect();
        let captures = frontier(
            results,
            |t| own.contains(&t.node.id) || is_computed_since(start, t),
            |t| can_recompute(start, t),
        );
        cut(operation, parameters, captures, results, HashMap::new())
    }

    /// Makes a region of `results`, computed from `parameters` and `captures`. A parameter replaces
    /// each capture.
    pub(crate) fn cut(
        operation: &'static str,
        parameters: Vec<Tensor>,
        captures: Vec<Tensor>,
        results: &[Tensor],
    ) -> Region {
        cut(operation, parameters, captures, results, HashMap::new()).0
    }

    /// Makes a region of everything recorded since [`next_id`](crate::tensor::next_id) was `start`.
    /// Returns it with the tensors that its parameters replace: `inputs`, then other tensors
    /// recorded before `start`. Shards that were gathered before are gathered inside, so that the
    /// whole value need not be kept.
    pub(crate) fn since(
        operation: &'static str,
        start: u64,
        inputs: &[&Tensor],
        results: &[Tensor],
    ) -> (Region, Vec<Tensor>) {
        let input_ids: HashSet<ValueId> = inputs.iter().map(|t| value_id(t)).collect();
        let mut captures = frontier(
            results,
            |t| {
                let is_input = input_ids.contains(&value_id(t));
                !is_input && (is_computed_since(start, t) || t.gathered_from().is_some())
            },
            |t| can_recompute(start, t),
        );
        captures.retain(|t| !input_ids.contains(&value_id(t)));
        let parameters = parameters(operation, "input", inputs.iter().map(|t| t.ty()));
        let replacements =
            inputs.iter().zip(&parameters).map(|(t, p)| (value_id(t), p.clone())).collect();
        let (region, captures) = cut(operation, parameters, captures, results, replacements);
        (region, inputs.iter().map(|&t| t.clone()).chain(captures).collect())
    }
}

/// Makes a region with `parameters`, and with an additional parameter for each capture.
fn cut(
    operation: &'static str,
    mut parameters: Vec<Tensor>,
    captures: Vec<Tensor>,
    results: &[Tensor],
    mut replacements: HashMap<ValueId, Tensor>,
) -> (Region, Vec<Tensor>) {
    for capture in &captures {
        let parameter = Tensor::parameter(operation, "a value from outside", capture.ty().clone());
        replacements.insert(value_id(capture), parameter.clone());
        parameters.push(parameter);
    }
    (Region { parameters, results: replay(results, &replacements) }, captures)
}

/// Whether a tensor was computed since `start`. Leaves always come from outside.
fn is_computed_since(start: u64, t: &Tensor) -> bool {
    t.node.id >= start && matches!(t.node.kind, Kind::Operation(_))
}

/// Whether a body may compute a view or a constant again: it was recorded in the body, or has no
/// gradient. The user may request the gradient of a tensor that was recorded before.
fn can_recompute(start: u64, t: &Tensor) -> bool {
    t.node.id >= start || !t.dtype().is_inexact()
}

/// The tensors outside a region that the region uses. `inside` says which tensors are inside.
/// Constants, values computed only from constants, and views count as inside as well if `recompute`
/// returns true.
pub(crate) fn frontier(
    results: &[Tensor],
    inside: impl Fn(&Tensor) -> bool,
    recompute: impl Fn(&Tensor) -> bool,
) -> Vec<Tensor> {
    let mut frontier = Vec::new();
    let mut visited: HashSet<ValueId> = HashSet::new();
    let mut pending: Vec<&Tensor> = results.iter().rev().collect();
    while let Some(t) = pending.pop() {
        if !visited.insert(value_id(t)) {
            continue;
        }
        let view = || matches!(&t.node.kind, Kind::Operation(o) if o.recompute_policy() == RecomputePolicy::Always);
        if inside(t) || ((t.node.constant || view()) && recompute(t)) {
            pending.extend(t.node.inputs.iter().rev());
        } else {
            frontier.push(t.clone());
        }
    }
    frontier
}
