//! Loops whose number of steps depends on values: [`while_loop`].

use std::fmt;
use std::sync::Arc;

use fulmen_durable::messages::quantity;

use super::carry::Carry;
use super::{Body, borrowed, join, types};
use crate::gradient_flow::active_in_loop;
use crate::lower::Lowering;
use crate::operation::{Contents, Operation, RecomputePolicy, Vjp};
use crate::region::{Region, parameters};
use crate::scope::Scope;
use crate::tensor::{all_live, next_id};
use crate::{DType, IntoTree, Tensor, TensorType, Tree};

/// The inputs are the carry, then the tensors that the condition and the body capture.
struct While {
    condition: Body,
    body: Body,
}

/// The operation: the loop without its inputs.
struct WhileLoop(Arc<While>);

impl Operation for WhileLoop {
    fn name(&self) -> &'static str {
        "while_loop"
    }
    fn infer(&self, _: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(types(&self.0.body.region.results))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let message = "a loop with a condition has no derivative, because its number of steps is not known in \
                       advance; use scan(), or fori_loop() with host integers as bounds";
        vec![Some(Tensor::poison("while_loop", message)); cx.inputs.len()]
    }
    fn active_results(&self, active: &[bool], count: usize) -> Vec<bool> {
        let Body { region, .. } = &self.0.body;
        let active = self.0.body.active(active);
        active_in_loop(&region.parameters, &region.results, count, &active).1
    }
    fn contents(&self) -> Contents<'_> {
        let mut condition = self.0.condition.run();
        condition.is_condition = true;
        Contents::Run(vec![condition, self.0.body.run()])
    }
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::Never
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let carries = cx.results().len();
        let names: Vec<String> = (0..carries).map(|_| cx.fresh()).collect();
        let bindings: Vec<_> =
            (0..carries).map(|i| format!("{} = {}", names[i], cx.operand(i))).collect();
        let types: Vec<_> = cx.results().iter().map(TensorType::stablehlo).collect();
        for (body, after) in [(&self.0.condition, "} do {"), (&self.0.body, "}")] {
            let name = |i: usize| names.get(i).cloned().unwrap_or_else(|| cx.operand(i).to_owned());
            let arguments = body.arguments(name);
            cx.block(after.to_owned(), |cx| cx.region(&body.region, &arguments));
        }
        format!("stablehlo.while({}) : {} cond {{", bindings.join(", "), types.join(", "))
    }
    fn key(&self) -> String {
        format!("{:p}", Arc::as_ptr(&self.0))
    }
}

impl fmt::Debug for WhileLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "while_loop over {}", quantity(self.0.body.region.results.len(), "value"))
    }
}

/// Runs `carry = body(carry)` while `cond(carry)` is true, starting with `init`, and returns the
/// last carry (JAX's `lax.while_loop`). The loop runs on the device; the number of steps may depend
/// on values.
///
/// The carry is any [`Tree`](trait@crate::Tree). Both closures are called once, with symbolic
/// tensors. `cond` returns a bool scalar; `body` returns a carry of the same types. Both may use
/// tensors from outside.
///
/// The loop has no derivative: a gradient through it is poisoned; see [`grad`](crate::grad()).
/// Poisoned if the condition is not a bool scalar, or if the types of the carry change.
///
/// ```
/// use fulmen_tensor::{Tensor, while_loop};
///
/// let n = Tensor::scalar(27i32);
/// let (_, steps) = while_loop(
///     (n, Tensor::scalar(0i32)),
///     |(n, _)| n.ne(1.0),
///     |(n, steps)| {
///         let odd = n.and(1.0).eq(1.0);
///         (odd.select(&n * 3.0 + 1.0, &n / 2.0), steps + 1.0)
///     },
/// );
/// assert_eq!(steps.eval()?.to_vec::<i32>()?, [111]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn while_loop<C: IntoTree>(
    init: C,
    cond: impl FnOnce(C::Tree) -> Tensor,
    body: impl FnOnce(C::Tree) -> C::Tree,
) -> C::Tree {
    let init = init.into_tree();
    let first = Carry::of(&init);
    let last = Tensor::record_many("while_loop", first.tensors.len(), || {
        all_live(&first.tensors)?;
        if first.tensors.is_empty() {
            return Ok(Vec::new());
        }
        let types = || first.tensors.iter().map(Tensor::ty);
        let start = next_id();
        let before = parameters("while_loop", "carry", types());
        let condition = Scope::outside(|| cond(init.unflatten(before.iter().cloned())));
        if condition.live()?.dtype() != DType::Bool || condition.rank() != 0 {
            let ty = condition.ty();
            return Err(format!(
                "the condition must be a bool scalar, not {ty}; reduce it with all() or any()"
            )
            .into());
        }
        let carry = parameters("while_loop", "carry", types());
        let next = Scope::outside(|| body(init.unflatten(carry.iter().cloned())));
        let next = Carry::of(&next);
        all_live(&next.tensors)?;
        first.same(&next)?;
        let mut closed =
            vec![Region::close("while_loop", start, before, std::slice::from_ref(&condition))];
        closed.push(Region::close("while_loop", start, carry, &next.tensors));
        let mut inputs = first.tensors.clone();
        let mut bodies = join(&mut inputs, 0, first.tensors.len(), closed).into_iter();
        let (Some(condition), Some(body)) = (bodies.next(), bodies.next()) else {
            return Ok(Vec::new());
        };
        Ok(Tensor::apply_all(WhileLoop(Arc::new(While { condition, body })), &borrowed(&inputs)))
    });
    init.unflatten(last)
}
