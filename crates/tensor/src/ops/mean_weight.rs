//! The weight of a mean: what a loss was divided by. It travels with the loss, so that means over
//! several batches can be joined exactly.
//!
//! A tensor with a weight is the same value in a program. Only code that records, such as the
//! Trainer, reads the weight.

use std::collections::HashSet;
use std::fmt;
use std::panic::Location;

use crate::graph::{Calls, Constants, Graph, ValueId, value_id};
use crate::lower::Lowering;
use crate::operation::{Contents, Operation, RecomputePolicy, Vjp, one};
use crate::region::{Region, parameters};
use crate::scope::{Refusal, Scope};
use crate::tensor::Kind;
use crate::{Tensor, TensorType};

/// The identity, with the weight of its operand.
struct WithWeight {
    /// Not an operand: the value does not depend on it.
    weight: Tensor,
    body: Region,
}

impl Operation for WithWeight {
    fn name(&self) -> &'static str {
        "with_weight"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(inputs[0].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![Some(cx.cotangent())]
    }
    fn recompute_policy(&self) -> RecomputePolicy {
        RecomputePolicy::Always
    }
    fn contents(&self) -> Contents<'_> {
        Contents::Inlined(&self.body)
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        // Never called: a program contains the operand instead.
        format!("stablehlo.reshape {} : {}", cx.operand(0), cx.signature())
    }
}

impl fmt::Debug for WithWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "with the weight {:?}", value_id(&self.weight))
    }
}

/// A weight, and the line of the mean that it belongs to.
#[derive(Clone, Debug)]
pub struct MeanWeight {
    /// A real scalar.
    pub weight: Tensor,
    /// The line that recorded the mean.
    pub location: &'static Location<'static>,
}

/// The same value, which brings the weight that it has among the means of other batches. Both are
/// real scalars.
///
/// # Errors
/// A poisoned tensor, or one that is not a real scalar.
#[track_caller]
pub fn with_mean_weight(mean: &Tensor, weight: &Tensor) -> Result<Tensor, Refusal> {
    let _scope = Scope::open();
    let ty = mean.live()?.ty();
    let weight_ty = weight.live()?.ty();
    let is_real = |ty: &TensorType| ty.shape.rank() == 0 && !ty.dtype.is_complex();
    if !is_real(ty) || !ty.dtype.is_float() || !is_real(weight_ty) {
        return Err(format!(
            "needs a floating-point scalar and its weight, a real scalar, but they are {ty} and {weight_ty}"
        )
        .into());
    }
    let parameters = parameters("with_weight", "mean", [ty]);
    let body = Region { results: parameters.clone(), parameters };
    Tensor::try_apply(WithWeight { weight: weight.clone(), body }, &[mean])
}

/// The weights of the means that a scalar is a linear function of. Equal weights are listed once.
/// The list is empty if the scalar is not such a function, or if its means have no weights.
pub fn mean_weights(scalar: &Tensor) -> Vec<MeanWeight> {
    let mut weights: Vec<MeanWeight> = Vec::new();
    for found in weights_of(scalar) {
        if !weights.iter().any(|known| is_equal(&known.weight, &found.weight)) {
            weights.push(found);
        }
    }
    weights
}

/// Like [`mean_weights`], with each weight as often as it is found.
fn weights_of(scalar: &Tensor) -> Vec<MeanWeight> {
    let mut weights = Vec::new();
    let mut visited: HashSet<ValueId> = HashSet::new();
    let mut pending = vec![scalar];
    while let Some(t) = pending.pop() {
        let Kind::Operation(operation) = &t.node.kind else { continue };
        if t.shape().num_elements() != 1 && !is_list(t) || !visited.insert(value_id(t)) {
            continue;
        }
        if let Some(WithWeight { weight, .. }) = operation.downcast() {
            weights.push(MeanWeight { weight: weight.clone(), location: t.node.location });
        } else if let Some(body) = operation.body() {
            let operands: Vec<_> = body.parameters.iter().zip(&t.node.inputs).collect();
            let inside = weights_of(&body.results[t.output]).into_iter();
            weights.extend(inside.map(|found| MeanWeight {
                weight: found.weight.substitute(&operands),
                location: found.location,
            }));
        } else {
            pending.extend(linear_operands(operation.name(), t));
        }
    }
    weights
}

/// The operands that this result of an operation is a linear function of.
fn linear_operands<'a>(operation: &str, result: &'a Tensor) -> &'a [Tensor] {
    let inputs = &result.node.inputs[..];
    match operation {
        "add" | "sub" | "concatenate" => inputs,
        // A square is not linear.
        "mul" if !inputs[0].is(&inputs[1]) => inputs,
        "div" | "neg" | "to_dtype" | "detach" | "reshape" | "broadcast_to" | "with_sharding"
        | "sum" | "mean" => &inputs[..1],
        "select" => &inputs[1..],
        "optimization_barrier" | "computed_after" => &inputs[result.output..=result.output],
        _ => &[],
    }
}

/// Whether a tensor lists scalars, such as the losses of several tasks.
fn is_list(t: &Tensor) -> bool {
    let is_scalar = |input: &Tensor| input.shape().num_elements() == 1;
    matches!(&t.node.kind, Kind::Operation(operation) if operation.name() == "concatenate")
        && t.node.inputs.iter().all(is_scalar)
}

/// Whether two tensors are computed in the same way from the same values.
fn is_equal(a: &Tensor, b: &Tensor) -> bool {
    let both = [a.clone(), b.clone()];
    let graph = Graph::new(&both, Constants::InText, Calls::Inlined);
    a.is(b) || graph.is_ok_and(|graph| graph.results[0] == graph.results[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Function, call, checkpoint, grad};

    fn vector() -> Tensor {
        Tensor::placeholder("x", TensorType::new(DType::F32, [4]))
    }

    /// The mean of the positive elements, with their number.
    fn mean(x: &Tensor) -> Tensor {
        let count = x.gt(0.0).to_dtype(DType::F32).sum_all();
        with_mean_weight(&(x.relu().sum_all() / &count), &count).unwrap()
    }

    #[test]
    fn a_weight_is_not_in_the_program() {
        let program = |is_weighted: bool| {
            let ty = vector().ty().clone();
            let function = Function::trace("f", ty, |x| {
                let mean = x.mean_all();
                let weight = x.sum_all();
                let mean =
                    if is_weighted { with_mean_weight(&mean, &weight).unwrap() } else { mean };
                vec![grad(&mean, &[&x]).remove(0), mean]
            });
            function.stablehlo().unwrap()
        };
        assert_eq!(program(true), program(false));
    }

    #[test]
    fn a_weight_passes_linear_functions_only() {
        let x = vector();
        let y = vector();
        let a = mean(&x);
        let b = mean(&y);
        let is_high = a.gt(1.0);
        for (i, (scalar, expected)) in [
            (a.clone(), 1),
            (-(&a * 2.0) / 3.0, 1),
            (a.to_dtype(DType::F64).detach().reshape([1]).sum_all(), 1),
            (Tensor::stack(&[&a, &a], 0).mean_all(), 1),
            (is_high.select(&a, &a.zeros_like()), 1),
            (&a + y.square().mean_all(), 1),
            // The same weight, recorded twice.
            (&a - mean(&x), 1),
            (&a + &b, 2),
            (a.exp(), 0),
            (&a * &a, 0),
            (1.0 / &a, 0),
            ((&x - &a).mean_all(), 0),
            (x.mean_all(), 0),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(mean_weights(&scalar).len(), expected, "{i}");
        }
    }

    #[test]
    fn a_weight_leaves_the_body_in_which_it_was_computed() {
        let x = Tensor::from_slice(&[1.0f32, -1.0, 2.0, 3.0], [4]);
        let bodies = [
            call("mean", &x * 2.0, |x| (x.clone(), mean(&x))).1,
            checkpoint(|x| mean(&x) * 0.5, &x * 2.0),
        ];
        for scalar in bodies {
            let weights = mean_weights(&scalar);
            assert_eq!(weights[0].weight.eval().unwrap().to_f64(), [3.0], "{scalar:?}");
        }
    }
}
