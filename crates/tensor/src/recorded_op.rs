//! [`RecordedOp`]: one recorded value of a [`Function`](crate::Function), for tools that analyze a
//! program before it runs.

use std::collections::HashMap;
use std::panic::Location;

use crate::axis_order::inverse;
use crate::graph::{Calls, Constants, Graph};
use crate::hash::IdMap;
use crate::operation::{Contents, Operation};
use crate::ops::broadcast::BroadcastInDim;
use crate::ops::convolution::ConvolutionOp;
use crate::ops::dot::DotGeneral;
use crate::ops::elementwise::is_elementwise;
use crate::ops::reduce::Reduce;
use crate::ops::sharding::result_sharding;
use crate::ops::transpose::Transpose;
use crate::tensor::Kind;
use crate::{Result, Sharding, Tensor, TensorType};

/// One operation, parameter or constant of a recorded program.
#[derive(Clone, Debug)]
pub struct RecordedOp {
    /// The method that recorded the operation; `None` for parameters and for values that the
    /// expression holds.
    pub operation: Option<&'static str>,
    /// The index of a parameter, of the function or of the body.
    pub parameter: Option<usize>,
    /// The name of a parameter of the function.
    pub name: Option<String>,
    /// The operands, in the same list.
    pub operands: Vec<RecordedValue>,
    /// The types of the results.
    pub types: Vec<TensorType>,
    /// The line that recorded it.
    pub location: &'static Location<'static>,
    /// Whether each element of the result depends only on the operands' elements at its position.
    pub is_elementwise: bool,
    /// For each operand, the axis of the result that each of its axes becomes. Empty if the operation
    /// does not say so.
    pub result_axes: Vec<Vec<Option<usize>>>,
    /// The floating-point operations of a product of matrices or a convolution on one device; those
    /// with padding count. 0 for other operations.
    pub product_flops: f64,
    /// The sharding that the operation gives its result.
    pub sharding: Option<Sharding>,
    /// The bodies of a loop or of branches. The operations of a call or a checkpoint are in the list
    /// itself.
    pub bodies: Vec<RecordedBody>,
}

/// One result of a [`RecordedOp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordedValue {
    /// The index of the operation in its list.
    pub op: usize,
    /// Which of the operation's results.
    pub output: usize,
}

/// One run of the body of a loop or a branch.
#[derive(Clone, Debug)]
pub struct RecordedBody {
    /// The values of the body, as in [`Function::recorded`](crate::Function::recorded).
    pub ops: Vec<RecordedOp>,
    /// For each parameter of the body, the index of the operation's operand. A scan passes slices of
    /// its xs, whose type differs from the operand's.
    pub operands: Vec<usize>,
    /// The value of each of the operation's results. A scan stacks its ys, so the type of the
    /// operation's result differs. Empty for the condition of a loop.
    pub results: Vec<RecordedValue>,
}

/// Lists the values that `results` are computed from, each once, operands before users, in the order
/// in which they were recorded.
pub(crate) fn inspect(parameters: &[Tensor], results: &[Tensor]) -> Result<Vec<RecordedOp>> {
    Ok(list(parameters, results)?.0)
}

/// The values that `results` are computed from, and the results among them.
fn list(
    parameters: &[Tensor],
    results: &[Tensor],
) -> Result<(Vec<RecordedOp>, Vec<RecordedValue>)> {
    let graph = Graph::new(results, Constants::InText, Calls::Inlined)?;
    let indices: IdMap<usize> =
        parameters.iter().enumerate().map(|(index, p)| (p.node.id, index)).collect();
    // A node is newer than its inputs, except in a body that replaces a call.
    let mut recorded_at: Vec<u64> = Vec::new();
    for instruction in &graph.instructions {
        let operands = instruction.operands.iter().map(|value| recorded_at[value.instruction]);
        recorded_at.push(operands.fold(instruction.id, u64::max));
    }
    let mut order: Vec<usize> = (0..graph.instructions.len()).collect();
    order.sort_by_key(|&i| recorded_at[i]);
    let positions: HashMap<usize, usize> = order.iter().enumerate().map(|(p, &i)| (i, p)).collect();
    let value =
        |v: &crate::graph::Value| RecordedValue { op: positions[&v.instruction], output: v.output };
    let mut ops = Vec::with_capacity(order.len());
    for &i in &order {
        let instruction = &graph.instructions[i];
        let operation = match &instruction.kind {
            Kind::Operation(operation) => Some(operation),
            _ => None,
        };
        let types: Vec<&TensorType> = instruction.operands.iter().map(|&v| graph.ty(v)).collect();
        let mut bodies = Vec::new();
        let run = match operation.map(|operation| operation.contents()) {
            Some(Contents::Run(bodies)) => bodies,
            _ => Vec::new(),
        };
        for body in run {
            let (ops, results) = list(&body.region.parameters, &body.results)?;
            bodies.push(RecordedBody {
                ops,
                operands: body.operands,
                results: if body.is_condition { Vec::new() } else { results },
            });
        }
        ops.push(RecordedOp {
            operation: operation.map(|operation| operation.name()),
            parameter: indices.get(&instruction.id).copied(),
            name: match &instruction.kind {
                Kind::Placeholder { name } => Some(name.clone()),
                _ => None,
            },
            operands: instruction.operands.iter().map(value).collect(),
            types: instruction.outputs.clone(),
            location: instruction.location,
            is_elementwise: operation.is_some_and(|operation| is_elementwise(operation.as_ref())),
            result_axes: operation
                .map_or(Vec::new(), |operation| result_axes(operation.as_ref(), &types)),
            product_flops: operation.map_or(0.0, |operation| {
                product_flops(operation.as_ref(), &types, &instruction.outputs)
            }),
            sharding: operation.and_then(|operation| result_sharding(operation.as_ref())),
            bodies,
        });
    }
    Ok((ops, graph.results.iter().map(value).collect()))
}

/// Two operations for each element of the result and each of the terms that it sums.
fn product_flops(operation: &dyn Operation, inputs: &[&TensorType], outputs: &[TensorType]) -> f64 {
    let [left, right] = inputs else { return 0.0 };
    let terms: usize = if let Some(product) = operation.downcast::<DotGeneral>() {
        product.lhs_contracting.iter().map(|&axis| left.shape[axis]).product()
    } else if let Some(convolution) = operation.downcast::<ConvolutionOp>() {
        let kernels = right.shape[convolution.rhs.first].max(1);
        right.shape.num_elements() / kernels
    } else {
        return 0.0;
    };
    2.0 * outputs.iter().map(|ty| ty.shape.num_elements() as f64).sum::<f64>() * terms as f64
}

/// For each operand, the axis of the result that each of its axes becomes; `None` for an axis that
/// the result does not have. Empty for operations whose axes have no such relation.
fn result_axes(operation: &dyn Operation, inputs: &[&TensorType]) -> Vec<Vec<Option<usize>>> {
    if let Some(broadcast) = operation.downcast::<BroadcastInDim>() {
        vec![broadcast.axes.iter().map(|&axis| Some(axis)).collect()]
    } else if let Some(transpose) = operation.downcast::<Transpose>() {
        vec![inverse(&transpose.permutation).into_iter().map(Some).collect()]
    } else if let Some(reduce) = operation.downcast::<Reduce>() {
        reduce.result_axes(inputs)
    } else if let Some(product) = operation.downcast::<DotGeneral>() {
        product.result_axes(inputs)
    } else {
        Vec::new()
    }
}
