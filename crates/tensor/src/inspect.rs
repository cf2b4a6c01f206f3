//! What a [`Function`](crate::Function) recorded, value by value, for tools that judge a program before it runs.

use std::panic::Location;

use crate::graph::{Calls, Constants, Graph};
use crate::hash::IdMap;
use crate::tensor::Kind;
use crate::{Result, Tensor, TensorType};

/// One operation, parameter or constant value of a recorded program.
#[derive(Clone, Debug)]
pub struct RecordedOp {
    /// The method that recorded it; `None` for what is given: parameters and values that the expression holds.
    pub operation: Option<&'static str>,
    /// For a parameter, its number.
    pub parameter: Option<usize>,
    /// For a parameter, its name.
    pub name: Option<String>,
    /// What it is computed from, as indices into the same list.
    pub operands: Vec<usize>,
    /// What it gives.
    pub types: Vec<TensorType>,
    /// The line that recorded it.
    pub location: &'static Location<'static>,
}

/// Lists what `results` are computed from, each value once, operands before users.
pub(crate) fn inspect(parameters: &[Tensor], results: &[Tensor]) -> Result<Vec<RecordedOp>> {
    let graph = Graph::new(results, Constants::InText, Calls::Inlined)?;
    let numbers: IdMap<usize> = parameters.iter().enumerate().map(|(number, p)| (p.node.id, number)).collect();
    let recorded = graph.instructions.iter().map(|instruction| {
        let node = &instruction.node;
        RecordedOp {
            operation: match &node.kind {
                Kind::Operation(operation) => Some(operation.name()),
                _ => None,
            },
            parameter: numbers.get(&node.id).copied(),
            name: match &node.kind {
                Kind::Placeholder { name } => Some(name.clone()),
                _ => None,
            },
            operands: instruction.operands.iter().map(|value| value.instruction).collect(),
            types: node.outputs.clone(),
            location: node.location,
        }
    });
    Ok(recorded.collect())
}
