//! The operation behind [`cond`](super::cond()) and [`switch`](super::switch()), which runs one of
//! several bodies.

use std::fmt;
use std::sync::Arc;

use fulmen_durable::messages::quantity;

use super::marked_indices::find;
use super::{
    Body, DerivativeKey, Derivatives, borrowed, derivative_inputs, join, no_derivative, types,
};
use crate::grad::vjp;
use crate::index_checks::{IndexCheck, WORDS};
use crate::lower::Lowering;
use crate::operation::{Contents, Operation, RecomputePolicy, Vjp};
use crate::region::{Region, parameters};
use crate::{DType, Fault, Tensor, TensorType};

/// The bodies. All return results of the same types.
pub(super) struct Branches {
    pub(super) method: &'static str,
    pub(super) bodies: Vec<Body>,
    derivatives: Derivatives<Derivative>,
}

/// Branches on the same predicate or index that compute the cotangents of the inputs `wrt`.
struct Derivative {
    branches: Arc<Branches>,
    wrt: Vec<usize>,
    /// Tensors from outside the branches that a user-defined derivative captured.
    outside: Vec<Tensor>,
}

/// Input 0 selects the branch: a bool for two branches, where true runs the first, or an i32 within
/// bounds.
pub(super) struct Branch(Arc<Branches>);

impl Branches {
    pub(super) fn new(method: &'static str, bodies: Vec<Body>) -> Arc<Branches> {
        Arc::new(Branches { method, bodies, derivatives: Derivatives::new() })
    }

    /// The results of the branch that input 0 selects. There is at least one.
    pub(super) fn apply(self: Arc<Branches>, inputs: &[Tensor]) -> Vec<Tensor> {
        Tensor::apply_all(Branch(self), &borrowed(inputs))
    }

    fn results(&self) -> &[Tensor] {
        self.bodies.first().map_or(&[], |body| &body.region.results)
    }

    fn differentiate(&self, cx: &Vjp<'_>) -> Result<Derivative, Fault> {
        let needed: Vec<usize> = (0..cx.inputs.len()).filter(|&i| cx.needed[i]).collect();
        let with_cotangent: Vec<usize> = (0..cx.outputs.len())
            .filter(|&o| cx.cotangents[o].is_some() && cx.outputs[o].dtype().is_inexact())
            .collect();
        let mut differentiated = Vec::new();
        for body in &self.bodies {
            let Region { parameters: own, results } = &body.region;
            let cotangents = parameters(
                self.method,
                "cotangent",
                with_cotangent.iter().map(|&o| results[o].ty()),
            );
            // The parameter of this branch for input `i`, if there is one.
            let parameter_of = |i: usize| body.input_indices.iter().position(|&index| index == i);
            let used: Vec<&Tensor> =
                needed.iter().filter_map(|&i| parameter_of(i)).map(|p| &own[p]).collect();
            let seeds: Vec<_> = with_cotangent
                .iter()
                .zip(&cotangents)
                .map(|(&o, c)| (results[o].clone(), c.clone()))
                .collect();
            let mut cotangents_of_inputs = vjp(&seeds, &used)?.into_iter();
            let gradients: Vec<Option<Tensor>> = needed
                .iter()
                .map(|&i| parameter_of(i).and_then(|_| cotangents_of_inputs.next().flatten()))
                .collect();
            differentiated.push((body, cotangents, gradients));
        }
        let flows: Vec<bool> = (0..needed.len())
            .map(|n| differentiated.iter().any(|(_, _, gradients)| gradients[n].is_some()))
            .collect();
        let chosen = |n: &usize| flows[*n];
        let wrt: Vec<usize> = (0..needed.len()).filter(chosen).map(|n| needed[n]).collect();
        let mut bodies = Vec::new();
        let mut outside = Vec::new();
        for (body, cotangents, gradients) in differentiated {
            let gradients: Vec<Tensor> = (0..needed.len())
                .filter(chosen)
                .map(|n| {
                    let zeros = || cx.inputs[needed[n]].zeros_like();
                    gradients[n].clone().unwrap_or_else(zeros)
                })
                .collect();
            let all = body.region.parameters.iter().chain(&cotangents).cloned().collect();
            let (region, captures) = Region::close(self.method, 0, all, &gradients);
            let mut input_indices = body.input_indices.clone();
            let cotangents = cx.inputs.len()..cx.inputs.len() + with_cotangent.len();
            let captured =
                cotangents.end + outside.len()..cotangents.end + outside.len() + captures.len();
            input_indices.extend(cotangents.chain(captured));
            outside.extend(captures);
            bodies.push(Body { region, input_indices });
        }
        Ok(Derivative { branches: Branches::new(self.method, bodies), wrt, outside })
    }
}

impl Branch {
    /// The checks of all branches: other branches return their words, and zeros for those of a
    /// branch that does not run.
    pub(super) fn index_checks(&self, inputs: &[Tensor]) -> Vec<IndexCheck> {
        let each: Vec<Vec<IndexCheck>> =
            self.0.bodies.iter().map(|body| find(&body.region.results)).collect();
        if each.iter().all(Vec::is_empty) {
            return Vec::new();
        }
        let mut bodies = Vec::new();
        let mut all_inputs = inputs.to_vec();
        for (number, body) in self.0.bodies.iter().enumerate() {
            let mut results = Vec::new();
            for (other, checks) in each.iter().enumerate() {
                let none = || Tensor::zeros(DType::I32, [WORDS]);
                let words =
                    |check: &IndexCheck| if other == number { check.words() } else { none() };
                results.extend(checks.iter().map(words));
            }
            let own = body.region.parameters.clone();
            let (region, captures) = Region::close(self.0.method, 0, own, &results);
            let mut input_indices = body.input_indices.clone();
            input_indices.extend(all_inputs.len()..all_inputs.len() + captures.len());
            all_inputs.extend(captures);
            bodies.push(Body { region, input_indices });
        }
        let words = Branches::new(self.0.method, bodies).apply(&all_inputs);
        each.iter().flatten().zip(words).map(|(check, words)| check.with_words(words)).collect()
    }
}

impl Operation for Branch {
    fn name(&self) -> &'static str {
        self.0.method
    }
    fn infer(&self, _: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(types(self.0.results()))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let mut cotangents = vec![None; cx.inputs.len()];
        let key = DerivativeKey::new(cx);
        let derivative = match self.0.derivatives.get(key, || self.0.differentiate(cx)) {
            Ok(derivative) => derivative,
            Err(fault) => return no_derivative(fault, cx.inputs.len()),
        };
        let inputs = derivative_inputs(cx, &derivative.outside);
        if derivative.wrt.is_empty() {
            return cotangents;
        }
        let results = derivative.branches.clone().apply(&inputs);
        for (&i, cotangent) in derivative.wrt.iter().zip(results) {
            cotangents[i] = Some(cotangent);
        }
        cotangents
    }
    fn active_results(&self, active: &[bool], count: usize) -> Vec<bool> {
        let mut flows = vec![false; count];
        for body in &self.0.bodies {
            let results = body.region.active_results(&body.active(active));
            flows.iter_mut().zip(results).for_each(|(all, one)| *all |= one);
        }
        flows
    }
    fn contents(&self) -> Contents<'_> {
        Contents::Run(self.0.bodies.iter().map(Body::run).collect())
    }
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::Never
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let results: Vec<_> = cx.results().iter().map(TensorType::stablehlo).collect();
        let selector = cx.operand_type(0).clone();
        let end = format!("}}) : ({}) -> ({})", selector.stablehlo(), results.join(", "));
        let last = self.0.bodies.len().saturating_sub(1);
        for (i, body) in self.0.bodies.iter().enumerate() {
            let arguments = body.arguments(|i| cx.operand(i).to_owned());
            let after = if i == last { end.clone() } else { "}, {".to_owned() };
            cx.block(after, |cx| cx.region(&body.region, &arguments));
        }
        let operation = if selector.dtype == DType::Bool { "if" } else { "case" };
        format!("\"stablehlo.{operation}\"({}) ({{", cx.operand(0))
    }
    fn key(&self) -> String {
        format!("{:p}", Arc::as_ptr(&self.0))
    }
}

impl fmt::Debug for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.0.method, quantity(self.0.bodies.len(), "branch"))
    }
}

/// The branches, and the inputs of the operation: the selector, the operands and the captured
/// tensors.
pub(super) fn close(
    method: &'static str,
    selector: &Tensor,
    operands: &[&Tensor],
    closed: Vec<(Region, Vec<Tensor>)>,
) -> (Arc<Branches>, Vec<Tensor>) {
    let mut inputs = vec![selector.clone()];
    inputs.extend(operands.iter().map(|&t| t.clone()));
    let bodies = join(&mut inputs, 1, operands.len(), closed);
    (Branches::new(method, bodies), inputs)
}
