//! [`Region`]: an expression of its own within an operation, the body of a loop or a branch.
//!
//! A region is closed: everything in it is computed from its parameters and from constants. What a user's closure takes
//! from outside becomes one more parameter, and one more input of the operation, so that nothing that walks an expression
//! needs to look into bodies. How a body is written into a program is in `emit.rs`, its derivative with each
//! operation.

use std::collections::{HashMap, HashSet};

use crate::graph::{ValueId, dependents, replay, value_id};
use crate::hash::IdSet;
use crate::operation::RecomputePolicy;
use crate::tensor::Kind;
use crate::{Tensor, TensorType};

/// A closed expression with parameters.
#[derive(Clone)]
pub(crate) struct Region {
    /// Leaves of their own, of the kind [`Kind::Parameter`].
    pub(crate) parameters: Vec<Tensor>,
    /// None of them poisoned.
    pub(crate) results: Vec<Tensor>,
}

/// A parameter for each of these types, named as `what` and its number.
pub(crate) fn parameters<'a>(
    of: &'static str,
    what: &str,
    types: impl IntoIterator<Item = &'a TensorType>,
) -> Vec<Tensor> {
    let mut parameters = vec![];
    for (i, ty) in types.into_iter().enumerate() {
        parameters.push(Tensor::parameter(of, format!("{what} {i}"), ty.clone()));
    }
    parameters
}

impl Region {
    /// The region of `results`, computed from `parameters`, and the tensors from outside that `results` use: what its
    /// parameters after the given ones stand for. What does not depend on the parameters is outside, so that a loop
    /// computes it once; views and constants that were recorded since [`next_id`](crate::tensor::next_id) was `start` are
    /// not.
    pub(crate) fn close(
        of: &'static str,
        start: u64,
        parameters: Vec<Tensor>,
        results: &[Tensor],
    ) -> (Region, Vec<Tensor>) {
        let inside = dependents(results, &parameters.iter().collect::<Vec<_>>());
        let captures = frontier(results, |t| inside.contains(&t.node.id), |t| is_own(start, t));
        cut(of, parameters, captures, results, HashMap::new())
    }

    /// As [`Region::close`], but all that was recorded since `start` is inside, so that a branch that is not taken computes nothing.
    pub(crate) fn close_since(
        of: &'static str,
        start: u64,
        parameters: Vec<Tensor>,
        results: &[Tensor],
    ) -> (Region, Vec<Tensor>) {
        let own: IdSet = parameters.iter().map(|t| t.node.id).collect();
        let captures = frontier(results, |t| own.contains(&t.node.id) || is_since(start, t), |t| is_own(start, t));
        cut(of, parameters, captures, results, HashMap::new())
    }

    /// The region of `results`, which are computed from `parameters` and `captures`; a parameter comes in place of each
    /// capture.
    pub(crate) fn cut(of: &'static str, parameters: Vec<Tensor>, captures: Vec<Tensor>, results: &[Tensor]) -> Region {
        cut(of, parameters, captures, results, HashMap::new()).0
    }

    /// The region of what was recorded since [`next_id`](crate::tensor::next_id) was `start`, and what its parameters
    /// stand for: `inputs`, and then what else is used of what was there before.
    pub(crate) fn since(of: &'static str, start: u64, inputs: &[&Tensor], results: &[Tensor]) -> (Region, Vec<Tensor>) {
        let given: HashSet<ValueId> = inputs.iter().map(|t| value_id(t)).collect();
        let mut captures = frontier(results, |t| is_since(start, t), |t| is_own(start, t));
        captures.retain(|t| !given.contains(&value_id(t)));
        let parameters = parameters(of, "input", inputs.iter().map(|t| t.ty()));
        let with = inputs.iter().zip(&parameters).map(|(t, p)| (value_id(t), p.clone())).collect();
        let (region, captures) = cut(of, parameters, captures, results, with);
        (region, inputs.iter().map(|&t| t.clone()).chain(captures).collect())
    }
}

/// A region whose parameters after the given ones stand for `captures`.
fn cut(
    of: &'static str,
    mut parameters: Vec<Tensor>,
    captures: Vec<Tensor>,
    results: &[Tensor],
    mut with: HashMap<ValueId, Tensor>,
) -> (Region, Vec<Tensor>) {
    for capture in &captures {
        let parameter = Tensor::parameter(of, "a value from outside", capture.ty().clone());
        with.insert(value_id(capture), parameter.clone());
        parameters.push(parameter);
    }
    (Region { parameters, results: replay(results, &with) }, captures)
}

/// Whether a tensor was computed since `start`. A value that is given has to come from outside in any case.
fn is_since(start: u64, t: &Tensor) -> bool {
    t.node.id >= start && matches!(t.node.kind, Kind::Operation(_))
}

/// Whether the gradient of a tensor in a body can no longer be asked for, as a view or a constant: it was
/// recorded in the body, or has none. What was recorded before, a user may hold.
fn is_own(start: u64, t: &Tensor) -> bool {
    t.node.id >= start || !t.dtype().is_float()
}

/// Where an expression is to be cut so that what is `inside` is on one side: the tensors that this uses and that are not
/// inside. Constants, what is computed from constants alone, and other views of a tensor count as inside where `again`
/// agrees.
pub(crate) fn frontier(
    results: &[Tensor],
    inside: impl Fn(&Tensor) -> bool,
    again: impl Fn(&Tensor) -> bool,
) -> Vec<Tensor> {
    let mut frontier = vec![];
    let mut seen: HashSet<ValueId> = HashSet::new();
    let mut pending: Vec<&Tensor> = results.iter().rev().collect();
    while let Some(t) = pending.pop() {
        if !seen.insert(value_id(t)) {
            continue;
        }
        let view = || matches!(&t.node.kind, Kind::Operation(o) if o.recompute_policy() == RecomputePolicy::Always);
        if inside(t) || ((t.node.constant || view()) && again(t)) {
            pending.extend(t.node.inputs.iter().rev());
        } else {
            frontier.push(t.clone());
        }
    }
    frontier
}
