//! The operation behind [`cond`](super::cond()) and [`switch`](super::switch()): one of several bodies runs.

use std::fmt;
use std::sync::Arc;

use super::{Body, Derivatives, borrowed, join, no_derivative, types};
use crate::grad::vjp;
use crate::lower::Lowering;
use crate::operation::{Operation, RecomputePolicy, Vjp};
use crate::region::{Region, parameters};
use crate::{DType, Fault, Tensor, TensorType};

/// The bodies, which all give results of the same types.
pub(super) struct Branches {
    pub(super) of: &'static str,
    pub(super) bodies: Vec<Body>,
    derivatives: Derivatives<Derivative>,
}

/// Other branches on the same choice, which give the cotangents of the inputs `wrt`.
struct Derivative {
    branches: Arc<Branches>,
    wrt: Vec<usize>,
    /// What a user's own derivative took from outside of the branches.
    outside: Vec<Tensor>,
}

/// Input 0 says which branch: a bool for two (the first runs on true), or an i32 within bounds.
struct Branch(Arc<Branches>);

impl Branches {
    pub(super) fn new(of: &'static str, bodies: Vec<Body>) -> Arc<Branches> {
        Arc::new(Branches { of, bodies, derivatives: Derivatives::new() })
    }

    /// The results of the branch that input 0 chooses. There is at least one.
    pub(super) fn apply(self: Arc<Branches>, inputs: &[Tensor]) -> Vec<Tensor> {
        Tensor::apply_all(Branch(self), &borrowed(inputs))
    }

    fn results(&self) -> &[Tensor] {
        self.bodies.first().map_or(&[], |body| &body.region.results)
    }

    fn differentiate(&self, cx: &Vjp<'_>) -> Result<Derivative, Fault> {
        let wrt: Vec<usize> = (0..cx.inputs.len()).filter(|&i| cx.needed[i]).collect();
        let given: Vec<usize> = (0..cx.outputs.len())
            .filter(|&o| cx.cotangents[o].is_some() && cx.outputs[o].dtype().is_inexact())
            .collect();
        let (mut bodies, mut outside) = (vec![], vec![]);
        for body in &self.bodies {
            let Region { parameters: own, results } = &body.region;
            let cotangents = parameters(self.of, "cotangent", given.iter().map(|&o| results[o].ty()));
            // What the branch has a parameter for, of what is asked for.
            let place = |i: usize| body.from.iter().position(|&from| from == i);
            let used: Vec<&Tensor> = wrt.iter().filter_map(|&i| place(i)).map(|p| &own[p]).collect();
            let seeds: Vec<_> = given.iter().zip(&cotangents).map(|(&o, c)| (results[o].clone(), c.clone())).collect();
            let mut found = vjp(&seeds, &used)?.into_iter();
            let mut gradients = vec![];
            for &i in &wrt {
                gradients.push(match place(i).and_then(|_| found.next().flatten()) {
                    Some(gradient) => gradient,
                    None => cx.inputs[i].zeros_like(),
                });
            }
            let all = own.iter().chain(&cotangents).cloned().collect();
            let (region, captures) = Region::close(self.of, 0, all, &gradients);
            let mut from = body.from.clone();
            let cotangents = cx.inputs.len()..cx.inputs.len() + given.len();
            let captured = cotangents.end + outside.len()..cotangents.end + outside.len() + captures.len();
            from.extend(cotangents.chain(captured));
            outside.extend(captures);
            bodies.push(Body { region, from });
        }
        Ok(Derivative { branches: Branches::new(self.of, bodies), wrt, outside })
    }
}

impl Operation for Branch {
    fn name(&self) -> &'static str {
        self.0.of
    }
    fn infer(&self, _: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(types(self.0.results()))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let mut cotangents = vec![None; cx.inputs.len()];
        let asked = (cx.outputs.len(), cx.needed.to_vec(), cx.cotangents.iter().map(Option::is_some).collect());
        let derivative = match self.0.derivatives.get(asked, || self.0.differentiate(cx)) {
            Ok(derivative) => derivative,
            Err(fault) => return no_derivative(fault, cx.inputs.len()),
        };
        let mut inputs = cx.inputs.to_vec();
        // Only floats have cotangents that mean anything.
        inputs.extend(cx.cotangents.iter().flatten().filter(|c| c.dtype().is_inexact()).cloned());
        inputs.extend(derivative.outside.iter().cloned());
        let found = derivative.branches.clone().apply(&inputs);
        for (&i, cotangent) in derivative.wrt.iter().zip(found) {
            cotangents[i] = Some(cotangent);
        }
        cotangents
    }
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::Never
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let results: Vec<_> = cx.results().iter().map(TensorType::stablehlo).collect();
        let choice = cx.operand_type(0).clone();
        let end = format!("}}) : ({}) -> ({})", choice.stablehlo(), results.join(", "));
        let last = self.0.bodies.len().saturating_sub(1);
        for (i, body) in self.0.bodies.iter().enumerate() {
            let arguments = body.arguments(|i| cx.operand(i).to_owned());
            let after = if i == last { end.clone() } else { "}, {".to_owned() };
            cx.block(after, |cx| cx.region(&body.region, &arguments));
        }
        let operation = if choice.dtype == DType::Bool { "if" } else { "case" };
        format!("\"stablehlo.{operation}\"({}) ({{", cx.operand(0))
    }
    fn key(&self) -> String {
        format!("{:p}", Arc::as_ptr(&self.0))
    }
}

impl fmt::Debug for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} branches", self.0.of, self.0.bodies.len())
    }
}

/// The branches with what they capture, and the operation's inputs: the choice, the operands, the captures.
pub(super) fn close(
    of: &'static str,
    choice: &Tensor,
    operands: &[&Tensor],
    closed: Vec<(Region, Vec<Tensor>)>,
) -> (Arc<Branches>, Vec<Tensor>) {
    let mut inputs = vec![choice.clone()];
    inputs.extend(operands.iter().map(|&t| t.clone()));
    let bodies = join(&mut inputs, 1, operands.len(), closed);
    (Branches::new(of, bodies), inputs)
}
